//! What connector-core's worker and scheduler run on, over one [`Client`](crate::Client) each: [`WorkerRuntime`] is a
//! [`Runtime`](umbp_connector_core::runtime::Runtime), and [`SchedulerRuntime`] answers lookups.
//!
//! Neither runtime waits longer in a step than [`RuntimeOptions::timeout`], and none fails an engine: a daemon that is
//! absent, hung or restarted is misses and failed blocks. The time-out is one side's: who bounds an engine's step gives
//! scheduler and worker a half each. Where the daemon is, and that it is away, is told once for each time ([`Notice`]),
//! for the host to show.
//!
//! ```no_run
//! use umbp_client::runtime::{Hold, MemoryRange, RuntimeOptions, SchedulerRuntime, WorkerRuntime};
//! use umbp_connector_core::layout::Layout;
//! use umbp_connector_core::namespace::NamespaceDescriptor;
//! use umbp_connector_core::runtime::Runtime as _;
//!
//! # fn of_the_engine() -> (Layout, Vec<MemoryRange>, Vec<umbp_connector_core::plan::BlockTransferPlan>) { todo() }
//! # fn todo<T>() -> T { std::process::abort() }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = RuntimeOptions::new("/run/umbp/umbpd.sock", NamespaceDescriptor::default().with("model", "m"));
//! let mut scheduler = SchedulerRuntime::start(&options)?;
//! let mut worker = WorkerRuntime::start(&options)?;
//! let (layout, ranges, plans) = of_the_engine();
//! // SAFETY: the engine's memory outlives the worker, and nobody touches blocks whose job is open.
//! unsafe { worker.register(layout, 1024, &ranges)? };
//! if let Some(job) = worker.store_blocks(&plans) {
//!     println!("{:?}", worker.wait(job).status());
//! }
//! println!("{:?}", scheduler.lookup(&[], Hold::Hits));
//! # Ok(())
//! # }
//! ```
//!
//! Modules in reading order: `options`, `memory` (blocks to runs), `transfer` (jobs of any size, bounded waits),
//! `published` (which of a worker's blocks are gone), `worker`, `holds` (who still wants a hold), `scheduler`, `notice`.

mod holds;
mod memory;
mod notice;
mod options;
mod published;
mod scheduler;
mod transfer;
mod worker;

pub use memory::{MemoryError, MemoryRange};
pub use notice::Notice;
pub use options::{HOLD_MS, RuntimeOptions};
pub use published::{PUBLISHED_MAX, Published};
pub use scheduler::{LOOKUPS_MAX, SchedulerRuntime, Unanswered};
pub use transfer::{Block, Transfer};
pub use umbp_connector_core::scheduler::{Hold, LookupId};
pub use worker::WorkerRuntime;
