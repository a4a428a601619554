//! The few moves that everything else is made of: generations, attach and detach, pin and unpin.

use umbp_protocol::message::{Extent, MissReason, RemovedReason};

use super::api::TenantIndex;
use super::pool::{Place, UNIT_BYTES};
use super::slab::NONE;
use super::state::{DRAM, Engine};
use super::tier::{ANY_QUEUED, BlockCopy, CopyState, FORGOTTEN, LEAVING, QUEUED, UNPLACED};

impl Engine {
    pub(super) fn generation(&self, slot: u32) -> u64 {
        self.generations.get(TenantIndex(self.tiers[DRAM].copies[slot].tenant), slot)
    }

    /// From here on no earlier lease of this slot means anything.
    pub(super) fn advance(&mut self, slot: u32) {
        let tenant = self.tiers[DRAM].copies[slot].tenant;
        self.generations.advance(TenantIndex(tenant), slot);
    }

    pub(super) fn extent(&self, slot: u32) -> Extent {
        let place = Place::unpacked(self.tiers[DRAM].copies[slot].place);
        let (segment, offset) = self.pool.address(place);
        Extent { segment: segment.0, slot, offset, generation: self.generation(slot) }
    }

    /// A copy in the first tier on an extent that was just taken.
    pub(super) fn dram_copy(&mut self, entry: u32, tenant: u16, place: Place, bytes: u64, state: CopyState) -> u32 {
        let copy = BlockCopy::new(entry, tenant, place.packed(), bytes as u32, state);
        let slot = self.tiers[DRAM].copies.insert(copy);
        self.index.set_copy(entry, DRAM, slot);
        if state == CopyState::Writing {
            self.index.set_writing(entry, true);
        }
        self.expect(entry);
        self.advance(slot);
        slot
    }

    /// Parts a copy from its entry. The caller collects the entry once it is done with it.
    pub(super) fn detach(&mut self, tier: usize, slot: u32) {
        self.untrack(tier, slot);
        let entry = self.tiers[tier].copies[slot].entry;
        if entry == NONE {
            return;
        }
        if tier == DRAM {
            if matches!(self.tiers[DRAM].copies[slot].state, CopyState::Writing | CopyState::Filling) {
                self.unexpect(entry);
            }
            self.unwritten(slot);
            self.unqueue(slot);
            self.set_leaving(slot, false);
        }
        if self.tiers[tier].copies[slot].state == CopyState::Resident {
            self.tiers[tier].resident -= 1;
            self.index.lost(entry);
        }
        self.tiers[tier].copies[slot].entry = NONE;
        self.index.set_copy(entry, tier, NONE);
    }

    /// Forgets background puts of a copy that have not been submitted.
    pub(super) fn unqueue(&mut self, slot: u32) {
        let copy = &mut self.tiers[DRAM].copies[slot];
        let (flags, bytes) = (copy.flags, u64::from(copy.bytes));
        copy.flags &= !ANY_QUEUED;
        for tier in 1..self.tiers.len() {
            if flags & QUEUED << tier != 0 {
                let tier = &mut self.tiers[tier];
                tier.queued_blocks -= 1;
                tier.queued_bytes -= bytes;
                tier.counters.dropped += 1;
            }
        }
    }

    /// Gives a copy's room back. It is detached and unpinned.
    pub(super) fn free_dram(&mut self, slot: u32) {
        self.advance(slot);
        let copy = &mut self.tiers[DRAM].copies[slot];
        let (bytes, tenant, place) = (u64::from(copy.bytes), copy.tenant, Place::unpacked(copy.place));
        copy.state = CopyState::Free;
        copy.flags = 0;
        self.tiers[DRAM].used[usize::from(tenant)] -= bytes;
        self.tiers[DRAM].copies.remove(slot);
        if !self.pool.release(place, bytes / UNIT_BYTES) {
            self.fault();
        }
    }

    /// Forgets a copy of a lower tier that takes no room there any more.
    pub(super) fn free_lower(&mut self, tier: usize, slot: u32) {
        let entry = self.tiers[tier].copies[slot].entry;
        self.detach(tier, slot);
        let tier = &mut self.tiers[tier];
        let copy = &mut tier.copies[slot];
        let (bytes, tenant) = (u64::from(copy.bytes), usize::from(copy.tenant));
        copy.state = CopyState::Free;
        copy.flags = 0;
        tier.used[tenant] -= bytes;
        tier.copies.remove(slot);
        if entry != NONE {
            self.index.collect(entry);
        }
    }

    /// The copy becomes readable.
    pub(super) fn make_resident(&mut self, tier: usize, slot: u32) {
        let copy = &mut self.tiers[tier].copies[slot];
        let entry = copy.entry;
        let was = std::mem::replace(&mut copy.state, CopyState::Resident);
        self.tiers[tier].resident += 1;
        self.index.gained(entry);
        if was == CopyState::Writing {
            self.index.set_writing(entry, false);
        }
        self.track(tier, slot);
        if matches!(was, CopyState::Writing | CopyState::Filling) && self.tiers[tier].kids.get(entry) == 0 {
            // Counted twice for a moment, so that its parent was never without it.
            self.unexpect(entry);
        }
        self.list(tier, slot);
    }

    pub(super) fn pin(&mut self, tier: usize, slot: u32) {
        self.unlist(tier, slot);
        self.tiers[tier].copies[slot].pins += 1;
    }

    /// Marks a copy of the first tier that leaves once its demotion is done, or takes the mark away: it is used.
    pub(super) fn set_leaving(&mut self, slot: u32, leaving: bool) {
        let copy = &mut self.tiers[DRAM].copies[slot];
        if copy.is(LEAVING) == leaving {
            return;
        }
        copy.flags ^= LEAVING;
        let (bytes, tenant) = (u64::from(copy.bytes), usize::from(copy.tenant));
        let sum = &mut self.tiers[DRAM].freeing[tenant];
        *sum = if leaving { *sum + bytes } else { *sum - bytes };
    }

    /// One reason less to stay. A doomed copy leaves with its last pin, others may be evicted again.
    pub(super) fn unpin(&mut self, tier: usize, slot: u32) {
        let copy = &mut self.tiers[tier].copies[slot];
        if copy.pins == 0 {
            return self.fault();
        }
        copy.pins -= 1;
        if copy.pins > 0 {
            return;
        }
        match (copy.state, tier) {
            (CopyState::Doomed, DRAM) => self.free_dram(slot),
            (CopyState::Doomed, _) if copy.is(FORGOTTEN) => self.free_lower(tier, slot),
            (CopyState::Doomed, _) => self.delete_lower(tier, slot),
            // A tier that wants it too has not got it yet.
            (_, DRAM) if copy.is(LEAVING) && copy.is_queued() => {}
            (_, DRAM) if copy.is(LEAVING) => self.drop_dram(slot, RemovedReason::Evicted),
            (_, DRAM) if self.passes(slot) => {
                self.tiers[DRAM].counters.passed_through += 1;
                self.drop_dram(slot, RemovedReason::Evicted);
            }
            _ => {
                let copy = &mut self.tiers[tier].copies[slot];
                copy.flags &= !UNPLACED;
                self.list(tier, slot);
            }
        }
    }

    /// The fastest tier that can serve the entry, or why none can.
    pub(super) fn locate(&self, entry: u32) -> Result<usize, MissReason> {
        let mut reason = MissReason::Absent;
        for (at, slot) in self.index.copies(entry).iter().enumerate().filter(|(_, slot)| **slot != NONE) {
            match self.tiers[at].copies[*slot].state {
                CopyState::Resident if self.tiers[at].running() => return Ok(at),
                CopyState::Resident => reason = MissReason::TierDown,
                CopyState::Writing => reason = MissReason::Writing,
                _ => {}
            }
        }
        Err(reason)
    }
}
