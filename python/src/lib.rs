//! The extension module `umbp._umbp`: the client of the block store, for Python.
//!
//! What it does not do: importing it starts no thread and opens nothing; it knows no engine's object (that is
//! `umbp.vllm`, in Python) and no tensor, only addresses. Every call that may block releases the interpreter first.
//!
//! Modules in reading order: `client` (what Python holds), `layout` (blocks to runs), `embedded` (a daemon of the
//! engine's own), `identity` (an engine's namespace), `scheduler` (that side of the connector), `step` (what it tells
//! the other), `worker` (the other; `staged` for memory of a device), `reports` (what several workers say, added up),
//! then within: `process` (what a forked child has none of), `keys` (text keys), `memory` (registered addresses).

mod client;
mod embedded;
mod identity;
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

/// Ends something that may take a while, without holding the interpreter back if this thread has it, as where Python
/// lets go of an object.
fn without_interpreter(end: impl FnOnce() + Send) {
    let mut end = Some(end);
    Python::try_attach(|py| end.take().map(|end| py.detach(end)));
    // The interpreter is gone.
    if let Some(end) = end {
        end();
    }
}

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

    /// The longest wait for the daemon, in any call, unless told otherwise.
    #[pymodule_export]
    const TIMEOUT_MS: u64 = umbp_client::CALL_TIMEOUT_MS;

    /// How long a lookup's hits are kept from eviction, until the worker's load, unless told otherwise.
    #[pymodule_export]
    const HOLD_MS: u64 = umbp_client::runtime::HOLD_MS;

    #[pymodule_export]
    const COPY_THREADS_MAX: usize = umbp_client::COPY_THREADS_MAX;
}
