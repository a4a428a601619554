//! Orphans: blocks stored without what comes before them. No prompt reaches them, so they leave the first tier before
//! all others, tails first; and when their head is stored after all, they are orphans no longer. One whose head is
//! being written is noted too, and stays until that write has ended. Blocks of lower tiers alone are not noted: those
//! of an earlier life are counted when they get their place, and are orphans no longer from the first use that follows
//! their head's store.

use std::collections::VecDeque;

use super::state::{DRAM, Engine};
use super::tier::{CopyState, LISTED};

/// Orphans that one call looks at, at most, to tell on to them that their head has come.
const SETTLE_SLICE_BLOCKS: usize = 512;
/// Ancestors that are looked at for one of them.
const SETTLE_PATH_MAX: usize = 128;
/// Orphans that one search for a victim looks at, at most.
const SCAN_MAX: usize = 32;
/// Notes beyond twice the blocks of the first tier that are kept before those of blocks that have left are swept out.
const STALE_NOTES_MAX: u64 = 1024;

/// A tenant's orphans in the first tier, in the order of their store: copy and its generation.
#[derive(Default)]
pub(super) struct Adrift {
    all: VecDeque<(u32, u64)>,
    /// How many, from the front, are still to be looked at.
    unsettled: usize,
    /// A chain in doubt was longer than one look at it, and something has changed: another round follows.
    again: bool,
}

impl Adrift {
    pub(super) fn memory_bytes(&self) -> usize {
        self.all.capacity() * size_of::<(u32, u64)>()
    }
}

impl Engine {
    /// Blocks were stored: those that no prompt reaches are noted, and one that orphans hang on may have made them whole.
    /// A client commits in the order in which its copies end; each takes over from its parent, so the heads come first.
    pub(super) fn note_orphans(&mut self, tenant: u16, mut stored: Vec<u32>) {
        let tenant = usize::from(tenant);
        stored.sort_by_key(|entry| self.index[*entry].depth());
        for entry in &stored {
            self.index.settle_cut(*entry);
            let has_children = self.index[*entry].resident_children > 0;
            let noted = self.index.is_orphan(*entry) || self.index.is_pending(*entry);
            if noted {
                let slot = self.index.copy(*entry, DRAM);
                let generation = self.generation(slot);
                self.adrift[tenant].all.push_back((slot, generation));
            }
            if has_children && (!noted || self.index.pending() > 0) {
                self.adrift[tenant].unsettled = self.adrift[tenant].all.len();
            }
        }
        let adrift = &mut self.adrift[tenant];
        let is_long = adrift.all.len() as u64 > 2 * self.tiers[DRAM].resident + STALE_NOTES_MAX;
        if is_long && adrift.unsettled == 0 {
            adrift.unsettled = adrift.all.len();
        }
        self.settle_orphans(tenant);
    }

    /// A copy of the first tier is parted from its entry, which may stay in a lower tier: it is noted no more. If it
    /// was being written, what hangs on it may be orphans now.
    pub(super) fn unwritten(&mut self, slot: u32) {
        let copy = &self.tiers[DRAM].copies[slot];
        self.index.forget_pending(copy.entry);
        if copy.state == CopyState::Writing {
            let (entry, adrift) = (copy.entry, &mut self.adrift[usize::from(copy.tenant)]);
            self.index.set_writing(entry, false);
            if self.index[entry].resident_children > 0 {
                adrift.unsettled = adrift.all.len();
            }
        }
    }

    /// The entry of an orphan as it was noted; none if its copy has left since.
    fn adrift_entry(&self, (slot, generation): (u32, u64)) -> Option<u32> {
        let entry = self.tiers[DRAM].copies[slot].entry;
        (self.generation(slot) == generation && entry != super::slab::NONE).then_some(entry)
    }

    /// A slice of the orphans takes over from its parents whether prompts reach it.
    fn settle_orphans(&mut self, tenant: usize) {
        let mut looked_at = 0;
        while self.adrift[tenant].unsettled > 0 && looked_at < SETTLE_SLICE_BLOCKS {
            looked_at += 1;
            let adrift = &mut self.adrift[tenant];
            adrift.unsettled -= 1;
            let Some(noted) = adrift.all.pop_front() else { return };
            let Some(entry) = self.adrift_entry(noted) else { continue };
            let (steps, changed) = self.index.settle_path(entry, SETTLE_PATH_MAX);
            looked_at += steps;
            self.work += steps as u64;
            let adrift = &mut self.adrift[tenant];
            adrift.again |= changed && steps == SETTLE_PATH_MAX;
            if self.index.is_orphan(entry) || self.index.is_pending(entry) {
                adrift.all.push_back(noted);
            }
            if adrift.unsettled == 0 && std::mem::take(&mut adrift.again) {
                adrift.unsettled = adrift.all.len();
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
            let Some(entry) = self.adrift_entry(noted) else { continue };
            self.work += 1;
            self.index.settle_cut(entry);
            if self.index.is_pending(entry) {
                self.adrift[tenant].all.push_front(noted);
                continue;
            } else if !self.index.is_orphan(entry) {
                continue;
            }
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
