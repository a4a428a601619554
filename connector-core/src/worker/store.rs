//! Stores: enqueued by step, sealed by [`Worker::wait_for_save`], reported by event.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::job::{Direction, Job};
use super::load::rows;
use super::{Drain, Worker};
use crate::key::{BlockHash, GroupId};
use crate::metadata::{ConnectorMetadata, StoreEventId, StoreEventResult, WorkerMetadata};
use crate::plan::{BlockTransferPlan, RequestId, RequestPlans};
use crate::runtime::Runtime;

/// The stores of one step.
#[derive(Debug, Default)]
pub(super) struct StoreBatch {
    event: Option<StoreEventId>,
    pub(super) jobs: Vec<StoreJob>,
    failed_objects: BTreeSet<(GroupId, BlockHash)>,
}

/// One store.
#[derive(Debug)]
pub(super) struct StoreJob {
    pub(super) owner: Owner,
    pub(super) job: Job,
}

/// Whose store it is. Single plans join the list of their request; beside a batch they are a job of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Request(RequestId),
    /// Single plans of a request that has a batch as well.
    Flat(RequestId),
    /// Single plans of no request.
    Nobody,
}

/// A store to be: single plans are added until it begins.
struct Draft {
    owner: Owner,
    plans: Vec<BlockTransferPlan>,
    is_batch: bool,
}

impl<R: Runtime> Worker<R> {
    /// Begins the step's stores. Never waits.
    pub fn enqueue_stores(&mut self, metadata: &ConnectorMetadata) {
        if self.enqueued.event.is_some() {
            // The step before was never sealed: its event must not be lost.
            self.seal_stores();
        }
        self.enqueued.event = metadata.store_event;
        for Draft { owner, plans, .. } in drafts(metadata) {
            if !plans.is_empty() {
                let job = self.begin(Direction::Store, plans);
                self.enqueued.jobs.push(StoreJob { owner, job });
            }
        }
    }

    /// Seals the step's stores, and settles those that have ended. Never waits: the scheduler holds the blocks until
    /// the step's event is reported.
    pub fn wait_for_save(&mut self) {
        self.seal_stores();
        self.drain_stores(Drain::Poll);
    }

    /// Events whose stores have all ended on this worker, since the last call.
    pub fn build_connector_worker_meta(&mut self) -> WorkerMetadata {
        std::mem::take(&mut self.worker_meta)
    }

    fn seal_stores(&mut self) {
        if !self.enqueued.jobs.is_empty() || self.enqueued.event.is_some() {
            self.pending_stores.push(std::mem::take(&mut self.enqueued));
        }
    }

    /// Settles sealed stores that have ended, or all of them. A job that did not store everything publishes nothing:
    /// all its objects count as failed.
    pub(super) fn drain_stores(&mut self, how: Drain) {
        for mut batch in std::mem::take(&mut self.pending_stores) {
            for StoreJob { owner, mut job } in std::mem::take(&mut batch.jobs) {
                if !job.end(&mut self.runtime, how) {
                    batch.jobs.push(StoreJob { owner, job });
                    continue;
                }
                let job = job.into_ended();
                self.settle(Direction::Store, &job);
                if !job.succeeded() {
                    batch.failed_objects.extend(job.plans.iter().filter_map(|plan| plan.group.zip(plan.block_hash)));
                }
            }
            if !batch.jobs.is_empty() {
                self.pending_stores.push(batch);
            } else if let Some(event) = batch.event {
                let result = StoreEventResult { completed_workers: 1, failed_objects: batch.failed_objects };
                self.worker_meta.store_events.insert(event, result);
            }
        }
    }
}

/// The step's stores, in the order in which they begin.
fn drafts(metadata: &ConnectorMetadata) -> Vec<Draft> {
    let mut drafts: Vec<Draft> = Vec::new();
    let mut grouped = HashSet::new();
    for (request, plans) in &metadata.store_requests {
        if let RequestPlans::List(plans) = plans {
            grouped.extend(plans.iter().map(Arc::as_ptr));
        }
        let is_batch = matches!(plans, RequestPlans::Batch(_));
        drafts.push(Draft { owner: Owner::Request(request.clone()), plans: rows(plans), is_batch });
    }
    for plan in metadata.store_plans.iter().filter(|plan| grouped.insert(Arc::as_ptr(plan))) {
        let request = plan.request.as_ref().filter(|request| !request.0.is_empty());
        let owner = match request.map(|request| Owner::Request(request.clone())) {
            None => Owner::Nobody,
            Some(owner) => match drafts.iter().find(|draft| draft.owner == owner) {
                Some(Draft { is_batch: true, .. }) => {
                    request.map_or(Owner::Nobody, |request| Owner::Flat(request.clone()))
                }
                _ => owner,
            },
        };
        let plan = (**plan).clone();
        match drafts.iter_mut().find(|draft| draft.owner == owner) {
            Some(draft) => draft.plans.push(plan),
            None => drafts.push(Draft { owner, plans: vec![plan], is_batch: false }),
        }
    }
    drafts
}
