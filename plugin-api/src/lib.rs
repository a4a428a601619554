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
//! opens plugins), `built` (feature `kit`: where tests get their shared objects).
//!
//! A whole backend, exported:
//!
//! ```
//! # #[cfg(feature = "abi")]
//! # mod whole {
//! use std::time::Duration;
//! use umbp_plugin_api::{
//!     Backend, Completion, Host, Info, OpenConfig, OpenError, Opened, Operation, OptionsError, Role, Status, Submitted,
//! };
//!
//! /// Holds nothing: every operation is a miss.
//! struct Nothing {
//!     host: Host,
//! }
//!
//! impl Backend for Nothing {
//!     const INFO: Info = Info {
//!         name: "nothing",
//!         version: "0.1.0",
//!         role: Role::Storage,
//!         mappable: false,
//!         persistent: false,
//!         shared: false,
//!     };
//!
//!     fn check_options(text: &str) -> Result<String, OptionsError> {
//!         if text.trim().is_empty() {
//!             return Ok(String::new());
//!         }
//!         Err(OptionsError { message: "there are no options; remove them".to_owned(), span: 0..text.len() })
//!     }
//!
//!     fn open(config: &OpenConfig, host: Host) -> Result<(Self, Opened), OpenError> {
//!         Self::check_options(&config.options)?;
//!         let report = "holds nothing".to_owned();
//!         Ok((Self { host }, Opened { alignment: 4096, largest_payload: 1 << 26, file_extent: false, report }))
//!     }
//!
//!     unsafe fn region_register(&self, _id: u64, _address: *mut u8, _length: u64, _device: &str) -> Status {
//!         Status::OK
//!     }
//!
//!     fn region_unregister(&self, _id: u64) {}
//!
//!     fn namespace_put(&self, _id: u32, _digest: &[u8; 32], _descriptor: &[u8]) -> Status {
//!         Status::OK
//!     }
//!
//!     fn namespace_drop(&self, _id: u32) {}
//!
//!     fn submit(&self, operations: &[Operation], results: &mut [Submitted]) {
//!         results.fill(Submitted::ACCEPTED);
//!         for operation in operations {
//!             self.host.complete(&[Completion { id: operation.id, status: Status::MISS, ..Default::default() }]);
//!         }
//!     }
//!
//!     fn shutdown(&self, _deadline: Duration) {}
//! }
//!
//! umbp_plugin_api::export_backend!(Nothing);
//! # }
//! ```

#[cfg(feature = "abi")]
pub mod abi;
pub mod backend;
#[cfg(feature = "kit")]
pub mod built;
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
