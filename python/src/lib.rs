//! The extension module `umbp._umbp`: the client of the block store, for Python.
//!
//! What it does not do: importing it starts no thread and opens nothing; it knows no engine's object (that is
//! `umbp.vllm`, in Python) and no tensor, only addresses. Every call that may block releases the interpreter first.
//!
//! Modules in reading order: `client` (what Python holds), `layout` (blocks to runs), `embedded` (a daemon of the
//! engine's own), `identity` (an engine's namespace), `scheduler` (that side of the connector), `step` (what it tells
//! the other), `worker` (the other; `staged` for memory of a device), `reports` (what several workers say, added up),
//! then within: `keys` (text keys), `memory` (registered addresses), `jobs` (a caller's job, in parts of bounded size).

mod client;
mod embedded;
mod identity;
mod jobs;
mod keys;
mod layout;
mod memory;
mod process;
mod reports;
mod scheduler;
mod staged;
mod step;
mod worker;

use pyo3::prelude::*;

/// See the crate.
#[pymodule]
mod _umbp {
    #[pymodule_export]
    use super::client::{Client, JobResult, default_socket};
    #[pymodule_export]
    use super::embedded::Embedded;
    #[pymodule_export]
    use super::identity::engine_descriptor;
    #[pymodule_export]
    use super::layout::Layout;
    #[pymodule_export]
    use super::reports::{sum_stats, sum_store_events};
    #[pymodule_export]
    use super::scheduler::Scheduler;
    #[pymodule_export]
    use super::step::StepPlan;
    #[pymodule_export]
    use super::worker::Worker;

    /// The version of package, daemon and command line.
    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "the name that Python expects")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
