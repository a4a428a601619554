//! What becomes of an answer: a block that another host stored is known from then on, and hits.

use umbp_plugin_api::types::RecoveredBlock;
use umbp_plugin_api::{Completion, Status};
use umbp_protocol::message::{RemovedReason, WireKey};

use super::super::api::Time;
use super::super::evict::RoomBelow;
use super::super::slab::NONE;
use super::super::state::{DEPTH_MAX, DRAM, Engine};
use super::super::tier::{BlockCopy, CopyState};
use super::Asks;

/// How long what was found last, and all that it hangs on, needs no further word to stay.
const WARM_NS: u64 = 10_000_000;

impl Engine {
    /// An ask has ended, be it late. Who waits goes on.
    pub(in crate::engine) fn ask_done(&mut self, tier: usize, key: WireKey, completion: &Completion, now: Time) {
        let found = completion.status == Status::OK && self.take_found(tier, key, completion, now);
        let is_known = self.index.find(&key).is_some_and(|entry| self.index.copy(entry, tier) != NONE);
        let asked_at = self.end_ask(tier, &key).unwrap_or(now.0);
        let Some(asks) = &mut self.tiers[tier].asks else { return };
        asks.in_flight -= 1;
        asks.counters.late += u64::from(now.0.saturating_sub(asked_at) > asks.settings.lookup_budget_ns);
        match completion.status {
            Status::OK if found => asks.counters.found += 1,
            Status::OK => {
                asks.counters.not_taken += 1;
                // The next answer would be no better.
                asks.negative.insert(key, now);
            }
            Status::MISS => {
                asks.counters.absent += 1;
                asks.others.remove(&key);
                if !is_known {
                    asks.negative.insert(key, now);
                }
            }
            // Nobody knows whether it is there.
            _ => asks.counters.failed += 1,
        }
    }

    /// Takes in a block that another host stored. False if it is of no use here: malformed, larger than a block may be,
    /// other than what this host has under its key, cleared, or no room can be made for it.
    fn take_found(&mut self, tier: usize, key: WireKey, found: &Completion, now: Time) -> bool {
        let Some(tenant) = self.owner(key.namespace) else { return false };
        let cleared = self.tiers[tier].asks.as_ref().is_none_or(|asks| asks.was_cleared(tenant, key.namespace));
        // Without a checksum no load of it could be trusted.
        if cleared || found.length == 0 || found.length > self.settings.block_bytes || found.checksum == 0 {
            return false;
        }
        if let Some(entry) = self.index.find(&key) {
            if self.index.copy(entry, tier) != NONE {
                // This host's own put was faster.
                return true;
            }
            if !self.agrees(entry, found) {
                self.note_other(tier, key, now);
                return false;
            }
        }
        let bytes = self.tiers[tier].rounded(found.length);
        self.warm_above(tier, &WireKey { local: found.parent, ..key }, now);
        // Before the entry is made: what is forgotten takes ancestors along that nothing else needs.
        if !matches!(self.room_below(tier, usize::from(tenant), bytes), RoomBelow::Ready) {
            return false;
        }
        let entry = self.index.find_or_insert(key, found.depth.min(DEPTH_MAX));
        if self.index.is_ghost(entry) {
            let block = RecoveredBlock {
                key: key.local,
                namespace_id: key.namespace.0,
                parent: found.parent,
                depth: found.depth,
                ..RecoveredBlock::default()
            };
            self.hang_recovered(entry, &block);
        }
        self.index[entry].length = found.length as u32;
        self.index[entry].checksum = found.checksum;
        let copy = BlockCopy::new(entry, tenant, found.location, bytes as u32, CopyState::Doubted);
        let slot = self.tiers[tier].copies.insert(copy);
        self.index.set_copy(entry, tier, slot);
        self.tiers[tier].used[usize::from(tenant)] += bytes;
        if let Some(asks) = &mut self.tiers[tier].asks {
            asks.others.remove(&key);
            asks.warm = (entry, now.0);
        }
        self.make_resident(tier, slot);
        self.work += 1;
        true
    }

    /// What was found goes where its nearest ancestor is: that, and all above it, must not be what leaves next. A chain
    /// that comes in head first pays for its path once.
    fn warm_above(&mut self, tier: usize, parent: &WireKey, now: Time) {
        let Some(parent) = self.index.find(parent) else { return };
        let is_warm = |asks: &Asks| asks.warm.0 == parent && now.0.saturating_sub(asks.warm.1) < WARM_NS;
        if !self.tiers[tier].asks.as_ref().is_some_and(|asks| is_warm(asks)) {
            self.warm(tier, parent);
        }
    }

    /// What was found has the length and bytes of what is known here, or nothing but the name is: an entry without
    /// copies, or one whose first writer has not told its checksum yet.
    fn agrees(&self, entry: u32, found: &Completion) -> bool {
        let copies = self.index.copies(entry);
        if self.index.is_ghost(entry) {
            return true;
        }
        let below = copies[DRAM + 1..].iter().any(|copy| *copy != NONE);
        let is_written = !below && self.tiers[DRAM].copies[copies[DRAM]].state == CopyState::Writing;
        let known = &self.index[entry];
        u64::from(known.length) == found.length && (is_written || known.checksum == found.checksum)
    }

    /// A put of ours that is done has found another host's bytes; they are as good, and a later ask learns of them.
    pub(in crate::engine) fn found_other(&mut self, tier: usize, lower: u32, checksum: u64, now: Time) -> bool {
        let known = &self.index[self.tiers[tier].copies[lower].entry];
        let (key, is_other) = (known.key, checksum != 0 && checksum != known.checksum);
        if let Some(asks) = &mut self.tiers[tier].asks {
            asks.negative.remove(&key);
        }
        if is_other {
            self.note_other(tier, key, now);
        }
        is_other
    }

    /// The tier has other bytes than ours under a key.
    pub(in crate::engine) fn note_other(&mut self, tier: usize, key: WireKey, now: Time) {
        if let Some(asks) = &mut self.tiers[tier].asks {
            asks.others.insert(key, now);
        }
    }

    /// The tier had other bytes than ours under the entry's key when it was last heard of.
    pub(in crate::engine) fn has_other(&self, tier: usize, entry: u32) -> bool {
        let asks = self.tiers[tier].asks.as_ref();
        asks.is_some_and(|asks| asks.others.has(&self.index[entry].key))
    }

    /// A load from a shared tier has failed. The copy is known no more, and not asked for again for a time, so that a
    /// block that cannot be read fails one load and not one after another. What is corrupt is deleted there.
    pub(in crate::engine) fn lose_shared(&mut self, tier: usize, lower: u32, status: Status, now: Time) {
        let copy = &self.tiers[tier].copies[lower];
        let (state, tenant, key) = (copy.state, copy.tenant, self.index[copy.entry].key);
        if let Some(asks) = &mut self.tiers[tier].asks {
            asks.negative.insert(key, now);
        }
        if status == Status::CORRUPT || !matches!(state, CopyState::Resident | CopyState::Doubted) {
            return;
        }
        if state == CopyState::Resident {
            self.removed(tenant, tier, RemovedReason::Failed, key);
        }
        self.forget(tier, lower);
    }
}
