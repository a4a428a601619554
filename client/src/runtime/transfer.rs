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

/// One block of a job, as the client takes it; none = its name is no key of this runtime, and it fails alone.
pub(super) struct Block {
    pub(super) key: Option<LocalKey>,
    pub(super) parent: Option<LocalKey>,
    pub(super) depth: u32,
    pub(super) runs: Vec<Run>,
}

#[derive(Debug)]
enum Part {
    Open(PartId),
    Ended(Vec<Outcome>),
}

#[derive(Debug)]
struct Transfer {
    parts: Vec<Part>,
    /// Place in the job of each block that the client was asked for, in the order of the parts.
    asked: Vec<usize>,
    /// Bytes of each block of the job.
    bytes: Vec<u64>,
    /// Why a part could not begin, for people.
    error: Option<String>,
    /// Who waits for it waits no longer than until then.
    wait_until: Instant,
}

/// How a job is ended early.
#[derive(Clone, Copy, Debug)]
pub(super) enum Early {
    /// By its owner.
    Cancel,
    /// Its time is over.
    Expire,
}

/// The open jobs of a worker.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    open: HashMap<u64, Transfer>,
    last: u64,
}

impl Transfers {
    pub(super) fn load(&mut self, client: &Client, blocks: Vec<Block>, wait: Duration) -> JobId {
        let load = |(key, block): (LocalKey, Block)| LoadBlock { key, runs: block.runs };
        self.begin(blocks, wait, load, |part| client.load(part))
    }

    /// Head of the chain first.
    pub(super) fn store(&mut self, client: &Client, blocks: Vec<Block>, wait: Duration) -> JobId {
        let store = |(key, Block { parent, depth, runs, .. })| StoreBlock { key, parent, depth, runs };
        self.begin(blocks, wait, store, |part| client.store(part))
    }

    fn begin<T>(
        &mut self,
        blocks: Vec<Block>,
        wait: Duration,
        make: impl Fn((LocalKey, Block)) -> T,
        ask: impl Fn(&[T]) -> Result<PartId, Error>,
    ) -> JobId {
        let wait_until = Instant::now() + wait;
        let bytes = blocks.iter().map(|block| block.runs.iter().map(|run| run.length).sum()).collect();
        let named = blocks.into_iter().enumerate().filter_map(|(place, block)| Some((place, (block.key?, block))));
        let (asked, blocks): (Vec<usize>, Vec<T>) = named.map(|(place, block)| (place, make(block))).unzip();
        let mut error = None;
        let part = |part: &[T]| match ask(part) {
            Ok(job) => Part::Open(job),
            Err(refused) => {
                let outcome = Outcome::Failed(FailCause::from(&refused));
                error = Some(refused.to_string());
                Part::Ended(vec![outcome; part.len()])
            }
        };
        let parts = blocks.chunks(JOB_BLOCKS_MAX).map(part).collect();
        self.last += 1;
        self.open.insert(self.last, Transfer { parts, asked, bytes, error, wait_until });
        JobId(self.last)
    }

    /// How a job ended, once; none while it is open.
    pub(super) fn poll(&mut self, client: &Client, job: JobId) -> Option<TransferJobState> {
        self.take(client, job, Instant::now())
    }

    /// Waits for a job, at most until its time is over; what is not done by then has failed.
    pub(super) fn wait(&mut self, client: &Client, job: JobId) -> TransferJobState {
        let until = self.open.get(&job.0).map_or_else(Instant::now, |transfer| transfer.wait_until);
        self.take(client, job, until).unwrap_or_else(|| self.end(client, job, Early::Expire))
    }

    /// Ends a job early, and returns when no thread touches engine memory for it.
    pub(super) fn end(&mut self, client: &Client, job: JobId, early: Early) -> TransferJobState {
        loop {
            let Some(transfer) = self.open.get(&job.0) else {
                let error = Some(format!("job {} is unknown, or its end was taken", job.0));
                return TransferJobState { blocks: Vec::new(), error };
            };
            for part in &transfer.parts {
                match (part, early) {
                    (Part::Open(id), Early::Cancel) => client.cancel(*id),
                    (Part::Open(id), Early::Expire) => client.expire(*id),
                    (Part::Ended(_), _) => {}
                }
            }
            // Memory that a thread still touches cannot be given back, however long it takes: a copy stops at its next
            // piece, and a Commit under way ends by the time-out of a call.
            if let Some(state) = self.take(client, job, Instant::now() + Duration::from_millis(END_ROUND_MS)) {
                return state;
            }
            if let Some(Error::Forked) = client.detached() {
                // The threads are the parent's, and so is the memory that they touch.
                self.open.remove(&job.0);
                continue;
            }
            tracing::warn!(job = job.0, "a job that was ended early has a copy under way still; waiting on");
        }
    }

    fn take(&mut self, client: &Client, job: JobId, until: Instant) -> Option<TransferJobState> {
        let transfer = self.open.get_mut(&job.0)?;
        for part in &mut transfer.parts {
            if let Part::Open(id) = *part {
                let result = client.wait(id, until.saturating_duration_since(Instant::now()))?;
                *part = Part::Ended(result.outcomes);
            }
        }
        self.open.remove(&job.0).map(Transfer::state)
    }

    /// Ends all jobs.
    pub(super) fn close(&mut self, client: &Client) {
        let open: Vec<u64> = self.open.keys().copied().collect();
        open.into_iter().for_each(|job| drop(self.end(client, JobId(job), Early::Cancel)));
    }
}

impl Transfer {
    fn state(self) -> TransferJobState {
        let Self { parts, asked, bytes, error, .. } = self;
        // What was not asked has no name, or not one that a key has.
        let mut blocks = vec![BlockResult { result: KeyResult::Invalid, bytes: 0 }; bytes.len()];
        let outcomes = parts.into_iter().flat_map(|part| match part {
            Part::Ended(outcomes) => outcomes,
            Part::Open(_) => Vec::new(),
        });
        let outcomes: Vec<Outcome> = outcomes.collect();
        for (place, outcome) in asked.iter().zip(&outcomes) {
            let result = outcome.key_result();
            blocks[*place] = BlockResult { result, bytes: if result.is_good() { bytes[*place] } else { 0 } };
        }
        let error = error.or_else(|| reason(&blocks, &outcomes));
        TransferJobState { blocks, error }
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
