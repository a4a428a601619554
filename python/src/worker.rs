//! The worker's side of the connector, as an engine's process holds it.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use umbp_client::runtime::{MemoryRange, Notice, RuntimeOptions, WorkerRuntime};
use umbp_connector_core::key::Rank;
use umbp_connector_core::namespace::NamespaceDescriptor;
use umbp_connector_core::plan::{BlockTransferPlan, ObjectKey, PlanRuns, RequestId};
use umbp_connector_core::runtime::{JobId, Runtime, TransferJobState};
use umbp_connector_core::topology::RankTopology;
use umbp_connector_core::worker::{BlockIdentityCodec, Worker as Machine, WorkerOptions};

use crate::client::Client;
use crate::layout::Layout;
use crate::process::OfProcess;
use crate::reports::{Stats, by_operation};
use crate::staged::Staged;
use crate::step::StepPlan;
use crate::without_interpreter;

/// Levels of Python's `logging`.
const LOGGING_WARNING: u8 = 30;
const LOGGING_INFO: u8 = 20;

/// What moves the bytes: the client itself, or Python, through host buffers.
enum Mover {
    Direct(Box<WorkerRuntime>),
    Staged(Staged),
}

impl Mover {
    fn runtime(&mut self) -> &mut dyn Runtime {
        match self {
            Self::Direct(runtime) => runtime.as_mut(),
            Self::Staged(runtime) => runtime,
        }
    }
}

impl Runtime for Mover {
    fn load_blocks(&mut self, plans: &[BlockTransferPlan]) -> Option<JobId> {
        self.runtime().load_blocks(plans)
    }

    fn load(&mut self, plans: &[BlockTransferPlan], runs: &PlanRuns) -> JobId {
        self.runtime().load(plans, runs)
    }

    fn store_blocks(&mut self, plans: &[BlockTransferPlan]) -> Option<JobId> {
        self.runtime().store_blocks(plans)
    }

    fn store(&mut self, plans: &[BlockTransferPlan], runs: &PlanRuns) -> JobId {
        self.runtime().store(plans, runs)
    }

    fn poll(&mut self, job: JobId) -> Option<TransferJobState> {
        self.runtime().poll(job)
    }

    fn wait(&mut self, job: JobId) -> TransferJobState {
        self.runtime().wait(job)
    }

    fn cancel(&mut self, job: JobId) -> TransferJobState {
        self.runtime().cancel(job)
    }

    fn publish(&mut self, job: JobId, plans: &[BlockTransferPlan]) {
        self.runtime().publish(job, plans);
    }

    fn take_evicted_keys(&mut self) -> Vec<ObjectKey> {
        self.runtime().take_evicted_keys()
    }

    fn close(&mut self) {
        self.runtime().close();
    }
}

/// Turns the scheduler's steps into jobs and settles them. Closed, or in a forked child, it does nothing and reports
/// nothing.
#[pyclass(frozen, module = "umbp._umbp")]
pub(crate) struct Worker {
    machine: OfProcess<Machine<Mover>>,
}

/// Parallel sizes, this worker's index, and how many tensor-parallel ranks in a row hold equal bytes.
///
/// Ranks of equal bytes (MLA) count as one, both in the keys that workers write and in those that the scheduler asks
/// for: the first to store a block wins, and each of them loads it.
#[derive(FromPyObject)]
pub(crate) struct Place {
    sizes: (u16, u16, u16, u16),
    index: u32,
    replicas: u16,
}

impl Place {
    /// The engine's ranks, and which of them share keys.
    pub(crate) fn topology(&self) -> PyResult<RankTopology> {
        let (tp, pcp, dcp, pp) = self.sizes;
        let topology = RankTopology::new(tp, pp, pcp, dcp).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(topology.with_replicas(self.replicas))
    }

    /// The one that stands in this worker's keys.
    fn rank(&self) -> PyResult<Rank> {
        self.topology()?.key_rank(self.index).map_err(|error| PyValueError::new_err(error.to_string()))
    }
}

fn options(place: &Place, report_failed_requests: bool, events: bool) -> PyResult<WorkerOptions> {
    let codec = Some(BlockIdentityCodec::new(place.rank()?));
    Ok(WorkerOptions { codec, report_failed_requests, enable_kv_cache_events: events })
}

#[pymethods]
impl Worker {
    /// Attaches, and registers the engine's memory: blocks 0 to `blocks` - 1 of the layout, inside `ranges` of
    /// (address, length). It stays mapped until `close` returns.
    #[new]
    #[pyo3(signature = (socket, descriptor, *, layout, blocks, ranges, place, report_failed_requests, events,
                        timeout_ms, copy_threads=None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        py: Python<'_>,
        socket: PathBuf,
        descriptor: BTreeMap<String, String>,
        layout: &Layout,
        blocks: u32,
        ranges: Vec<(u64, u64)>,
        place: Place,
        report_failed_requests: bool,
        events: bool,
        timeout_ms: u64,
        copy_threads: Option<usize>,
    ) -> PyResult<Self> {
        let own = options(&place, report_failed_requests, events)?;
        let runtime_options = runtime_options(socket, descriptor, "vllm worker", timeout_ms, copy_threads);
        let ranges: Vec<MemoryRange> =
            ranges.into_iter().map(|(address, length)| MemoryRange { address, length }).collect();
        py.detach(|| {
            let wrong = |error: &dyn std::error::Error| PyValueError::new_err(error.to_string());
            let mut runtime = WorkerRuntime::start(&runtime_options).map_err(|error| wrong(&error))?;
            // SAFETY: the caller promises it, see the stubs: the memory stays until `close` has dropped the runtime,
            // and an engine leaves blocks alone that are loaded or stored.
            let registered = unsafe { runtime.register(layout.inner.clone(), blocks, &ranges) };
            registered.map_err(|error| wrong(&error))?;
            Ok(Self::of(Mover::Direct(Box::new(runtime)), own, Some(layout)))
        })
    }

    /// With the engine's memory on a device: `staging` moves blocks, over `client`, whose keys are of `namespace`.
    #[staticmethod]
    #[pyo3(signature = (staging, client, namespace, *, place, report_failed_requests, events, timeout_ms))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn staged(
        staging: Py<PyAny>,
        client: Py<Client>,
        namespace: String,
        place: Place,
        report_failed_requests: bool,
        events: bool,
        timeout_ms: u64,
    ) -> PyResult<Self> {
        let own = options(&place, report_failed_requests, events)?;
        Ok(Self::of(Mover::Staged(Staged::new(staging, client, namespace, timeout_ms)), own, None))
    }

    /// Before the engine overwrites blocks of preempted requests: ends their jobs.
    fn handle_preemptions(&self, py: Python<'_>, step: &StepPlan) {
        self.with(py, |machine| machine.handle_preemptions(&step.metadata));
    }

    /// Begins the step's loads; waits for them unless they are asynchronous.
    fn start_load(&self, py: Python<'_>, step: &StepPlan) {
        self.with(py, |machine| machine.start_load_kv(&step.metadata));
    }

    /// Before a layer reads its blocks.
    fn wait_for_layer_load(&self, py: Python<'_>) {
        self.with(py, Machine::wait_for_layer_load);
    }

    /// Begins the step's stores.
    fn store(&self, py: Python<'_>, step: &StepPlan) {
        self.with(py, |machine| {
            machine.enqueue_stores(&step.metadata);
            machine.wait_for_save();
        });
    }

    /// Requests whose asynchronous loads have ended since the last call.
    fn take_finished(&self, py: Python<'_>) -> Vec<String> {
        self.with(py, |machine| names(machine.get_finished()))
    }

    /// Requests of which a load failed, where failures are reported by request.
    fn take_failed_requests(&self, py: Python<'_>) -> Vec<String> {
        self.with(py, |machine| names(machine.get_failed_recving()))
    }

    /// Blocks whose load failed, where failures are reported by block.
    fn take_load_errors(&self, py: Python<'_>) -> Vec<i64> {
        self.with(py, |machine| machine.get_block_ids_with_load_errors().into_iter().map(|id| id.0).collect())
    }

    /// Store events that have ended: (event, workers, failed objects as (group, hash)).
    #[allow(clippy::type_complexity, reason = "as Python takes it")]
    fn take_store_events(&self, py: Python<'_>) -> Vec<(u64, u32, Vec<(u16, Vec<u8>)>)> {
        self.with(py, |machine| {
            let events = machine.build_connector_worker_meta().store_events.into_iter();
            events
                .map(|(event, result)| {
                    let failed = result.failed_objects.iter();
                    let failed = failed.map(|(group, hash)| (group.0, hash.as_bytes().to_vec())).collect();
                    (event.0, result.completed_workers, failed)
                })
                .collect()
        })
    }

    /// Counts since the last call, by operation; empty if nothing happened.
    fn take_stats(&self, py: Python<'_>) -> Stats {
        by_operation(self.with(py, Machine::get_kv_connector_stats).unwrap_or_default())
    }

    /// Blocks, as (group, hash), that this worker stored and no tier has any more.
    fn take_removed(&self, py: Python<'_>) -> Vec<(u16, Vec<u8>)> {
        self.with(py, |machine| {
            let removed = machine.get_kv_events().into_iter();
            removed.map(|block| (block.group.0, block.hash.as_bytes().to_vec())).collect()
        })
    }

    /// News for people, with its level: where the daemon is, that it is away, or that it is there again.
    fn notice(&self, py: Python<'_>) -> Option<(u8, String)> {
        self.with(py, |machine| match machine.runtime_mut() {
            Mover::Direct(runtime) => runtime.notice().map(|notice| told(&notice)),
            Mover::Staged(_) => None,
        })
    }

    /// The client's counters, by name; empty for a staged worker, whose client has them.
    fn counters(&self, py: Python<'_>) -> HashMap<&'static str, u64> {
        self.with(py, |machine| match machine.runtime() {
            Mover::Direct(runtime) => {
                let counter = |counter: &umbp_client::Counter| (counter.name(), runtime.client().counter(*counter));
                umbp_client::Counter::ALL.iter().map(counter).collect()
            }
            Mover::Staged(_) => HashMap::new(),
        })
    }

    /// Ends everything; when it returns, no thread touches the engine's memory.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.end());
    }
}

/// Closes it, if nobody has.
impl Drop for Worker {
    fn drop(&mut self) {
        without_interpreter(|| self.end());
    }
}

impl Worker {
    fn of(mover: Mover, options: WorkerOptions, layout: Option<&Layout>) -> Self {
        let mut machine = Machine::new(mover, options);
        if let Some(layout) = layout {
            machine.register_kv_caches(layout.inner.clone());
        }
        Self { machine: OfProcess::new(machine) }
    }

    /// Whoever else closes it meanwhile waits for the lock, and so for the end.
    fn end(&self) {
        self.machine.end(Machine::close);
    }

    /// Without the interpreter, which the call may wait in, and which another thread may need to let go of the lock.
    fn with<T: Default + Send>(&self, py: Python<'_>, call: impl FnOnce(&mut Machine<Mover>) -> T + Send) -> T {
        py.detach(|| self.machine.with(call).unwrap_or_default())
    }
}

/// What scheduler and worker tell their runtimes alike.
pub(crate) fn runtime_options(
    socket: PathBuf,
    descriptor: BTreeMap<String, String>,
    name: &str,
    timeout_ms: u64,
    copy_threads: Option<usize>,
) -> RuntimeOptions {
    let mut options = RuntimeOptions::new(socket, NamespaceDescriptor(descriptor));
    options.name = name.to_owned();
    options.timeout = Duration::from_millis(timeout_ms);
    options.job_timeout = options.job_timeout.max(options.timeout);
    options.copy_threads = copy_threads;
    options
}

/// A notice and its level, as Python's `logging` counts them.
pub(crate) fn told(notice: &Notice) -> (u8, String) {
    let level = match notice {
        Notice::Away { .. } => LOGGING_WARNING,
        Notice::Attached { .. } => LOGGING_INFO,
    };
    (level, notice.to_string())
}

fn names(requests: impl IntoIterator<Item = RequestId>) -> Vec<String> {
    requests.into_iter().map(|request| request.to_string()).collect()
}
