//! The TOML schema of `umbpd`: raw text in, checked values out.
//!
//! File, environment and flags go through the same checks; every value knows where it came from; an error names key,
//! value, place and remedy, and all errors of a deployment are reported together. This crate holds every default of
//! ours; a backend's own options are kept as text, for the backend to check.
//!
//! What it does not do: it loads no backend, creates no folder, and opens nothing but the config file.
//!
//! Modules in reading order: [`schema`] (every key), [`model`] (the checked form), [`defaults`], [`setting`] (a value
//! and its origin), [`units`], [`error`], [`options`] (a backend's own), then the way from raw to checked:
//! `raw`, `overrides`, `read`, [`check`], `check_tables`; [`print`](mod@print) back to text; [`process`].
//!
//! ```
//! use umbp_config::{Config, HostFacts, Source};
//!
//! // The embedded default, with one value from the environment.
//! let source = Source {
//!     file: None,
//!     variables: vec![("UMBP_TIER__DRAM__CAPACITY".to_owned(), "64MiB".to_owned())],
//!     socket: None,
//!     host: HostFacts { uid: 1000, memory_available: 8 << 30 },
//! };
//! let config = Config::load(&source).map_err(|errors| errors.lines())?;
//! assert_eq!(*config.tiers[0].capacity, 64 << 20);
//! assert!(config.to_toml().contains("# from environment variable UMBP_TIER__DRAM__CAPACITY"));
//! # Ok::<(), String>(())
//! ```

pub mod check;
mod check_tables;
pub mod defaults;
pub mod error;
pub mod model;
pub mod options;
mod overrides;
pub mod print;
pub mod process;
mod raw;
mod read;
pub mod schema;
pub mod setting;
pub mod units;

pub use check::Source;
pub use defaults::{HostFacts, default_socket, plugin_search, state_folder};
pub use error::{ConfigError, ConfigErrors, Problem, Remedy};
pub use model::{Admission, BackendRef, Config, Daemon, Eviction, Limits, Mover, Policy, Promote, Tenant, Tier, Write};
pub use options::Options;
pub use overrides::{SOCKET_FLAG, SOCKET_VARIABLE};
pub use process::{host_facts, memory_available};
pub use setting::{Origin, Place, Setting};
pub use units::Share;
