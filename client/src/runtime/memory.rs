//! From block numbers to runs of registered memory.

use umbp_connector_core::key::GroupId;
use umbp_connector_core::layout::{self, Layout};
use umbp_connector_core::plan::BlockId;

use crate::client::Client;
use crate::options::Error;
use crate::region::{RegionId, Run};

/// A run that lies in no registered range names this region, so that its block fails and no other: the client counts
/// regions from 1.
const NOWHERE: RegionId = RegionId(0);

/// A range of engine memory, one allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// Its first byte.
    pub address: u64,
    /// Its length, in bytes.
    pub length: u64,
}

/// Why engine memory is not taken.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// Two ranges share bytes.
    #[error("{second:?} overlaps {first:?}: name each allocation once")]
    Overlap {
        /// The one.
        first: MemoryRange,
        /// The other.
        second: MemoryRange,
    },
    /// A block of the layout would lie outside.
    #[error("block {block} of group {group} lies outside the registered memory: register all of each KV tensor")]
    Outside {
        /// The last block's number.
        block: i64,
        /// The group.
        group: u16,
    },
    /// Memory is registered already.
    #[error("engine memory is registered already: make a new runtime for other memory")]
    Twice,
    /// The client refused a range.
    #[error(transparent)]
    Client(#[from] Error),
}

/// Registered memory, and where each block lies in it.
#[derive(Debug)]
pub(super) struct EngineMemory {
    layout: Layout,
    blocks: i64,
    /// By address.
    ranges: Vec<(MemoryRange, RegionId)>,
}

impl EngineMemory {
    /// Registers the ranges, and takes block numbers 0 to `blocks` - 1 of the layout from then on, all of which must
    /// lie inside them.
    ///
    /// # Safety
    /// As of [`Client::register`], for every range, until the client is dropped.
    pub(super) unsafe fn register(
        client: &Client,
        layout: Layout,
        blocks: u32,
        ranges: &[MemoryRange],
    ) -> Result<Self, MemoryError> {
        let mut sorted = ranges.to_vec();
        sorted.sort_unstable_by_key(|range| range.address);
        for pair in sorted.windows(2) {
            if pair[0].address.saturating_add(pair[0].length) > pair[1].address {
                return Err(MemoryError::Overlap { first: pair[0], second: pair[1] });
            }
        }
        let ranges = sorted.into_iter().map(|range| (range, NOWHERE)).collect();
        let mut memory = Self { layout, blocks: i64::from(blocks), ranges };
        memory.check_last_block()?;
        for (range, region) in &mut memory.ranges {
            let address = std::ptr::with_exposed_provenance_mut::<u8>(range.address as usize);
            // SAFETY: as the caller promises.
            *region = unsafe { client.register(address, range.length) }?;
        }
        Ok(memory)
    }

    /// Blocks lie one behind the other in each tensor, so that all are inside if the last one is.
    fn check_last_block(&self) -> Result<(), MemoryError> {
        let block = self.blocks - 1;
        for group in self.layout.groups() {
            let inside = |run: &layout::Run| self.find(run.address, run.length).is_some();
            let runs = self.layout.runs(block, Some(group));
            if !runs.is_ok_and(|runs| runs.iter().all(inside)) {
                return Err(MemoryError::Outside { block, group: group.0 });
            }
        }
        Ok(())
    }

    /// The runs of a block, in the order of its bytes; without a group those of all groups. None for a number or group
    /// that there is not: such a block fails.
    pub(super) fn runs(&self, block: BlockId, group: Option<GroupId>) -> Vec<Run> {
        if block.0 >= self.blocks {
            return Vec::new();
        }
        let runs = self.layout.runs(block.0, group).unwrap_or_default();
        self.runs_at(&runs)
    }

    /// The runs at these addresses.
    pub(super) fn runs_at(&self, runs: &[layout::Run]) -> Vec<Run> {
        let run = |run: &layout::Run| match self.find(run.address, run.length) {
            Some((region, offset)) => Run { region, offset, length: run.length },
            None => Run { region: NOWHERE, offset: 0, length: run.length },
        };
        runs.iter().map(run).collect()
    }

    fn find(&self, address: u64, length: u64) -> Option<(RegionId, u64)> {
        let after = self.ranges.partition_point(|(range, _)| range.address <= address);
        let (range, region) = self.ranges.get(after.checked_sub(1)?)?;
        let offset = address - range.address;
        (offset.checked_add(length)? <= range.length).then_some((*region, offset))
    }
}
