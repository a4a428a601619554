//! An engine's side on the runtimes of the client: a worker with memory of its own, a scheduler, plans.

use std::path::Path;
use std::time::Duration;

use umbp_client::Outcome;
use umbp_client::runtime::{
    BlockPlan, JobNumber, MemoryRange, RuntimeOptions, SchedulerRuntime, Settled, WorkerRuntime,
};
use umbp_connector_core::key::{BlockHash, GroupId, LocalKey, Rank};
use umbp_connector_core::layout::{Layout, Region, Registered};

use crate::common::client::descriptor;
use crate::common::until;
use crate::rig::{is_loaded, is_stored};

/// Blocks of each group that the engine has.
pub(crate) const BLOCKS: u32 = 64;
/// Two layers of group 0, the second with blocks of half the configured size, and one layer of group 1; each in an
/// allocation of its own, with a gap between blocks where stride and bytes differ.
pub(crate) const LAYERS: [(&str, u16, u64, u64, u64); 3] =
    [("a", 0, 12 << 10, 8 << 10, 12 << 10), ("b", 0, 16 << 10, 16 << 10, 8 << 10), ("c", 1, 4 << 10, 4 << 10, 4 << 10)];
pub(crate) const TIMEOUT: Duration = Duration::from_millis(400);

pub(crate) fn key(group: u16, number: u64) -> LocalKey {
    let hash = BlockHash::new(&number.to_be_bytes()).expect("a hash");
    LocalKey { hash, group: GroupId(group), rank: Rank { tp: 1, ..Rank::default() } }
}

/// Block `number` of a chain, at the engine's block of the same number.
pub(crate) fn plan(group: u16, number: u64) -> BlockPlan {
    at(group, number, number as i64)
}

pub(crate) fn at(group: u16, number: u64, block: i64) -> BlockPlan {
    let parent = number.checked_sub(1).map(|before| key(group, before));
    BlockPlan { key: key(group, number), block, group: GroupId(group), parent, depth: number as u32 }
}

pub(crate) fn plans(numbers: impl IntoIterator<Item = u64>) -> Vec<BlockPlan> {
    numbers.into_iter().map(|number| plan((number % 2) as u16, number)).collect()
}

pub(crate) fn keys(plans: &[BlockPlan]) -> Vec<LocalKey> {
    plans.iter().map(|plan| plan.key).collect()
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

    /// Fills all memory with what depends on the byte's place, and on `seed`.
    pub(crate) fn fill(&mut self, seed: u64) {
        for (place, memory) in self.memory.iter_mut().enumerate() {
            for (at, word) in memory.chunks_mut(8).enumerate() {
                let value = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (seed << 8) ^ place as u64;
                word.copy_from_slice(&value.to_le_bytes());
            }
        }
    }

    pub(crate) fn bytes(&self, plan: &BlockPlan) -> Vec<u8> {
        let parts = Self::parts(plan.group.0, plan.block);
        parts.into_iter().flat_map(|(place, range)| self.memory[place][range].to_vec()).collect()
    }

    pub(crate) fn end(&mut self, job: JobNumber) -> Settled {
        until("a job ends", || self.runtime.poll(job))
    }

    pub(crate) fn store(&mut self, plans: &[BlockPlan]) -> Vec<Outcome> {
        let job = self.runtime.store(plans);
        self.end(job).outcomes
    }

    pub(crate) fn load(&mut self, plans: &[BlockPlan]) -> Settled {
        let job = self.runtime.load(plans);
        self.end(job)
    }

    pub(crate) fn store_all(&mut self, plans: &[BlockPlan]) {
        let outcomes = self.store(plans);
        assert!(outcomes.iter().all(|outcome| is_stored(*outcome)), "{outcomes:?}");
    }

    pub(crate) fn loads_all(&mut self, plans: &[BlockPlan]) -> bool {
        self.load(plans).outcomes.iter().all(|outcome| is_loaded(*outcome))
    }
}

pub(crate) fn scheduler(socket: &Path) -> SchedulerRuntime {
    SchedulerRuntime::start(&options(socket)).expect("started")
}
