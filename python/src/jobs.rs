//! A caller's job: parts of at most [`JOB_BLOCKS_MAX`] blocks each, so that a caller may ask for any number.

use std::time::Instant;

use umbp_client::{Client, Error, JOB_BLOCKS_MAX, JobId, LoadBlock, Outcome, StoreBlock};
use umbp_connector_core::job::KeyResult;

/// How one key ended, and its bytes if it is good.
pub(crate) type Ended = (KeyResult, u64);

enum Part {
    /// Open, with so many keys.
    Open(JobId, usize),
    Ended(Vec<Ended>),
}

/// A job of one caller.
pub(crate) struct Parts {
    parts: Vec<Part>,
    /// Keys that were never asked for, by their place in the caller's list, in order.
    refused: Vec<(usize, KeyResult)>,
    /// Why a part could not begin, for people.
    error: Option<String>,
}

impl Parts {
    /// `refused` are places in the caller's list that `blocks` does not have, in order.
    pub(crate) fn load(client: &Client, blocks: &[LoadBlock], refused: Vec<(usize, KeyResult)>) -> Self {
        Self::begin(blocks, refused, |part| client.load(part))
    }

    /// See [`Self::load`].
    pub(crate) fn store(client: &Client, blocks: &[StoreBlock], refused: Vec<(usize, KeyResult)>) -> Self {
        Self::begin(blocks, refused, |part| client.store(part))
    }

    fn begin<T>(blocks: &[T], refused: Vec<(usize, KeyResult)>, ask: impl Fn(&[T]) -> Result<JobId, Error>) -> Self {
        let mut job = Self { parts: Vec::new(), refused, error: None };
        for part in blocks.chunks(JOB_BLOCKS_MAX) {
            let begun = match ask(part) {
                Ok(id) => Part::Open(id, part.len()),
                Err(error) => {
                    job.error = Some(error.to_string());
                    Part::Ended(vec![(KeyResult::Disconnected, 0); part.len()])
                }
            };
            job.parts.push(begun);
        }
        job
    }

    /// The client's jobs that are open.
    pub(crate) fn open(&self) -> Vec<JobId> {
        let open = |part: &Part| if let Part::Open(id, _) = part { Some(*id) } else { None };
        self.parts.iter().filter_map(open).collect()
    }

    /// Waits for what is open until `end`; true once no part is.
    pub(crate) fn wait(&mut self, client: &Client, end: Instant) -> bool {
        for part in &mut self.parts {
            if let Part::Open(id, _) = *part
                && let Some(result) = client.wait(id, end.saturating_duration_since(Instant::now()))
            {
                *part = Part::Ended(result.outcomes.into_iter().map(ended).collect());
            }
        }
        self.open().is_empty()
    }

    pub(crate) fn error(&self) -> Option<String> {
        self.error.clone()
    }

    /// One result per key of the caller's list; what is open counts as disconnected.
    pub(crate) fn results(&mut self) -> Vec<Ended> {
        let mut results: Vec<Ended> = Vec::new();
        for part in self.parts.drain(..) {
            match part {
                Part::Ended(ended) => results.extend(ended),
                Part::Open(_, keys) => results.extend(std::iter::repeat_n((KeyResult::Disconnected, 0), keys)),
            }
        }
        for (place, result) in self.refused.drain(..) {
            results.insert(place.min(results.len()), (result, 0));
        }
        results
    }
}

fn ended(outcome: Outcome) -> Ended {
    let bytes = match outcome {
        Outcome::Stored { bytes } | Outcome::Loaded { bytes, .. } => bytes,
        _ => 0,
    };
    (outcome.key_result(), bytes)
}
