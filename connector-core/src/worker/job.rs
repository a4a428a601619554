//! One job: begun in the form that the runtime takes, ended once.

use std::collections::{BTreeSet, HashSet};

use super::stats::OperationStats;
use super::{Drain, Worker};
use crate::job::KeyResult;
use crate::plan::{BlockTransferPlan, PlanRuns, RequestId};
use crate::runtime::{BlockResult, JobId, Runtime, TransferJobState};

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Load,
    Store,
}

/// A job from its begin until its end is taken.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) plans: Vec<BlockTransferPlan>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The runtime has it.
    Running(JobId),
    /// It has ended (cancelled, say), and is not settled yet.
    Ended(JobId, TransferJobState),
    /// It never began: the worker is closed.
    Refused,
}

/// A job whose end was taken.
pub(super) struct EndedJob {
    pub(super) plans: Vec<BlockTransferPlan>,
    /// None if it never began.
    id: Option<JobId>,
    /// One per plan.
    results: Vec<BlockResult>,
}

impl Job {
    /// Asks the runtime for the job's end, unless it was given already.
    pub(super) fn end(&mut self, runtime: &mut impl Runtime, how: Drain) -> bool {
        if let State::Running(id) = self.state {
            let ended = match how {
                Drain::Poll => runtime.poll(id),
                Drain::Wait => Some(runtime.wait(id)),
            };
            let Some(ended) = ended else { return false };
            self.state = State::Ended(id, ended);
        }
        true
    }

    /// Ends it early, as far as the runtime can. When this returns, no thread touches engine memory for it.
    pub(super) fn cancel(&mut self, runtime: &mut impl Runtime) {
        if let State::Running(id) = self.state {
            self.state = State::Ended(id, runtime.cancel(id));
        }
    }

    /// Some plan is of one of these requests.
    pub(super) fn is_of(&self, requests: &BTreeSet<RequestId>) -> bool {
        self.plans.iter().any(|plan| plan.request.as_ref().is_some_and(|request| requests.contains(request)))
    }

    /// To be called once [`Self::end`] was true, or the job was cancelled; a job that runs has failed in every block.
    pub(super) fn into_ended(self) -> EndedJob {
        let (id, mut results) = match self.state {
            State::Running(id) => (Some(id), Vec::new()),
            State::Ended(id, ended) => (Some(id), ended.blocks),
            State::Refused => (None, Vec::new()),
        };
        results.resize(self.plans.len(), BlockResult { result: KeyResult::Disconnected, bytes: 0 });
        EndedJob { plans: self.plans, id, results }
    }
}

impl EndedJob {
    /// Every block is where it should be.
    pub(super) fn succeeded(&self) -> bool {
        self.results.iter().all(|block| block.result.is_good())
    }

    /// The plans whose block is not where it should be.
    pub(super) fn not_good(&self) -> impl Iterator<Item = &BlockTransferPlan> {
        let pairs = self.plans.iter().zip(&self.results);
        pairs.filter(|(_, block)| !block.result.is_good()).map(|(plan, _)| plan)
    }

    /// Objects, not plans: two plans of one key count once. Cancelled ones count nowhere.
    fn counts(&self) -> OperationStats {
        let (mut completed, mut failed, mut num_bytes) = (HashSet::new(), HashSet::new(), 0);
        for (plan, block) in self.plans.iter().zip(&self.results) {
            if block.result.is_good() {
                completed.insert(&plan.key);
                num_bytes += block.bytes;
            } else if block.result != KeyResult::Cancelled {
                failed.insert(&plan.key);
            }
        }
        let (completed, failed) = (completed.len() as u64, failed.len() as u64);
        OperationStats { submitted: 0, completed, failed, num_bytes }
    }
}

impl<R: Runtime> Worker<R> {
    /// Begins a job, in whole blocks if the runtime takes them so.
    pub(super) fn begin(&mut self, direction: Direction, mut plans: Vec<BlockTransferPlan>) -> Job {
        if let Some(codec) = &self.options.codec {
            for plan in &mut plans {
                plan.key = codec.localize(plan);
            }
        }
        let submitted = plans.len() as u64;
        self.stats.record(direction, OperationStats { submitted, ..OperationStats::default() });
        if self.closed {
            return Job { plans, state: State::Refused };
        }
        let begun = match direction {
            Direction::Load => self.runtime.load_blocks(&plans),
            Direction::Store => self.runtime.store_blocks(&plans),
        };
        let id = begun.unwrap_or_else(|| {
            let runs = PlanRuns::of(&plans, self.layout.as_ref());
            match direction {
                Direction::Load => self.runtime.load(&plans, &runs),
                Direction::Store => self.runtime.store(&plans, &runs),
            }
        });
        Job { plans, state: State::Running(id) }
    }

    /// Counts an ended job, and publishes a store of which nothing is missing.
    pub(super) fn settle(&mut self, direction: Direction, job: &EndedJob) {
        self.stats.record(direction, job.counts());
        if let Some(id) = job.id.filter(|_| direction == Direction::Store && job.succeeded()) {
            self.runtime.publish(id, &job.plans);
        }
    }
}
