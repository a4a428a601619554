//! Store: Reserve, Commit, Abort.

use umbp_connector_core::key::LocalKey;
use umbp_protocol::message::{LeaseId, Outcome, ReserveItem, Reserved, SessionId, WireKey};

use super::api::Time;
use super::evict::{Room, extent_bytes};
use super::lease::{Item, ItemState, LeaseKind};
use super::policy::Use;
use super::slab::NONE;
use super::state::{DEPTH_MAX, DRAM, Engine, KEYS_PER_SLICE_MAX};
use super::tier::CopyState;

/// What is known of an item before room is sought.
enum Checked {
    Answer(Reserved),
    New { parent: Option<WireKey> },
}

impl Engine {
    /// Room for blocks to be written, head of the chain first; at most [`KEYS_PER_SLICE_MAX`] items, the next slice
    /// of a lease that [`Engine::lease_begin`] opened. Touches what is present already. Where room runs out, the
    /// rest of the lease's new blocks is refused, so that no hole is left in a chain (G7).
    pub fn reserve(&mut self, session: SessionId, lease: LeaseId, items: &[ReserveItem], now: Time) -> Vec<Reserved> {
        self.reserve_guard(session, lease, items, now);
        let guarded = self.work;
        let answers = self.reserve_guarded(session, lease, items, now);
        self.work += guarded;
        answers
    }

    /// The first half of [`Engine::reserve`]: touches what a slice has already, once, whatever parts the second half
    /// is given it in.
    pub fn reserve_guard(&mut self, session: SessionId, lease: LeaseId, items: &[ReserveItem], now: Time) {
        self.begin();
        if items.len() <= KEYS_PER_SLICE_MAX && self.lease_lives(session, lease, LeaseKind::Write, now) {
            let used: Vec<u32> = items.iter().rev().filter_map(|item| self.known_part(item)).collect();
            self.touch(Use::Guard, used.into_iter());
        }
    }

    /// The second half: room for a slice or the next part of one. It may evict, so that parts are better small where
    /// others wait for their turn.
    pub fn reserve_guarded(
        &mut self,
        session: SessionId,
        lease: LeaseId,
        items: &[ReserveItem],
        now: Time,
    ) -> Vec<Reserved> {
        self.begin();
        let tenant = self.tenant_of(session);
        let (Some(tenant), true) = (tenant, items.len() <= KEYS_PER_SLICE_MAX) else {
            return vec![Reserved::Refused; items.len()];
        };
        if !self.lease_lives(session, lease, LeaseKind::Write, now) {
            return vec![Reserved::Refused; items.len()];
        }
        let over = self.draining
            || !self.tiers[DRAM].running()
            || self.quarantine_of(session) >= self.settings.quarantine_bytes;
        if let Some(found) = self.leases.get_mut(&lease.0) {
            found.refused |= over;
        }
        let answers = items.iter().map(|item| self.reserve_one(tenant, lease, item)).collect();
        self.settle(now);
        answers
    }

    /// The entry of the block or, before it is known, of its parent.
    fn known_part(&self, item: &ReserveItem) -> Option<u32> {
        let parent = WireKey { local: item.parent, ..item.key };
        self.index.find(&item.key).or_else(|| self.index.find(&parent))
    }

    fn reserve_one(&mut self, tenant: u16, lease: LeaseId, item: &ReserveItem) -> Reserved {
        let answer = match self.check_item(tenant, item) {
            Checked::Answer(answer) => answer,
            Checked::New { parent } => self.reserve_new(tenant, lease, item, parent),
        };
        let leased = match answer {
            Reserved::Extent(extent) => {
                Item { generation: extent.generation, slot: extent.slot, state: ItemState::Leased }
            }
            _ => Item { generation: 0, slot: NONE, state: ItemState::Settled },
        };
        self.counters.refused += u64::from(answer == Reserved::Refused);
        self.push_item(lease, leased);
        answer
    }

    fn check_item(&self, tenant: u16, item: &ReserveItem) -> Checked {
        let whole = matches!(LocalKey::from_bytes(&item.key.local), Ok(Some(_)));
        let Ok(parent) = LocalKey::from_bytes(&item.parent) else { return Checked::Answer(Reserved::Invalid) };
        let fits = item.length > 0 && item.length <= self.settings.block_bytes && item.depth <= DEPTH_MAX;
        let hangs = item.parent != item.key.local && (parent.is_none() || item.depth > 0);
        if !whole || !fits || !hangs || self.owner(item.key.namespace) != Some(tenant) {
            return Checked::Answer(Reserved::Invalid);
        }
        let parent = parent.map(|_| WireKey { local: item.parent, ..item.key });
        if let Some(slot) = parent.and_then(|parent| self.index.find(&parent)) {
            let above = &self.index[slot];
            // Depths must fall toward the root, or links could form a ring. Only a ghost whose place nobody has
            // told yet gives way.
            let told = above.parent != NONE || !self.index.is_ghost(slot);
            if above.depth() >= item.depth && told {
                return Checked::Answer(Reserved::Invalid);
            }
        }
        let Some(slot) = self.index.find(&item.key) else { return Checked::New { parent } };
        let entry = &self.index[slot];
        if !self.index.is_ghost(slot) && u64::from(entry.length) != item.length {
            // K13: the old copy stays, be it as good as gone.
            return Checked::Answer(Reserved::LengthDiffers);
        }
        if self.locate(slot).is_ok() {
            return Checked::Answer(Reserved::Present);
        }
        match self.index.copy(slot, DRAM) {
            NONE if entry.children > 0 && item.depth > entry.depth() => Checked::Answer(Reserved::Invalid),
            NONE => Checked::New { parent },
            slot if self.tiers[DRAM].copies[slot].state == CopyState::Writing => {
                Checked::Answer(Reserved::BeingWritten)
            }
            _ => Checked::Answer(Reserved::Refused),
        }
    }

    fn reserve_new(&mut self, tenant: u16, lease: LeaseId, item: &ReserveItem, parent: Option<WireKey>) -> Reserved {
        let Some((false, first_stamp)) = self.leases.get(&lease.0).map(|lease| (lease.refused, lease.first_stamp))
        else {
            return Reserved::Refused;
        };
        let room = Room { bytes: extent_bytes(item.length), floor: self.promotion_floor(tenant), first_stamp };
        let Some(place) = self.make_room(tenant, room) else {
            if let Some(found) = self.leases.get_mut(&lease.0) {
                found.refused = true;
            }
            return Reserved::Refused;
        };
        let entry = self.index.find_or_insert(item.key, item.depth);
        let fresh = self.index[entry].resident() == 0;
        if fresh {
            self.hang(entry, parent, item.depth);
            self.index[entry].length = item.length as u32;
        }
        let slot = self.dram_copy(entry, tenant, place, room.bytes, CopyState::Writing);
        Reserved::Extent(self.extent(slot))
    }

    /// Blocks of a write lease are written: (index in the Reserve, checksum). They are visible from here on; lower
    /// tiers get their copy in the background. At most [`KEYS_PER_SLICE_MAX`] items a call.
    pub fn commit(&mut self, session: SessionId, lease: LeaseId, items: &[(u32, u64)], now: Time) -> Vec<Outcome> {
        self.begin();
        if !self.lease_lives(session, lease, LeaseKind::Write, now) || items.len() > KEYS_PER_SLICE_MAX {
            self.counters.stale_commits += items.len() as u64;
            return vec![Outcome::LeaseExpired; items.len()];
        }
        let mut stored = Vec::with_capacity(items.len());
        let mut answers = Vec::with_capacity(items.len());
        for &(index, checksum) in items {
            let item = self.leases.get(&lease.0).and_then(|lease| lease.items.get(index as usize)).copied();
            let leased = item.filter(|item| {
                item.state == ItemState::Leased
                    && self.generation(item.slot) == item.generation
                    && self.tiers[DRAM].copies[item.slot].state == CopyState::Writing
            });
            let Some(item) = leased else {
                self.counters.stale_commits += 1;
                answers.push(Outcome::NotLeased);
                continue;
            };
            stored.push(self.publish(item.slot, checksum, now));
            self.settle_item(lease.0, index as usize);
            answers.push(Outcome::Done);
        }
        self.touch(Use::Store, stored.iter().rev().copied());
        if let Some(tenant) = self.tenant_of(session) {
            self.note_orphans(tenant, stored);
        }
        self.settle(now);
        answers
    }

    fn publish(&mut self, slot: u32, checksum: u64, now: Time) -> u32 {
        let entry = self.tiers[DRAM].copies[slot].entry;
        if self.index[entry].checksum != checksum {
            // Written anew while its copies below were out of reach, with other bytes under the same key.
            for tier in DRAM + 1..self.tiers.len() {
                self.expel(tier, entry, now);
            }
            self.index[entry].checksum = checksum;
        }
        self.make_resident(DRAM, slot);
        self.tiers[DRAM].counters.stored += 1;
        self.counters.stored += 1;
        self.send_down(slot);
        entry
    }

    /// Blocks of a write lease will not be written, and no thread of the client writes to them any more; all that
    /// are left if `items` is empty, at most [`KEYS_PER_SLICE_MAX`] a call (call again until it answers fewer). Also
    /// ends the quarantine of a lease that has expired. Answers how many blocks were let go.
    pub fn abort(&mut self, session: SessionId, lease: LeaseId, items: &[u32], now: Time) -> u32 {
        self.begin();
        let own = |found: &super::lease::Lease| found.session == session && found.kind == LeaseKind::Write;
        if !self.leases.get(&lease.0).is_some_and(own) || items.len() > KEYS_PER_SLICE_MAX {
            return 0;
        }
        let open = self.open_items(lease, items.is_empty());
        let count = items.iter().chain(&open).filter(|index| self.free_write(lease.0, **index as usize)).count();
        self.settle(now);
        count as u32
    }

    /// The first items of a lease that are not settled, at most a slice.
    pub(super) fn open_items(&self, lease: LeaseId, wanted: bool) -> Vec<u32> {
        let Some(found) = self.leases.get(&lease.0).filter(|_| wanted) else { return Vec::new() };
        let open = found.items.iter().enumerate().filter(|(_, item)| item.state != ItemState::Settled);
        open.map(|(index, _)| index as u32).take(KEYS_PER_SLICE_MAX).collect()
    }
}
