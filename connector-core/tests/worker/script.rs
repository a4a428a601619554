//! A runtime that does what a script says, and remembers what it was asked.

use std::collections::{BTreeMap, BTreeSet};

use umbp_connector_core::job::KeyResult;
use umbp_connector_core::plan::{BlockTransferPlan, ObjectKey, PlanRuns};
use umbp_connector_core::runtime::{BlockResult, JobId, Runtime, TransferJobState};

/// What a runtime does with an optional call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bulk {
    Declines,
    Accepts,
}

/// What a runtime does with a job that is to end early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancel {
    /// It cannot, and waits.
    Absent,
    Cancels,
    /// Too late: the job runs to its end.
    Completes,
}

/// A call into the runtime, but for `poll`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Call {
    Begin(&'static str, u64, Vec<(String, i64)>),
    Job(&'static str, u64),
    Close,
}

#[derive(Debug)]
pub(crate) struct Script {
    /// The name of the runtime's namespace, for keys as text.
    pub(crate) namespace: String,
    pub(crate) bulk_load: Bulk,
    pub(crate) bulk_store: Bulk,
    pub(crate) cancel: Cancel,
    pub(crate) block_bytes: u64,
    /// Plans and end of each job, by number.
    jobs: Vec<ScriptedJob>,
    /// How jobs will end that are waited for before they are settled.
    armed: BTreeMap<u64, BTreeSet<String>>,
    /// How jobs end that are neither settled nor armed, by the number of the job: one result per plan, in turn.
    pub(crate) unsettled: fn(u64) -> KeyResult,
    pub(crate) evicted: Vec<ObjectKey>,
    pub(crate) calls: Vec<Call>,
}

#[derive(Debug)]
struct ScriptedJob {
    plans: Vec<BlockTransferPlan>,
    ended: Option<TransferJobState>,
    taken: bool,
}

impl Script {
    pub(crate) fn new(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            bulk_load: Bulk::Declines,
            bulk_store: Bulk::Declines,
            cancel: Cancel::Cancels,
            block_bytes: 4096,
            jobs: Vec::new(),
            armed: BTreeMap::new(),
            unsettled: |_| KeyResult::Done,
            evicted: Vec::new(),
            calls: Vec::new(),
        }
    }

    /// Sets how a job ends if it is waited for before it is settled.
    pub(crate) fn arm(&mut self, job: u64, failed_keys: BTreeSet<String>) {
        self.armed.insert(job, failed_keys);
    }

    /// Ends a job: the given keys fail, the rest completes.
    pub(crate) fn settle(&mut self, job: u64, failed_keys: &BTreeSet<String>) {
        let bytes = self.block_bytes;
        let namespace = self.namespace.clone();
        let Some(scripted) = self.jobs.get_mut(job as usize).filter(|job| job.ended.is_none()) else { return };
        let end = |plan: &BlockTransferPlan| match failed_keys.contains(&plan.key.to_text(&namespace)) {
            true => BlockResult { result: KeyResult::Missed, bytes: 0 },
            false => BlockResult { result: KeyResult::Done, bytes },
        };
        scripted.ended = Some(TransferJobState { blocks: scripted.plans.iter().map(end).collect(), error: None });
    }

    /// Ends a job with one result per plan, in turn; a job that has ended keeps its end.
    pub(crate) fn settle_as(&mut self, job: u64, results: &[KeyResult]) {
        let bytes = self.block_bytes;
        let Some(scripted) = self.jobs.get_mut(job as usize).filter(|job| job.ended.is_none()) else { return };
        let results = results.iter().cycle().take(scripted.plans.len());
        let block =
            |result: &KeyResult| BlockResult { result: *result, bytes: if result.is_good() { bytes } else { 0 } };
        scripted.ended = Some(TransferJobState { blocks: results.map(block).collect(), error: None });
    }

    /// A job's plans, how it ended, and whether the worker knows.
    pub(crate) fn job(&self, job: u64) -> (&[BlockTransferPlan], Option<&TransferJobState>, bool) {
        let scripted = &self.jobs[job as usize];
        (&scripted.plans, scripted.ended.as_ref(), scripted.taken)
    }

    /// Jobs begun so far; their numbers are those below.
    pub(crate) fn jobs(&self) -> u64 {
        self.jobs.len() as u64
    }

    fn begin(&mut self, call: &'static str, plans: &[BlockTransferPlan]) -> JobId {
        let number = self.jobs.len() as u64;
        let pair = |plan: &BlockTransferPlan| (plan.key.to_text(&self.namespace), plan.block_id.0);
        self.calls.push(Call::Begin(call, number, plans.iter().map(pair).collect()));
        self.jobs.push(ScriptedJob { plans: plans.to_vec(), ended: None, taken: false });
        JobId(number)
    }

    /// Ends the job as it is armed, and gives its end away.
    fn run_to_end(&mut self, job: JobId) -> TransferJobState {
        match self.armed.get(&job.0).cloned() {
            Some(failed) => self.settle(job.0, &failed),
            None => self.settle_as(job.0, &[(self.unsettled)(job.0)]),
        }
        self.poll(job).expect("a settled job has ended")
    }
}

impl Runtime for Script {
    fn load_blocks(&mut self, plans: &[BlockTransferPlan]) -> Option<JobId> {
        (self.bulk_load == Bulk::Accepts).then(|| self.begin("load_blocks", plans))
    }

    fn load(&mut self, plans: &[BlockTransferPlan], _runs: &PlanRuns) -> JobId {
        self.begin("load", plans)
    }

    fn store_blocks(&mut self, plans: &[BlockTransferPlan]) -> Option<JobId> {
        (self.bulk_store == Bulk::Accepts).then(|| self.begin("store_blocks", plans))
    }

    fn store(&mut self, plans: &[BlockTransferPlan], _runs: &PlanRuns) -> JobId {
        self.begin("store", plans)
    }

    fn poll(&mut self, job: JobId) -> Option<TransferJobState> {
        let scripted = &mut self.jobs[job.0 as usize];
        assert!(!scripted.taken, "the end of job {} is asked for again", job.0);
        scripted.taken = scripted.ended.is_some();
        scripted.ended.clone()
    }

    fn wait(&mut self, job: JobId) -> TransferJobState {
        self.calls.push(Call::Job("wait", job.0));
        self.run_to_end(job)
    }

    fn cancel(&mut self, job: JobId) -> TransferJobState {
        if self.cancel == Cancel::Absent {
            return self.wait(job);
        }
        self.calls.push(Call::Job("cancel", job.0));
        let scripted = &mut self.jobs[job.0 as usize];
        if self.cancel == Cancel::Cancels && scripted.ended.is_none() {
            scripted.ended = Some(TransferJobState::all(scripted.plans.len(), KeyResult::Cancelled, 0));
        }
        self.run_to_end(job)
    }

    fn publish(&mut self, job: JobId, _plans: &[BlockTransferPlan]) {
        self.calls.push(Call::Job("publish", job.0));
    }

    fn take_evicted_keys(&mut self) -> Vec<ObjectKey> {
        std::mem::take(&mut self.evicted)
    }

    fn close(&mut self) {
        self.calls.push(Call::Close);
    }
}
