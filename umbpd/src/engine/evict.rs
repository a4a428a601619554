//! Room: what leaves the first tier and the lower ones, and when.

use umbp_protocol::message::{Event, RemovedReason, SegmentId};

use super::api::{Action, TierState, Time, WritePolicy};
use super::pool::{Place, UNIT_BYTES};
use super::slab::NONE;
use super::state::{DRAM, Engine};
use super::tier::{CopyState, FORGOTTEN};

/// Entries that reclaim evicts at most in one call, per tier.
pub const RECLAIM_SLICE_ENTRIES: usize = 64;
/// Copies evicted at most for one block; then it is refused.
pub const EVICTIONS_PER_BLOCK_MAX: usize = 4096;
/// Copies evicted at most in one call.
pub const EVICTIONS_PER_CALL_MAX: usize = 8192;

/// An extent that is wanted.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) bytes: u64,
    /// Bytes that must stay free beside it.
    pub(super) floor: u64,
    /// Entries with a stamp from here on are no victims.
    pub(super) first_stamp: u64,
}

/// Bytes of the extent for a payload.
pub(super) fn extent_bytes(length: u64) -> u64 {
    length.next_multiple_of(UNIT_BYTES)
}

/// What became of the coldest copy.
#[derive(PartialEq, Eq)]
enum Victim {
    Gone,
    /// Its demotion is under way; it leaves when that is done.
    Leaving,
    None,
}

/// Whether a block may be put below.
pub(super) enum RoomBelow {
    Ready,
    /// Deletes are under way.
    Wait,
    Never,
}

impl Engine {
    /// A tenant's part of an amount that is meant for the whole first tier.
    fn share(&self, tenant: u16, amount: u64) -> u64 {
        if self.settings.tenants.len() == 1 {
            return amount;
        }
        let quota = self.settings.tenants[usize::from(tenant)].quota[DRAM].min(self.tiers[DRAM].settings.capacity);
        let capacity = self.tiers[DRAM].settings.capacity.max(1);
        (u128::from(amount) * u128::from(quota) / u128::from(capacity)) as u64
    }

    /// Bytes that stay free for the tenant's promotions: its share of the budget, but room for two blocks.
    pub(super) fn promotion_floor(&self, tenant: u16) -> u64 {
        let budget = self.settings.promotion_budget;
        self.share(tenant, budget).max(budget.min(2 * extent_bytes(self.settings.block_bytes)))
    }

    /// Bytes of the first tier that the tenant can still take without evicting.
    pub(super) fn available(&self, tenant: u16) -> u64 {
        let quota = self.settings.tenants[usize::from(tenant)].quota[DRAM];
        let used = self.tiers[DRAM].used[usize::from(tenant)];
        (self.pool.free_units(tenant) * UNIT_BYTES).min(quota.saturating_sub(used))
    }

    /// The same, once the demotions under way are done.
    fn promised(&self, tenant: u16) -> u64 {
        self.available(tenant) + self.tiers[DRAM].freeing[usize::from(tenant)]
    }

    /// Takes an extent, evicting what is colder than the request itself, within bounds.
    pub(super) fn make_room(&mut self, tenant: u16, room: Room) -> Option<Place> {
        for evicted in 0..=EVICTIONS_PER_BLOCK_MAX {
            if self.available(tenant) >= room.bytes + room.floor {
                let found = self.pool.allocate(tenant, room.bytes / UNIT_BYTES);
                if let Some((place, new)) = found {
                    if let Some((id, bytes)) = new {
                        self.push_segment(tenant, id, bytes);
                    }
                    self.tiers[DRAM].used[usize::from(tenant)] += room.bytes;
                    return Some(place);
                }
            }
            let over = evicted == EVICTIONS_PER_BLOCK_MAX || self.evictions >= EVICTIONS_PER_CALL_MAX;
            if over || self.evict_coldest(tenant, room.first_stamp, true) == Victim::None {
                break;
            }
        }
        self.want_segment(tenant);
        None
    }

    /// Another tenant's empty segment is withdrawn, one at a time, where this one is under its quota.
    fn want_segment(&mut self, tenant: u16) {
        if self.settings.tenants.len() == 1 {
            return;
        }
        let quota = self.settings.tenants[usize::from(tenant)].quota[DRAM];
        if self.tiers[DRAM].used[usize::from(tenant)] >= quota || self.pool.withdrawing() {
            return;
        }
        let Some((segment, owner)) = self.pool.withdraw_empty(tenant) else { return };
        let sessions: Vec<_> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.open && session.tenant == owner)
            .map(|(id, _)| *id)
            .collect();
        for id in sessions {
            self.pool.wait_for(segment, id);
            self.outbox.push(Action::Push { session: id, event: Event::SegmentWithdrawn { segment } });
        }
        self.withdrawn.push(segment);
        for segment in self.pool.unmapped(None, Some(segment)) {
            self.outbox.push(Action::SegmentFree { segment });
        }
    }

    /// A withdrawn segment has had a lease's life to be unmapped in. Sessions that have not done so are ended: a hung
    /// client keeps no room from other tenants. What it still maps is memory that nobody uses any more.
    pub(super) fn end_unmappers(&mut self, segment: SegmentId) -> usize {
        let late = self.pool.waiting_for(segment);
        let why = "a withdrawn segment was not unmapped in time";
        self.outbox.extend(late.iter().map(|session| Action::EndSession { session: *session, why }));
        late.len().max(1)
    }

    fn evict_coldest(&mut self, tenant: u16, first_stamp: u64, urgent: bool) -> Victim {
        let Some(slot) = self.coldest(DRAM, usize::from(tenant), first_stamp) else { return Victim::None };
        self.evictions += 1;
        self.work += 1;
        if self.demote(slot, urgent) {
            return Victim::Leaving;
        }
        self.drop_dram(slot, RemovedReason::Evicted);
        Victim::Gone
    }

    /// Begins the demotion of a copy that is about to leave, into each tier that wants it then. It leaves when the
    /// last of these puts is done.
    fn demote(&mut self, slot: u32, urgent: bool) -> bool {
        let mut any = false;
        for tier in DRAM + 1..self.tiers.len() {
            any |= self.tiers[tier].settings.write == WritePolicy::OnEvict && self.demote_to(tier, slot, urgent);
        }
        if any {
            self.unlist(DRAM, slot);
            self.set_leaving(slot, true);
        }
        any
    }

    /// The same for one tier, where it lacks the block and can take it now. Under pressure a copy that cannot be
    /// demoted at once is dropped and counted: a store does not wait.
    fn demote_to(&mut self, below: usize, slot: u32, urgent: bool) -> bool {
        let entry = self.tiers[DRAM].copies[slot].entry;
        if self.index.copy(entry, below) != NONE || self.has_other(below, entry) {
            return false;
        }
        if !self.admits(entry) {
            self.tiers[below].counters.not_admitted += 1;
            return false;
        }
        let tier = &self.tiers[below];
        let busy = tier.queued_blocks + u64::from(tier.puts_in_flight) >= u64::from(self.put_slots(below));
        if tier.state != TierState::Running || (urgent && busy) {
            self.tiers[below].counters.dropped += 1;
            return false;
        }
        if !self.queue_put(below, slot) {
            return false;
        }
        self.tiers[below].counters.demoted += 1;
        true
    }

    /// A resident, unpinned copy leaves the first tier.
    pub(super) fn drop_dram(&mut self, slot: u32, reason: RemovedReason) {
        let copy = &self.tiers[DRAM].copies[slot];
        let (entry, tenant) = (copy.entry, copy.tenant);
        self.removed(tenant, DRAM, reason, self.index[entry].key);
        if reason == RemovedReason::Evicted {
            self.tiers[DRAM].counters.evicted += 1;
            self.unseen_again(entry);
        }
        self.detach(DRAM, slot);
        self.free_dram(slot);
        self.index.collect(entry);
    }

    /// A copy of a lower tier becomes invisible; it keeps its room and its place in the index.
    pub(super) fn hide(&mut self, tier: usize, slot: u32, state: CopyState) {
        self.untrack(tier, slot);
        let copy = &mut self.tiers[tier].copies[slot];
        if copy.state == CopyState::Resident {
            self.tiers[tier].resident -= 1;
            self.index.lost(self.tiers[tier].copies[slot].entry);
        }
        self.tiers[tier].copies[slot].state = state;
    }

    /// An unpinned copy of a lower tier is to be deleted there. Its key stays taken in that tier until then, so that
    /// no put of the same key overtakes the delete.
    pub(super) fn delete_lower(&mut self, tier: usize, slot: u32) {
        if self.tiers[tier].copies[slot].state == CopyState::Deleting {
            return;
        }
        self.hide(tier, slot, CopyState::Deleting);
        let copy = &self.tiers[tier].copies[slot];
        let (bytes, tenant) = (u64::from(copy.bytes), usize::from(copy.tenant));
        self.tiers[tier].freeing[tenant] += bytes;
        self.tiers[tier].deletes.push_back(slot);
    }

    /// A copy of a shared tier is known no more, as soon as nothing uses it. The block stays there: it is not this
    /// host's alone to delete.
    pub(super) fn forget(&mut self, tier: usize, slot: u32) {
        if self.tiers[tier].copies[slot].pins == 0 {
            return self.free_lower(tier, slot);
        }
        self.hide(tier, slot, CopyState::Doomed);
        self.tiers[tier].copies[slot].flags |= FORGOTTEN;
    }

    /// The entry's copy in a lower tier is worth nothing any more: deleted, or doomed while it is pinned.
    pub(super) fn expel(&mut self, tier: usize, entry: u32, now: Time) {
        let slot = self.index.copy(entry, tier);
        if slot == NONE {
            return;
        }
        let copy = &self.tiers[tier].copies[slot];
        match copy.state {
            CopyState::Putting => self.hide(tier, slot, CopyState::Doomed),
            CopyState::Resident | CopyState::Doubted if self.tiers[tier].asks.is_some() => {
                let (tenant, key) = (copy.tenant, self.index[entry].key);
                self.removed(tenant, tier, RemovedReason::Failed, key);
                self.note_other(tier, key, now);
                self.forget(tier, slot);
            }
            CopyState::Resident | CopyState::Doubted if copy.pins > 0 => self.hide(tier, slot, CopyState::Doomed),
            CopyState::Resident | CopyState::Doubted => {
                let (tenant, key) = (copy.tenant, self.index[entry].key);
                self.removed(tenant, tier, RemovedReason::Failed, key);
                self.delete_lower(tier, slot);
            }
            _ => {}
        }
    }

    /// Evicts one copy of a lower tier; of a shared one it is forgotten, and its room is free at once. False if there
    /// is none to evict, or if the tier deletes nothing.
    pub(super) fn evict_lower(&mut self, tier: usize, tenant: usize) -> bool {
        if !self.tiers[tier].makes_room() {
            return false;
        }
        let Some(slot) = self.coldest(tier, tenant, u64::MAX) else { return false };
        let copy = &self.tiers[tier].copies[slot];
        if copy.state == CopyState::Resident {
            self.removed(tenant as u16, tier, RemovedReason::Evicted, self.index[copy.entry].key);
        }
        self.tiers[tier].counters.evicted += 1;
        self.evictions += 1;
        self.work += 1;
        if self.tiers[tier].asks.is_some() {
            self.forget(tier, slot);
        } else {
            self.delete_lower(tier, slot);
        }
        true
    }

    /// Makes room for a put, within the tier's capacity and the tenant's quota: the coldest leave first.
    pub(super) fn room_below(&mut self, tier: usize, tenant: usize, need: u64) -> RoomBelow {
        let capacity = self.tiers[tier].limit;
        let quota = self.settings.tenants[tenant].quota[tier];
        for _ in 0..RECLAIM_SLICE_ENTRIES {
            let below = &self.tiers[tier];
            let own = below.used[tenant] - below.freeing[tenant];
            let victim = if own + need > quota {
                Some(tenant)
            } else if below.kept_bytes() + need > capacity {
                self.heaviest(tier)
            } else {
                break;
            };
            if !victim.is_some_and(|victim| self.evict_lower(tier, victim)) {
                break;
            }
        }
        let below = &self.tiers[tier];
        if below.used_bytes() + need <= capacity && below.used[tenant] + need <= quota {
            RoomBelow::Ready
        } else if below.freeing.iter().any(|bytes| *bytes > 0) {
            RoomBelow::Wait
        } else {
            RoomBelow::Never
        }
    }

    /// The tenant that uses most of its quota in a tier, among those with something to evict.
    pub(super) fn heaviest(&self, tier: usize) -> Option<usize> {
        if !self.tiers[tier].makes_room() {
            return None;
        }
        let used = &self.tiers[tier].used;
        let candidates = (0..used.len()).filter(|tenant| self.tiers[tier].orders[*tenant].has_victim());
        candidates.max_by_key(|tenant| {
            let quota = self.settings.tenants[*tenant].quota[tier].clamp(1, self.tiers[tier].settings.capacity.max(1));
            u128::from(used[*tenant]) * 1_000_000 / u128::from(quota)
        })
    }

    /// A slice of reclaim: keeps the headroom, and the promotion budget beside it, free.
    pub(super) fn reclaim(&mut self) {
        for tenant in 0..self.settings.tenants.len() as u16 {
            let target = self.promotion_floor(tenant) + self.share(tenant, self.settings.headroom[DRAM]);
            for _ in 0..RECLAIM_SLICE_ENTRIES {
                if self.promised(tenant) >= target || self.evict_coldest(tenant, u64::MAX, false) == Victim::None {
                    break;
                }
            }
        }
        for tier in DRAM + 1..self.tiers.len() {
            let limit = self.tiers[tier].limit.saturating_sub(self.settings.headroom[tier]);
            for _ in 0..RECLAIM_SLICE_ENTRIES {
                let tenant = if self.tiers[tier].kept_bytes() > limit { self.heaviest(tier) } else { None };
                if !self.tiers[tier].running() || !tenant.is_some_and(|tenant| self.evict_lower(tier, tenant)) {
                    break;
                }
            }
        }
    }

    /// Whether a slice of reclaim would find something to do.
    pub(super) fn reclaim_left(&self) -> bool {
        let dram = (0..self.settings.tenants.len() as u16).any(|tenant| {
            let target = self.promotion_floor(tenant) + self.share(tenant, self.settings.headroom[DRAM]);
            self.promised(tenant) < target && self.tiers[DRAM].orders[usize::from(tenant)].has_victim()
        });
        let lower = (DRAM + 1..self.tiers.len()).any(|tier| {
            let limit = self.tiers[tier].limit.saturating_sub(self.settings.headroom[tier]);
            self.tiers[tier].running() && self.tiers[tier].kept_bytes() > limit && self.heaviest(tier).is_some()
        });
        dram || lower
    }
}
