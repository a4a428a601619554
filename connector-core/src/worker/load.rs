//! Loads: begun by request, reported by request or by block.

use std::collections::BTreeSet;

use super::job::{Direction, Job};
use super::{Drain, Worker};
use crate::metadata::ConnectorMetadata;
use crate::plan::{BlockId, BlockTransferPlan, RequestId, RequestPlans};
use crate::runtime::Runtime;

/// The open loads of one request.
#[derive(Debug)]
pub(super) struct RequestLoads {
    pub(super) request: RequestId,
    pub(super) jobs: Vec<Job>,
}

impl<R: Runtime> Worker<R> {
    /// Begins the step's loads; waits for all of them unless they are asynchronous.
    pub fn start_load_kv(&mut self, metadata: &ConnectorMetadata) {
        self.report_load_completions = metadata.async_load;
        for (request, plans) in &metadata.load_requests {
            if plans.is_empty() {
                continue;
            }
            let job = self.begin(Direction::Load, rows(plans));
            match self.loads.iter_mut().find(|loads| loads.request == *request) {
                Some(loads) => loads.jobs.push(job),
                None => self.loads.push(RequestLoads { request: request.clone(), jobs: vec![job] }),
            }
        }
        if !metadata.async_load {
            self.drain_loads(Drain::Wait);
        }
    }

    /// Before a layer reads its blocks. Asynchronous loads fill blocks that no running request reads.
    pub fn wait_for_layer_load(&mut self) {
        if !self.report_load_completions {
            self.drain_loads(Drain::Wait);
        }
    }

    /// Requests whose asynchronous loads are done, well or not, since the last call. Settles what has ended.
    pub fn get_finished(&mut self) -> BTreeSet<RequestId> {
        self.drain_loads(Drain::Poll);
        self.drain_stores(Drain::Poll);
        std::mem::take(&mut self.finished_recving)
    }

    /// Requests with a failed load and none that is open, since the last call; empty unless failures are reported by
    /// request.
    pub fn get_failed_recving(&mut self) -> BTreeSet<RequestId> {
        let open = |request: &RequestId| self.loads.iter().any(|loads| loads.request == *request);
        let (kept, failed) = std::mem::take(&mut self.failed_recving).into_iter().partition(open);
        self.failed_recving = kept;
        failed
    }

    /// Exactly the blocks whose load failed, since the last call; empty if failures are reported by request.
    pub fn get_block_ids_with_load_errors(&mut self) -> BTreeSet<BlockId> {
        std::mem::take(&mut self.load_error_block_ids)
    }

    /// Settles loads that have ended, or all of them.
    pub(super) fn drain_loads(&mut self, how: Drain) {
        for RequestLoads { request, jobs } in std::mem::take(&mut self.loads) {
            let mut open = Vec::new();
            for mut job in jobs {
                if job.end(&mut self.runtime, how) {
                    self.finish_load(&request, job);
                } else {
                    open.push(job);
                }
            }
            if !open.is_empty() {
                self.loads.push(RequestLoads { request, jobs: open });
            } else if self.report_load_completions {
                self.finished_recving.insert(request);
            }
        }
    }

    fn finish_load(&mut self, request: &RequestId, job: Job) {
        let job = job.into_ended();
        self.settle(Direction::Load, &job);
        if !self.options.report_failed_requests {
            self.load_error_block_ids.extend(job.not_good().map(|plan| plan.block_id));
        } else if !job.succeeded() {
            self.failed_recving.insert(request.clone());
        }
    }
}

/// One row per block, each with its request.
pub(super) fn rows(plans: &RequestPlans) -> Vec<BlockTransferPlan> {
    match plans {
        RequestPlans::List(plans) => plans.iter().map(|plan| (**plan).clone()).collect(),
        RequestPlans::Batch(batch) => {
            let row = |plan: &BlockTransferPlan| {
                let request = Some(batch.request.clone());
                BlockTransferPlan { request, ..plan.clone() }
            };
            batch.plans.iter().map(row).collect()
        }
    }
}
