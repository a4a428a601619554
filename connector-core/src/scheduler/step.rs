//! One step of the engine: what its workers are to load and store.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::metadata::{ConnectorMetadata, StoreEventId};
use crate::plan::{BlockBatch, BlockId, BlockTransferPlan, RequestId, RequestPlans};

use super::Scheduler;
use super::request::Request;
use super::seam::{BlockPool, Lookups};
use super::store::StorePlan;

/// A request that runs for the first time since it has memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct New {
    /// The request.
    pub id: RequestId,
    /// Tokens computed or loaded before this step.
    pub computed_tokens: u64,
    /// Tokens that this step computes.
    pub scheduled_tokens: u64,
    /// Its whole table, per group.
    pub block_ids: Vec<Vec<BlockId>>,
}

/// Blocks that a running request got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// It goes on; blocks to append, per group.
    No(Option<Vec<Vec<BlockId>>>),
    /// It was preempted; its whole table, per group.
    Yes(Vec<Vec<BlockId>>),
}

/// A request that ran before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cached {
    /// The request.
    pub id: RequestId,
    /// Tokens computed or loaded before this step.
    pub computed_tokens: u64,
    /// Tokens that this step computes.
    pub scheduled_tokens: u64,
    /// Its memory.
    pub blocks: Resumed,
}

/// A state that the engine keeps at a boundary, and offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundaryOffload {
    /// Its group.
    pub group: usize,
    /// The block that holds it.
    pub block_id: BlockId,
    /// Tokens that the state stands for.
    pub tokens: u64,
}

/// What the engine does in one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Requests that ended since the last step.
    pub finished: Vec<RequestId>,
    /// Requests that lose their memory.
    pub preempted: Vec<RequestId>,
    /// Requests that begin to run.
    pub new: Vec<New>,
    /// Requests that go on.
    pub cached: Vec<Cached>,
    /// The engine's own tables, where it gives them: they win over what was appended here.
    pub tables: HashMap<RequestId, Vec<Vec<BlockId>>>,
    /// States at boundaries that this step's requests reach.
    pub boundary_offloads: Vec<(RequestId, Vec<BoundaryOffload>)>,
}

/// What the workers are to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepOutput {
    /// Loads run beside the step.
    pub async_load: bool,
    /// Blocks to load, per request.
    pub loads: Vec<(RequestId, Vec<BlockTransferPlan>)>,
    /// Single blocks to store: tails of finished requests, and states at boundaries.
    pub store_plans: Vec<StorePlan>,
    /// Blocks to store, per request.
    pub stores: Vec<(RequestId, Vec<StorePlan>)>,
    /// The event that all stores of this step form; none without stores.
    pub store_event: Option<StoreEventId>,
    /// Requests that lose their memory.
    pub preempted: BTreeSet<RequestId>,
}

impl StepOutput {
    /// The form that workers take.
    pub fn into_metadata(self) -> ConnectorMetadata {
        let batch = |(request, plans): (RequestId, Vec<BlockTransferPlan>)| {
            (request.clone(), RequestPlans::Batch(BlockBatch { request, plans }))
        };
        let stores = self
            .stores
            .into_iter()
            .map(|(request, plans)| batch((request, plans.into_iter().map(|plan| plan.block).collect())));
        ConnectorMetadata {
            async_load: self.async_load,
            store_requests: stores.collect(),
            load_requests: self.loads.into_iter().map(batch).collect(),
            store_plans: self.store_plans.into_iter().map(|plan| Arc::new(plan.block)).collect(),
            store_event: self.store_event,
            preempted: self.preempted,
        }
    }
}

/// One request in one step.
struct Scheduled {
    id: RequestId,
    computed: u64,
    /// Tokens that are computed when the step is done.
    total: u64,
}

impl<L: Lookups, P: BlockPool> Scheduler<L, P> {
    /// Loads that wait, and stores of what the step computes. The engine calls it once per step.
    pub fn build_connector_meta(&mut self, step: Step) -> StepOutput {
        let mut output = StepOutput { async_load: self.geometry.load_async, ..StepOutput::default() };
        for id in &step.preempted {
            if let Some(request) = self.requests.get_mut(id) {
                (request.saved, request.restored, request.owed) = (0, 0, false);
                request.load_failed = false;
            }
        }
        let scheduled = self.take_tables(&step);
        output.loads = self.take_loads();
        self.note_unreported(&output.loads);
        let loading: HashSet<&RequestId> = output.loads.iter().map(|(id, _)| id).collect();
        let tails = self.pins.take_tails();
        let mut planned: HashSet<_> = HashSet::new();
        for tail in &tails {
            planned.extend(tail.plans.iter().map(StorePlan::object));
        }
        if self.can_store() {
            let gone: HashSet<&RequestId> = step.finished.iter().chain(&step.preempted).collect();
            for (id, offloads) in step.boundary_offloads.iter().filter(|(id, _)| !gone.contains(id)) {
                self.plan_boundaries(id, offloads, &mut planned, &mut output.store_plans);
            }
        }
        output.store_plans.extend(tails.iter().flat_map(|tail| &tail.plans).cloned());
        if self.can_store() {
            for one in &scheduled {
                if loading.contains(&one.id) || self.rests_on_unreported(&one.id) {
                    if let Some(request) = self.requests.get_mut(&one.id) {
                        request.owed = true;
                    }
                    continue;
                }
                let plans = self.plan_stores(&one.id, one.computed, one.total, &mut planned);
                if !plans.is_empty() {
                    output.stores.push((one.id.clone(), plans));
                }
            }
        }
        output.preempted = step.preempted.iter().cloned().collect();
        let plans = output.store_plans.iter().chain(output.stores.iter().flat_map(|(_, plans)| plans));
        output.store_event = self.pins.open(plans.cloned().collect(), self.pool.as_mut());
        for tail in tails {
            tail.free(self.pool.as_mut());
        }
        for id in &step.finished {
            self.forget(id);
        }
        self.runtime.step_planned();
        output
    }

    fn can_store(&self) -> bool {
        self.bound && self.config.options.role != super::Role::Consumer
    }

    fn take_tables(&mut self, step: &Step) -> Vec<Scheduled> {
        let mut scheduled = Vec::new();
        for New { id, computed_tokens, scheduled_tokens, block_ids } in &step.new {
            if let Some(request) = self.requests.get_mut(id) {
                request.table = Some(block_ids.clone());
                request.saved = 0;
            }
            let total = computed_tokens.saturating_add(*scheduled_tokens);
            scheduled.push(Scheduled { id: id.clone(), computed: *computed_tokens, total });
        }
        for Cached { id, computed_tokens, scheduled_tokens, blocks } in &step.cached {
            if let Some(request) = self.requests.get_mut(id) {
                append(request, blocks);
            }
            let total = computed_tokens.saturating_add(*scheduled_tokens);
            scheduled.push(Scheduled { id: id.clone(), computed: *computed_tokens, total });
        }
        for (id, table) in &step.tables {
            if let Some(request) = self.requests.get_mut(id) {
                request.table = Some(table.clone());
            }
        }
        scheduled
    }

    fn take_loads(&mut self) -> Vec<(RequestId, Vec<BlockTransferPlan>)> {
        let ids: Vec<RequestId> = std::mem::take(&mut self.loads).into_values().collect();
        let mut loads = Vec::new();
        for id in ids {
            if let Some(load) = self.requests.get_mut(&id).and_then(|request| request.load.take()) {
                loads.push((id, load.plans));
            }
        }
        loads
    }

    /// An asynchronous load is reported before its request computes anything, so it is not looked at.
    fn note_unreported(&mut self, loads: &[(RequestId, Vec<BlockTransferPlan>)]) {
        if self.geometry.load_async || self.unreported_steps == 0 {
            return;
        }
        let blocks = loads.iter().flat_map(|(_, plans)| plans).map(|plan| plan.block_id);
        self.unreported.push_front(blocks.collect());
        self.unreported.truncate(self.unreported_steps as usize);
    }

    fn rests_on_unreported(&self, id: &RequestId) -> bool {
        if self.unreported.iter().all(HashSet::is_empty) {
            return false;
        }
        let table = self.requests.get(id).and_then(|request| request.table.as_ref());
        let mut blocks = table.into_iter().flatten().flatten();
        blocks.any(|block| self.unreported.iter().any(|step| step.contains(block)))
    }
}

fn append(request: &mut Request, blocks: &Resumed) {
    match blocks {
        Resumed::Yes(table) => {
            request.table = Some(table.clone());
            request.saved = 0;
        }
        Resumed::No(Some(more)) => {
            let table = request.table.get_or_insert_default();
            for (group, blocks) in more.iter().enumerate() {
                if group == table.len() {
                    table.push(Vec::new());
                }
                table[group].extend_from_slice(blocks);
            }
        }
        Resumed::No(None) => {}
    }
}
