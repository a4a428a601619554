//! An engine's side on the runtimes of the client: a worker with memory of its own, a scheduler, plans.

use std::path::Path;
use std::time::Duration;

use umbp_client::runtime::{MemoryRange, RuntimeOptions, SchedulerRuntime, WorkerRuntime};
use umbp_connector_core::job::KeyResult;
use umbp_connector_core::key::{BlockHash, GroupId, LocalKey, Rank};
use umbp_connector_core::layout::{Layout, Region, Registered};
use umbp_connector_core::plan::{BlockId, BlockTransferPlan, ObjectKey};
use umbp_connector_core::runtime::{JobId, Runtime as _, TransferJobState};

use crate::common::client::descriptor;
use crate::common::until;

/// Blocks of each group that the engine has.
pub(crate) const BLOCKS: u32 = 64;
/// Two layers of group 0, the second with blocks of half the configured size, and one layer of group 1; each in an
/// allocation of its own, with a gap between blocks where stride and bytes differ.
pub(crate) const LAYERS: [(&str, u16, u64, u64, u64); 3] =
    [("a", 0, 12 << 10, 8 << 10, 12 << 10), ("b", 0, 16 << 10, 16 << 10, 8 << 10), ("c", 1, 4 << 10, 4 << 10, 4 << 10)];
pub(crate) const TIMEOUT: Duration = Duration::from_millis(1500);

pub(crate) fn key(group: u16, number: u64) -> LocalKey {
    let hash = BlockHash::new(&number.to_be_bytes()).expect("a hash");
    LocalKey { hash, group: GroupId(group), rank: Rank { tp: 1, ..Rank::default() } }
}

/// Block `number` of a chain, at the engine's block of the same number.
pub(crate) fn plan(group: u16, number: u64) -> BlockTransferPlan {
    at(group, number, number as i64)
}

pub(crate) fn at(group: u16, number: u64, block: i64) -> BlockTransferPlan {
    BlockTransferPlan {
        key: ObjectKey::Block(key(group, number)),
        block_id: BlockId(block),
        group: Some(GroupId(group)),
        block_hash: None,
        parent: number.checked_sub(1).map(|before| key(group, before).hash),
        depth: number as u32,
        request: None,
    }
}

pub(crate) fn plans(numbers: impl IntoIterator<Item = u64>) -> Vec<BlockTransferPlan> {
    numbers.into_iter().map(|number| plan((number % 2) as u16, number)).collect()
}

pub(crate) fn keys(plans: &[BlockTransferPlan]) -> Vec<LocalKey> {
    let key = |plan: &BlockTransferPlan| match &plan.key {
        ObjectKey::Block(key) => *key,
        text => panic!("no key: {text:?}"),
    };
    plans.iter().map(key).collect()
}

/// A worker, and the memory of its engine.
pub(crate) struct Worker {
    // Before the memory: its threads are gone when that is freed.
    pub(crate) runtime: WorkerRuntime,
    pub(crate) memory: Vec<Box<[u8]>>,
}

pub(crate) fn options(socket: &Path) -> RuntimeOptions {
    let mut options = RuntimeOptions::new(socket, descriptor());
    options.timeout = TIMEOUT;
    options.key_namespace = Some("test".to_owned());
    options
}

pub(crate) fn layout_over(memory: &mut [Box<[u8]>]) -> (Layout, Vec<MemoryRange>) {
    let ranges: Vec<MemoryRange> = memory
        .iter_mut()
        .map(|memory| MemoryRange {
            address: memory.as_mut_ptr().expose_provenance() as u64,
            length: memory.len() as u64,
        })
        .collect();
    let region = |(layer, group, stride, bytes, _): &(&str, u16, u64, u64, u64)| Region {
        layer: (*layer).to_owned(),
        group: GroupId(*group),
        block_stride: *stride,
        block_bytes: *bytes,
        object_offset: 0,
    };
    let tensor = |name: &str| {
        let place = LAYERS.iter().position(|layer| layer.0 == name)?;
        Some(Registered { base: ranges[place].address, block_stride: LAYERS[place].4 })
    };
    let regions: Vec<Region> = LAYERS.iter().map(region).collect();
    (Layout::register(&regions, tensor).expect("a layout"), ranges)
}

impl Worker {
    pub(crate) fn new(socket: &Path) -> Self {
        Self::with(&options(socket))
    }

    pub(crate) fn with(options: &RuntimeOptions) -> Self {
        let mut memory: Vec<Box<[u8]>> = LAYERS
            .iter()
            .map(|(_, _, stride, _, _)| vec![0; (u64::from(BLOCKS) * stride) as usize].into_boxed_slice())
            .collect();
        let mut runtime = WorkerRuntime::start(options).expect("started");
        let (layout, ranges) = layout_over(&mut memory);
        // SAFETY: the memory is dropped after the runtime, and touched only while no job is open.
        unsafe { runtime.register(layout, BLOCKS, &ranges) }.expect("registered");
        Self { runtime, memory }
    }

    /// The bytes of a block's layers, as ranges of the layers' memory.
    pub(crate) fn parts(group: u16, block: i64) -> Vec<(usize, std::ops::Range<usize>)> {
        let part = |(place, (_, of, stride, bytes, _)): (usize, &(&str, u16, u64, u64, u64))| {
            let start = block as usize * *stride as usize;
            (*of == group).then_some((place, start..start + *bytes as usize))
        };
        LAYERS.iter().enumerate().filter_map(part).collect()
    }

    pub(crate) fn fill(&mut self, seed: u64) {
        fill(&mut self.memory, seed);
    }

    pub(crate) fn bytes(&self, plan: &BlockTransferPlan) -> Vec<u8> {
        bytes(&self.memory, plan)
    }

    pub(crate) fn end(&mut self, job: JobId) -> TransferJobState {
        until("a job ends", || self.runtime.poll(job))
    }

    pub(crate) fn begin_store(&mut self, plans: &[BlockTransferPlan]) -> JobId {
        self.runtime.store_blocks(plans).expect("memory is registered")
    }

    pub(crate) fn begin_load(&mut self, plans: &[BlockTransferPlan]) -> JobId {
        self.runtime.load_blocks(plans).expect("memory is registered")
    }

    pub(crate) fn store(&mut self, plans: &[BlockTransferPlan]) -> TransferJobState {
        let job = self.begin_store(plans);
        self.end(job)
    }

    pub(crate) fn load(&mut self, plans: &[BlockTransferPlan]) -> TransferJobState {
        let job = self.begin_load(plans);
        self.end(job)
    }

    pub(crate) fn store_all(&mut self, plans: &[BlockTransferPlan]) {
        let ended = self.store(plans);
        assert!(ended.blocks.iter().all(|block| block.result == KeyResult::Done), "{ended:?}");
    }

    pub(crate) fn loads_all(&mut self, plans: &[BlockTransferPlan]) -> bool {
        good(&self.load(plans)).len() == plans.len()
    }
}

/// Fills all memory with what depends on the byte's place, and on `seed`.
pub(crate) fn fill(memory: &mut [Box<[u8]>], seed: u64) {
    for (place, memory) in memory.iter_mut().enumerate() {
        for (at, word) in memory.chunks_mut(8).enumerate() {
            let value = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (seed << 8) ^ place as u64;
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// The bytes of a plan's block.
pub(crate) fn bytes(memory: &[Box<[u8]>], plan: &BlockTransferPlan) -> Vec<u8> {
    let parts = Worker::parts(plan.group.expect("a group").0, plan.block_id.0);
    parts.into_iter().flat_map(|(place, range)| memory[place][range].to_vec()).collect()
}

/// Places of the blocks that are where they should be.
pub(crate) fn good(ended: &TransferJobState) -> Vec<usize> {
    places(ended, KeyResult::is_good)
}

/// Places of the blocks that failed.
pub(crate) fn failed(ended: &TransferJobState) -> Vec<usize> {
    places(ended, KeyResult::is_failure)
}

fn places(ended: &TransferJobState, wanted: impl Fn(KeyResult) -> bool) -> Vec<usize> {
    ended.blocks.iter().enumerate().filter(|(_, block)| wanted(block.result)).map(|(place, _)| place).collect()
}

pub(crate) fn scheduler(socket: &Path) -> SchedulerRuntime {
    SchedulerRuntime::start(&options(socket)).expect("started")
}
