//! The worker's side of the connector: turns the scheduler's metadata into transfer jobs, and settles them.
//!
//! One step of an engine calls, in this order: [`Worker::handle_preemptions`], [`Worker::start_load_kv`],
//! [`Worker::wait_for_layer_load`] per layer, [`Worker::enqueue_stores`], [`Worker::wait_for_save`], then takes the
//! reports: [`Worker::get_finished`], [`Worker::get_failed_recving`], [`Worker::get_block_ids_with_load_errors`],
//! [`Worker::get_kv_connector_stats`], [`Worker::get_kv_events`], [`Worker::build_connector_worker_meta`]. A report is
//! taken once. At the end, [`Worker::close`].
//!
//! Calls that may wait, in the runtime and within its limit of time: `handle_preemptions`, `close`, and, when loads are
//! synchronous, `start_load_kv` and `wait_for_layer_load`.
//!
//! Files in reading order: `job` (one job and its settling), `load`, `store`, `preempt`, `events`, `stats`.

mod events;
mod job;
mod load;
mod preempt;
mod stats;
mod store;

use std::collections::BTreeSet;

pub use events::RemovedBlock;
pub use stats::{OperationStats, TransferStats};

use crate::key::Rank;
use crate::layout::Layout;
use crate::metadata::WorkerMetadata;
use crate::plan::{BlockId, BlockTransferPlan, ObjectKey, RequestId};
use crate::runtime::Runtime;
use load::RequestLoads;
use store::{StoreBatch, StoreJob};

/// Whose keys a worker reads and writes: those of its rank, or of the one that stands for it and for others of equal
/// bytes ([`RankTopology::key_rank`](crate::topology::RankTopology::key_rank)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockIdentityCodec {
    rank: Rank,
}

impl BlockIdentityCodec {
    /// The rank that stands in the worker's keys.
    pub fn new(rank: Rank) -> Self {
        Self { rank }
    }

    /// The worker's key of a block that the scheduler names; what is no block's key stays as it is.
    pub fn localize(&self, plan: &BlockTransferPlan) -> ObjectKey {
        plan.group.map_or_else(|| plan.key.clone(), |group| plan.key.localized(group, self.rank))
    }
}

/// What a worker is told once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerOptions {
    /// Puts this worker's rank into keys; none leaves keys as the scheduler wrote them.
    pub codec: Option<BlockIdentityCodec>,
    /// Failed loads are reported by request, not by block: an engine with several KV cache groups cannot tell a
    /// request by its blocks.
    pub report_failed_requests: bool,
    /// Evicted blocks are reported as events.
    pub enable_kv_cache_events: bool,
}

/// The worker's side of the connector. Pure but for its runtime; one thread at a time.
///
/// What it keeps is bounded by the engine: open loads by its requests in flight, pending steps by the blocks that the
/// scheduler holds for them, reports by what one step leaves until it is taken. How many jobs may be open is the
/// runtime's to bound: it fails those beyond.
#[derive(Debug)]
pub struct Worker<R: Runtime> {
    runtime: R,
    options: WorkerOptions,
    /// Where blocks lie, for the runtime's plain calls.
    layout: Option<Layout>,
    closed: bool,

    /// Open loads, in the order in which they began.
    loads: Vec<RequestLoads>,
    /// The step's loads are asynchronous: requests are reported when their loads are done.
    report_load_completions: bool,
    finished_recving: BTreeSet<RequestId>,
    failed_recving: BTreeSet<RequestId>,
    load_error_block_ids: BTreeSet<BlockId>,

    /// The step's stores, until [`Self::wait_for_save`] seals them.
    enqueued: StoreBatch,
    /// Sealed steps with open stores, oldest first.
    pending_stores: Vec<StoreBatch>,
    worker_meta: WorkerMetadata,

    stats: TransferStats,
}

impl<R: Runtime> Worker<R> {
    /// A worker with nothing to do.
    pub fn new(runtime: R, options: WorkerOptions) -> Self {
        Self {
            runtime,
            options,
            layout: None,
            closed: false,
            loads: Vec::new(),
            report_load_completions: false,
            finished_recving: BTreeSet::new(),
            failed_recving: BTreeSet::new(),
            load_error_block_ids: BTreeSet::new(),
            enqueued: StoreBatch::default(),
            pending_stores: Vec::new(),
            worker_meta: WorkerMetadata::default(),
            stats: TransferStats::default(),
        }
    }

    /// Where the engine's blocks lie, from now on. The runtime has the engine's memory registered by then.
    pub fn register_kv_caches(&mut self, layout: Layout) {
        self.layout = Some(layout);
    }

    /// The runtime.
    pub fn runtime(&self) -> &R {
        &self.runtime
    }

    /// The runtime, for what is not the worker's: registering memory, scripting a test.
    pub fn runtime_mut(&mut self) -> &mut R {
        &mut self.runtime
    }

    /// Jobs that are open: begun, and not settled.
    pub fn open_jobs(&self) -> usize {
        let loads = self.loads.iter().map(|request| request.jobs.len());
        let stores = self.pending_stores.iter().chain([&self.enqueued]).map(|batch| batch.jobs.len());
        loads.chain(stores).sum()
    }

    /// Settles everything, waiting for it, and closes the runtime. Reports can still be taken; what is asked for
    /// later fails at once. A second call does nothing.
    pub fn close(&mut self) {
        if self.closed {
            return;
        }
        self.wait_for_save();
        self.drain_stores(Drain::Wait);
        self.drain_loads(Drain::Wait);
        self.closed = true;
        self.runtime.close();
    }
}

/// How to look for ended jobs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drain {
    /// Take what has ended.
    Poll,
    /// Wait for each job.
    Wait,
}
