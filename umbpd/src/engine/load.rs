//! Load: Lookup, Acquire with promotion, Release.

use umbp_protocol::message::{Acquired, Event, Found, LeaseId, MissReason, Outcome, RemovedReason, SessionId, WireKey};

use super::api::{Action, Time};
use super::evict::{Room, extent_bytes};
use super::lease::{Item, ItemState, LeaseKind};
use super::policy::Use;
use super::slab::NONE;
use super::state::{DRAM, Engine, KEYS_PER_SLICE_MAX};
use super::tier::CopyState;

/// Most promotions at one time; acquires beyond it are misses for lack of room.
pub(super) const PROMOTIONS_MAX: usize = 8192;

/// A block on its way up. One per block; whoever else wants it waits along.
pub(super) struct Promotion {
    pub(super) tier: usize,
    /// Copy in the first tier that is being filled.
    pub(super) dram: u32,
    /// False while it waits for an operation slot.
    pub(super) submitted: bool,
    pub(super) waiters: Vec<(u64, u32)>,
}

impl Engine {
    pub(super) fn resolve(&self, tenant: u16, key: &WireKey) -> Result<(u32, usize), MissReason> {
        if self.draining {
            return Err(MissReason::Draining);
        }
        if self.owner(key.namespace) != Some(tenant) {
            return Err(MissReason::BadKey);
        }
        if !self.tiers[DRAM].running() {
            return Err(MissReason::TierDown);
        }
        let entry = self.index.find(key).ok_or(MissReason::Absent)?;
        self.locate(entry).map(|tier| (entry, tier))
    }

    /// Which keys are there? With `hold_ms` > 0 hits are held for at most that long, within the session's budget,
    /// and count as used; without, nothing is pinned, renewed or touched. At most [`KEYS_PER_SLICE_MAX`] keys.
    pub fn lookup(&mut self, session: SessionId, hold_ms: u32, keys: &[WireKey], now: Time) -> Vec<Found> {
        self.begin();
        let (Some(tenant), true) = (self.tenant_of(session), keys.len() <= KEYS_PER_SLICE_MAX) else {
            return vec![Found::Miss(MissReason::BadKey); keys.len()];
        };
        let hold_ns = (u64::from(hold_ms) * 1_000_000).min(self.settings.hold_ns);
        let mut used = Vec::new();
        let mut answers = Vec::with_capacity(keys.len());
        for key in keys {
            self.counters.asked += 1;
            answers.push(match self.resolve(tenant, key) {
                Err(reason) => {
                    self.counters.misses[reason as usize] += 1;
                    Found::Miss(reason)
                }
                Ok((entry, tier)) => {
                    self.tiers[tier].counters.hits += 1;
                    let held = hold_ns > 0 && self.take_hold(session, entry, tier, now.0.saturating_add(hold_ns));
                    if held {
                        used.push(entry);
                    }
                    Found::Hit { tier: tier as u8, held }
                }
            });
        }
        if !used.is_empty() {
            // The load that follows is the use.
            self.touch(Use::Guard, used.into_iter().rev());
            self.settle(now);
        }
        answers
    }

    /// Extents to read from, the next slice of a read lease; at most [`KEYS_PER_SLICE_MAX`] keys. Touches what is
    /// there, and adopts holds. A block below the first tier is promoted: Pending now, an event later.
    pub fn acquire(&mut self, session: SessionId, lease: LeaseId, keys: &[WireKey], now: Time) -> Vec<Acquired> {
        self.begin();
        let (Some(tenant), true) = (self.tenant_of(session), keys.len() <= KEYS_PER_SLICE_MAX) else {
            return vec![Acquired::Miss(MissReason::BadKey); keys.len()];
        };
        if !self.lease_lives(session, lease, LeaseKind::Read, now) {
            return vec![Acquired::Miss(MissReason::NoRoom); keys.len()];
        }
        let used: Vec<u32> =
            keys.iter().rev().filter_map(|key| self.resolve(tenant, key).ok()).map(|(entry, _)| entry).collect();
        self.touch(Use::Load, used.into_iter());
        let answers = keys.iter().map(|key| self.acquire_one(tenant, session, lease, key)).collect();
        self.settle(now);
        answers
    }

    fn acquire_one(&mut self, tenant: u16, session: SessionId, lease: LeaseId, key: &WireKey) -> Acquired {
        let mut item = Item { generation: 0, slot: NONE, state: ItemState::Settled };
        let index = self.leases.get(&lease.0).map_or(0, |lease| lease.items.len() as u32);
        let answer = match self.resolve(tenant, key) {
            Err(reason) => Acquired::Miss(reason),
            Ok((entry, DRAM)) => {
                let slot = self.index.copy(entry, DRAM);
                item = self.lend(session, slot, DRAM);
                self.adopt_hold(entry, session);
                self.ready(slot, DRAM)
            }
            Ok((entry, tier)) => match self.promote(tenant, lease, entry, tier) {
                Ok(promotion) => {
                    promotion.waiters.push((lease.0, index));
                    item = Item { generation: 0, slot: entry, state: ItemState::Pending };
                    self.adopt_hold(entry, session);
                    Acquired::Pending
                }
                Err(reason) => Acquired::Miss(reason),
            },
        };
        if let Acquired::Miss(reason) = answer {
            self.counters.load_misses[reason as usize] += 1;
        }
        self.push_item(lease, item);
        answer
    }

    /// Pins a readable copy of the first tier for a reader; `tier` is where it was found.
    fn lend(&mut self, session: SessionId, slot: u32, tier: usize) -> Item {
        self.pin(DRAM, slot);
        self.set_leaving(slot, false);
        self.count_load(slot);
        self.counters.acquired += 1;
        self.tiers[tier].counters.loaded += 1;
        let bytes = u64::from(self.tiers[DRAM].copies[slot].bytes);
        if let Some(session) = self.sessions.get_mut(&session) {
            session.pinned_bytes += bytes;
        }
        Item { generation: self.generation(slot), slot, state: ItemState::Leased }
    }

    fn ready(&self, slot: u32, tier: usize) -> Acquired {
        let entry = &self.index[self.tiers[DRAM].copies[slot].entry];
        let (length, checksum) = (u64::from(entry.length), entry.checksum);
        Acquired::Ready { extent: self.extent(slot), length, checksum, tier: tier as u8 }
    }

    /// The block's promotion, begun if there is none yet. It may use the bytes that only promotions may use, and
    /// what it can evict; with neither it is a miss, never a wait (C6).
    fn promote(&mut self, tenant: u16, lease: LeaseId, entry: u32, tier: usize) -> Result<&mut Promotion, MissReason> {
        if !self.promotions.contains_key(&entry) {
            let first_stamp = self.leases.get(&lease.0).map_or(0, |lease| lease.first_stamp);
            // Anything else in the first tier's place: a rewrite under way, or a fill that is overdue.
            if self.index.copy(entry, DRAM) != NONE || self.promotions.len() >= PROMOTIONS_MAX {
                return Err(MissReason::NoRoom);
            }
            let lower = self.index.copy(entry, tier);
            self.pin(tier, lower);
            let room = Room { bytes: extent_bytes(u64::from(self.index[entry].length)), floor: 0, first_stamp };
            let Some(place) = self.make_room(tenant, room) else {
                self.unpin(tier, lower);
                return Err(MissReason::NoRoom);
            };
            let dram = self.dram_copy(entry, tenant, place, room.bytes, CopyState::Filling);
            self.pin(DRAM, dram);
            self.counters.promotions += 1;
            self.tiers[tier].gets.push_back(entry);
            let waiters = Vec::with_capacity(1);
            self.promotions.insert(entry, Promotion { tier, dram, submitted: false, waiters });
        }
        self.promotions.get_mut(&entry).ok_or(MissReason::NoRoom)
    }

    /// A waiter gives up. A promotion that has not been submitted and that nobody waits for is called off.
    pub(super) fn leave_promotion(&mut self, entry: u32, lease: u64, index: u32) {
        let Some(promotion) = self.promotions.get_mut(&entry) else { return };
        promotion.waiters.retain(|waiter| *waiter != (lease, index));
        if promotion.waiters.is_empty() && !promotion.submitted {
            self.end_promotion(entry, Err(MissReason::NoRoom));
        }
    }

    /// The promotion is over: its copy is readable, or given up. All who wait get their answer. Where the fill was
    /// submitted and has not come back, the caller keeps the copy from being used again.
    pub(super) fn end_promotion(&mut self, entry: u32, result: Result<(), MissReason>) {
        let Some(promotion) = self.promotions.remove(&entry) else { return };
        let (tier, dram) = (promotion.tier, promotion.dram);
        if result.is_ok() {
            self.make_resident(DRAM, dram);
            self.came_up(dram);
            self.tiers[tier].counters.promoted += 1;
        } else {
            self.counters.promotions_failed += 1;
        }
        for (lease, index) in promotion.waiters {
            let Some(found) = self.leases.get(&lease) else { continue };
            let session = found.session;
            let item = match result {
                Ok(()) => {
                    let leased = self.lend(session, dram, tier);
                    if let Some(item) =
                        self.leases.get_mut(&lease).and_then(|lease| lease.items.get_mut(index as usize))
                    {
                        *item = leased;
                    }
                    self.ready(dram, tier)
                }
                Err(reason) => {
                    self.counters.load_misses[reason as usize] += 1;
                    self.settle_item(lease, index as usize);
                    Acquired::Miss(reason)
                }
            };
            let event = Event::Promoted { lease: LeaseId(lease), index, item };
            self.outbox.push(Action::Push { session, event });
        }
        if result.is_ok() {
            self.unpin(DRAM, dram);
        } else if !promotion.submitted {
            self.tiers[tier].gets.retain(|waiting| *waiting != entry);
            let lower = self.index.copy(entry, tier);
            self.detach(DRAM, dram);
            self.tiers[DRAM].copies[dram].pins = 0;
            self.free_dram(dram);
            self.unpin(tier, lower);
        } else {
            self.detach(DRAM, dram);
        }
    }

    /// Blocks of a read lease are done with: (index in the Acquire, whether its bytes were good); if `items` is
    /// empty, the first [`KEYS_PER_SLICE_MAX`] that are left, good (call again until it answers fewer). Bytes that
    /// were not good drop that copy once nobody reads it; copies below stay, and verify themselves when promoted.
    pub fn release(&mut self, session: SessionId, lease: LeaseId, items: &[(u32, bool)], now: Time) -> Vec<Outcome> {
        self.begin();
        if !self.lease_lives(session, lease, LeaseKind::Read, now) || items.len() > KEYS_PER_SLICE_MAX {
            return vec![Outcome::LeaseExpired; items.len()];
        }
        let open: Vec<(u32, bool)> =
            self.open_items(lease, items.is_empty()).into_iter().map(|index| (index, true)).collect();
        let mut answers = Vec::with_capacity(items.len().max(open.len()));
        for &(index, good) in items.iter().chain(&open) {
            if !good {
                self.doom_leased(lease, index);
            }
            let done = self.free_read(lease.0, index as usize);
            answers.push(if done { Outcome::Done } else { Outcome::NotLeased });
        }
        self.settle(now);
        answers
    }

    /// The bytes behind an item were bad: nobody shall get that copy any more.
    fn doom_leased(&mut self, lease: LeaseId, index: u32) {
        let item = self.leases.get(&lease.0).and_then(|lease| lease.items.get(index as usize)).copied();
        let Some(item) = item.filter(|item| item.state == ItemState::Leased) else { return };
        let copy = &self.tiers[DRAM].copies[item.slot];
        if copy.state != CopyState::Resident {
            return;
        }
        let (entry, tenant) = (copy.entry, copy.tenant);
        self.counters.bad_loads += 1;
        self.removed(tenant, DRAM, RemovedReason::Failed, self.index[entry].key);
        self.detach(DRAM, item.slot);
        self.tiers[DRAM].copies[item.slot].state = CopyState::Doomed;
        self.drop_holds_on(entry, DRAM);
        self.index.collect(entry);
    }
}
