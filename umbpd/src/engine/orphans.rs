//! Orphans: blocks stored without what comes before them. No prompt reaches them, so they leave the first tier before
//! all others, tails first; and when their head is stored after all, they are orphans no longer.

use std::collections::VecDeque;

use super::state::{DRAM, Engine};
use super::tier::LISTED;

/// Orphans that one call looks at, at most, to tell on to them that their head has come.
const SETTLE_SLICE_BLOCKS: usize = 512;
/// Orphans that one search for a victim looks at, at most.
const SCAN_MAX: usize = 32;

/// A tenant's orphans in the first tier, in the order of their store: copy and its generation.
#[derive(Default)]
pub(super) struct Adrift {
    all: VecDeque<(u32, u64)>,
    /// How many, from the front, are still to be looked at.
    unsettled: usize,
}

impl Adrift {
    pub(super) fn memory_bytes(&self) -> usize {
        self.all.capacity() * size_of::<(u32, u64)>()
    }
}

impl Engine {
    /// Blocks were stored, the head first: those that no prompt reaches are noted, and one that orphans hang on may
    /// have made them whole.
    pub(super) fn note_orphans(&mut self, tenant: u16, stored: &[u32]) {
        let tenant = usize::from(tenant);
        for entry in stored {
            self.index.settle_cut(*entry);
            if self.index.is_orphan(*entry) {
                let slot = self.index.copy(*entry, DRAM);
                let generation = self.generation(slot);
                self.adrift[tenant].all.push_back((slot, generation));
            } else if self.index[*entry].resident_children > 0 {
                self.adrift[tenant].unsettled = self.adrift[tenant].all.len();
            }
        }
        self.settle_orphans(tenant);
    }

    /// The entry of an orphan as it was noted; none if its copy has left since.
    fn adrift_entry(&self, (slot, generation): (u32, u64)) -> Option<u32> {
        let entry = self.tiers[DRAM].copies[slot].entry;
        (self.generation(slot) == generation && entry != super::slab::NONE).then_some(entry)
    }

    /// A slice of the orphans takes over from its parents whether prompts reach it. Parents stand before their
    /// children, as a rule; where not, another round follows.
    fn settle_orphans(&mut self, tenant: usize) {
        let slice = self.adrift[tenant].unsettled.min(SETTLE_SLICE_BLOCKS);
        for _ in 0..slice {
            let adrift = &mut self.adrift[tenant];
            adrift.unsettled -= 1;
            let Some(noted) = adrift.all.pop_front() else { return };
            let Some(entry) = self.adrift_entry(noted) else { continue };
            self.index.settle_cut(entry);
            self.work += 1;
            if self.index.is_orphan(entry) {
                self.adrift[tenant].all.push_back(noted);
            } else if self.adrift[tenant].unsettled == 0 && self.index[entry].resident_children > 0 {
                self.adrift[tenant].unsettled = self.adrift[tenant].all.len();
            }
        }
    }

    /// Goes on where a store left off. True if more is left.
    pub(super) fn settle_orphans_slice(&mut self) -> bool {
        (0..self.adrift.len()).for_each(|tenant| self.settle_orphans(tenant));
        self.adrift.iter().any(|adrift| adrift.unsettled > 0)
    }

    /// An orphan of the first tier that may leave, with nothing that hangs on it.
    pub(super) fn orphan_to_evict(&mut self, tenant: usize, first_stamp: u64) -> Option<u32> {
        for _ in 0..self.adrift[tenant].all.len().min(SCAN_MAX) {
            let noted = self.adrift[tenant].all.pop_back()?;
            self.adrift[tenant].unsettled = self.adrift[tenant].unsettled.min(self.adrift[tenant].all.len());
            let Some(entry) = self.adrift_entry(noted).filter(|entry| self.index.is_orphan(*entry)) else { continue };
            self.work += 1;
            let known = &self.index[entry];
            if known.stamp >= first_stamp {
                self.adrift[tenant].all.push_back(noted);
                return None;
            }
            let is_free = self.tiers[DRAM].copies[noted.0].is(LISTED) && known.resident_children == 0;
            if !is_free {
                self.adrift[tenant].all.push_front(noted);
                continue;
            }
            // It stays noted until it is gone: a demotion may keep it for a while.
            self.adrift[tenant].all.push_back(noted);
            return Some(noted.0);
        }
        None
    }
}
