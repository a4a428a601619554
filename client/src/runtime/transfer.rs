//! Jobs of any number of blocks, in parts of the client's own jobs, and waits that end.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use umbp_connector_core::job::KeyResult;
use umbp_connector_core::key::LocalKey;
use umbp_connector_core::runtime::{BlockResult, JobId, TransferJobState};

use crate::client::{Client, JobId as PartId};
use crate::load::LoadBlock;
use crate::options::{Error, JOB_BLOCKS_MAX};
use crate::outcome::{FailCause, Outcome};
use crate::region::Run;
use crate::store::StoreBlock;

/// A job that was ended early is awaited in rounds of this length, with a word in the log after each.
const END_ROUND_MS: u64 = 1_000;

/// One block of a job, as the client takes it; without a key it is nobody's, and fails alone.
#[derive(Debug)]
pub struct Block {
    /// Its name.
    pub key: Option<LocalKey>,
    /// Stores: the one before it in its chain.
    pub parent: Option<LocalKey>,
    /// Stores: its place in its chain.
    pub depth: u32,
    /// Where it lies in engine memory, in the order of its bytes.
    pub runs: Vec<Run>,
}

#[derive(Debug)]
enum Part {
    /// With the number of its blocks.
    Open(PartId, usize),
    Ended(Vec<Outcome>),
}

/// One job of any number of blocks.
#[derive(Debug)]
pub struct Transfer {
    parts: Vec<Part>,
    /// Place in the job of each block that the client was asked for, in the order of the parts.
    asked: Vec<usize>,
    /// Bytes of each block of the job.
    bytes: Vec<u64>,
    /// Why a part could not begin, for people.
    error: Option<String>,
}

impl Transfer {
    /// Begins to load.
    pub fn load(client: &Client, blocks: Vec<Block>) -> Self {
        let load = |(key, block): (LocalKey, Block)| LoadBlock { key, runs: block.runs };
        Self::begin(blocks, load, |part| client.load(part))
    }

    /// Begins to store, head of the chain first.
    pub fn store(client: &Client, blocks: Vec<Block>) -> Self {
        let store = |(key, Block { parent, depth, runs, .. })| StoreBlock { key, parent, depth, runs };
        Self::begin(blocks, store, |part| client.store(part))
    }

    fn begin<T>(
        blocks: Vec<Block>,
        make: impl Fn((LocalKey, Block)) -> T,
        ask: impl Fn(&[T]) -> Result<PartId, Error>,
    ) -> Self {
        let bytes = blocks.iter().map(|block| block.runs.iter().map(|run| run.length).sum()).collect();
        let named = blocks.into_iter().enumerate().filter_map(|(place, block)| Some((place, (block.key?, block))));
        let (asked, blocks): (Vec<usize>, Vec<T>) = named.map(|(place, block)| (place, make(block))).unzip();
        let mut error = None;
        let part = |part: &[T]| match ask(part) {
            Ok(job) => Part::Open(job, part.len()),
            Err(refused) => {
                let outcome = Outcome::Failed(FailCause::from(&refused));
                error = Some(refused.to_string());
                Part::Ended(vec![outcome; part.len()])
            }
        };
        let parts = blocks.chunks(JOB_BLOCKS_MAX).map(part).collect();
        Self { parts, asked, bytes, error }
    }

    /// The client's jobs that are open.
    pub fn open(&self) -> impl Iterator<Item = PartId> {
        self.parts.iter().filter_map(|part| if let Part::Open(id, _) = part { Some(*id) } else { None })
    }

    /// Waits for what is open; true once nothing is.
    pub fn wait(&mut self, client: &Client, until: Instant) -> bool {
        for part in &mut self.parts {
            if let Part::Open(id, _) = *part {
                match client.wait(id, until.saturating_duration_since(Instant::now())) {
                    Some(result) => *part = Part::Ended(result.outcomes),
                    None => return false,
                }
            }
        }
        true
    }

    /// How it ended. In a forked child, whose parent has the threads and the memory that they touch, what is open has
    /// failed.
    pub fn state(&mut self) -> TransferJobState {
        // What was not asked has no name, or not one that a key has.
        let mut blocks = vec![BlockResult { result: KeyResult::Invalid, bytes: 0 }; self.bytes.len()];
        let outcomes = self.parts.drain(..).flat_map(|part| match part {
            Part::Ended(outcomes) => outcomes,
            Part::Open(_, blocks) => vec![Outcome::Failed(FailCause::Forked); blocks],
        });
        let outcomes: Vec<Outcome> = outcomes.collect();
        for (place, outcome) in self.asked.iter().zip(&outcomes) {
            let result = outcome.key_result();
            blocks[*place] = BlockResult { result, bytes: if result.is_good() { self.bytes[*place] } else { 0 } };
        }
        let error = self.error.take().or_else(|| reason(&blocks, &outcomes));
        TransferJobState { blocks, error }
    }
}

/// How a job is ended early.
#[derive(Clone, Copy, Debug)]
pub(super) enum Early {
    /// By its owner.
    Cancel,
    /// Its time is over.
    Expire,
}

#[derive(Debug)]
struct Awaited {
    transfer: Transfer,
    /// Who waits for it waits no longer than until then.
    wait_until: Instant,
}

/// The open jobs of a worker.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    open: HashMap<u64, Awaited>,
    last: u64,
}

impl Transfers {
    pub(super) fn load(&mut self, client: &Client, blocks: Vec<Block>, wait: Duration) -> JobId {
        let wait_until = Instant::now() + wait;
        self.keep(Awaited { transfer: Transfer::load(client, blocks), wait_until })
    }

    /// Head of the chain first.
    pub(super) fn store(&mut self, client: &Client, blocks: Vec<Block>, wait: Duration) -> JobId {
        let wait_until = Instant::now() + wait;
        self.keep(Awaited { transfer: Transfer::store(client, blocks), wait_until })
    }

    fn keep(&mut self, job: Awaited) -> JobId {
        self.last += 1;
        self.open.insert(self.last, job);
        JobId(self.last)
    }

    /// How a job ended, once; none while it is open.
    pub(super) fn poll(&mut self, client: &Client, job: JobId) -> Option<TransferJobState> {
        self.take(client, job, Instant::now())
    }

    /// Waits for a job, at most until its time is over; what is not done by then has failed.
    pub(super) fn wait(&mut self, client: &Client, job: JobId) -> TransferJobState {
        let until = self.open.get(&job.0).map_or_else(Instant::now, |job| job.wait_until);
        self.take(client, job, until).unwrap_or_else(|| self.end(client, job, Early::Expire))
    }

    /// Ends a job early, and returns when no thread touches engine memory for it.
    pub(super) fn end(&mut self, client: &Client, job: JobId, early: Early) -> TransferJobState {
        loop {
            let Some(Awaited { transfer, .. }) = self.open.get(&job.0) else {
                let error = Some(format!("job {} is unknown, or its end was taken", job.0));
                return TransferJobState { blocks: Vec::new(), error };
            };
            for id in transfer.open() {
                match early {
                    Early::Cancel => client.cancel(id),
                    Early::Expire => client.expire(id),
                }
            }
            // Memory that a thread still touches cannot be given back, however long it takes: a copy stops at its next
            // piece, and a Commit under way ends by the time-out of a call.
            if let Some(state) = self.take(client, job, Instant::now() + Duration::from_millis(END_ROUND_MS)) {
                return state;
            }
            tracing::warn!(job = job.0, "a job that was ended early has a copy under way still; waiting on");
        }
    }

    fn take(&mut self, client: &Client, job: JobId, until: Instant) -> Option<TransferJobState> {
        let Awaited { transfer, .. } = self.open.get_mut(&job.0)?;
        if !transfer.wait(client, until) && client.detached() != Some(Error::Forked) {
            return None;
        }
        self.open.remove(&job.0).map(|mut job| job.transfer.state())
    }

    /// Ends all jobs.
    pub(super) fn close(&mut self, client: &Client) {
        let open: Vec<u64> = self.open.keys().copied().collect();
        open.into_iter().for_each(|job| drop(self.end(client, JobId(job), Early::Cancel)));
    }
}

/// The first reason, and how many blocks there are that failed.
fn reason(blocks: &[BlockResult], outcomes: &[Outcome]) -> Option<String> {
    let failed = blocks.iter().filter(|block| block.result.is_failure()).count();
    if failed == 0 {
        return None;
    }
    let first = outcomes.iter().find(|outcome| outcome.key_result().is_failure());
    let first = first.map_or_else(|| "not a key of this namespace".to_owned(), |outcome| format!("{outcome:?}"));
    Some(format!("{failed} of {} blocks failed, the first: {first}", blocks.len()))
}
