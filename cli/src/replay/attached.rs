//! The store of a real daemon: one session for each engine, with memory of its own.

use std::path::PathBuf;
use std::time::Duration;

use umbp_client::{Client, JobId, LoadBlock, Options, Outcome, Run, StoreBlock};
use umbp_connector_core::key::{BlockHash, GroupId, KeyError, LocalKey, Rank};
use umbp_connector_core::namespace::NamespaceDescriptor;
use umbp_protocol::message::Found;

use crate::replay::memory::{EngineMemory, Shape};
use crate::replay::tiers::{ChainBlock, Loaded, Stored, Tiers, TiersError};

/// A job ends by its own deadline; one that is this much later still touches memory, and the replay cannot go on.
const GRACE: Duration = Duration::from_secs(60);
/// The longest that one job may take, promotions included.
const JOB_TIMEOUT: Duration = Duration::from_secs(30);
/// How long hits are held, where the daemon grants it: from a lookup to its load.
const HOLD_MS_MAX: u32 = 2000;

/// Where the daemon is, and what the blocks of this replay are called.
pub(crate) struct Store {
    socket: PathBuf,
    trace: String,
    block_bytes: u64,
    copy_threads: usize,
}

impl Store {
    /// `trace` names what hash ids mean: those of two traces are not the same blocks. The cores are shared by all
    /// engines' copy threads.
    pub(crate) fn new(socket: PathBuf, trace: String, block_bytes: u64, engines: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { socket, trace, block_bytes, copy_threads: (cores / engines.max(1)).clamp(1, 4) }
    }

    fn connect(&self, name: &str) -> Result<Client, TiersError> {
        let namespace = NamespaceDescriptor::default()
            .with("engine", "replay")
            .with("trace", &self.trace)
            .with("block_bytes", self.block_bytes);
        let options = Options {
            name: format!("umbp {name} {}", env!("CARGO_PKG_VERSION")),
            copy_threads: self.copy_threads,
            job_timeout: JOB_TIMEOUT,
            ..Options::new(&self.socket, Some(namespace))
        };
        Client::connect(options).map_err(|source| TiersError::Connect { socket: self.socket.clone(), source })
    }

    /// A session with memory of this shape.
    pub(crate) fn attach(&self, shape: Shape) -> Result<Attached, TiersError> {
        let client = self.connect("replay")?;
        let memory = EngineMemory::new(shape);
        // SAFETY: `Attached` drops its client before its memory, and touches the memory only while no job is open.
        let region = unsafe { client.register(memory.address().as_ptr(), shape.bytes() as u64) };
        let region = region?;
        let run = |slot, run| {
            let offset = shape.offset(slot, run) as u64;
            Run { region, offset, length: shape.run_bytes as u64 }
        };
        let slots = (0..shape.slots).map(|slot| (0..shape.runs).map(|index| run(slot, index)).collect()).collect();
        let hold_ms = client.welcome().map_or(0, |welcome| welcome.limits.hold_ms.min(HOLD_MS_MAX));
        Ok(Attached { client, memory, slots, hold_ms })
    }

    /// Which of these blocks are in some tier now.
    pub(crate) fn residents(&self, blocks: &[ChainBlock]) -> Result<Vec<bool>, TiersError> {
        let client = self.connect("replay, residents")?;
        let keys = blocks.iter().map(|block| key(block.id)).collect::<Result<Vec<_>, _>>()?;
        let found = client.lookup(&keys, 0);
        Ok(found.iter().map(|found| matches!(found, Found::Hit { .. })).collect())
    }
}

/// One engine's session.
pub(crate) struct Attached {
    // Dropped first: afterwards no thread touches the memory.
    client: Client,
    memory: EngineMemory,
    /// The runs of each slot.
    slots: Vec<Vec<Run>>,
    hold_ms: u32,
}

impl Attached {
    /// Names of the tiers, in order.
    pub(crate) fn tier_names(&self) -> Vec<String> {
        self.client.welcome().map(|w| w.tiers.into_iter().map(|tier| tier.name).collect()).unwrap_or_default()
    }

    /// How each block of a job ended.
    fn wait(&self, job: JobId) -> Result<Vec<Outcome>, TiersError> {
        let result = self.client.wait(job, JOB_TIMEOUT + GRACE).or_else(|| {
            self.client.cancel(job);
            self.client.wait(job, GRACE)
        });
        result.map(|result| result.outcomes).ok_or(TiersError::Stuck)
    }
}

impl Tiers for Attached {
    fn memory(&mut self) -> &mut EngineMemory {
        &mut self.memory
    }

    fn lookup(&mut self, blocks: &[ChainBlock]) -> Result<usize, TiersError> {
        let keys = blocks.iter().map(|block| key(block.id)).collect::<Result<Vec<_>, _>>()?;
        let found = self.client.lookup(&keys, self.hold_ms);
        let is_hit = |found: &Found| matches!(found, Found::Hit { .. });
        let leading = found.iter().take_while(|found| is_hit(found)).count();
        // What lies behind a missing block is not loaded, so its hold would only keep room from others. If this fails,
        // the holds end by themselves.
        let behind = found.iter().zip(&keys).skip(leading).filter(|(found, _)| is_hit(found)).map(|(_, key)| *key);
        let behind: Vec<_> = behind.collect();
        if !behind.is_empty() {
            let _ = self.client.unhold(&behind);
        }
        Ok(leading)
    }

    fn load(&mut self, blocks: &[ChainBlock]) -> Result<Vec<Loaded>, TiersError> {
        let load = |(block, runs): (&ChainBlock, &Vec<Run>)| Ok(LoadBlock { key: key(block.id)?, runs: runs.clone() });
        let wanted = blocks.iter().zip(&self.slots).map(load).collect::<Result<Vec<_>, KeyError>>()?;
        let outcomes = self.wait(self.client.load(&wanted)?)?;
        Ok(outcomes.into_iter().map(loaded).collect())
    }

    fn store(&mut self, blocks: &[ChainBlock]) -> Result<Vec<Stored>, TiersError> {
        let store = |(block, runs): (&ChainBlock, &Vec<Run>)| {
            let parent = block.parent.map(key).transpose()?;
            Ok(StoreBlock { key: key(block.id)?, parent, depth: block.depth, runs: runs.clone() })
        };
        let wanted = blocks.iter().zip(&self.slots).map(store).collect::<Result<Vec<_>, KeyError>>()?;
        let outcomes = self.wait(self.client.store(&wanted)?)?;
        Ok(outcomes.into_iter().map(stored).collect())
    }
}

/// In a load, every answer but these two is a failure.
fn loaded(outcome: Outcome) -> Loaded {
    match outcome {
        Outcome::Loaded { tier, .. } => Loaded::Good { tier },
        Outcome::Missed(_) => Loaded::Miss,
        _ => Loaded::Failed,
    }
}

/// In a store, every answer but these is a failure.
fn stored(outcome: Outcome) -> Stored {
    match outcome {
        Outcome::Stored { .. } => Stored::Good,
        Outcome::Present | Outcome::BeingWritten => Stored::Present,
        Outcome::Refused => Stored::Refused,
        _ => Stored::Failed,
    }
}

/// The 8 bytes of a hash id are the block's hash.
fn key(id: u64) -> Result<LocalKey, KeyError> {
    Ok(LocalKey { hash: BlockHash::new(&id.to_le_bytes())?, group: GroupId::default(), rank: Rank::default() })
}
