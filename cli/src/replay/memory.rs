//! The memory of one engine: slots for blocks, each block scattered in runs, as the KV tensors of an engine's layers
//! lie apart.
//!
//! Run `r` of slot `s` starts at `r * slots * run_bytes + s * run_bytes`: a tensor for each run index, a row for each
//! slot.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use crate::replay::content;

/// Engines hand out memory in whole pages of the machine.
const ALIGNMENT_BYTES: usize = 4096;

/// How a block lies in engine memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Blocks that fit.
    pub(crate) slots: usize,
    /// Pieces of a block.
    pub(crate) runs: usize,
    /// Bytes of one piece, a multiple of 8.
    pub(crate) run_bytes: usize,
}

impl Shape {
    /// Bytes in all.
    pub(crate) fn bytes(self) -> usize {
        self.slots * self.runs * self.run_bytes
    }

    /// Bytes of one block.
    pub(crate) fn block_bytes(self) -> u64 {
        (self.runs * self.run_bytes) as u64
    }

    /// Where a run starts, in bytes from the start of the memory.
    pub(crate) fn offset(self, slot: usize, run: usize) -> usize {
        (run * self.slots + slot) * self.run_bytes
    }
}

/// Memory that transfer jobs read and write by address while this side leaves it alone.
pub(crate) struct EngineMemory {
    base: NonNull<u8>,
    layout: Layout,
    shape: Shape,
}

// SAFETY: the memory is owned by this value alone and reached through `&mut self` only.
unsafe impl Send for EngineMemory {}

impl EngineMemory {
    /// Zeroed memory of this shape, which is not empty.
    pub(crate) fn new(shape: Shape) -> Self {
        let bytes = shape.bytes().max(ALIGNMENT_BYTES);
        let layout = Layout::from_size_align(bytes, ALIGNMENT_BYTES).unwrap_or_else(|_| Layout::new::<u64>());
        // SAFETY: the layout has a size above zero.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        Self { base, layout, shape }
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Start address, for registration.
    pub(crate) fn address(&self) -> NonNull<u8> {
        self.base
    }

    /// One run of one slot. No transfer job may be under way.
    fn run_mut(&mut self, slot: usize, run: usize) -> &mut [u8] {
        assert!(slot < self.shape.slots && run < self.shape.runs, "slot {slot}, run {run} of {:?}", self.shape);
        // SAFETY: the range lies inside the allocation (checked above), and `&mut self` makes this the only access;
        // jobs are over before this side looks (`Tiers` waits for each).
        unsafe {
            let start = self.base.as_ptr().add(self.shape.offset(slot, run));
            std::slice::from_raw_parts_mut(start, self.shape.run_bytes)
        }
    }

    /// Writes the content of block `id` into a slot.
    pub(crate) fn fill(&mut self, slot: usize, id: u64) {
        for run in 0..self.shape.runs {
            content::fill(id, run * self.shape.run_bytes, self.run_mut(slot, run));
        }
    }

    /// Forgets what a slot held, so that a load that moves nothing cannot pass for one that did.
    pub(crate) fn scrub(&mut self, slot: usize) {
        for run in 0..self.shape.runs {
            self.run_mut(slot, run).fill(0);
        }
    }

    /// Whether a slot holds the content of block `id`, every byte of it.
    pub(crate) fn holds(&mut self, slot: usize, id: u64) -> bool {
        let run_bytes = self.shape.run_bytes;
        (0..self.shape.runs).all(|run| content::is_content(id, run * run_bytes, self.run_mut(slot, run)))
    }
}

impl Drop for EngineMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_runs_do_not_overlap() {
        let shape = Shape { slots: 3, runs: 4, run_bytes: 64 };
        let mut memory = EngineMemory::new(shape);
        for slot in 0..3 {
            memory.fill(slot, slot as u64);
        }
        for slot in 0..3 {
            assert!(memory.holds(slot, slot as u64));
            assert!(!memory.holds(slot, 9));
        }
        memory.scrub(1);
        assert!(memory.holds(0, 0) && !memory.holds(1, 1) && memory.holds(2, 2));
        let mut starts: Vec<_> = (0..3).flat_map(|s| (0..4).map(move |r| shape.offset(s, r))).collect();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] == 64), "{starts:?}");
    }
}
