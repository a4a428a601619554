//! The background queue of a lower tier: which copies it will be given, heads before tails.

use std::collections::VecDeque;

use super::api::{Admission, WritePolicy};
use super::lower::PUT_SCAN_MAX;
use super::slab::NONE;
use super::state::{DRAM, Engine};
use super::tier::{CopyState, LEAVING, QUEUED, QueuedPut};

/// Ancestors that one put queues before itself at most. One that lacks more is dropped, and counted, but those nearest
/// to the root go down: the puts of blocks that follow it bring the rest.
const ANCESTORS_PER_PUT_MAX: usize = 512;
/// Ancestors that all puts queued by one call look at. A put of a longer chain that the tier lacks is dropped, and
/// counted: its chain goes down once it is shorter.
pub(super) const ANCESTORS_PER_CALL_MAX: u64 = 16_384;
/// Stale entries that the background queue may hold beside as many live ones before it is swept.
const STALE_PUTS_MAX: u64 = 1024;

/// How a block stands toward a lower tier.
enum WayDown {
    /// There, or on its way.
    There,
    /// In this slot of the first tier alone.
    Queue(u32),
    /// In neither.
    Gone,
}

impl Engine {
    /// Queues the background copy of a resident block into a tier, once, behind those of its ancestors that the tier
    /// lacks: without them it would be of no use there. False if it needs none or can have none now; the latter is
    /// counted.
    pub(super) fn queue_put(&mut self, tier: usize, dram: u32) -> bool {
        if !self.takes_put(tier, dram) {
            return false;
        }
        let mut missing = VecDeque::new();
        let mut is_cut = false;
        let mut at = self.tiers[DRAM].copies[dram].entry;
        while let Some(parent) = self.index.above(at) {
            self.work += 1;
            self.climbed += 1;
            if self.climbed > ANCESTORS_PER_CALL_MAX {
                self.tiers[tier].counters.dropped += 1;
                return false;
            }
            match self.way_down(tier, parent) {
                WayDown::There => {
                    let copy = self.index.copy(parent, DRAM);
                    if copy != NONE && self.tiers[DRAM].copies[copy].state == CopyState::Writing {
                        // So that it is admitted then, whatever its own place.
                        self.want_above(tier, at);
                    }
                    break;
                }
                WayDown::Queue(above) => {
                    if missing.len() == ANCESTORS_PER_PUT_MAX {
                        missing.pop_front();
                        is_cut = true;
                    }
                    missing.push_back(above);
                }
                WayDown::Gone => {
                    self.tiers[tier].counters.dropped += 1;
                    return false;
                }
            }
            at = parent;
        }
        if self.settings.admission != Admission::All && self.tiers[tier].settings.write == WritePolicy::OnEvict {
            self.want_above(tier, self.tiers[DRAM].copies[dram].entry);
        }
        let queued = missing.into_iter().rev().all(|above| self.queue_one(tier, above));
        self.tiers[tier].counters.dropped += u64::from(queued && is_cut);
        queued && !is_cut && self.queue_one(tier, dram)
    }

    /// Whether a tier has a block, or will have it before whatever is queued now.
    fn way_down(&self, tier: usize, entry: u32) -> WayDown {
        let state = |tier: usize, slot: u32| (slot != NONE).then(|| self.tiers[tier].copies[slot].state);
        let [above, below] = [DRAM, tier].map(|tier| self.index.copy(entry, tier));
        match (state(tier, below), state(DRAM, above)) {
            (Some(CopyState::Resident | CopyState::Putting), _) => WayDown::There,
            // Its own commit queues it.
            (_, Some(CopyState::Writing)) => WayDown::There,
            (_, Some(CopyState::Resident)) if self.tiers[DRAM].copies[above].is(QUEUED << tier) => WayDown::There,
            // It goes down when it leaves the first tier.
            (_, Some(CopyState::Resident)) if self.tiers[tier].settings.write == WritePolicy::OnEvict => WayDown::There,
            // Other bytes than ours, which are as good.
            _ if self.has_other(tier, entry) => WayDown::There,
            (_, Some(CopyState::Resident)) => WayDown::Queue(above),
            _ => WayDown::Gone,
        }
    }

    /// Whether a block may be queued for a tier now, or is; what it can not take is counted.
    fn takes_put(&mut self, tier: usize, dram: u32) -> bool {
        let copy = &self.tiers[DRAM].copies[dram];
        if copy.is(QUEUED << tier) {
            return true;
        }
        let (entry, bytes) = (copy.entry, u64::from(copy.bytes));
        if self.has_other(tier, entry) {
            return false;
        }
        let length = u64::from(self.index[entry].length);
        let lower = self.index.copy(entry, tier);
        let mut possible = self.tiers[tier].running()
            && length <= self.tiers[tier].settings.largest_payload
            && self.tiers[tier].queued_bytes + bytes <= self.settings.background_bytes;
        if lower != NONE {
            let copy = &self.tiers[tier].copies[lower];
            match copy.state {
                CopyState::Resident | CopyState::Putting => return false,
                CopyState::Deleting => {}
                CopyState::Doubted if copy.pins == 0 => {}
                _ => possible = false,
            }
        }
        self.tiers[tier].counters.dropped += u64::from(!possible);
        possible
    }

    fn queue_one(&mut self, tier: usize, dram: u32) -> bool {
        if !self.takes_put(tier, dram) {
            return false;
        }
        let copy = &self.tiers[DRAM].copies[dram];
        if copy.is(QUEUED << tier) {
            return true;
        }
        let bytes = u64::from(copy.bytes);
        let lower = self.index.copy(copy.entry, tier);
        if lower != NONE && self.tiers[tier].copies[lower].state == CopyState::Doubted {
            self.delete_lower(tier, lower);
        }
        let generation = self.generation(dram);
        self.tiers[DRAM].copies[dram].flags |= QUEUED << tier;
        let below = &mut self.tiers[tier];
        below.queued_blocks += 1;
        below.queued_bytes += bytes;
        below.puts.push_back(QueuedPut { dram, generation });
        if below.puts.len() as u64 > 2 * below.queued_blocks + STALE_PUTS_MAX {
            let mut puts = std::mem::take(&mut self.tiers[tier].puts);
            puts.retain(|put| self.put_is_live(tier, *put));
            self.tiers[tier].puts = puts;
        }
        true
    }

    pub(super) fn put_is_live(&self, tier: usize, put: QueuedPut) -> bool {
        self.generation(put.dram) == put.generation && self.tiers[DRAM].copies[put.dram].is(QUEUED << tier)
    }

    /// A queued put is taken out of the queue, to be submitted or given up.
    pub(super) fn dequeued(&mut self, tier: usize, dram: u32) {
        let copy = &mut self.tiers[DRAM].copies[dram];
        copy.flags &= !(QUEUED << tier);
        let bytes = u64::from(copy.bytes);
        self.tiers[tier].queued_blocks -= 1;
        self.tiers[tier].queued_bytes -= bytes;
    }

    /// A queued put is given up; a copy that waited for it in order to leave, leaves.
    pub(super) fn give_up_put(&mut self, tier: usize, dram: u32, counted: bool) {
        self.dequeued(tier, dram);
        self.tiers[tier].counters.dropped += u64::from(counted);
        let copy = &self.tiers[DRAM].copies[dram];
        if copy.is(LEAVING) && copy.pins == 0 && !copy.is_queued() {
            self.drop_dram(dram, umbp_protocol::message::RemovedReason::Evicted);
        }
    }

    /// A tier that does not run takes no stores: a slice of its queue is dropped, counted.
    pub(super) fn drain_queue(&mut self, tier: usize) {
        for _ in 0..PUT_SCAN_MAX {
            if let Some((dram, _)) = self.tiers[tier].retries.pop_front() {
                self.tiers[tier].counters.dropped += 1;
                self.unpin(DRAM, dram);
            } else if let Some(put) = self.tiers[tier].next_put() {
                if self.put_is_live(tier, put) {
                    self.give_up_put(tier, put.dram, true);
                }
            } else {
                return;
            }
        }
    }
}
