//! A small deployment for tests: segments, one or two lower tiers, a clock that tests move.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use umbp_connector_core::key::{BlockHash, GroupId, LocalKey, Rank};
use umbp_plugin_api::{Completion, Operation, Status, types::code};
use umbp_protocol::message::{
    Acquired, Event, Extent, Found, LeaseId, MissReason, NamespaceId, Outcome, RemovedReason, ReserveItem, Reserved,
    SegmentId, SessionId, WireKey,
};

use crate::engine::api::{
    Action, Admission, EvictionPolicy, Generations, Promote, Settings, TenantIndex, TenantSettings, Ticket, TierIndex,
    TierSettings, TierState, Time, WritePolicy,
};
use crate::engine::{Engine, LeaseKind, SessionInfo};

pub(super) const BLOCK: u64 = 4096;
pub(super) const SECOND: u64 = 1_000_000_000;
pub(super) const LEASE_NS: u64 = 10 * SECOND;

#[derive(Clone, Default)]
pub(super) struct Words(pub(super) Arc<Mutex<BTreeMap<(u32, u16), u64>>>);

impl Generations for Words {
    fn get(&self, tenant: TenantIndex, slot: u32) -> u64 {
        self.0.lock().expect("not poisoned").get(&(slot, tenant.0)).copied().unwrap_or(0)
    }

    fn advance(&mut self, tenant: TenantIndex, slot: u32) {
        let mut words = self.0.lock().expect("not poisoned");
        let highest = words.range((slot, 0)..=(slot, u16::MAX)).map(|(_, word)| *word).max();
        words.insert((slot, tenant.0), highest.unwrap_or(0) + 1);
    }
}

pub(super) fn tier(name: &str, blocks: u64) -> TierSettings {
    TierSettings {
        name: name.to_owned(),
        capacity: blocks * BLOCK,
        alignment: 4096,
        largest_payload: 1 << 26,
        slots: 8,
        deadline_ns: SECOND,
        write: WritePolicy::Through,
        shared: None,
    }
}

/// One tenant, `blocks` blocks of room in each tier, nothing reserved.
pub(super) fn settings(blocks: &[u64]) -> Settings {
    let tiers: Vec<_> = ["dram", "nvme", "remote"].iter().zip(blocks).map(|(name, n)| tier(name, *n)).collect();
    Settings {
        headroom: vec![0; tiers.len()],
        tenants: vec![TenantSettings { name: "default".to_owned(), quota: vec![u64::MAX; tiers.len()] }],
        tiers,
        promotion_budget: 0,
        eviction: EvictionPolicy::PrefixLru,
        admission: Admission::All,
        promote: Promote::OnAcquire,
        lease_ns: LEASE_NS,
        hold_ns: 2 * SECOND,
        hold_bytes: 1 << 30,
        quarantine_bytes: 1 << 30,
        background_bytes: 1 << 30,
        block_bytes: 1 << 24,
    }
}

/// When lower tiers get their copy, all of them.
pub(super) fn write_all(settings: &mut Settings, write: WritePolicy) {
    settings.tiers.iter_mut().for_each(|tier| tier.write = write);
}

pub(super) struct Rig {
    pub(super) engine: Engine,
    pub(super) words: Words,
    pub(super) now: u64,
    pub(super) namespace: NamespaceId,
    pub(super) events: Vec<(SessionId, Event)>,
    pub(super) operations: Vec<(TierIndex, Operation)>,
    pub(super) cancelled: Vec<u64>,
    pub(super) freed_segments: Vec<SegmentId>,
    pub(super) ended: Vec<SessionId>,
    /// Lookups whose answers are all there.
    pub(super) answered: Vec<Ticket>,
    pub(super) introduced: Vec<(TierIndex, u32, [u8; 32])>,
}

impl Rig {
    pub(super) fn new(settings: Settings) -> Self {
        let words = Words::default();
        let (tiers, capacity) = (settings.tiers.len(), settings.tiers[0].capacity);
        let mut engine = Engine::new(settings, Box::new(words.clone()));
        assert!(engine.segment_add(SegmentId(7), capacity, None));
        let namespace = engine.namespace(TenantIndex(0), b"model").expect("room for one");
        for tier in 0..tiers {
            engine.tier_state(TierIndex(tier as u8), TierState::Running, Time(0));
        }
        let mut rig = Self {
            engine,
            words,
            now: 1,
            namespace,
            events: Vec::new(),
            operations: Vec::new(),
            cancelled: Vec::new(),
            freed_segments: Vec::new(),
            ended: Vec::new(),
            answered: Vec::new(),
            introduced: Vec::new(),
        };
        rig.drain();
        rig
    }

    pub(super) fn blocks(blocks: &[u64]) -> Self {
        Self::new(settings(blocks))
    }

    pub(super) fn time(&self) -> Time {
        Time(self.now)
    }

    pub(super) fn drain(&mut self) {
        for action in self.engine.actions() {
            match action {
                Action::Submit { tier, operation } => self.operations.push((tier, operation)),
                Action::Cancel { ids, .. } => self.cancelled.extend(ids),
                Action::Push { session, event } => self.events.push((session, event)),
                Action::SegmentFree { segment } => self.freed_segments.push(segment),
                Action::EndSession { session, .. } => self.ended.push(session),
                Action::Answered { ticket } => self.answered.push(ticket),
                Action::NamespacePut { tier, id, digest, .. } => self.introduced.push((tier, id, digest)),
            }
        }
    }

    pub(super) fn session(&mut self) -> SessionId {
        self.session_of(0, 100)
    }

    pub(super) fn session_of(&mut self, tenant: u16, pid: u32) -> SessionId {
        let info = SessionInfo {
            tenant: TenantIndex(tenant),
            pid,
            client: "test".to_owned(),
            previous_session: None,
            all_unmapped: false,
        };
        self.engine.session_open(info, Time(self.now)).expect("tenant is known")
    }

    pub(super) fn key(&self, n: u64) -> WireKey {
        key_in(self.namespace, n)
    }

    /// Items of a chain of keys, the first of which hangs on `parent`.
    pub(super) fn chain(&self, parent: Option<u64>, first_depth: u32, numbers: &[u64]) -> Vec<ReserveItem> {
        let mut parent = parent.map_or([0; 44], |n| self.key(n).local);
        let mut items = Vec::new();
        for (at, n) in numbers.iter().enumerate() {
            let key = self.key(*n);
            items.push(ReserveItem { key, parent, depth: first_depth + at as u32, length: BLOCK });
            parent = key.local;
        }
        items
    }

    pub(super) fn reserve(&mut self, session: SessionId, items: &[ReserveItem]) -> (LeaseId, Vec<Reserved>) {
        let now = self.time();
        let lease = self.engine.lease_begin(session, LeaseKind::Write, now).expect("session is open");
        let answers = self.engine.reserve(session, lease, items, now);
        let (lease, _) = self.engine.lease_finish(lease, now);
        self.drain();
        (lease, answers)
    }

    /// Reserves and commits a root chain; answers what Reserve said.
    pub(super) fn store(&mut self, session: SessionId, numbers: &[u64]) -> Vec<Reserved> {
        let items = self.chain(None, 0, numbers);
        self.store_items(session, &items)
    }

    pub(super) fn store_items(&mut self, session: SessionId, items: &[ReserveItem]) -> Vec<Reserved> {
        let (lease, answers) = self.reserve(session, items);
        let written: Vec<(u32, u64)> = answers
            .iter()
            .enumerate()
            .filter(|(_, answer)| matches!(answer, Reserved::Extent(_)))
            .map(|(at, _)| (at as u32, checksum(&items[at].key)))
            .collect();
        if !written.is_empty() {
            let done = self.engine.commit(session, lease, &written, Time(self.now));
            assert!(done.iter().all(|outcome| *outcome == Outcome::Done));
            self.drain();
        }
        answers
    }

    pub(super) fn lookup(&mut self, session: SessionId, hold_ms: u32, numbers: &[u64]) -> Vec<Found> {
        let keys: Vec<_> = numbers.iter().map(|n| self.key(*n)).collect();
        let found = self.engine.lookup(session, hold_ms, &keys, Time(self.now));
        self.drain();
        found
    }

    /// Numbers of those that hit, in any tier.
    pub(super) fn present(&mut self, session: SessionId, numbers: &[u64]) -> Vec<u64> {
        let found = self.lookup(session, 0, numbers);
        numbers.iter().zip(found).filter(|(_, found)| matches!(found, Found::Hit { .. })).map(|(n, _)| *n).collect()
    }

    pub(super) fn acquire(&mut self, session: SessionId, numbers: &[u64]) -> (LeaseId, Vec<Acquired>) {
        let now = self.time();
        let keys: Vec<_> = numbers.iter().map(|n| self.key(*n)).collect();
        let lease = self.engine.lease_begin(session, LeaseKind::Read, now).expect("session is open");
        let answers = self.engine.acquire(session, lease, &keys, now);
        let (lease, _) = self.engine.lease_finish(lease, now);
        self.drain();
        (lease, answers)
    }

    pub(super) fn release(&mut self, session: SessionId, lease: LeaseId, items: &[(u32, bool)]) -> Vec<Outcome> {
        let outcomes = self.engine.release(session, lease, items, Time(self.now));
        self.drain();
        outcomes
    }

    /// Moves the clock and lets everything that is due happen.
    pub(super) fn advance(&mut self, nanoseconds: u64) {
        self.now += nanoseconds;
        self.run_ticks();
    }

    pub(super) fn run_ticks(&mut self) {
        for _ in 0..10_000 {
            let next = self.engine.tick(Time(self.now));
            self.drain();
            if next.is_none_or(|next| next > Time(self.now)) {
                return;
            }
        }
        panic!("the engine never came to rest");
    }

    pub(super) fn complete(&mut self, tier: TierIndex, completion: Completion) {
        self.engine.completed(tier, &completion, Time(self.now));
        self.drain();
    }

    /// Ends the oldest operation of this kind with `status`; answers it.
    pub(super) fn finish(&mut self, wanted: u32, status: Status) -> Operation {
        let at = self.operations.iter().position(|(_, operation)| operation.code == wanted);
        let (tier, operation) = self.operations.remove(at.expect("an operation of that kind is in flight"));
        let location = if operation.code == code::PUT { operation.id + 1000 } else { operation.location };
        let completion =
            Completion { id: operation.id, status, location, length: operation.length, ..Completion::default() };
        self.complete(tier, completion);
        operation
    }

    pub(super) fn in_flight(&self, wanted: u32) -> usize {
        self.operations.iter().filter(|(_, operation)| operation.code == wanted).count()
    }

    /// Ends every put and delete well, until none is left.
    pub(super) fn settle_stores(&mut self) {
        while let Some(kind) =
            self.operations.iter().map(|(_, op)| op.code).find(|kind| *kind == code::PUT || *kind == code::DELETE)
        {
            self.finish(kind, Status::OK);
        }
    }

    /// Ends every put that is in flight in a tier well, until none is left.
    pub(super) fn settle_stores_of(&mut self, tier: TierIndex) {
        let is_put = |(at, op): &(TierIndex, Operation)| *at == tier && op.code == code::PUT;
        while let Some(at) = self.operations.iter().position(is_put) {
            let (_, put) = self.operations.remove(at);
            self.complete(tier, Completion { id: put.id, location: put.id + 1000, ..Completion::default() });
        }
    }

    /// Ends every delete that is in flight now.
    pub(super) fn settle_deletes(&mut self) {
        for _ in 0..self.in_flight(code::DELETE) {
            self.finish(code::DELETE, Status::OK);
        }
    }

    /// Numbers whose copies left a tier since the last call, in order.
    pub(super) fn evicted(&mut self, tier: u8) -> Vec<u64> {
        let mut numbers = Vec::new();
        self.events.retain(|(_, event)| match event {
            Event::Removed { tier: from, reason: RemovedReason::Evicted, keys } if *from == tier => {
                numbers.extend(keys.iter().map(|key| u64::from_le_bytes(key.local[..8].try_into().expect("8 bytes"))));
                false
            }
            _ => true,
        });
        numbers
    }

    pub(super) fn promoted(&mut self) -> Vec<(LeaseId, u32, Acquired)> {
        let mut found = Vec::new();
        self.events.retain(|(_, event)| match event {
            Event::Promoted { lease, index, item } => {
                found.push((*lease, *index, *item));
                false
            }
            _ => true,
        });
        found
    }

    pub(super) fn status(&self, path: &str) -> Value {
        let status = self.engine.status();
        let value = status.pointer(path).unwrap_or_else(|| panic!("{path} in {status}")).clone();
        assert_eq!(status["faults"], 0);
        value
    }

    pub(super) fn word(&self, tenant: u16, extent: Extent) -> u64 {
        self.words.0.lock().expect("not poisoned")[&(extent.slot, tenant)]
    }
}

pub(super) fn key_in(namespace: NamespaceId, n: u64) -> WireKey {
    let hash = BlockHash::new(&n.to_le_bytes()).expect("8 bytes");
    let local = LocalKey { hash, group: GroupId(0), rank: Rank::default() };
    WireKey { namespace, local: local.to_bytes() }
}

pub(super) fn checksum(key: &WireKey) -> u64 {
    u64::from_le_bytes(key.local[..8].try_into().expect("8 bytes")) ^ 0xC0FFEE
}

pub(super) fn extent(answer: &Reserved) -> Extent {
    match answer {
        Reserved::Extent(extent) => *extent,
        other => panic!("{other:?} instead of an extent"),
    }
}

pub(super) fn ready(answer: &Acquired) -> Extent {
    match answer {
        Acquired::Ready { extent, .. } => *extent,
        other => panic!("{other:?} instead of ready"),
    }
}

pub(super) const ABSENT: Found = Found::Miss(MissReason::Absent);
