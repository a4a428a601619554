//! The engine side of the block store: attach to `umbpd`, look blocks up, copy them between engine memory and the
//! daemon's shared segments under leases.
//!
//! What it does not do: it decides nothing about which blocks to keep or when to store them (that is connector-core's
//! part), it knows no engine's objects, and it never reports a block as good that it has not checked: every doubt is
//! a miss or a failure of exactly that block.
//!
//! Modules in reading order: [`Options`] and [`Error`] (what a client is told once), [`Client`] (what it does),
//! [`Lookup`] (a question under way), [`Outcome`] (how a block ended), then within: `region` (engine memory), `job`,
//! `store`, `load` (a job's way), `pool` and `copy` (the only threads and lines that touch block bytes), `session`,
//! `reader` and `attach` (the socket), `mapping` (shared memory), `keeper` (everything that is due at a time), `events`;
//! [`mod@runtime`] (what connector-core runs on) and [`mod@bench`].

mod attach;
pub mod bench;
mod client;
mod clock;
mod copy;
mod events;
mod job;
mod keeper;
mod load;
mod lookup;
mod mapping;
mod options;
mod outcome;
mod pool;
mod reader;
mod region;
pub mod runtime;
mod session;
mod shared;
mod store;

pub use client::{Cleared, Client, JobId, JobResult};
pub use events::{ClientEvent, EVENTS_MAX};
pub use load::LoadBlock;
pub use lookup::Lookup;
pub use options::{
    CALL_TIMEOUT_MS, COPY_QUEUE_BLOCKS_MAX, COPY_THREADS_MAX, Checksums, Error, JOB_BLOCKS_MAX, JOB_TIMEOUT_MS,
    JOBS_MAX, Options,
};
pub use outcome::{Counter, FailCause, Outcome};
pub use region::{REGIONS_MAX, RegionId, Run};
pub use store::StoreBlock;
