//! The host's side of the boundary: the only place that opens plugins.
//!
//! [`Plugin::load`] refuses, in words, whatever is no plugin of this API, before any code of the file runs. A loaded
//! library is never closed: its threads, its statics and the texts it lent out may be used until the process ends.
//! What [`Plugin::open`] answers, [`HostedBackend`], never panics and never lets a plugin's panic through.
//!
//! Every call may block as long as the plugin likes (P2 to P10 say which should not): the daemon makes them on the
//! tier's own thread.
//!
//! Modules in reading order: `error` (each refusal, as a sentence), `trust` (owner and mode), `elf` (is the symbol
//! there, without running anything), `services` (the C table for the plugin), `plugin`, `hosted`.

mod elf;
mod error;
mod hosted;
mod plugin;
mod services;
mod trust;

pub use error::{CheckError, HostOpenError, LoadError};
pub use hosted::HostedBackend;
pub use plugin::{Plugin, PluginInfo};
