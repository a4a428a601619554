//! The world around the engine: memory, a medium, clients, and random steps.
//!
//! Keys form chains; a block's bytes follow from tenant, key and a version that its writer chose, and its checksum
//! stands for these three. Writers write when they like, also long after their lease is over, until they have said
//! Abort or are dead. The backend touches its buffers at any time between submission and completion. There may be a third
//! tier, which other hosts store, change and delete in too ([`crate::others`]).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use umbp_plugin_api::{Completion, Operation, Status};
use umbp_protocol::message::{
    Acquired, Event, Extent, LeaseId, NamespaceId, RemovedReason, SegmentId, SessionId, WireKey,
};
use umbpd::engine::Engine;
use umbpd::engine::api::{
    Action, Admission, EvictionPolicy, Generations, Promote, Settings, Shared, TenantIndex, TenantSettings, Ticket,
    TierIndex, TierSettings, TierState, Time, WritePolicy,
};

pub(crate) const UNIT: u64 = 4096;
pub(crate) const CHAINS: u64 = 4;
pub(crate) const LINKS: u64 = 5;
pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const BUDGET_NS: u64 = SECOND / 512;
pub(crate) const NVME: TierIndex = TierIndex(1);
pub(crate) const REMOTE: TierIndex = TierIndex(2);

/// What to do, and three numbers to choose with.
pub(crate) type Step = (u8, u8, u8, u8);

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) dram: u64,
    pub(crate) nvme: u64,
    pub(crate) promotion: u64,
    pub(crate) headroom: u64,
    pub(crate) eviction: EvictionPolicy,
    pub(crate) write: WritePolicy,
    pub(crate) admission: Admission,
    pub(crate) promote: Promote,
    pub(crate) tenants: u16,
    /// The backend may lie and thereby become Failed.
    pub(crate) may_fail: bool,
    /// Units of the shared tier that this host remembers, and when it gets its copy.
    pub(crate) remote: Option<(u64, WritePolicy)>,
}

#[derive(Clone, Default)]
pub(crate) struct Words(Arc<Mutex<BTreeMap<(u32, u16), u64>>>);

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

impl Words {
    pub(crate) fn get(&self, tenant: u16, slot: u32) -> u64 {
        self.0.lock().expect("not poisoned")[&(slot, tenant)]
    }
}

/// A block to be written: its number, where, and with which version.
#[derive(Clone, Copy)]
pub(crate) struct Write {
    pub(crate) index: u32,
    pub(crate) block: u64,
    pub(crate) extent: Extent,
    pub(crate) checksum: u64,
}

pub(crate) struct Read {
    pub(crate) block: u64,
    pub(crate) extent: Extent,
    pub(crate) checksum: u64,
}

pub(crate) struct Client {
    pub(crate) id: SessionId,
    pub(crate) tenant: u16,
    pub(crate) pid: u32,
    pub(crate) open: bool,
    /// Its process lives, and may write.
    pub(crate) alive: bool,
    pub(crate) writes: Vec<(LeaseId, Vec<Write>)>,
    /// By lease and index; `None` while pending. Kept after release and expiry, as a late reader would.
    pub(crate) reads: BTreeMap<(u64, u32), Option<Read>>,
    pub(crate) read_leases: Vec<(LeaseId, Vec<u64>)>,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) engine: Engine,
    pub(crate) words: Words,
    pub(crate) now: u64,
    pub(crate) namespaces: Vec<NamespaceId>,
    /// Of all segments there ever were: who has unmapped one reads no more, but checks do.
    pub(crate) memory: HashMap<u32, Vec<u8>>,
    /// Segments in use, with their length.
    pub(crate) segments: HashMap<u32, u64>,
    pub(crate) withdrawn: Vec<(SessionId, SegmentId)>,
    pub(crate) clients: Vec<Client>,
    /// Each with its tier, and whether its buffer was touched.
    pub(crate) operations: Vec<(TierIndex, Operation, bool)>,
    pub(crate) medium: HashMap<u64, Vec<u8>>,
    pub(crate) next_location: u64,
    pub(crate) failed: bool,
    /// Keys whose put found no space and may be tried again.
    pub(crate) tried_again: HashSet<[u8; 44]>,
    /// Keys that left the first tier by eviction in the last call, in order.
    pub(crate) evicted: Vec<WireKey>,
    /// What leases pin in the engine's eyes: (tenant, block) of reads and holds, with the end of their life.
    pub(crate) pinned_until: HashMap<(u16, u64), u64>,
    pub(crate) versions: u64,
    /// What the shared tier holds.
    pub(crate) remote: HashMap<(u32, [u8; 44]), RemoteBlock>,
    /// Lookups that wait for it.
    pub(crate) tickets: Vec<Ticket>,
    /// Tenants whose blocks were all cleared, with those that were stored here since.
    pub(crate) cleared: BTreeMap<u16, HashSet<u64>>,
}

/// Bytes of a block, by its checksum.
pub(crate) fn content(checksum: u64, length: u64) -> Vec<u8> {
    checksum.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes().into_iter().cycle().take(length as usize).collect()
}

/// Payload of a block: 1 byte to 3 units.
pub(crate) fn length(block: u64) -> u64 {
    [UNIT, 1, UNIT + 1, 3 * UNIT][(block % 4) as usize]
}

pub(crate) fn checksum(tenant: u16, block: u64, version: u64) -> u64 {
    1 + u64::from(tenant) + 10 * block + 1000 * version
}

fn settings(plan: &Plan) -> Settings {
    let tier = |name: &str, units: u64, slots, write, shared| TierSettings {
        name: name.to_owned(),
        capacity: units * UNIT,
        alignment: UNIT,
        largest_payload: 1 << 20,
        slots,
        deadline_ns: SECOND,
        write,
        shared,
    };
    let tenants = (0..plan.tenants).map(|n| TenantSettings {
        name: format!("t{n}"),
        quota: vec![plan.dram * UNIT / u64::from(plan.tenants), plan.nvme * UNIT, u64::MAX],
    });
    let mut tiers = vec![tier("dram", plan.dram, 1, plan.write, None), tier("nvme", plan.nvme, 4, plan.write, None)];
    let shared = Shared { lookup_budget_ns: BUDGET_NS, negative_ns: SECOND / 4 };
    tiers.extend(plan.remote.map(|(units, write)| tier("remote", units, 4, write, Some(shared))));
    Settings {
        tiers,
        tenants: tenants.collect(),
        headroom: vec![plan.headroom * UNIT; 3],
        promotion_budget: plan.promotion * UNIT,
        eviction: plan.eviction,
        admission: plan.admission,
        promote: plan.promote,
        lease_ns: 10 * SECOND,
        hold_ns: 2 * SECOND,
        hold_bytes: 8 * UNIT,
        quarantine_bytes: 8 * UNIT,
        background_bytes: 16 * UNIT,
        block_bytes: 4 * UNIT,
    }
}

impl World {
    pub(crate) fn new(plan: &Plan) -> Self {
        let settings = settings(plan);
        let count = settings.tiers.len() as u8;
        let words = Words::default();
        let mut engine = Engine::new(settings, Box::new(words.clone()));
        let (mut memory, mut segments) = (HashMap::new(), HashMap::new());
        let parts = u64::from(plan.tenants) * 2;
        for part in 0..parts {
            let units = plan.dram / parts + u64::from(part < plan.dram % parts);
            if units > 0 {
                engine.segment_add(SegmentId(part as u32), units * UNIT, None);
                memory.insert(part as u32, vec![0; (units * UNIT) as usize]);
                segments.insert(part as u32, units * UNIT);
            }
        }
        for tier in 0..count {
            engine.tier_state(TierIndex(tier), TierState::Running, Time(0));
        }
        let namespaces = (0..plan.tenants).map(|tenant| engine.namespace(TenantIndex(tenant), b"m"));
        let namespaces = namespaces.map(|id| id.expect("room")).collect();
        let mut world = Self {
            plan: plan.clone(),
            engine,
            words,
            now: 1,
            namespaces,
            memory,
            segments,
            withdrawn: Vec::new(),
            clients: Vec::new(),
            operations: Vec::new(),
            medium: HashMap::new(),
            next_location: 1,
            failed: false,
            tried_again: HashSet::new(),
            evicted: Vec::new(),
            pinned_until: HashMap::new(),
            versions: 0,
            remote: HashMap::new(),
            tickets: Vec::new(),
            cleared: BTreeMap::new(),
        };
        world.drain();
        (0..2 * plan.tenants as u8).for_each(|n| world.open(2 * n + 1));
        world
    }

    pub(crate) fn key(&self, tenant: u16, block: u64) -> WireKey {
        let mut local = [0; 44];
        local[..8].copy_from_slice(&(block + 1).to_le_bytes());
        local[32] = 8;
        WireKey { namespace: self.namespaces[usize::from(tenant)], local }
    }

    pub(crate) fn block(key: &WireKey) -> u64 {
        u64::from_le_bytes(key.local[..8].try_into().expect("8 bytes")) - 1
    }

    pub(crate) fn drain(&mut self) {
        for action in self.engine.actions() {
            match action {
                Action::Submit { tier, operation } => {
                    assert!(!self.failed || tier != NVME, "a failed tier is not called");
                    self.operations.push((tier, operation, false));
                }
                Action::Answered { ticket } => assert_eq!(self.engine.asked_left(ticket), 0),
                Action::Push { session, event: Event::Promoted { lease, index, item } } => {
                    self.promoted(session, lease, index, item);
                }
                Action::Push { event: Event::Removed { tier: 0, reason: RemovedReason::Evicted, keys }, .. } => {
                    for key in keys.iter().copied() {
                        if !self.evicted.contains(&key) {
                            self.evicted.push(key);
                        }
                    }
                }
                Action::Push { session, event: Event::SegmentWithdrawn { segment } } => {
                    self.withdrawn.push((session, segment));
                }
                Action::SegmentFree { segment } => {
                    let bytes = self.segments.remove(&segment.0).expect("freed once");
                    let fresh = SegmentId(self.memory.len() as u32);
                    assert!(self.engine.segment_add(fresh, bytes, None));
                    self.segments.insert(fresh.0, bytes);
                    self.memory.insert(fresh.0, vec![0; bytes as usize]);
                }
                _ => {}
            }
        }
    }

    /// Clients unmap what was withdrawn.
    pub(crate) fn unmap(&mut self) {
        for (session, segment) in std::mem::take(&mut self.withdrawn) {
            self.engine.segment_unmapped(session, segment);
            self.drain();
        }
    }

    /// Bytes of the pool's segments, less those being withdrawn.
    pub(crate) fn pool_bytes(&self) -> u64 {
        let withdrawn = |id: &u32| self.withdrawn.iter().any(|(_, segment)| segment.0 == *id);
        self.segments.iter().filter(|(id, _)| !withdrawn(id)).map(|(_, bytes)| bytes).sum()
    }

    fn promoted(&mut self, session: SessionId, lease: LeaseId, index: u32, item: Acquired) {
        assert_ne!(item, Acquired::Pending);
        let Some(client) = self.clients.iter_mut().find(|client| client.id == session) else { return };
        let Some((_, blocks)) = client.read_leases.iter().find(|(id, _)| *id == lease) else { return };
        let block = blocks[index as usize];
        let slot = client.reads.get_mut(&(lease.0, index)).expect("it was pending");
        assert!(slot.is_none(), "one answer for one wait");
        if let Acquired::Ready { extent, length: bytes, checksum, .. } = item {
            assert_eq!(bytes, length(block));
            *slot = Some(Read { block, extent, checksum });
            self.pin(client_tenant(&self.clients, session), block, 10 * SECOND);
        }
    }

    pub(crate) fn pin(&mut self, tenant: u16, block: u64, life: u64) {
        let until = self.pinned_until.entry((tenant, block)).or_default();
        *until = (*until).max(self.now + life);
    }

    /// One random step, then the laws.
    pub(crate) fn step(&mut self, (kind, a, b, c): Step) {
        self.evicted.clear();
        let before = self.resident();
        match kind % 40 {
            0 => self.open(a),
            1..=3 => self.reserve(a, b, c),
            4..=7 => {
                self.reserve(a, b, c);
                self.commit(a, 255, c | 1);
            }
            8 => self.write(a, b),
            9..=10 => self.commit(a, b, c),
            11 => self.abort(a, b, c),
            12..=16 => self.acquire(a, b, c),
            17..=18 => self.release(a, b, c),
            19 => self.look(a, b, c),
            20 => self.advance(u64::from(a) * SECOND / 32),
            21 => self.advance(u64::from(a) * SECOND / 1024),
            22..=28 => self.complete(a, b, c),
            29 => self.close(a, b),
            30 => self.renew(a),
            32..=35 => self.others(a, b, c),
            36..=39 => self.look(a, b, c),
            _ => self.rare(a, b, c),
        }
        if b.is_multiple_of(4) {
            self.write_late();
        }
        self.drain();
        self.check(&before);
    }
}

pub(crate) fn client_tenant(clients: &[Client], session: SessionId) -> u16 {
    clients.iter().find(|client| client.id == session).map_or(0, |client| client.tenant)
}

/// A block of the shared tier.
pub(crate) struct RemoteBlock {
    pub(crate) location: u64,
    pub(crate) checksum: u64,
    pub(crate) length: u64,
    pub(crate) depth: u32,
    pub(crate) parent: [u8; 44],
}

/// A completion without place or length.
pub(crate) fn plain(id: u64, status: Status) -> Completion {
    Completion { id, status, ..Completion::default() }
}
