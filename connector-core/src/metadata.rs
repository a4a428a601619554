//! What the two sides of the connector tell each other once per engine step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::key::{BlockHash, GroupId};
use crate::plan::{BlockTransferPlan, RequestId, RequestPlans};

/// The stores of one step; the scheduler releases their blocks when every worker has named it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreEventId(pub u64);

/// Scheduler to workers, for one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectorMetadata {
    /// Loads run beside the engine's step, and their requests are named by the worker when they are done.
    pub async_load: bool,
    /// Blocks to load, each request once.
    pub load_requests: Vec<(RequestId, RequestPlans)>,
    /// Blocks to store, each request once.
    pub store_requests: Vec<(RequestId, RequestPlans)>,
    /// Single blocks to store. One that stands in `store_requests` too is stored once.
    pub store_plans: Vec<Arc<BlockTransferPlan>>,
    /// The step's stores, if the scheduler holds blocks for them.
    pub store_event: Option<StoreEventId>,
    /// Requests whose blocks the engine takes back now.
    pub preempted: BTreeSet<RequestId>,
}

/// How far one store event has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreEventResult {
    /// Workers that have ended all its stores.
    pub completed_workers: u32,
    /// Objects whose job did not store everything on some worker.
    pub failed_objects: BTreeSet<(GroupId, BlockHash)>,
}

/// Workers to scheduler, for one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerMetadata {
    /// Events that ended since the last report.
    pub store_events: BTreeMap<StoreEventId, StoreEventResult>,
}

impl WorkerMetadata {
    /// Takes in what another worker reports of the same step.
    pub fn aggregate(&mut self, other: Self) {
        for (event, result) in other.store_events {
            let sum = self.store_events.entry(event).or_default();
            sum.completed_workers = sum.completed_workers.saturating_add(result.completed_workers);
            sum.failed_objects.extend(result.failed_objects);
        }
    }
}
