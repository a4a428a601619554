//! The stable ABI between `umbpd` and its backends.
//!
//! A backend's author implements one safe trait, [`Backend`], and exports it from a thin `cdylib` with one macro.
//! The contract that both sides keep is in `CONTRACT.md`, clauses P1 to P12.
//!
//! It opens no plugin unless the feature `host` is on, knows nothing of tiers, keys' meaning or eviction, and brings no
//! runtime: a backend has its own threads.
//!
//! Modules in reading order: [`types`] (plain structs and numbers that cross the boundary), [`backend`] (what an
//! author implements), [`thread`] (threads whose panic is not lost), [`checksum`] (the one checksum of a block),
//! [`extents`] (free space in a linear area), `abi` (feature `abi`: what a plugin exports), `host` (feature `host`:
//! opens plugins).
//!
//! A whole backend, exported:
//!
//! ```ignore
//! use umbp_plugin_api::{Backend, Host, Info, OpenConfig, OpenError, Opened, Role};
//!
//! struct MyBackend { host: Host }
//!
//! impl Backend for MyBackend {
//!     const INFO: Info = Info { name: "mine", version: env!("CARGO_PKG_VERSION"), role: Role::Storage,
//!                               mappable: false, persistent: false, shared: false };
//!     // check_options, open, region_register, ..., submit, shutdown
//! }
//!
//! umbp_plugin_api::export_backend!(MyBackend);
//! ```

#[cfg(feature = "abi")]
pub mod abi;
pub mod backend;
pub mod checksum;
pub mod extents;
#[cfg(feature = "host")]
pub mod host;
#[cfg(feature = "kit")]
pub mod kit;
pub mod thread;
pub mod types;

pub use backend::{Backend, Host, HostServices, Info, OpenConfig, OpenError, Opened, OptionsError, Role, Segment};
pub use types::{Completion, Operation, Run, Status, Submitted};
