//! What comes back from tiers, what does not, and the tiers' states.

use umbp_plugin_api::{Completion, Status};
use umbp_protocol::message::{Event, MissReason, RemovedReason};

use super::api::{Action, TierIndex, TierState, Time};
use super::deletes::is_gone;
use super::lower::{InFlight, Purpose};
use super::slab::NONE;
use super::state::{DRAM, Engine, Timer};
use super::tier::{CopyState, LIMIT_RAISE_EVERY_NS};

/// Deadlines missed in a row that make a tier Degraded.
pub const DEGRADED_AFTER_MISSES: u32 = 3;
/// Time between two probes of a Degraded tier, in nanoseconds.
pub const PROBE_EVERY_NS: u64 = 1_000_000_000;

/// Times that a put is submitted at most, while its tier has no space; then the block is dropped, and counted.
pub const PUT_TRIES_MAX: u8 = 4;

/// The put that has ended; slots of its copies.
struct PutDone {
    dram: u32,
    lower: u32,
    tries: u8,
    /// Bytes that deletes have freed since it was submitted.
    freed_since: u64,
}

impl Engine {
    /// An operation has ended. One that no operation in flight stands for makes the tier Failed (its word cannot be
    /// trusted any more), and so does one that ended by a panic: nobody knows what still writes to its buffer. A
    /// Failed tier's completions are ignored, and its buffers stay quarantined.
    pub fn completed(&mut self, tier: TierIndex, completion: &Completion, now: Time) {
        self.begin();
        let tier = usize::from(tier.0);
        if tier == DRAM || tier >= self.tiers.len() || self.tiers[tier].state == TierState::Failed {
            return;
        }
        let known = self.operations.get(&completion.id).is_some_and(|operation| operation.tier == tier);
        let Some(operation) = known.then(|| self.operations.remove(&completion.id)).flatten() else {
            self.tiers[tier].counters.unknown_completions += 1;
            self.set_state(tier, TierState::Failed);
            return self.settle(now);
        };
        if completion.status == Status::PANICKED {
            // Its pins and its place among what is in flight stay.
            self.operations.insert(completion.id, operation);
            self.tiers[tier].counters.error(completion.status);
            self.set_state(tier, TierState::Failed);
            return self.settle(now);
        }
        self.timers.remove(&(operation.deadline, Timer::Operation(completion.id)));
        let below = &mut self.tiers[tier];
        below.in_flight -= 1;
        if !operation.overdue {
            below.misses_in_a_row = 0;
        }
        let answered = match operation.purpose {
            Purpose::Probe | Purpose::Ask { .. } | Purpose::Delete { .. } | Purpose::DeleteStray { .. } => {
                is_gone(completion.status)
            }
            _ => completion.status == Status::OK,
        };
        if completion.status == Status::NO_SPACE && matches!(operation.purpose, Purpose::Put { .. }) {
            // That a store of blocks is full is its everyday life, at whichever try.
            below.counters.limit_found += 1;
        } else if !answered {
            below.counters.error(completion.status);
        }
        match operation.purpose {
            Purpose::Put { dram, lower, tries } => {
                let freed_since = self.tiers[tier].deleted_bytes - operation.deleted_before;
                self.put_done(tier, PutDone { dram, lower, tries, freed_since }, completion, now);
            }
            Purpose::Get { dram, lower } => {
                self.get_done(tier, (dram, lower), operation.overdue, completion, now);
            }
            Purpose::Ask { key } => self.ask_done(tier, key, completion, now),
            Purpose::Delete { lower } => self.delete_done(tier, lower, completion.status, now),
            Purpose::DeleteStray { stray } => self.stray_done(tier, stray, completion.status, now),
            Purpose::Probe => {
                self.tiers[tier].probing = false;
                if self.tiers[tier].state == TierState::Degraded {
                    self.tiers[tier].misses_in_a_row = 0;
                    self.set_state(tier, TierState::Running);
                }
            }
        }
        self.settle(now);
    }

    fn put_done(&mut self, tier: usize, put: PutDone, completion: &Completion, now: Time) {
        let PutDone { dram, lower, tries, freed_since } = put;
        self.tiers[tier].puts_in_flight -= 1;
        self.tiers[tier].copies[lower].place = completion.location;
        let trusted = self.tiers[DRAM].copies[dram].state == CopyState::Resident;
        let bytes = u64::from(self.tiers[tier].copies[lower].bytes);
        let tenant = usize::from(self.tiers[tier].copies[lower].tenant);
        let shared = self.tiers[tier].asks.is_some();
        if completion.status == Status::OK {
            if shared && self.found_other(tier, lower, completion.checksum, now) {
                self.tiers[tier].counters.present_other += 1;
                self.free_lower(tier, lower);
            } else if trusted && self.tiers[tier].copies[lower].state == CopyState::Putting {
                self.make_resident(tier, lower);
                self.tiers[tier].counters.stored += 1;
            } else {
                self.delete_lower(tier, lower);
            }
        } else {
            self.free_lower(tier, lower);
            // A shared tier's room is not this host's to make: forgetting frees none of it.
            let full = completion.status == Status::NO_SPACE && !shared;
            if full {
                self.found_limit(tier, bytes, freed_since, now);
            }
            let retried = full && tries < PUT_TRIES_MAX && trusted;
            // What deletes have freed meanwhile is enough for a second try. Later ones make more room each: a backend
            // has records and seams of its own.
            let freed = tries == 1 && freed_since >= bytes;
            if retried && (freed || self.make_way(tier, tenant, bytes << (tries - 1))) {
                // Its pin stays with it until the next try.
                return self.tiers[tier].retries.push_back((dram, tries));
            }
            self.tiers[tier].counters.dropped += 1;
        }
        self.unpin(DRAM, dram);
    }

    /// A put found the tier full: no more than what is there now is put, until time has passed.
    fn found_limit(&mut self, tier: usize, refused_bytes: u64, freed_since: u64, now: Time) {
        let below = &mut self.tiers[tier];
        below.lower_limit(refused_bytes, freed_since);
        if below.limit < below.settings.capacity && !std::mem::replace(&mut below.limit_timer, true) {
            self.timers.insert((now.0.saturating_add(LIMIT_RAISE_EVERY_NS), Timer::Limit(tier as u8)));
        }
    }

    /// Time to try a tier's limit higher.
    pub(super) fn raise_limit(&mut self, tier: usize, now: Time) {
        let below = &mut self.tiers[tier];
        below.limit_timer = below.raise_limit();
        if below.limit_timer {
            self.timers.insert((now.0.saturating_add(LIMIT_RAISE_EVERY_NS), Timer::Limit(tier as u8)));
        }
    }

    /// Evicts at least as many bytes from a tier, where it has any.
    fn make_way(&mut self, tier: usize, tenant: usize, bytes: u64) -> bool {
        let goal = self.tiers[tier].kept_bytes().saturating_sub(bytes);
        let mut any = false;
        for _ in 0..super::RECLAIM_SLICE_ENTRIES {
            let own = self.tiers[tier].orders[tenant].has_victim().then_some(tenant);
            let Some(victim) = self.heaviest(tier).or(own) else { break };
            if self.tiers[tier].kept_bytes() <= goal || !self.evict_lower(tier, victim) {
                break;
            }
            any = true;
        }
        any
    }

    fn get_done(&mut self, tier: usize, (dram, lower): (u32, u32), overdue: bool, completion: &Completion, now: Time) {
        let entry = self.tiers[tier].copies[lower].entry;
        let whole = completion.status == Status::OK && completion.length == u64::from(self.index[entry].length);
        let doubted = self.tiers[tier].copies[lower].state == CopyState::Doubted;
        if !overdue && whole {
            self.end_promotion(entry, Ok(()));
        } else if overdue && whole && doubted {
            // It was only late: the copy is sound after all, and so is what it filled, if that is still of use.
            self.make_resident(tier, lower);
            if self.index.copy(entry, DRAM) == NONE {
                self.tiers[DRAM].copies[dram].entry = entry;
                self.index.set_copy(entry, DRAM, dram);
                self.expect(entry);
                self.make_resident(DRAM, dram);
                self.came_up(dram);
                self.unpin(DRAM, dram);
            } else {
                self.discard_fill(dram);
            }
        } else {
            if !overdue {
                let reason = match completion.status {
                    Status::CORRUPT => MissReason::Corrupt,
                    _ => MissReason::Failed,
                };
                self.end_promotion(entry, Err(reason));
            }
            self.discard_fill(dram);
            if !whole {
                let lost = matches!(completion.status, Status::OK | Status::CORRUPT | Status::MISS);
                if self.tiers[tier].asks.is_some() {
                    self.lose_shared(tier, lower, completion.status, now);
                }
                self.distrust(tier, lower, lost);
            }
        }
        self.unpin(tier, lower);
    }

    /// A fill that nobody will read: its backend is done with it.
    fn discard_fill(&mut self, dram: u32) {
        self.tiers[DRAM].copies[dram].pins = 0;
        self.free_dram(dram);
    }

    /// A load of this copy failed: it is Absent from here on. Where its bytes are lost (missing, corrupt, cut) it is
    /// deleted. Where only the medium failed (EIO, a timeout) nothing is deleted: the copy is kept, hidden, so that
    /// its room stays accounted for, until it is stored anew, evicted, or found again by a later recovery.
    fn distrust(&mut self, tier: usize, lower: u32, lost: bool) {
        let copy = &self.tiers[tier].copies[lower];
        if !matches!(copy.state, CopyState::Resident | CopyState::Doubted) {
            return;
        }
        let (tenant, key) = (copy.tenant, self.index[copy.entry].key);
        if copy.state == CopyState::Resident {
            self.removed(tenant, tier, RemovedReason::Failed, key);
        }
        self.hide(tier, lower, if lost { CopyState::Doomed } else { CopyState::Doubted });
    }

    /// An operation is past its deadline. Who waits gets a miss; its buffer stays pinned until it really ends.
    pub(super) fn overdue(&mut self, id: u64, now: Time) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        operation.overdue = true;
        let (tier, purpose) = (operation.tier, operation.purpose);
        let below = &mut self.tiers[tier];
        below.counters.timeouts += 1;
        below.misses_in_a_row += 1;
        let degraded = below.state == TierState::Running && below.misses_in_a_row >= DEGRADED_AFTER_MISSES;
        self.outbox.push(Action::Cancel { tier: Self::tier_index(tier), ids: vec![id] });
        match purpose {
            Purpose::Get { lower, .. } => {
                let entry = self.tiers[tier].copies[lower].entry;
                self.distrust(tier, lower, false);
                self.end_promotion(entry, Err(MissReason::TierDown));
            }
            Purpose::Ask { key } => self.release_ask(tier, &key),
            _ => {}
        }
        if degraded {
            self.set_state(tier, TierState::Degraded);
            self.timers.insert((now.0.saturating_add(PROBE_EVERY_NS), Timer::Probe(tier as u8)));
        }
    }

    /// Time to ask a Degraded tier for a sign of life.
    pub(super) fn probe(&mut self, tier: usize, now: Time) {
        let below = &self.tiers[tier];
        if below.state != TierState::Degraded {
            return;
        }
        if !below.probing && below.in_flight < below.settings.slots {
            self.submit_probe(tier, now);
        }
        self.timers.insert((now.0.saturating_add(PROBE_EVERY_NS), Timer::Probe(tier as u8)));
    }

    /// What a tier's runner says of it: loaded, serving, or failed.
    pub fn tier_state(&mut self, tier: TierIndex, state: TierState, now: Time) {
        self.begin();
        let tier = usize::from(tier.0);
        if tier < self.tiers.len() && self.tiers[tier].state != TierState::Failed {
            self.set_state(tier, state);
            self.settle(now);
        }
    }

    fn set_state(&mut self, tier: usize, state: TierState) {
        let old = std::mem::replace(&mut self.tiers[tier].state, state);
        if old == state {
            return;
        }
        self.push_to_all(&Event::TierState { tier: tier as u8, state: state.name().to_owned() });
        let called = |state| matches!(state, TierState::Running | TierState::Degraded);
        if tier == DRAM || (called(old) && state == TierState::Running) {
            return;
        }
        if state == TierState::Running {
            return self.introduce_all(tier);
        }
        self.release_asks(tier);
        // Who waits for a load learns that it will not come; the buffers of those in flight stay pinned.
        let waiting: Vec<u32> = self
            .promotions
            .iter()
            .filter(|(_, promotion)| promotion.tier == tier && (state == TierState::Failed || !promotion.submitted))
            .map(|(entry, _)| *entry)
            .collect();
        // All that wait for a slot are among them; each by itself would be looked for in the whole queue.
        self.tiers[tier].gets.clear();
        for entry in waiting {
            self.end_promotion(entry, Err(MissReason::TierDown));
        }
        if state == TierState::Failed {
            self.stay(tier);
            let operations = &self.operations;
            self.timers.retain(|(_, timer)| match timer {
                Timer::Operation(id) => operations.get(id).is_some_and(|operation| operation.tier != tier),
                Timer::Probe(other) | Timer::Deletes(other) | Timer::Limit(other) => usize::from(*other) != tier,
                _ => true,
            });
        }
    }

    /// What was to leave the first tier once it had a copy in this one, which has failed, does not: its room is not
    /// to be reckoned with.
    fn stay(&mut self, tier: usize) {
        let demoted = |in_flight: &InFlight| match in_flight.purpose {
            Purpose::Put { dram, .. } if in_flight.tier == tier => Some(dram),
            _ => None,
        };
        let slots: Vec<u32> = self.operations.values().filter_map(demoted).collect();
        slots.into_iter().for_each(|slot| self.set_leaving(slot, false));
    }
}
