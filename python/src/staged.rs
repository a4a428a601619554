//! The runtime of a worker whose blocks are in a device's memory: `umbp.vllm.staging.Staging`, which moves them
//! through host buffers.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use umbp_connector_core::job::KeyResult;
use umbp_connector_core::plan::{BlockTransferPlan, ObjectKey, PlanRuns};
use umbp_connector_core::runtime::{BlockResult, JobId, Runtime, TransferJobState};

use crate::client::Client;

#[derive(Clone, Copy)]
struct Open {
    blocks: usize,
    /// The job in Python; none = it could not begin.
    theirs: Option<u64>,
    /// Who waits for it waits no longer than until then.
    wait_until: Instant,
}

/// Jobs go to Python; whatever fails there is failed blocks.
pub(crate) struct Staged {
    staging: Py<PyAny>,
    client: Py<Client>,
    /// Name of the namespace in the client's text keys.
    namespace: String,
    timeout: Duration,
    jobs: HashMap<u64, Open>,
    last: u64,
}

impl Staged {
    pub(crate) fn new(staging: Py<PyAny>, client: Py<Client>, namespace: String, timeout_ms: u64) -> Self {
        let timeout = Duration::from_millis(timeout_ms);
        Self { staging, client, namespace, timeout, jobs: HashMap::new(), last: 0 }
    }

    fn begin(&mut self, plans: &[BlockTransferPlan], is_load: bool) -> JobId {
        let wait_until = Instant::now() + self.timeout;
        let text = |key: &ObjectKey| key.to_text(&self.namespace);
        let keys: Vec<String> = plans.iter().map(|plan| text(&plan.key)).collect();
        let ids: Vec<i64> = plans.iter().map(|plan| plan.block_id.0).collect();
        // A group that no layout has: such a block fails alone.
        let groups: Vec<i64> = plans.iter().map(|plan| plan.group.map_or(-1, |group| i64::from(group.0))).collect();
        let parent = |plan: &BlockTransferPlan| match (&plan.key, plan.parent) {
            (ObjectKey::Block(key), Some(hash)) => {
                let mut parent = *key;
                parent.hash = hash;
                Some(text(&ObjectKey::Block(parent)))
            }
            _ => None,
        };
        let begun: PyResult<u64> = Python::attach(|py| {
            let staging = self.staging.bind(py);
            let job = if is_load {
                staging.call_method1("load_blocks", (py.None(), keys, ids, groups))?
            } else {
                let parents: Vec<Option<String>> = plans.iter().map(parent).collect();
                let depths: Vec<u32> = plans.iter().map(|plan| plan.depth).collect();
                staging.call_method1("store_blocks", (py.None(), keys, ids, groups, parents, depths))?
            };
            job.extract()
        });
        self.last += 1;
        self.jobs.insert(self.last, Open { blocks: plans.len(), theirs: reported(begun), wait_until });
        JobId(self.last)
    }

    fn take(&mut self, job: JobId, wait: Duration) -> Option<TransferJobState> {
        let Open { blocks, theirs, .. } = *self.jobs.get(&job.0)?;
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let ended = match theirs {
            None => Some(failed(blocks)),
            Some(theirs) => Python::attach(|py| match self.ask(py, theirs, wait_ms) {
                Ok(ended) => ended,
                Err(error) => {
                    error.print(py);
                    // First nothing of it may be written any more; then its blocks have failed.
                    reported(self.staging.call_method1(py, "abandon", (theirs,)));
                    Some(failed(blocks))
                }
            }),
        };
        if ended.is_some() {
            self.jobs.remove(&job.0);
        }
        ended
    }

    fn ask(&self, py: Python<'_>, job: u64, timeout_ms: u64) -> PyResult<Option<TransferJobState>> {
        let ended = self.staging.bind(py).call_method1("wait", (job, timeout_ms))?;
        if ended.is_none() {
            return Ok(None);
        }
        let words: Vec<String> = ended.getattr("results")?.extract()?;
        let bytes: Vec<u64> = ended.getattr("bytes")?.extract()?;
        let block = |(word, bytes): (String, u64)| BlockResult { result: named(&word), bytes };
        let blocks = words.into_iter().zip(bytes).map(block).collect();
        Ok(Some(TransferJobState { blocks, error: ended.getattr("error")?.extract()? }))
    }
}

impl Runtime for Staged {
    fn load_blocks(&mut self, plans: &[BlockTransferPlan]) -> Option<JobId> {
        Some(self.begin(plans, true))
    }

    fn load(&mut self, plans: &[BlockTransferPlan], _: &PlanRuns) -> JobId {
        self.begin(plans, true)
    }

    fn store_blocks(&mut self, plans: &[BlockTransferPlan]) -> Option<JobId> {
        Some(self.begin(plans, false))
    }

    fn store(&mut self, plans: &[BlockTransferPlan], _: &PlanRuns) -> JobId {
        self.begin(plans, false)
    }

    fn poll(&mut self, job: JobId) -> Option<TransferJobState> {
        self.take(job, Duration::ZERO)
    }

    fn wait(&mut self, job: JobId) -> TransferJobState {
        let left = self.jobs.get(&job.0).map(|open| open.wait_until.saturating_duration_since(Instant::now()));
        self.take(job, left.unwrap_or_default()).unwrap_or_else(|| self.cancel(job))
    }

    /// A job that Python has cancelled has ended: what runs on for it touches buffers only.
    fn cancel(&mut self, job: JobId) -> TransferJobState {
        let Some(Open { blocks, theirs, .. }) = self.jobs.get(&job.0).copied() else {
            return TransferJobState { blocks: Vec::new(), error: None };
        };
        let Some(theirs) = theirs else {
            self.jobs.remove(&job.0);
            return failed(blocks);
        };
        let cancelled = Python::attach(|py| self.staging.call_method1(py, "cancel", (theirs,)).map(drop));
        reported(cancelled);
        self.take(job, Duration::ZERO).unwrap_or_else(|| {
            self.jobs.remove(&job.0);
            reported(Python::attach(|py| self.staging.call_method1(py, "abandon", (theirs,)).map(drop)));
            failed(blocks)
        })
    }

    fn publish(&mut self, _: JobId, plans: &[BlockTransferPlan]) {
        let key = |plan: &BlockTransferPlan| match plan.key {
            ObjectKey::Block(key) => Some(key),
            ObjectKey::Text(_) => None,
        };
        self.client.get().published(plans.iter().filter_map(key));
    }

    fn take_evicted_keys(&mut self) -> Vec<ObjectKey> {
        self.client.get().evicted().into_iter().map(ObjectKey::Block).collect()
    }

    fn close(&mut self) {
        Python::attach(|py| self.client.get().close(py));
    }
}

fn named(word: &str) -> KeyResult {
    KeyResult::ALL.into_iter().find(|result| result.name() == word).unwrap_or(KeyResult::Invalid)
}

/// Failures of Python are told where Python tells them.
fn reported<T>(done: PyResult<T>) -> Option<T> {
    done.map_err(|error| Python::attach(|py| error.print(py))).ok()
}

fn failed(blocks: usize) -> TransferJobState {
    TransferJobState::all(blocks, KeyResult::Invalid, 0)
}
