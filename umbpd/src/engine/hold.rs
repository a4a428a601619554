//! Holds: a short promise not to evict, from a lookup to the load that follows it.

use umbp_protocol::message::{SessionId, WireKey};

use super::api::Time;
use super::state::{DRAM, Engine, Timer};

/// A hold of one session on one block. It pins the copy that was the fastest when it was taken.
pub(super) struct Hold {
    pub(super) tier: u8,
    pub(super) slot: u32,
    pub(super) deadline: u64,
}

impl Engine {
    /// Takes a hold, or gives one that the session has more time. False if its budget does not allow it.
    pub(super) fn take_hold(&mut self, session: SessionId, entry: u32, tier: usize, deadline: u64) -> bool {
        if let Some(hold) = self.holds.get_mut(&(entry, session.0)) {
            let timer = Timer::Hold { entry, session: session.0 };
            self.timers.remove(&(hold.deadline, timer));
            hold.deadline = hold.deadline.max(deadline);
            self.timers.insert((hold.deadline, timer));
            return true;
        }
        let slot = self.index.copy(entry, tier);
        let bytes = u64::from(self.tiers[tier].copies[slot].bytes);
        let Some(owner) = self.sessions.get_mut(&session) else { return false };
        if owner.hold_bytes + bytes > self.settings.hold_bytes {
            self.counters.holds_refused += 1;
            return false;
        }
        owner.hold_bytes += bytes;
        owner.holds.insert(entry);
        self.holds.insert((entry, session.0), Hold { tier: tier as u8, slot, deadline });
        self.timers.insert((deadline, Timer::Hold { entry, session: session.0 }));
        self.pin(tier, slot);
        if tier == DRAM {
            self.set_leaving(slot, false);
        }
        true
    }

    /// Ends a hold. False if there is none.
    pub(super) fn drop_hold(&mut self, entry: u32, session: u64) -> bool {
        let Some(hold) = self.holds.remove(&(entry, session)) else { return false };
        self.timers.remove(&(hold.deadline, Timer::Hold { entry, session }));
        let tier = usize::from(hold.tier);
        let bytes = u64::from(self.tiers[tier].copies[hold.slot].bytes);
        if let Some(owner) = self.sessions.get_mut(&SessionId(session)) {
            owner.hold_bytes -= bytes;
            owner.holds.remove(&entry);
        }
        self.unpin(tier, hold.slot);
        self.work += 1;
        true
    }

    /// Ends every hold on an entry's copy in a tier: that copy is nothing that a load could find, and the entry's
    /// number may be given to another key. The copy is pinned otherwise too.
    pub(super) fn drop_holds_on(&mut self, entry: u32, tier: usize) {
        let held = self.holds.range((entry, 0)..=(entry, u64::MAX));
        let sessions: Vec<u64> =
            held.filter(|(_, hold)| usize::from(hold.tier) == tier).map(|(key, _)| key.1).collect();
        for session in sessions {
            self.drop_hold(entry, session);
        }
    }

    /// A load takes over one hold on its block: the session's own, else one of another session of its tenant (a
    /// scheduler looks up, its workers load). The block is pinned already by what adopts the hold.
    pub(super) fn adopt_hold(&mut self, entry: u32, session: SessionId) {
        if self.drop_hold(entry, session.0) {
            return;
        }
        let other = self.holds.range((entry, 0)..=(entry, u64::MAX)).next().map(|(key, _)| key.1);
        if let Some(other) = other {
            self.drop_hold(entry, other);
        }
    }

    /// Gives up the session's holds on these keys; on all if there are none, at most a slice a call (call again
    /// until it answers 0). Answers how many.
    pub fn unhold(&mut self, session: SessionId, keys: &[WireKey], now: Time) -> u32 {
        self.begin();
        let entries: Vec<u32> = if keys.is_empty() {
            let held = self.sessions.get(&session).map(|owner| owner.holds.iter().copied());
            held.into_iter().flatten().take(super::KEYS_PER_SLICE_MAX).collect()
        } else {
            keys.iter().filter_map(|key| self.index.find(key)).collect()
        };
        let count = entries.into_iter().filter(|entry| self.drop_hold(*entry, session.0)).count();
        self.settle(now);
        count as u32
    }
}
