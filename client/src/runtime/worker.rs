//! What a worker runs on: loads and stores of numbered blocks, and which of its blocks are gone.

use std::path::PathBuf;
use std::time::Duration;

use umbp_connector_core::key::{LocalKey, TextKey};
use umbp_connector_core::layout::Layout;
use umbp_connector_core::plan::{BlockTransferPlan, ObjectKey, PlanRuns};
use umbp_connector_core::runtime::{JobId, Runtime, TransferJobState};

use super::memory::{EngineMemory, MemoryError, MemoryRange};
use super::notice::{Notice, Watch};
use super::options::RuntimeOptions;
use super::published::Published;
use super::transfer::{Block, Early, Transfers};
use crate::client::Client;
use crate::options::Error;
use crate::region::Run;

/// A worker's runtime. Dropping it ends all jobs; then no thread touches engine memory any more.
#[derive(Debug)]
pub struct WorkerRuntime {
    client: Client,
    socket: PathBuf,
    key_namespace: Option<String>,
    timeout: Duration,
    watch: Watch,
    memory: Option<EngineMemory>,
    transfers: Transfers,
    published: Published,
}

impl WorkerRuntime {
    /// Starts, with or without a daemon; waits a moment for one that is there.
    pub fn start(options: &RuntimeOptions) -> Result<Self, Error> {
        let client = Client::start(options.client())?;
        client.wait_attached(options.first_attach());
        Ok(Self {
            client,
            socket: options.socket.clone(),
            key_namespace: options.key_namespace.clone(),
            timeout: options.timeout,
            watch: Watch::default(),
            memory: None,
            transfers: Transfers::default(),
            published: Published::default(),
        })
    }

    /// The client below: counters, status, waiting for the daemon.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// News for people since the last call.
    pub fn notice(&mut self) -> Option<Notice> {
        self.watch.look(&self.client, &self.socket)
    }

    /// Registers engine memory, once: where blocks 0 to `blocks` - 1 of each group lie. Until then every block fails.
    ///
    /// # Safety
    /// Every range stays mapped, readable and writable, until this runtime is dropped. While a job is open, nobody
    /// else writes the memory of its blocks, and of a load nobody reads it either.
    pub unsafe fn register(&mut self, layout: Layout, blocks: u32, ranges: &[MemoryRange]) -> Result<(), MemoryError> {
        if self.memory.is_some() {
            return Err(MemoryError::Twice);
        }
        // SAFETY: as the caller promises; the client ends with this runtime.
        self.memory = Some(unsafe { EngineMemory::register(&self.client, layout, blocks, ranges) }?);
        Ok(())
    }

    fn blocks<'a>(
        &self,
        plans: &'a [BlockTransferPlan],
        runs: impl Fn(&EngineMemory, usize, &'a BlockTransferPlan) -> Vec<Run>,
    ) -> Vec<Block> {
        let block = |(index, plan): (usize, &'a BlockTransferPlan)| {
            let key = self.key(&plan.key);
            let parent = key.and_then(|key| Some(LocalKey { hash: plan.parent?, ..key }));
            let runs = self.memory.as_ref().map_or_else(Vec::new, |memory| runs(memory, index, plan));
            Block { key, parent, depth: plan.depth, runs }
        };
        plans.iter().enumerate().map(block).collect()
    }

    fn key(&self, key: &ObjectKey) -> Option<LocalKey> {
        match key {
            ObjectKey::Block(key) => Some(*key),
            ObjectKey::Text(text) => {
                let key = TextKey::parse(text).ok()?;
                (Some(key.namespace) == self.key_namespace.as_deref()).then_some(key.local)
            }
        }
    }
}

/// Whole blocks are moved by number once memory is registered; before that every block fails. Waits end when the
/// runtime's time-out has passed since the job began, so that all waits of an engine's step together take no longer.
impl Runtime for WorkerRuntime {
    fn load_blocks(&mut self, plans: &[BlockTransferPlan]) -> Option<JobId> {
        self.memory.as_ref()?;
        let blocks = self.blocks(plans, |memory, _, plan| memory.runs(plan.block_id, plan.group));
        Some(self.transfers.load(&self.client, blocks, self.timeout))
    }

    fn load(&mut self, plans: &[BlockTransferPlan], runs: &PlanRuns) -> JobId {
        let blocks = self.blocks(plans, |memory, index, _| memory.runs_at(runs.plan(index)));
        self.transfers.load(&self.client, blocks, self.timeout)
    }

    fn store_blocks(&mut self, plans: &[BlockTransferPlan]) -> Option<JobId> {
        self.memory.as_ref()?;
        let blocks = self.blocks(plans, |memory, _, plan| memory.runs(plan.block_id, plan.group));
        Some(self.transfers.store(&self.client, blocks, self.timeout))
    }

    fn store(&mut self, plans: &[BlockTransferPlan], runs: &PlanRuns) -> JobId {
        let blocks = self.blocks(plans, |memory, index, _| memory.runs_at(runs.plan(index)));
        self.transfers.store(&self.client, blocks, self.timeout)
    }

    fn poll(&mut self, job: JobId) -> Option<TransferJobState> {
        self.transfers.poll(&self.client, job)
    }

    fn wait(&mut self, job: JobId) -> TransferJobState {
        self.transfers.wait(&self.client, job)
    }

    fn cancel(&mut self, job: JobId) -> TransferJobState {
        self.transfers.end(&self.client, job, Early::Cancel)
    }

    /// They are visible since their Commit; here their end becomes news.
    fn publish(&mut self, _: JobId, plans: &[BlockTransferPlan]) {
        let keys: Vec<LocalKey> = plans.iter().filter_map(|plan| self.key(&plan.key)).collect();
        self.published.add(keys);
    }

    /// As far as is known by now: never waits.
    fn take_evicted_keys(&mut self) -> Vec<ObjectKey> {
        self.published.take_evicted(&self.client).into_iter().map(ObjectKey::Block).collect()
    }

    fn close(&mut self) {
        self.transfers.close(&self.client);
    }
}

impl Drop for WorkerRuntime {
    fn drop(&mut self) {
        self.close();
    }
}
