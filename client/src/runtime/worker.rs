//! What a worker runs on: loads and stores of numbered blocks, and which of its blocks are gone.

use std::collections::{HashSet, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use umbp_connector_core::key::LocalKey;
use umbp_connector_core::layout::Layout;
use umbp_protocol::message::Found;

use super::memory::{EngineMemory, MemoryError, MemoryRange};
use super::notice::{Notice, Watch};
use super::options::RuntimeOptions;
use super::transfer::{BlockPlan, JobNumber, Settled, Transfers};
use crate::client::Client;
use crate::events::ClientEvent;
use crate::lookup::Lookup;
use crate::options::Error;

/// Keys remembered as published by this worker; beyond it the oldest is forgotten, and its end is not told.
pub const PUBLISHED_MAX: usize = 65_536;

/// A worker's runtime. Dropping it ends all jobs; then no thread touches engine memory any more.
#[derive(Debug)]
pub struct WorkerRuntime {
    client: Client,
    socket: PathBuf,
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
        // SAFETY: as the caller promises; the client ends with this runtime.
        self.memory = Some(unsafe { EngineMemory::register(&self.client, layout, blocks, ranges) }?);
        Ok(())
    }

    /// Begins to load blocks; never fails as a whole, and asks nothing of the daemon but what it can answer later.
    pub fn load(&mut self, plans: &[BlockPlan]) -> JobNumber {
        self.transfers.load(&self.client, self.memory.as_ref(), plans, self.timeout)
    }

    /// Begins to store blocks, head of the chain first.
    pub fn store(&mut self, plans: &[BlockPlan]) -> JobNumber {
        self.transfers.store(&self.client, self.memory.as_ref(), plans, self.timeout)
    }

    /// How a job ended, once; none while it is open.
    pub fn poll(&mut self, job: JobNumber) -> Option<Settled> {
        self.transfers.poll(&self.client, job)
    }

    /// Waits for a job, at most until the runtime's time-out has passed since it began; what is not done by then is
    /// cancelled. None of an unknown job.
    pub fn wait(&mut self, job: JobNumber) -> Option<Settled> {
        self.transfers.wait(&self.client, job)
    }

    /// Ends a job early, and returns when no thread touches engine memory for it. None of an unknown job.
    pub fn cancel(&mut self, job: JobNumber) -> Option<Settled> {
        self.transfers.cancel(&self.client, job)
    }

    /// These blocks were stored by this worker: their end is to be told.
    pub fn publish(&mut self, keys: impl IntoIterator<Item = LocalKey>) {
        self.published.add(keys);
    }

    /// Published blocks that no tier has any more, as far as is known by now. Never waits.
    pub fn take_evicted(&mut self) -> Vec<LocalKey> {
        self.published.take_evicted(&self.client)
    }

    /// Ends all jobs.
    pub fn close(&mut self) {
        self.transfers.close(&self.client);
    }
}

impl Drop for WorkerRuntime {
    fn drop(&mut self) {
        self.close();
    }
}

/// What this worker has published, and what may be gone.
#[derive(Debug, Default)]
struct Published {
    keys: HashSet<LocalKey>,
    oldest_first: VecDeque<LocalKey>,
    /// Left a tier; another may have them.
    doubted: HashSet<LocalKey>,
    asked: Option<(Vec<LocalKey>, Lookup)>,
}

impl Published {
    fn add(&mut self, keys: impl IntoIterator<Item = LocalKey>) {
        for key in keys {
            if self.keys.insert(key) {
                self.oldest_first.push_back(key);
            }
        }
        while self.keys.len() > PUBLISHED_MAX {
            let Some(oldest) = self.oldest_first.pop_front() else { break };
            self.forget(&oldest);
        }
    }

    fn forget(&mut self, key: &LocalKey) {
        self.keys.remove(key);
        self.doubted.remove(key);
    }

    fn take_evicted(&mut self, client: &Client) -> Vec<LocalKey> {
        for event in client.events(Duration::ZERO) {
            match event {
                ClientEvent::Removed { keys, .. } => {
                    let local = keys.iter().filter_map(|key| LocalKey::from_bytes(&key.local).ok().flatten());
                    self.doubted.extend(local.filter(|key| self.keys.contains(key)));
                }
                // What left meanwhile has no name: all are asked for.
                ClientEvent::Resync | ClientEvent::Attached { .. } => self.doubted.extend(&self.keys),
                ClientEvent::Detached { .. } | ClientEvent::TierState { .. } | ClientEvent::Draining => {}
            }
        }
        let gone = self.answered();
        if self.asked.is_none() && !self.doubted.is_empty() {
            let keys: Vec<LocalKey> = self.doubted.drain().collect();
            let lookup = client.begin_lookup(&keys, 0);
            self.asked = Some((keys, lookup));
        }
        gone
    }

    /// What the lookup under way has found gone. Without an answer nothing is.
    fn answered(&mut self) -> Vec<LocalKey> {
        let Some(answer) = self.asked.as_ref().and_then(|(_, lookup)| lookup.poll()) else { return Vec::new() };
        let Some((keys, _)) = self.asked.take() else { return Vec::new() };
        let Ok(found) = answer else { return Vec::new() };
        let gone: Vec<LocalKey> = keys
            .into_iter()
            .zip(found)
            .filter(|(key, found)| matches!(found, Found::Miss(_)) && self.keys.contains(key))
            .map(|(key, _)| key)
            .collect();
        gone.iter().for_each(|key| self.forget(key));
        if !gone.is_empty() {
            let keys = &self.keys;
            self.oldest_first.retain(|key| keys.contains(key));
        }
        gone
    }
}
