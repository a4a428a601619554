//! Which blocks lower tiers take, and which loaded ones the first tier keeps.

use super::api::{Admission, Promote, TIERS_MAX, WritePolicy};
use super::index::WANTED;
use super::order::print_of;
use super::slab::NONE;
use super::state::{DRAM, Engine};
use super::tier::{CopyState, PASSING};

/// Keys of blocks that left the first tier unseen again, as a multiple of the blocks there.
const SIGHTINGS_FACTOR: u64 = 4;

impl Engine {
    /// Whether lower tiers take a block.
    pub(super) fn admits(&self, entry: u32) -> bool {
        let known = &self.index[entry];
        self.index.is_wanted(entry)
            || match self.settings.admission {
                Admission::All => true,
                Admission::SecondSighting => false,
                Admission::MinDepth(depth) => known.depth() >= depth,
            }
    }

    /// A block was stored: lower tiers get their copy in the background, where they take it now.
    pub(super) fn send_down(&mut self, slot: u32) {
        let entry = self.tiers[DRAM].copies[slot].entry;
        if self.settings.admission == Admission::SecondSighting && !self.index.is_wanted(entry) {
            let print = print_of(&self.index[entry].key);
            if self.sightings.take(print) {
                self.index[entry].flags |= WANTED;
            }
        }
        let admitted = self.admits(entry);
        for tier in self.written_through() {
            if admitted {
                self.queue_put(tier, slot);
            } else {
                self.tiers[tier].counters.not_admitted += 1;
            }
        }
    }

    /// Tiers that get their copy as soon as a block is stored.
    fn written_through(&self) -> impl Iterator<Item = usize> + use<> {
        let through =
            |tier: usize| self.tiers.get(tier).is_some_and(|tier| tier.settings.write == WritePolicy::Through);
        let tiers: [bool; TIERS_MAX] = std::array::from_fn(through);
        (DRAM + 1..TIERS_MAX).filter(move |tier| tiers[*tier])
    }

    /// A block is loaded: under second sighting lower tiers take it from now on. Heads before tails.
    pub(super) fn sighted(&mut self, entry: u32) {
        if self.settings.admission != Admission::SecondSighting || self.index.is_wanted(entry) {
            return;
        }
        self.index[entry].flags |= WANTED;
        let slot = self.index.copy(entry, DRAM);
        let resident = slot != NONE && self.tiers[DRAM].copies[slot].state == CopyState::Resident;
        if !resident {
            return;
        }
        for tier in self.written_through() {
            if self.index.copy(entry, tier) == NONE {
                self.queue_put(tier, slot);
            }
        }
    }

    /// A block goes down: what lies above it follows when it leaves the first tier.
    pub(super) fn want_above(&mut self, tier: usize, entry: u32) {
        let mut at = entry;
        while let Some(parent) = self.index.above(at) {
            if self.index.is_wanted(parent) || self.index.copy(parent, tier) != NONE {
                return;
            }
            self.index[parent].flags |= WANTED;
            self.work += 1;
            at = parent;
        }
    }

    /// A copy of the first tier is evicted, and no tier below has the block.
    pub(super) fn unseen_again(&mut self, entry: u32) {
        let known = &self.index[entry];
        let below = self.index.copies(entry)[DRAM + 1..].iter().any(|copy| *copy != NONE);
        if self.settings.admission == Admission::SecondSighting && !below {
            let print = print_of(&known.key);
            self.sightings.keep(print, SIGHTINGS_FACTOR * self.tiers[DRAM].resident.max(1));
        }
    }

    /// A block came up from a lower tier.
    pub(super) fn came_up(&mut self, dram: u32) {
        if let Promote::AfterHits(_) = self.settings.promote {
            self.tiers[DRAM].copies[dram].flags |= PASSING;
        }
    }

    /// A block is loaded once more: tiers that wait for that many loads get their copy.
    fn count_hit(&mut self, dram: u32) {
        let entry = self.tiers[DRAM].copies[dram].entry;
        let hits = self.hits.get(entry).saturating_add(1);
        self.hits.set(entry, hits);
        for tier in DRAM + 1..self.tiers.len() {
            let WritePolicy::AfterHits(wanted) = self.tiers[tier].settings.write else { continue };
            if hits < wanted || self.index.copy(entry, tier) != NONE {
                continue;
            }
            if self.admits(entry) {
                self.queue_put(tier, dram);
            } else {
                self.tiers[tier].counters.not_admitted += u64::from(hits == wanted);
            }
        }
    }

    /// A copy of the first tier is lent to a reader: after so many loads it stays there.
    pub(super) fn count_load(&mut self, dram: u32) {
        if self.counts_hits {
            self.count_hit(dram);
        }
        let copy = &mut self.tiers[DRAM].copies[dram];
        let (true, Promote::AfterHits(hits)) = (copy.is(PASSING), self.settings.promote) else { return };
        let loads = &mut self.index[copy.entry].loads;
        *loads = loads.saturating_add(1);
        if *loads >= hits {
            *loads = 0;
            copy.flags &= !PASSING;
        }
    }

    /// Whether a copy of the first tier that nobody reads any more leaves, as it only passed through: a tier below
    /// has the block, and serves.
    pub(super) fn passes(&self, dram: u32) -> bool {
        let copy = &self.tiers[DRAM].copies[dram];
        let served = |tier: usize| {
            let below = self.index.copy(copy.entry, tier);
            below != NONE && self.tiers[tier].running() && self.tiers[tier].copies[below].state == CopyState::Resident
        };
        copy.is(PASSING) && copy.state == CopyState::Resident && (DRAM + 1..self.tiers.len()).any(served)
    }
}
