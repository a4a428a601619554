//! What happens because time has passed.

use umbp_protocol::message::{Event, SegmentId};

use super::api::Time;
use super::lease::{EXPIRY_SLICE_ITEMS, LeaseKind};
use super::state::{DRAM, Engine, Timer};

impl Engine {
    /// Lets expire what is due and goes on with reclaim, closing sessions and recovery, a slice of each. Answers
    /// when to call again: at once if more is left, `None` if nothing will fall due.
    pub fn tick(&mut self, now: Time) -> Option<Time> {
        self.begin();
        let mut budget = EXPIRY_SLICE_ITEMS;
        while budget > 0 {
            let Some((due, timer)) = self.timers.first().copied().filter(|(due, _)| *due <= now.0) else { break };
            self.timers.remove(&(due, timer));
            budget = budget.saturating_sub(self.fire(due, timer, budget, now));
        }
        let mut more = self.close_slice();
        more |= self.place_slice();
        more |= self.settle_orphans_slice();
        self.expire_answers(now);
        self.settle(now);
        more |= self.timers.first().is_some_and(|(due, _)| *due <= now.0);
        if more || self.reclaim_left() || self.pump_left() {
            return Some(now);
        }
        self.timers.first().map(|(due, _)| Time(*due))
    }

    /// Does what fell due; answers how many items it touched.
    fn fire(&mut self, due: u64, timer: Timer, budget: usize, now: Time) -> usize {
        match timer {
            Timer::Lease(id) => {
                let used = self.end_lease(id, budget);
                if self.leases.get(&id).is_some_and(|lease| lease.kind == LeaseKind::Read) {
                    self.timers.insert((due, timer));
                }
                used
            }
            Timer::Hold { entry, session } => {
                self.counters.holds_expired += u64::from(self.drop_hold(entry, session));
                1
            }
            Timer::Operation(id) => {
                self.overdue(id, now);
                1
            }
            Timer::Limit(tier) => {
                self.raise_limit(usize::from(tier), now);
                1
            }
            Timer::Deletes(tier) => self.retry_deletes(usize::from(tier), now),
            Timer::Withdrawn(segment) => self.end_unmappers(SegmentId(segment)),
            Timer::Probe(tier) => {
                self.probe(usize::from(tier), now);
                1
            }
        }
    }

    /// The daemon shuts down: every question is answered with Draining or Refused from here on, while commits and
    /// releases go through and the background queue empties.
    pub fn drain(&mut self, now: Time) {
        self.begin();
        if !self.draining {
            self.draining = true;
            (DRAM + 1..self.tiers.len()).for_each(|tier| self.release_asks(tier));
            self.push_to_all(&Event::Draining);
        }
        self.settle(now);
    }

    /// [`Engine::drain`] was called.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Leases that are open, read and write.
    pub fn open_leases(&self) -> usize {
        self.leases.values().filter(|lease| !lease.expired).count()
    }

    /// Nothing is queued for, or in flight in, a tier that still answers.
    pub fn is_idle(&self) -> bool {
        self.tiers.iter().filter(|tier| tier.running()).all(|tier| {
            let queued = tier.queued_blocks > 0 || !tier.retries.is_empty();
            tier.in_flight == 0 && !queued && tier.deletes.is_empty() && tier.strays.is_empty()
        })
    }
}
