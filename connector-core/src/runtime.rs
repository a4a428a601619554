//! The seam between the worker and whatever moves the bytes.
//!
//! A runtime begins jobs, and says how each block of them ended. It never panics and never answers "done" in doubt: a
//! daemon that is absent, hung or restarted is jobs whose blocks failed. It has its own limit of time; the worker has
//! no clock.

use crate::job::KeyResult;
use crate::plan::{BlockTransferPlan, ObjectKey, PlanRuns};

/// A job of one runtime; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// How one block of a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockResult {
    /// The result.
    pub result: KeyResult,
    /// Bytes that the block has, if the result is good; else 0.
    pub bytes: u64,
}

/// How a job ended, as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferJobStatus {
    /// Every block is where it should be.
    Completed,
    /// Some block is not.
    Failed,
    /// Ended by its owner before every block was.
    Cancelled,
}

/// A job that has ended: no thread touches engine memory for it any more, and nothing of it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferJobState {
    /// One result per plan, in their order. A missing one is a failure.
    pub blocks: Vec<BlockResult>,
    /// Why, for people.
    pub error: Option<String>,
}

impl TransferJobState {
    /// Every block ended in the same way; `bytes` per block.
    pub fn all(plans: usize, result: KeyResult, bytes: u64) -> Self {
        Self { blocks: vec![BlockResult { result, bytes }; plans], error: None }
    }

    /// The job as a whole.
    pub fn status(&self) -> TransferJobStatus {
        let mut status = TransferJobStatus::Completed;
        for block in &self.blocks {
            match block.result {
                KeyResult::Cancelled => return TransferJobStatus::Cancelled,
                result if !result.is_good() => status = TransferJobStatus::Failed,
                _ => {}
            }
        }
        status
    }
}

/// Moves blocks for one worker.
///
/// Called by one thread at a time. Calls other than [`Self::wait`], [`Self::cancel`] and [`Self::close`] do not wait
/// for blocks. A job's end is taken once, by poll, wait or cancel, whichever gives it first; the worker never asks for
/// it again.
pub trait Runtime {
    /// Begins to load whole blocks; the runtime knows the layout. None declines, and [`Self::load`] is asked instead.
    fn load_blocks(&mut self, plans: &[BlockTransferPlan]) -> Option<JobId> {
        let _ = plans;
        None
    }

    /// Begins to load; `runs` say where the bytes of each plan go. A plan without runs is
    /// [`Invalid`](KeyResult::Invalid), unless the runtime knows better.
    fn load(&mut self, plans: &[BlockTransferPlan], runs: &PlanRuns) -> JobId;

    /// As [`Self::load_blocks`], to store.
    fn store_blocks(&mut self, plans: &[BlockTransferPlan]) -> Option<JobId> {
        let _ = plans;
        None
    }

    /// As [`Self::load`], to store.
    fn store(&mut self, plans: &[BlockTransferPlan], runs: &PlanRuns) -> JobId;

    /// The job's end, if it has ended.
    fn poll(&mut self, job: JobId) -> Option<TransferJobState>;

    /// Waits until the job has ended; past the runtime's limit what is left has failed
    /// ([`Late`](KeyResult::Late)). Returns only when no thread touches engine memory for the job.
    fn wait(&mut self, job: JobId) -> TransferJobState;

    /// Ends the job early: what is not done by now is [`Cancelled`](KeyResult::Cancelled), unless it is too late for
    /// that. Returns only when no thread touches engine memory for the job. A runtime that cannot do so waits.
    fn cancel(&mut self, job: JobId) -> TransferJobState {
        self.wait(job)
    }

    /// Every block of a store is where it should be; a runtime may make them visible only now. Called at most once
    /// for a job, after its end was taken.
    fn publish(&mut self, job: JobId, plans: &[BlockTransferPlan]);

    /// Keys that this worker published and that were evicted since the last call.
    fn take_evicted_keys(&mut self) -> Vec<ObjectKey> {
        Vec::new()
    }

    /// The last call, once; the worker has no job open. When it returns, no thread touches engine memory.
    fn close(&mut self);
}
