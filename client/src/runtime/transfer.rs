//! Jobs of any number of blocks, in parts of the client's own jobs, and waits that end.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use umbp_connector_core::key::{GroupId, LocalKey};

use super::memory::EngineMemory;
use crate::client::{Client, JobId};
use crate::load::LoadBlock;
use crate::options::{Error, JOB_BLOCKS_MAX};
use crate::outcome::{FailCause, Outcome};
use crate::region::Run;
use crate::store::StoreBlock;

/// A job that was cancelled ends with the copies under way; a piece takes far less than this.
const CANCEL_WAIT_MS: u64 = 1_000;

/// One block of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlan {
    /// Its key, ranks included.
    pub key: LocalKey,
    /// The engine's number of the block.
    pub block: i64,
    /// The group whose block table has the number.
    pub group: GroupId,
    /// Stores: key of the block before it in the chain; none for a root.
    pub parent: Option<LocalKey>,
    /// Stores: distance from the root.
    pub depth: u32,
}

/// A job of one runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobNumber(pub u64);

/// How a job ended: no thread touches engine memory for it any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// One per block, in the order of the job.
    pub outcomes: Vec<Outcome>,
    /// Bytes that were moved.
    pub bytes: u64,
}

impl Settled {
    fn new(outcomes: Vec<Outcome>) -> Self {
        let bytes = outcomes.iter().map(|outcome| match outcome {
            Outcome::Stored { bytes } | Outcome::Loaded { bytes, .. } => *bytes,
            _ => 0,
        });
        Self { bytes: bytes.sum(), outcomes }
    }

    /// Indices of exactly the blocks that failed. A store that was refused for lack of room did not: nothing is lost
    /// but the copy.
    pub fn failed(&self) -> impl Iterator<Item = usize> {
        self.outcomes.iter().enumerate().filter(|(_, outcome)| outcome.key_result().is_failure()).map(|(at, _)| at)
    }
}

#[derive(Debug)]
enum Part {
    Open(JobId),
    Ended(Vec<Outcome>),
}

#[derive(Debug)]
struct Transfer {
    parts: Vec<Part>,
    /// Who waits for it waits no longer than until then.
    wait_until: Instant,
}

/// The open jobs of a worker.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    open: HashMap<u64, Transfer>,
    last: u64,
}

impl Transfers {
    /// Begins a load; without registered memory every block of it fails.
    pub(super) fn load(
        &mut self,
        client: &Client,
        memory: Option<&EngineMemory>,
        plans: &[BlockPlan],
        wait: Duration,
    ) -> JobNumber {
        let block = |plan: &BlockPlan| LoadBlock { key: plan.key, runs: runs(memory, plan) };
        let begin = |part: &[BlockPlan]| client.load(&part.iter().map(block).collect::<Vec<_>>());
        self.begin(plans, wait, begin)
    }

    /// See [`Self::load`].
    pub(super) fn store(
        &mut self,
        client: &Client,
        memory: Option<&EngineMemory>,
        plans: &[BlockPlan],
        wait: Duration,
    ) -> JobNumber {
        let block = |plan: &BlockPlan| StoreBlock {
            key: plan.key,
            parent: plan.parent,
            depth: plan.depth,
            runs: runs(memory, plan),
        };
        let begin = |part: &[BlockPlan]| client.store(&part.iter().map(block).collect::<Vec<_>>());
        self.begin(plans, wait, begin)
    }

    fn begin(
        &mut self,
        plans: &[BlockPlan],
        wait: Duration,
        begin: impl Fn(&[BlockPlan]) -> Result<JobId, Error>,
    ) -> JobNumber {
        let wait_until = Instant::now() + wait;
        let part = |part: &[BlockPlan]| match begin(part) {
            Ok(job) => Part::Open(job),
            Err(error) => {
                tracing::debug!(%error, "a part of a job fails at once");
                Part::Ended(vec![Outcome::Failed(FailCause::from(&error)); part.len()])
            }
        };
        let parts = plans.chunks(JOB_BLOCKS_MAX).map(part).collect();
        self.last += 1;
        self.open.insert(self.last, Transfer { parts, wait_until });
        JobNumber(self.last)
    }

    /// How a job ended, once; none while it is open.
    pub(super) fn poll(&mut self, client: &Client, job: JobNumber) -> Option<Settled> {
        self.take(client, job, Instant::now())
    }

    /// Waits for a job, at most until its time is over; what is not done by then is cancelled. None of an unknown job.
    pub(super) fn wait(&mut self, client: &Client, job: JobNumber) -> Option<Settled> {
        let until = self.open.get(&job.0)?.wait_until;
        self.take(client, job, until).or_else(|| self.cancel(client, job))
    }

    /// Ends a job early, and returns when no thread touches engine memory for it. None of an unknown job.
    pub(super) fn cancel(&mut self, client: &Client, job: JobNumber) -> Option<Settled> {
        loop {
            let transfer = self.open.get(&job.0)?;
            transfer.parts.iter().for_each(|part| {
                if let Part::Open(id) = part {
                    client.cancel(*id);
                }
            });
            // Memory that a thread still touches cannot be given back, however long it takes: a Commit under way ends
            // by the time-out of a call, a copy at its next piece.
            let settled = self.take(client, job, Instant::now() + Duration::from_millis(CANCEL_WAIT_MS));
            if settled.is_some() {
                return settled;
            }
            if let Some(Error::Forked) = client.detached() {
                // The threads are the parent's, and so is the memory that they touch.
                self.open.remove(&job.0);
                return Some(Settled::new(Vec::new()));
            }
            tracing::warn!(job = job.0, "a cancelled job has not ended after {CANCEL_WAIT_MS} ms; waiting on");
        }
    }

    fn take(&mut self, client: &Client, job: JobNumber, until: Instant) -> Option<Settled> {
        let transfer = self.open.get_mut(&job.0)?;
        for part in &mut transfer.parts {
            if let Part::Open(id) = *part {
                let result = client.wait(id, until.saturating_duration_since(Instant::now()))?;
                *part = Part::Ended(result.outcomes);
            }
        }
        let parts = self.open.remove(&job.0)?.parts;
        let ended = parts.into_iter().flat_map(|part| match part {
            Part::Ended(outcomes) => outcomes,
            Part::Open(_) => Vec::new(),
        });
        Some(Settled::new(ended.collect()))
    }

    /// Ends all jobs.
    pub(super) fn close(&mut self, client: &Client) {
        let open: Vec<u64> = self.open.keys().copied().collect();
        open.into_iter().for_each(|job| drop(self.cancel(client, JobNumber(job))));
    }
}

fn runs(memory: Option<&EngineMemory>, plan: &BlockPlan) -> Vec<Run> {
    memory.map_or_else(Vec::new, |memory| memory.runs(plan.block, plan.group))
}
