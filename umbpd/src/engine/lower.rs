//! Lower tiers: what is handed to a tier's runner.
//!
//! A tier has a fixed number of operations in flight. Loads go first, then deletes (they make room), then what a shared
//! tier is asked, then stores. The last two never take more than half of the slots each, so that no load waits behind
//! a burst of stores.

use umbp_plugin_api::types::code;
use umbp_plugin_api::{Operation, types::KEY_BYTES};
use umbp_protocol::message::WireKey;

use super::api::{Action, TIERS_MAX, Time};
use super::evict::RoomBelow;
use super::pool::Place;
use super::slab::NONE;
use super::state::{DEPTH_MAX, DRAM, Engine, Timer};
use super::tier::{BlockCopy, CopyState, QUEUED, Stray};

/// Stale or useless entries of the background queue that one search for the next put passes at most.
pub(super) const PUT_SCAN_MAX: usize = 512;
/// Copies that are looked at for one that a probe can ask about.
const PROBE_SCAN_MAX: u32 = 64;

/// What an operation in flight is for; slots of the copies that it pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// `tries` counts this one.
    Put {
        dram: u32,
        lower: u32,
        tries: u8,
    },
    Get {
        dram: u32,
        lower: u32,
    },
    Delete {
        lower: u32,
    },
    DeleteStray {
        stray: Stray,
    },
    /// A shared tier is asked about a block that no tier here has.
    Ask {
        key: WireKey,
    },
    Probe,
}

pub(super) struct InFlight {
    pub(super) tier: usize,
    pub(super) purpose: Purpose,
    pub(super) deadline: u64,
    /// Past its deadline: nobody waits any more, its buffer does.
    pub(super) overdue: bool,
    /// [`Tier::deleted_bytes`](super::tier::Tier::deleted_bytes) when it was submitted.
    pub(super) deleted_before: u64,
}

impl Engine {
    /// Most puts in flight, and most asks.
    pub(super) fn put_slots(&self, tier: usize) -> u32 {
        (self.tiers[tier].settings.slots / 2).max(1)
    }

    /// Hands operations to idle slots of every lower tier.
    pub(super) fn pump(&mut self, now: Time) {
        for tier in DRAM + 1..self.tiers.len() {
            if !self.tiers[tier].running() {
                self.drain_queue(tier);
                continue;
            }
            while self.tiers[tier].in_flight < self.tiers[tier].settings.slots {
                if let Some(entry) = self.tiers[tier].gets.pop_front() {
                    self.submit_get(tier, entry, now);
                } else if let Some(lower) = self.tiers[tier].deletes.pop_front() {
                    let entry = self.tiers[tier].copies[lower].entry;
                    self.tiers[tier].deletes_in_flight += 1;
                    self.submit(tier, Purpose::Delete { lower }, entry, now);
                } else if let Some(stray) = self.tiers[tier].strays.pop_front() {
                    self.submit_stray(tier, &stray, now);
                } else if !self.submit_ask(tier, now) {
                    let stored = self.tiers[tier].puts_in_flight < self.put_slots(tier) && self.submit_put(tier, now);
                    // A put that found no room has queued deletes.
                    if !stored && self.tiers[tier].deletes.is_empty() {
                        break;
                    }
                }
            }
        }
    }

    /// Whether a queue was left in the middle, with no completion to come that would go on with it.
    pub(super) fn pump_left(&self) -> bool {
        self.tiers.iter().skip(DRAM + 1).any(|tier| {
            let waiting = !tier.puts.is_empty() || !tier.retries.is_empty();
            waiting && (!tier.running() || (tier.in_flight == 0 && tier.settings.slots > 0))
        })
    }

    fn submit_get(&mut self, tier: usize, entry: u32, now: Time) {
        let Some(promotion) = self.promotions.get_mut(&entry).filter(|promotion| !promotion.submitted) else { return };
        promotion.submitted = true;
        let dram = promotion.dram;
        let lower = self.index.copy(entry, tier);
        self.submit(tier, Purpose::Get { dram, lower }, entry, now);
    }

    /// Submits the next put. False if there is none that can go now.
    fn submit_put(&mut self, tier: usize, now: Time) -> bool {
        let quiet = self.tiers[tier].deletes_in_flight == 0;
        if let Some((dram, tries)) = self.tiers[tier].retries.pop_front_if(|_| quiet) {
            // Others may have taken the room that was made for it.
            let copy = &self.tiers[DRAM].copies[dram];
            let need = self.tiers[tier].rounded(u64::from(copy.bytes));
            match self.room_below(tier, usize::from(copy.tenant), need) {
                RoomBelow::Ready => {
                    self.start_put(tier, dram, tries + 1, now);
                    return true;
                }
                RoomBelow::Wait => {
                    self.tiers[tier].retries.push_front((dram, tries));
                    return false;
                }
                RoomBelow::Never => {
                    self.tiers[tier].counters.dropped += 1;
                    self.unpin(DRAM, dram);
                }
            }
        }
        for _ in 0..PUT_SCAN_MAX {
            let Some(put) = self.tiers[tier].next_put() else { return false };
            if !self.put_is_live(tier, put) {
                continue;
            }
            let copy = &self.tiers[DRAM].copies[put.dram];
            let (entry, tenant) = (copy.entry, usize::from(copy.tenant));
            let lower = self.index.copy(entry, tier);
            if lower != NONE {
                if self.tiers[tier].copies[lower].state == CopyState::Deleting {
                    self.tiers[tier].puts.push_back(put);
                    return false;
                }
                let undeleted = self.tiers[tier].copies[lower].state == CopyState::Undeleted;
                self.give_up_put(tier, put.dram, undeleted);
                continue;
            }
            let need = self.tiers[tier].rounded(u64::from(self.index[entry].length));
            match self.room_below(tier, tenant, need) {
                RoomBelow::Ready => {
                    self.dequeued(tier, put.dram);
                    self.pin(DRAM, put.dram);
                    self.start_put(tier, put.dram, 1, now);
                    return true;
                }
                RoomBelow::Wait => {
                    self.tiers[tier].puts.push_front(put);
                    return false;
                }
                RoomBelow::Never => self.give_up_put(tier, put.dram, true),
            }
        }
        false
    }

    /// The pinned copy's put goes out. A copy that was doomed while it waited stays out.
    fn start_put(&mut self, tier: usize, dram: u32, tries: u8, now: Time) {
        let copy = &self.tiers[DRAM].copies[dram];
        let (entry, tenant, state) = (copy.entry, copy.tenant, copy.state);
        if state != CopyState::Resident || self.index.copy(entry, tier) != NONE {
            self.tiers[tier].counters.dropped += 1;
            return self.unpin(DRAM, dram);
        }
        let bytes = self.tiers[tier].rounded(u64::from(self.index[entry].length));
        let lower = self.tiers[tier].copies.insert(BlockCopy::new(entry, tenant, 0, bytes as u32, CopyState::Putting));
        self.index.set_copy(entry, tier, lower);
        self.tiers[tier].used[usize::from(tenant)] += bytes;
        self.tiers[tier].puts_in_flight += 1;
        self.submit(tier, Purpose::Put { dram, lower, tries }, entry, now);
    }

    /// Asks a tier that misses its deadlines for a sign of life, about a block that it should have.
    pub(super) fn submit_probe(&mut self, tier: usize, now: Time) {
        let copies = &self.tiers[tier].copies;
        let mut some = (0..copies.high().min(PROBE_SCAN_MAX)).map(|slot| &copies[slot]);
        let entry = some.find(|copy| copy.state == CopyState::Resident).map_or(NONE, |copy| copy.entry);
        self.tiers[tier].probing = true;
        self.submit(tier, Purpose::Probe, entry, now);
    }

    fn submit(&mut self, tier: usize, purpose: Purpose, entry: u32, now: Time) {
        let mut operation = Operation::default();
        if entry != NONE {
            let known = &self.index[entry];
            operation.namespace_id = known.key.namespace.0;
            operation.key = known.key.local;
            operation.depth = known.depth();
            operation.parent = match known.parent {
                NONE => [0; KEY_BYTES],
                parent => self.index[parent].key.local,
            };
            operation.recency = known.stamp << 16 | u64::from(DEPTH_MAX - known.depth().min(DEPTH_MAX));
            operation.checksum = known.checksum;
            operation.length = u64::from(known.length);
        }
        let (code, buffer, lower) = match purpose {
            Purpose::Put { dram, lower, .. } => (code::PUT, Some(dram), Some(lower)),
            Purpose::Get { dram, lower } => (code::GET, Some(dram), Some(lower)),
            Purpose::Delete { lower } => (code::DELETE, None, Some(lower)),
            Purpose::DeleteStray { .. } => (code::DELETE, None, None),
            Purpose::Ask { .. } => (code::EXISTS, None, None),
            Purpose::Probe if entry == NONE => (code::EXISTS, None, None),
            Purpose::Probe => (code::EXISTS, None, Some(self.index.copy(entry, tier))),
        };
        operation.code = code;
        operation.location = lower.map_or(0, |lower| self.tiers[tier].copies[lower].place);
        if let Some(dram) = buffer {
            let (segment, offset) = self.pool.address(Place::unpacked(self.tiers[DRAM].copies[dram].place));
            operation.region = u64::from(segment.0);
            operation.offset = offset;
        }
        self.send(tier, purpose, operation, now);
    }

    fn submit_stray(&mut self, tier: usize, stray: &Stray, now: Time) {
        self.tiers[tier].deletes_in_flight += 1;
        let operation = Operation {
            code: code::DELETE,
            namespace_id: stray.key.namespace.0,
            key: stray.key.local,
            length: stray.length,
            checksum: stray.checksum,
            location: stray.location,
            ..Operation::default()
        };
        self.send(tier, Purpose::DeleteStray { stray: *stray }, operation, now);
    }

    pub(super) fn send(&mut self, tier: usize, purpose: Purpose, mut operation: Operation, now: Time) {
        let id = self.new_id();
        let deadline = now.0.saturating_add(self.tiers[tier].settings.deadline_ns);
        (operation.id, operation.deadline_ns) = (id, deadline);
        self.tiers[tier].in_flight += 1;
        let deleted_before = self.tiers[tier].deleted_bytes;
        self.operations.insert(id, InFlight { tier, purpose, deadline, overdue: false, deleted_before });
        self.timers.insert((deadline, Timer::Operation(id)));
        self.outbox.push(Action::Submit { tier: Self::tier_index(tier), operation });
    }
}

const _: () = assert!((QUEUED as u32) << (TIERS_MAX - 1) <= u8::MAX as u32, "a flag for each lower tier");
