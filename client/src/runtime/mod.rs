//! What connector-core's worker and scheduler run on, over one [`Client`](crate::Client) each: [`WorkerRuntime`] is a
//! [`Runtime`](umbp_connector_core::runtime::Runtime), and [`SchedulerRuntime`] answers lookups.
//!
//! No call waits longer than [`RuntimeOptions::timeout`], and none fails an engine: a daemon that is absent, hung or
//! restarted is misses and failed blocks. The daemon being away is told once for each time ([`Notice`]), for the host
//! to show.
//!
//! Modules in reading order: `options`, `memory` (blocks to runs), `transfer` (jobs of any size, bounded waits),
//! `worker`, `holds` (who still wants a hold), `scheduler`, `notice`.

mod holds;
mod memory;
mod notice;
mod options;
mod scheduler;
mod transfer;
mod worker;

pub use memory::{MemoryError, MemoryRange};
pub use notice::Notice;
pub use options::RuntimeOptions;
pub use scheduler::{Hold, LOOKUPS_MAX, LookupId, SchedulerRuntime, Unanswered};
pub use worker::{PUBLISHED_MAX, WorkerRuntime};
