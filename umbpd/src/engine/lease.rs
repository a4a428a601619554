//! Leases: the right to read or fill extents until a deadline.
//!
//! One request is one lease, also where the caller slices it: `lease_begin`, then slices of `reserve` or `acquire`,
//! then `lease_finish`. Item i of a lease is the request's i-th key.

use umbp_protocol::message::{LeaseId, SessionId};

use super::api::Time;
use super::state::{DRAM, Engine, Timer};
use super::tier::CopyState;

/// Most leases of one session; requests beyond it are refused.
pub const LEASES_PER_SESSION_MAX: usize = 4096;
/// Items of a session's leases from which on it gets no further lease, settled items of open leases included; four
/// times what a client's jobs may have open. A block that is leased over and over takes room in the tables alone.
pub const LEASED_ITEMS_PER_SESSION_MAX: usize = 256 << 10;
/// Items of leases, and holds, that one call lets go at most when they expire; the rest follows at the next.
pub const EXPIRY_SLICE_ITEMS: usize = 512;

/// To read or to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseKind {
    /// For Reserve.
    Write,
    /// For Acquire.
    Read,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ItemState {
    /// Given back, or never leased.
    Settled,
    /// Write: `slot` is a copy in state Writing or Quarantined. Read: `slot` is a pinned copy.
    Leased,
    /// Read: `slot` is an entry whose promotion has this item among its waiters.
    Pending,
}

#[derive(Clone, Copy)]
pub(super) struct Item {
    pub(super) generation: u64,
    pub(super) slot: u32,
    pub(super) state: ItemState,
}

pub(super) struct Lease {
    pub(super) session: SessionId,
    pub(super) kind: LeaseKind,
    pub(super) deadline: u64,
    /// Entries with a stamp from here on were used by this request and are no victims for it.
    pub(super) first_stamp: u64,
    pub(super) items: Vec<Item>,
    /// Items not settled.
    pub(super) open_items: usize,
    /// Room ran out: the rest of the chain is refused.
    pub(super) refused: bool,
    /// Slices are still to come.
    pub(super) growing: bool,
    /// Write: past its deadline; what is left of it is quarantined.
    pub(super) expired: bool,
    /// Items before this one have been let go by expiry.
    swept: usize,
}

impl Engine {
    /// Opens a lease for one request. `None` for a session that is unknown, closed, or has too many.
    pub fn lease_begin(&mut self, session: SessionId, kind: LeaseKind, now: Time) -> Option<LeaseId> {
        let owner = self.sessions.get(&session).filter(|owner| owner.open)?;
        if owner.leases.len() >= LEASES_PER_SESSION_MAX || owner.leased_items >= LEASED_ITEMS_PER_SESSION_MAX {
            return None;
        }
        let id = self.new_id();
        let deadline = now.0.saturating_add(self.settings.lease_ns);
        let lease = Lease {
            session,
            kind,
            deadline,
            first_stamp: self.clock + 1,
            items: Vec::new(),
            open_items: 0,
            refused: false,
            growing: true,
            expired: false,
            swept: 0,
        };
        self.leases.insert(id, lease);
        self.timers.insert((deadline, Timer::Lease(id)));
        if let Some(owner) = self.sessions.get_mut(&session) {
            owner.leases.insert(id);
        }
        Some(LeaseId(id))
    }

    /// The next item of a lease that grows.
    pub(super) fn push_item(&mut self, lease: LeaseId, item: Item) {
        let Some(found) = self.leases.get_mut(&lease.0) else { return };
        found.open_items += usize::from(item.state != ItemState::Settled);
        found.items.push(item);
        if let Some(session) = self.sessions.get_mut(&found.session) {
            session.leased_items += 1;
        }
    }

    /// No slice follows. Answers the lease and its life in milliseconds, or zeros if it leases nothing: then it is
    /// no more.
    pub fn lease_finish(&mut self, lease: LeaseId, now: Time) -> (LeaseId, u32) {
        let Some(found) = self.leases.get_mut(&lease.0) else { return (LeaseId(0), 0) };
        found.growing = false;
        let left = milliseconds(found.deadline.saturating_sub(now.0));
        if found.open_items == 0 {
            self.forget_lease(lease.0);
            return (LeaseId(0), 0);
        }
        (lease, left)
    }

    /// More time for leases. Answers the life of each in milliseconds; 0 = it is no more.
    pub fn renew(&mut self, session: SessionId, leases: &[LeaseId], now: Time) -> Vec<u32> {
        self.begin();
        let answers = leases.iter().map(|lease| {
            let deadline = now.0.saturating_add(self.settings.lease_ns);
            let Some(found) = self.leases.get_mut(&lease.0) else { return 0 };
            if found.session != session || found.expired || found.deadline <= now.0 {
                return 0;
            }
            self.timers.remove(&(found.deadline, Timer::Lease(lease.0)));
            found.deadline = deadline;
            self.timers.insert((deadline, Timer::Lease(lease.0)));
            milliseconds(self.settings.lease_ns)
        });
        let answers = answers.collect();
        self.settle(now);
        answers
    }

    /// Whether the session may still use the lease: it is its own, of this kind, and not past its deadline.
    pub(super) fn lease_lives(&self, session: SessionId, lease: LeaseId, kind: LeaseKind, now: Time) -> bool {
        self.leases.get(&lease.0).is_some_and(|found| {
            found.session == session && found.kind == kind && !found.expired && found.deadline > now.0
        })
    }

    /// Marks an item as given back, and forgets the lease with its last one.
    pub(super) fn settle_item(&mut self, lease: u64, index: usize) {
        let Some(found) = self.leases.get_mut(&lease) else { return };
        let Some(item) = found.items.get_mut(index).filter(|item| item.state != ItemState::Settled) else { return };
        item.state = ItemState::Settled;
        found.open_items -= 1;
        if found.open_items == 0 && !found.growing {
            self.forget_lease(lease);
        }
    }

    pub(super) fn forget_lease(&mut self, lease: u64) {
        let Some(found) = self.leases.remove(&lease) else { return };
        self.timers.remove(&(found.deadline, Timer::Lease(lease)));
        if let Some(session) = self.sessions.get_mut(&found.session) {
            session.leases.remove(&lease);
            session.leased_items -= found.items.len();
        }
        self.forget_if_over(found.session);
    }

    /// The lease is past its deadline, or its session is over: lets go of at most `budget` items and answers how
    /// many it looked at, at least one. Reads are unpinned. Writes are quarantined, and stay in the lease until the
    /// client acknowledges or can write no more; where it can write no more they are free at once.
    pub(super) fn end_lease(&mut self, id: u64, budget: usize) -> usize {
        let Some(lease) = self.leases.get_mut(&id) else { return 1 };
        let (session, kind) = (lease.session, lease.kind);
        lease.growing = false;
        let harmless = self.sessions.get(&session).is_none_or(|session| session.harmless);
        if kind == LeaseKind::Write && !lease.expired {
            lease.expired = true;
            self.counters.leases_expired += 1;
            return self.quarantine_items(id, harmless).max(1);
        }
        if kind == LeaseKind::Write && !harmless {
            // Its session ended before its deadline did: quarantined already, and to stay so.
            return 1;
        }
        let from = lease.swept;
        let to = lease.items.len().min(from + budget.max(1));
        lease.swept = to;
        self.counters.leases_expired += u64::from(kind == LeaseKind::Read && from == 0);
        for index in from..to {
            let _ = match kind {
                LeaseKind::Write => self.free_write(id, index),
                LeaseKind::Read => self.free_read(id, index),
            };
        }
        self.work += (to - from) as u64;
        if self.leases.get(&id).is_some_and(|lease| lease.swept == lease.items.len()) {
            self.forget_lease(id);
        }
        (to - from).max(1)
    }

    /// All of a write lease at once, since no commit may come between: its entries become free for other writers,
    /// its extents wait. A lease has at most as many items as a message has keys.
    fn quarantine_items(&mut self, id: u64, harmless: bool) -> usize {
        let Some(lease) = self.leases.get(&id) else { return 0 };
        let session = lease.session;
        let leased = lease.items.iter().filter(|item| item.state == ItemState::Leased);
        let slots: Vec<u32> = leased.map(|item| item.slot).collect();
        let mut bytes = 0;
        for slot in &slots {
            let entry = self.tiers[DRAM].copies[*slot].entry;
            self.detach(DRAM, *slot);
            self.advance(*slot);
            self.tiers[DRAM].copies[*slot].state = CopyState::Quarantined;
            self.index.collect(entry);
            bytes += u64::from(self.tiers[DRAM].copies[*slot].bytes);
        }
        if let Some(session) = self.sessions.get_mut(&session) {
            session.quarantined_bytes += bytes;
        }
        self.work += slots.len() as u64;
        if slots.is_empty() && !harmless {
            self.forget_lease(id);
        }
        slots.len()
    }

    /// The writer of an item is done with it, without a commit: its extent is free.
    pub(super) fn free_write(&mut self, lease: u64, index: usize) -> bool {
        let Some(found) = self.leases.get(&lease) else { return false };
        let Some(item) = found.items.get(index).copied().filter(|item| item.state == ItemState::Leased) else {
            return false;
        };
        let session = found.session;
        let copy = &self.tiers[DRAM].copies[item.slot];
        let (state, entry, bytes) = (copy.state, copy.entry, u64::from(copy.bytes));
        if state == CopyState::Quarantined {
            if let Some(session) = self.sessions.get_mut(&session) {
                session.quarantined_bytes -= bytes;
            }
        } else {
            self.detach(DRAM, item.slot);
            self.index.collect(entry);
        }
        self.free_dram(item.slot);
        self.settle_item(lease, index);
        true
    }

    /// The reader of an item is done with it.
    pub(super) fn free_read(&mut self, lease: u64, index: usize) -> bool {
        let Some(found) = self.leases.get(&lease) else { return false };
        let Some(item) = found.items.get(index).copied() else { return false };
        let session = found.session;
        match item.state {
            ItemState::Settled => return false,
            ItemState::Pending => self.leave_promotion(item.slot, lease, index as u32),
            ItemState::Leased => {
                let bytes = u64::from(self.tiers[DRAM].copies[item.slot].bytes);
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.pinned_bytes -= bytes;
                }
                self.unpin(DRAM, item.slot);
            }
        }
        self.settle_item(lease, index);
        true
    }
}

/// Whole milliseconds, at most what a u32 takes.
pub(super) fn milliseconds(nanoseconds: u64) -> u32 {
    u32::try_from(nanoseconds / 1_000_000).unwrap_or(u32::MAX)
}
