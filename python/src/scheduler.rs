//! The scheduler's side of the connector, as an engine's process holds it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use umbp_client::runtime::SchedulerRuntime;
use umbp_connector_core::key::{BlockHash, GroupId};
use umbp_connector_core::metadata::{StoreEventId, StoreEventResult, WorkerMetadata};
use umbp_connector_core::plan::{BlockId, RequestId};
use umbp_connector_core::scheduler::{
    BlockPool, BoundaryOffload, Cached, Config, Group, GroupKind, KvEvent, New, Options, Resumed, Role,
    Scheduler as Machine, Step,
};

use crate::process::OfProcess;
use crate::step::StepPlan;
use crate::without_interpreter;
use crate::worker::{Place, runtime_options, told};

/// A group: kind, block size, window of a sliding one, mode of a state-space one, whether it is the drafter's.
type GroupRow = (String, u64, Option<u64>, Option<String>, bool);

/// Pins that the engine is to take (true) or give back, in order.
#[derive(Default)]
struct Pins(Vec<(bool, Vec<i64>)>);

impl BlockPool for Pins {
    fn touch(&mut self, blocks: &[BlockId]) {
        self.0.push((true, blocks.iter().map(|block| block.0).collect()));
    }

    fn free(&mut self, blocks: &[BlockId]) {
        self.0.push((false, blocks.iter().map(|block| block.0).collect()));
    }
}

/// Block ids per group.
type Table = Vec<Vec<i64>>;
/// A request that begins to run: id, tokens before the step, tokens of the step, whole table.
type NewRow = (String, u64, u64, Table);
/// A request that goes on: the same, with blocks to append or (resumed) the whole table.
type CachedRow = (String, u64, u64, Option<Table>, bool);
/// Group, block id, tokens.
type OffloadRow = (usize, i64, u64);
/// Group, hash.
type ObjectRow = (u16, Vec<u8>);
/// Group, hash, parent, tokens, block size.
type StoredRow = (u16, Vec<u8>, Option<Vec<u8>>, Vec<u32>, u64);

/// Plans what a step's workers load and store. It looks nothing up and stores nothing until it is bound to a namespace.
#[pyclass(frozen, module = "umbp._umbp")]
pub(crate) struct Scheduler {
    machine: OfProcess<Machine<Option<SchedulerRuntime>, Pins>>,
    load_async: bool,
}

#[pymethods]
impl Scheduler {
    /// What it is told once.
    #[new]
    #[pyo3(signature = (groups, place, *, num_workers, prefix_match_unit, retention_interval, load_async, lookup_async,
                        save_decode_cache, stores, events, eagle, unreported_steps))]
    #[allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools, reason = "keyword arguments in Python")]
    fn new(
        groups: Vec<GroupRow>,
        place: Place,
        num_workers: u32,
        prefix_match_unit: Option<u64>,
        retention_interval: Option<u64>,
        load_async: bool,
        lookup_async: bool,
        save_decode_cache: bool,
        stores: bool,
        events: bool,
        eagle: bool,
        unreported_steps: u32,
    ) -> PyResult<Self> {
        let options = Options {
            load_async,
            lookup_async,
            enable_lookup: true,
            save_decode_cache,
            enable_partial_hash_hits: false,
            role: if stores { Role::Both } else { Role::Consumer },
            events,
            kv_event_max_objects: KV_EVENT_OBJECTS_MAX,
            eagle,
        };
        let groups = groups.into_iter().map(group).collect::<PyResult<_>>()?;
        let topology = place.topology()?;
        let config = Config { groups, topology, num_workers, prefix_match_unit, retention_interval, options };
        let mut machine = Machine::new(config, None, Some(Pins::default()))
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        machine.set_unreported_steps(unreported_steps);
        let load_async = machine.geometry().load_async;
        Ok(Self { machine: OfProcess::new(machine), load_async })
    }

    /// Loads run beside the engine's steps.
    #[getter]
    fn load_async(&self) -> bool {
        self.load_async
    }

    /// Attaches, and begins to look up and to store.
    #[pyo3(signature = (socket, descriptor, *, hold_ms, timeout_ms))]
    fn bind(
        &self,
        py: Python<'_>,
        socket: PathBuf,
        descriptor: BTreeMap<String, String>,
        hold_ms: u64,
        timeout_ms: u64,
    ) -> PyResult<()> {
        // It copies nothing.
        let mut options = runtime_options(socket, descriptor, "vllm scheduler", timeout_ms, Some(1));
        options.hold = Duration::from_millis(hold_ms);
        let runtime = py.detach(|| SchedulerRuntime::start(&options));
        let runtime = runtime.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        self.with(py, |machine| {
            *machine.runtime() = Some(runtime);
            machine.bind_namespace();
        });
        Ok(())
    }

    /// A request is new, or has more tokens and hashes than were told: what is new of both. Tokens are kept only where
    /// events are wanted; else their number is enough.
    #[allow(clippy::too_many_arguments, reason = "as an engine has it")]
    fn tell(
        &self,
        py: Python<'_>,
        id: &str,
        is_new: bool,
        prompt_tokens: u64,
        new_tokens: usize,
        tokens: Vec<u32>,
        hashes: Vec<Vec<u8>>,
    ) -> PyResult<()> {
        let mut uncounted = if tokens.is_empty() { new_tokens } else { 0 };
        let hashes = hashes.iter().map(|bytes| hash(bytes)).collect::<PyResult<Vec<_>>>()?;
        self.with(py, |machine| {
            let id = RequestId::from(id);
            if is_new {
                machine.add_request(&id, prompt_tokens, &[], &[]);
            }
            while uncounted > 0 {
                let part = uncounted.min(ANY_TOKENS.len());
                machine.grow(&id, &ANY_TOKENS[..part], &[]);
                uncounted -= part;
            }
            machine.grow(&id, &tokens, &hashes);
        });
        Ok(())
    }

    /// Tokens behind the local ones that can be loaded (none = ask again later), and whether they come beside the
    /// engine's steps. `local_cached(group, hash)`: the engine has it itself.
    fn matched(&self, py: Python<'_>, id: &str, local_tokens: u64, local_cached: Py<PyAny>) -> (Option<u64>, bool) {
        let cached = |group: usize, hash: BlockHash| {
            Python::attach(|py| {
                let answer = local_cached.call1(py, (group, PyBytes::new(py, hash.as_bytes())));
                answer.and_then(|answer| answer.is_truthy(py)).unwrap_or_else(|error| {
                    error.print(py);
                    false
                })
            })
        };
        let id = RequestId::from(id);
        self.with(py, |machine| {
            let matching = machine.get_num_new_matched_tokens(&id, local_tokens, &cached);
            (matching.tokens, matching.load_async)
        })
        .unwrap_or((Some(0), false))
    }

    /// A request has memory, and takes so many tokens of what was matched: all or none.
    fn allocated(&self, py: Python<'_>, id: &str, table: Table, external_tokens: u64) -> PyResult<()> {
        let (id, table) = (RequestId::from(id), blocks(table));
        let done = self.with(py, |machine| machine.update_state_after_alloc(&id, &table, external_tokens));
        done.unwrap_or(Ok(())).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// What workers are to do in this step. `tables`: the engine's own, where it frees blocks that a request had.
    #[allow(clippy::too_many_arguments, reason = "as an engine has it")]
    fn step(
        &self,
        py: Python<'_>,
        new: Vec<NewRow>,
        cached: Vec<CachedRow>,
        finished: Vec<String>,
        preempted: Vec<String>,
        tables: Vec<(String, Table)>,
        offloads: Vec<(String, Vec<OffloadRow>)>,
    ) -> StepPlan {
        let id = |name: String| RequestId::from(name.as_str());
        let step = Step {
            finished: finished.into_iter().map(id).collect(),
            preempted: preempted.into_iter().map(id).collect(),
            new: new.into_iter().map(new_request).collect(),
            cached: cached.into_iter().map(cached_request).collect(),
            tables: tables.into_iter().map(|(name, table)| (id(name), blocks(table))).collect(),
            boundary_offloads: offloads.into_iter().map(|(name, rows)| (id(name), offered(rows))).collect(),
        };
        let output = self.with(py, |machine| machine.build_connector_meta(step)).unwrap_or_default();
        StepPlan { metadata: output.into_metadata() }
    }

    /// The request is over, or given up, in whatever state it is.
    fn finished(&self, py: Python<'_>, id: &str) {
        let id = RequestId::from(id);
        self.with(py, |machine| machine.request_finished(&id));
    }

    /// A finished request offers what it leaves of its last block.
    fn partial_tail(
        &self,
        py: Python<'_>,
        id: &str,
        table: Table,
        offloads: Vec<OffloadRow>,
        computed_tokens: u64,
        in_flight_tokens: u64,
    ) {
        let (id, table, offloads) = (RequestId::from(id), blocks(table), offered(offloads));
        self.with(py, |machine| {
            machine.register_finished_partial_tail(&id, &table, &offloads, computed_tokens, in_flight_tokens)
        });
    }

    /// Workers ended store events: (event, workers, failed objects). `now` in seconds of a clock that only goes on.
    fn update(&self, py: Python<'_>, events: Vec<(u64, u32, Vec<ObjectRow>)>, now: f64) -> PyResult<()> {
        let mut output = WorkerMetadata::default();
        for (event, completed_workers, failed) in events {
            let failed_objects = failed.into_iter().map(object).collect::<PyResult<_>>()?;
            output.store_events.insert(StoreEventId(event), StoreEventResult { completed_workers, failed_objects });
        }
        self.with(py, |machine| machine.update_connector_output(&output, now));
        Ok(())
    }

    /// Loads have failed: of whole requests, or in blocks. Such requests are offered nothing until they are preempted.
    fn loads_failed(&self, py: Python<'_>, requests: Vec<String>, blocks: Vec<i64>) {
        let requests: Vec<RequestId> = requests.iter().map(|name| RequestId::from(name.as_str())).collect();
        let blocks = blocks.into_iter().map(BlockId).collect();
        self.with(py, |machine| machine.loads_failed(&requests, &blocks));
    }

    /// Workers saw these leave the store.
    fn forget_published(&self, py: Python<'_>, removed: Vec<ObjectRow>) -> PyResult<()> {
        let removed = removed.into_iter().map(object).collect::<PyResult<Vec<_>>>()?;
        self.with(py, |machine| machine.invalidate_kv_events(&removed));
        Ok(())
    }

    /// News of the store: blocks that are there, and blocks that are there no more.
    fn take_events(&self, py: Python<'_>, now: f64) -> (Vec<StoredRow>, Vec<ObjectRow>) {
        let (mut stored, mut removed) = (Vec::new(), Vec::new());
        for event in self.with(py, |machine| machine.take_events(now)).unwrap_or_default() {
            let bytes = |hash: BlockHash| hash.as_bytes().to_vec();
            match event {
                KvEvent::Stored { hash, group, parent, tokens, block_size } => {
                    stored.push((group.0, bytes(hash), parent.map(bytes), tokens, block_size));
                }
                KvEvent::Removed { hash, group } => removed.push((group.0, bytes(hash))),
            }
        }
        (stored, removed)
    }

    /// Pins to take (true) or give back, in order, since the last call.
    fn take_pins(&self, py: Python<'_>) -> Vec<(bool, Vec<i64>)> {
        self.with(py, |machine| machine.pool().map(|pins| std::mem::take(&mut pins.0))).flatten().unwrap_or_default()
    }

    /// The engine is to step on, also with no request to run.
    fn pending(&self, py: Python<'_>) -> bool {
        self.with(py, |machine| machine.has_pending_push_work()).unwrap_or(false)
    }

    /// Forgets the namespace's blocks; false while stores are under way, some are in use, or the daemon is away.
    fn reset(&self, py: Python<'_>) -> bool {
        self.with(py, Machine::reset_store).unwrap_or(false)
    }

    /// News for people, with its level: where the daemon is, that it is away, or that it is there again.
    fn notice(&self, py: Python<'_>) -> Option<(u8, String)> {
        let notice = self.with(py, |machine| machine.runtime().as_mut()?.notice());
        notice.flatten().map(|notice| told(&notice))
    }

    /// Ends the session.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.end());
    }
}

/// Closes it, if nobody has.
impl Drop for Scheduler {
    fn drop(&mut self) {
        without_interpreter(|| self.end());
    }
}

impl Scheduler {
    fn end(&self) {
        self.machine.end(|_| ());
    }

    /// Without the interpreter, as the call may wait; none once it is closed, and in a forked child.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Machine<Option<SchedulerRuntime>, Pins>) -> T + Send,
    ) -> Option<T> {
        py.detach(|| self.machine.with(call))
    }
}

/// Stand for tokens of which only the number counts.
static ANY_TOKENS: [u32; 4096] = [0; 4096];
/// Objects that KV events follow, at most.
const KV_EVENT_OBJECTS_MAX: usize = 65_536;

fn group((kind, block_size, window, mode, eagle): GroupRow) -> PyResult<Group> {
    let kind = match (kind.as_str(), window, mode.as_deref()) {
        ("full", ..) => GroupKind::Full,
        ("sliding_window", Some(window), _) if window > 0 => GroupKind::SlidingWindow { window },
        ("mamba", _, Some("align")) => GroupKind::Mamba { align: true },
        ("mamba", _, Some("all")) => GroupKind::Mamba { align: false },
        ("scratch", ..) => GroupKind::Scratch,
        _ => return Err(PyValueError::new_err(format!("a group of kind {kind:?}, window {window:?}, mode {mode:?}"))),
    };
    Ok(Group { kind, block_size, eagle })
}

fn new_request((name, computed_tokens, scheduled_tokens, table): NewRow) -> New {
    New { id: RequestId::from(name.as_str()), computed_tokens, scheduled_tokens, block_ids: blocks(table) }
}

fn cached_request((name, computed_tokens, scheduled_tokens, table, is_resumed): CachedRow) -> Cached {
    let blocks = match table.map(blocks) {
        Some(table) if is_resumed => Resumed::Yes(table),
        table => Resumed::No(table),
    };
    Cached { id: RequestId::from(name.as_str()), computed_tokens, scheduled_tokens, blocks }
}

fn blocks(table: Table) -> Vec<Vec<BlockId>> {
    table.into_iter().map(|group| group.into_iter().map(BlockId).collect()).collect()
}

fn offered(rows: Vec<OffloadRow>) -> Vec<BoundaryOffload> {
    let offload = |(group, block_id, tokens)| BoundaryOffload { group, block_id: BlockId(block_id), tokens };
    rows.into_iter().map(offload).collect()
}

pub(crate) fn object((group, bytes): ObjectRow) -> PyResult<(GroupId, BlockHash)> {
    Ok((GroupId(group), hash(&bytes)?))
}

fn hash(bytes: &[u8]) -> PyResult<BlockHash> {
    BlockHash::new(bytes).map_err(|error| PyValueError::new_err(error.to_string()))
}
