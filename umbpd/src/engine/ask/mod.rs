//! Shared tiers: other hosts store and delete there too, so this host asks about keys that none of its tiers has.
//!
//! A lookup opens a ticket, has its keys asked for a slice at a time, and waits until all answers are there or the
//! tier's budget is over; then it looks its keys up as ever. An answer that comes later is taken in all the same. A
//! tier that is late (its oldest ask has waited longer than the budget) is asked, but not waited for: a tier that hangs
//! costs one budget, not one for each lookup. What lookups find here costs nothing and waits for nothing.
//!
//! Modules in reading order: this one (asking), [`answer`] (what becomes of an answer), [`remembered`] (answers that
//! save an ask).

mod answer;
mod remembered;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use serde_json::{Value, json};
use umbp_connector_core::key::LocalKey;
use umbp_plugin_api::Operation;
use umbp_plugin_api::types::code;
use umbp_protocol::message::{MissReason, NamespaceId, SessionId, WireKey};

use super::api::{Action, Asked, Shared, Ticket, Time};
use super::lower::Purpose;
use super::slab::NONE;
use super::state::{DRAM, Engine, KEYS_PER_SLICE_MAX};
pub use remembered::REMEMBERED_MAX;
use remembered::Remembered;

/// Most keys of one tier that wait to be asked for; more are misses, and counted.
pub const ASKS_WAITING_MAX: usize = 16_384;
/// How long it is believed that a shared tier has a block with other bytes than ours, in nanoseconds: so long the block
/// is not put again, and what hangs on it is put without it.
pub const PRESENT_OTHER_NS: u64 = 60_000_000_000;

/// A key that is asked for, once for all who want it.
struct Ask {
    /// Asks of a tier are numbered in their order.
    number: u64,
    /// Tickets of those who wait, at most one for each lookup under way; none while the tier is late.
    waiters: Vec<u64>,
}

/// What a lookup waits for.
pub(super) struct Waits {
    begun: u64,
    until: u64,
    left: usize,
}

/// None ever decreases. Asked = found + absent + not taken + failed + what is pending.
#[derive(Default)]
struct Counters {
    asked: u64,
    found: u64,
    absent: u64,
    known_absent: u64,
    not_taken: u64,
    failed: u64,
    late: u64,
    dropped: u64,
}

/// What a shared tier is asked, and what it has answered.
pub(super) struct Asks {
    settings: Shared,
    /// In flight or waiting.
    pending: HashMap<WireKey, Ask>,
    waiting: VecDeque<WireKey>,
    /// When each pending one was asked for, by its number: the first is the oldest.
    asked_at: BTreeMap<u64, u64>,
    next_number: u64,
    in_flight: u32,
    /// Keys that are not there.
    negative: Remembered,
    /// Keys that are there with other bytes than ours.
    others: Remembered,
    /// What was taken in last (its entry), and when.
    warm: (u32, u64),
    /// Cleared in this life: a tenant, and one of its namespaces or all. At most one item for each namespace and tenant.
    cleared: BTreeSet<(u16, Option<NamespaceId>)>,
    counters: Counters,
}

impl Asks {
    pub(super) fn new(settings: Shared) -> Self {
        Self {
            settings,
            pending: HashMap::new(),
            waiting: VecDeque::new(),
            asked_at: BTreeMap::new(),
            next_number: 0,
            in_flight: 0,
            negative: Remembered::new(settings.negative_ns),
            others: Remembered::new(PRESENT_OTHER_NS),
            warm: (NONE, 0),
            cleared: BTreeSet::new(),
            counters: Counters::default(),
        }
    }

    /// The oldest ask has waited for longer than a lookup would.
    fn is_late(&self, now: Time) -> bool {
        let oldest = self.asked_at.first_key_value();
        oldest.is_some_and(|(_, at)| now.0.saturating_sub(*at) >= self.settings.lookup_budget_ns)
    }

    /// A clear: what it named is not asked for any more, since other hosts may still have it.
    pub(super) fn remember_clear(&mut self, tenant: u16, namespace: Option<NamespaceId>) {
        self.cleared.insert((tenant, namespace));
    }

    fn was_cleared(&self, tenant: u16, namespace: NamespaceId) -> bool {
        self.cleared.contains(&(tenant, None)) || self.cleared.contains(&(tenant, Some(namespace)))
    }

    /// For the tier's status.
    pub(super) fn status(&self) -> Value {
        let counters = &self.counters;
        json!({
            "asked": counters.asked,
            "found": counters.found,
            "absent": counters.absent,
            "known_absent": counters.known_absent,
            "not_taken": counters.not_taken,
            "failed": counters.failed,
            "late": counters.late,
            "dropped": counters.dropped,
            "in_flight": self.in_flight,
            "waiting": self.waiting.len(),
            "negative_entries": self.negative.len(),
        })
    }
}

impl Engine {
    /// Whether a lookup has somebody to ask: some shared tier serves.
    pub fn asks_others(&self) -> bool {
        !self.draining && (DRAM + 1..self.tiers.len()).any(|tier| self.may_ask(tier))
    }

    fn may_ask(&self, tier: usize) -> bool {
        self.tiers[tier].asks.is_some() && self.tiers[tier].running()
    }

    /// Opens a lookup's ticket. It ends with [`Engine::ask_end`].
    pub fn ask_begin(&mut self, now: Time) -> Ticket {
        let id = self.new_id();
        self.tickets.insert(id, Waits { begun: now.0, until: now.0, left: 0 });
        Ticket(id)
    }

    /// The next slice of a lookup: those of its keys that no tier here has are asked for; at most
    /// [`KEYS_PER_SLICE_MAX`]. Nothing is looked up, touched or counted as such.
    pub fn ask(&mut self, session: SessionId, ticket: Ticket, keys: &[WireKey], now: Time) {
        self.begin();
        let (Some(tenant), true) = (self.tenant_of(session), keys.len() <= KEYS_PER_SLICE_MAX) else { return };
        self.expire_answers(now);
        for tier in DRAM + 1..self.tiers.len() {
            let waits = match &self.tiers[tier].asks {
                Some(asks) if self.may_ask(tier) => asks.settings.lookup_budget_ns > 0 && !asks.is_late(now),
                _ => continue,
            };
            for key in keys {
                if self.is_unknown(tier, tenant, key) {
                    self.ask_one(tier, key, waits.then_some(ticket), now);
                }
            }
        }
        self.settle(now);
    }

    /// No tier here has the key, and this one may have it.
    fn is_unknown(&self, tier: usize, tenant: u16, key: &WireKey) -> bool {
        let asks = self.tiers[tier].asks.as_ref();
        self.resolve(tenant, key) == Err(MissReason::Absent)
            && matches!(LocalKey::from_bytes(&key.local), Ok(Some(_)))
            && self.index.find(key).is_none_or(|entry| self.index.copy(entry, tier) == NONE)
            && asks.is_some_and(|asks| !asks.was_cleared(tenant, key.namespace))
    }

    fn ask_one(&mut self, tier: usize, key: &WireKey, ticket: Option<Ticket>, now: Time) {
        let Some(asks) = &mut self.tiers[tier].asks else { return };
        if asks.negative.has(key) {
            asks.counters.known_absent += 1;
            return;
        }
        let is_full = asks.waiting.len() >= ASKS_WAITING_MAX;
        if !asks.pending.contains_key(key) {
            if is_full {
                asks.counters.dropped += 1;
                return;
            }
            let number = asks.next_number;
            asks.next_number += 1;
            asks.asked_at.insert(number, now.0);
            asks.pending.insert(*key, Ask { number, waiters: Vec::new() });
            asks.waiting.push_back(*key);
            asks.counters.asked += 1;
        }
        let budget = asks.settings.lookup_budget_ns;
        if let (Some(ticket), Some(ask)) = (ticket, asks.pending.get_mut(key))
            && let Some(waits) = self.tickets.get_mut(&ticket.0)
        {
            ask.waiters.push(ticket.0);
            waits.left += 1;
            waits.until = waits.until.max(waits.begun.saturating_add(budget));
        }
    }

    /// How far the answers are that a lookup waits for.
    pub fn asked(&self, ticket: Ticket) -> Asked {
        let waits = self.tickets.get(&ticket.0);
        waits.map_or(Asked { left: 0, until: Time(0) }, |waits| Asked { left: waits.left, until: Time(waits.until) })
    }

    /// Answers that a lookup still waits for.
    pub fn asked_left(&self, ticket: Ticket) -> usize {
        self.asked(ticket).left
    }

    /// The lookup waits no longer.
    pub fn ask_end(&mut self, ticket: Ticket) {
        self.tickets.remove(&ticket.0);
    }

    /// Submits the ask that waits longest. False if there is none, or too many are in flight.
    pub(super) fn submit_ask(&mut self, tier: usize, now: Time) -> bool {
        let most = self.put_slots(tier);
        loop {
            let Some(asks) = &mut self.tiers[tier].asks else { return false };
            if asks.in_flight >= most {
                return false;
            }
            let Some(key) = asks.waiting.pop_front() else { return false };
            let owner = self.namespaces.tenant(key.namespace);
            if owner.is_none_or(|tenant| asks.was_cleared(tenant, key.namespace)) {
                asks.counters.failed += 1;
                self.end_ask(tier, &key);
                continue;
            }
            asks.in_flight += 1;
            let operation =
                Operation { code: code::EXISTS, namespace_id: key.namespace.0, key: key.local, ..Operation::default() };
            self.send(tier, Purpose::Ask { key }, operation, now);
            return true;
        }
    }

    /// The ask is over, whatever came of it: nobody waits for it any more. Answers when it was asked for.
    fn end_ask(&mut self, tier: usize, key: &WireKey) -> Option<u64> {
        let asks = self.tiers[tier].asks.as_mut()?;
        let Some(ask) = asks.pending.remove(key) else {
            self.fault();
            return None;
        };
        let asked_at = asks.asked_at.remove(&ask.number);
        self.let_go(ask.waiters);
        asked_at
    }

    fn let_go(&mut self, waiters: Vec<u64>) {
        for id in waiters {
            let Some(waits) = self.tickets.get_mut(&id) else { continue };
            waits.left -= 1;
            if waits.left == 0 {
                self.outbox.push(Action::Answered { ticket: Ticket(id) });
            }
        }
    }

    /// Nobody waits for this ask any longer; its answer is taken in when it comes.
    pub(super) fn release_ask(&mut self, tier: usize, key: &WireKey) {
        let ask = self.tiers[tier].asks.as_mut().and_then(|asks| asks.pending.get_mut(key));
        let waiters = ask.map(|ask| std::mem::take(&mut ask.waiters));
        self.let_go(waiters.unwrap_or_default());
    }

    /// The tier is asked no more: what waited to be asked is not, and nobody waits for what is in flight.
    pub(super) fn release_asks(&mut self, tier: usize) {
        let Some(asks) = &mut self.tiers[tier].asks else { return };
        for key in std::mem::take(&mut asks.waiting) {
            let Some(ask) = asks.pending.get(&key) else { continue };
            asks.asked_at.remove(&ask.number);
            asks.counters.failed += 1;
        }
        let mut waiters = Vec::new();
        let Asks { pending, asked_at, .. } = &mut **asks;
        pending.retain(|_, ask| {
            waiters.append(&mut ask.waiters);
            asked_at.contains_key(&ask.number)
        });
        self.let_go(waiters);
    }

    /// Forgets a slice of the answers that are too old to be believed.
    pub(super) fn expire_answers(&mut self, now: Time) {
        for asks in self.tiers.iter_mut().filter_map(|tier| tier.asks.as_mut()) {
            asks.negative.expire(now);
            asks.others.expire(now);
        }
    }
}
