//! The world around the engine: memory, a medium, clients, and random steps.
//!
//! Keys form chains; a block's bytes follow from tenant, key and a version that its writer chose, and its checksum
//! stands for these three. Writers write when they like, also long after their lease is over, until they have said
//! Abort or are dead. The backend touches its buffers at any time between submission and completion.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use umbp_plugin_api::{Completion, Operation, Status};
use umbp_protocol::message::{
    Acquired, Event, Extent, LeaseId, NamespaceId, Outcome, RemovedReason, ReserveItem, Reserved, SegmentId, SessionId,
    WireKey,
};
use umbpd::engine::api::{
    Action, Generations, Settings, TenantIndex, TenantSettings, TierIndex, TierSettings, TierState, Time, WritePolicy,
};
use umbpd::engine::{Engine, LeaseKind, SessionInfo};

pub const UNIT: u64 = 4096;
pub const CHAINS: u64 = 5;
pub const LINKS: u64 = 6;
const SECOND: u64 = 1_000_000_000;

/// What to do, and three numbers to choose with.
pub type Step = (u8, u8, u8, u8);

#[derive(Clone, Debug)]
pub struct Plan {
    pub dram: u64,
    pub nvme: u64,
    pub promotion: u64,
    pub headroom: u64,
    pub write: WritePolicy,
    pub tenants: u16,
    /// The backend may lie and thereby become Failed.
    pub may_fail: bool,
}

#[derive(Clone, Default)]
pub struct Words(Arc<Mutex<HashMap<(u16, u32), u64>>>);

impl Generations for Words {
    fn set(&mut self, tenant: TenantIndex, slot: u32, generation: u64) {
        let old = self.0.lock().expect("not poisoned").insert((tenant.0, slot), generation);
        assert!(old.is_none_or(|old| old < generation), "generations grow");
    }
}

impl Words {
    pub fn get(&self, tenant: u16, slot: u32) -> u64 {
        self.0.lock().expect("not poisoned")[&(tenant, slot)]
    }
}

/// A block to be written: its number, where, and with which version.
#[derive(Clone, Copy)]
pub struct Write {
    pub index: u32,
    pub block: u64,
    pub extent: Extent,
    pub checksum: u64,
}

pub struct Read {
    pub block: u64,
    pub extent: Extent,
    pub checksum: u64,
}

pub struct Client {
    pub id: SessionId,
    pub tenant: u16,
    pub pid: u32,
    pub open: bool,
    /// Its process lives, and may write.
    pub alive: bool,
    pub writes: Vec<(LeaseId, Vec<Write>)>,
    /// By lease and index; `None` while pending. Kept after release and expiry, as a late reader would.
    pub reads: BTreeMap<(u64, u32), Option<Read>>,
    pub read_leases: Vec<(LeaseId, Vec<u64>)>,
}

pub struct World {
    pub plan: Plan,
    pub engine: Engine,
    pub words: Words,
    pub now: u64,
    pub namespaces: Vec<NamespaceId>,
    /// Of all segments there ever were: who has unmapped one reads no more, but checks do.
    pub memory: HashMap<u32, Vec<u8>>,
    /// Segments in use, with their length.
    pub segments: HashMap<u32, u64>,
    pub withdrawn: Vec<(SessionId, SegmentId)>,
    pub clients: Vec<Client>,
    pub operations: Vec<(Operation, bool)>,
    pub medium: HashMap<u64, Vec<u8>>,
    pub next_location: u64,
    pub failed: bool,
    /// Keys whose put found no space and may be tried again.
    pub tried_again: HashSet<[u8; 44]>,
    /// Keys that left the first tier by eviction in the last call, in order.
    pub evicted: Vec<WireKey>,
    /// What leases pin in the engine's eyes: (tenant, block) of reads and holds, with the end of their life.
    pub pinned_until: HashMap<(u16, u64), u64>,
    versions: u64,
}

/// Bytes of a block, by its checksum.
pub fn content(checksum: u64, length: u64) -> Vec<u8> {
    checksum.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes().into_iter().cycle().take(length as usize).collect()
}

/// Payload of a block: 1 byte to 3 units.
pub fn length(block: u64) -> u64 {
    [UNIT, 1, UNIT + 1, 3 * UNIT][(block % 4) as usize]
}

pub fn checksum(tenant: u16, block: u64, version: u64) -> u64 {
    1 + u64::from(tenant) + 10 * block + 1000 * version
}

impl World {
    pub fn new(plan: &Plan) -> Self {
        let tier = |name: &str, units: u64, slots| TierSettings {
            name: name.to_owned(),
            capacity: units * UNIT,
            alignment: UNIT,
            largest_payload: 1 << 20,
            slots,
            deadline_ns: SECOND,
        };
        let tenants = (0..plan.tenants).map(|n| TenantSettings {
            name: format!("t{n}"),
            quota: vec![plan.dram * UNIT / u64::from(plan.tenants), plan.nvme * UNIT],
        });
        let settings = Settings {
            tiers: vec![tier("dram", plan.dram, 1), tier("nvme", plan.nvme, 4)],
            tenants: tenants.collect(),
            headroom: vec![plan.headroom * UNIT, plan.headroom * UNIT],
            promotion_budget: plan.promotion * UNIT,
            write: plan.write,
            lease_ns: 10 * SECOND,
            hold_ns: 2 * SECOND,
            hold_bytes: 8 * UNIT,
            quarantine_bytes: 8 * UNIT,
            background_bytes: 16 * UNIT,
            block_bytes: 4 * UNIT,
        };
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
        for tier in 0..2 {
            engine.tier_state(TierIndex(tier), TierState::Running, Time(0));
        }
        let namespaces = (0..plan.tenants).map(|tenant| engine.namespace(TenantIndex(tenant), [7; 32], b"m"));
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
        };
        world.drain();
        world
    }

    pub fn key(&self, tenant: u16, block: u64) -> WireKey {
        let mut local = [0; 44];
        local[..8].copy_from_slice(&(block + 1).to_le_bytes());
        local[32] = 8;
        WireKey { namespace: self.namespaces[usize::from(tenant)], local }
    }

    pub fn block(key: &WireKey) -> u64 {
        u64::from_le_bytes(key.local[..8].try_into().expect("8 bytes")) - 1
    }

    pub fn drain(&mut self) {
        for action in self.engine.actions() {
            match action {
                Action::Submit { operation, .. } => {
                    assert!(!self.failed, "a failed tier is not called");
                    self.operations.push((operation, false));
                }
                Action::Push { session, event: Event::Promoted { lease, index, item } } => {
                    self.promoted(session, lease, index, item);
                }
                Action::Push { event: Event::Removed { tier: 0, reason: RemovedReason::Evicted, keys }, .. } => {
                    for key in keys {
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
    pub fn unmap(&mut self) {
        for (session, segment) in std::mem::take(&mut self.withdrawn) {
            self.engine.segment_unmapped(session, segment);
            self.drain();
        }
    }

    /// Bytes of the pool's segments, less those being withdrawn.
    pub fn pool_bytes(&self) -> u64 {
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

    pub fn pin(&mut self, tenant: u16, block: u64, life: u64) {
        let until = self.pinned_until.entry((tenant, block)).or_default();
        *until = (*until).max(self.now + life);
    }

    /// One random step, then the laws.
    pub fn step(&mut self, (kind, a, b, c): Step) {
        self.evicted.clear();
        let before = self.resident();
        match kind % 20 {
            0 => self.open(a),
            1..=3 => self.reserve(a, b, c),
            4 => self.write(a, b),
            5..=7 => self.commit(a, b, c),
            8 => self.abort(a, b, c),
            9..=10 => self.acquire(a, b, c),
            11 => self.release(a, b, c),
            12 => self.look(a, b, c),
            13 => self.advance(u64::from(a) * SECOND / 64),
            14..=16 => self.complete(a, b, c),
            17 => self.close(a, b),
            18 => self.renew(a),
            _ => self.rare(a, b, c),
        }
        self.drain();
        self.check(&before);
    }

    fn client(&self, choice: u8) -> Option<usize> {
        let open: Vec<usize> = (0..self.clients.len()).filter(|at| self.clients[*at].open).collect();
        (!open.is_empty()).then(|| open[usize::from(choice) % open.len()])
    }

    fn open(&mut self, a: u8) {
        if self.clients.iter().filter(|client| client.open).count() >= 4 {
            return;
        }
        let gone = self.clients.iter().find(|client| !client.open && client.alive && a % 2 == 0);
        let (previous, pid, tenant) = match gone {
            Some(client) => (Some(client.id), client.pid, client.tenant),
            None => (None, 1000 + self.clients.len() as u32, u16::from(a) % self.plan.tenants),
        };
        let all_unmapped = a % 4 == 0;
        if all_unmapped {
            // It says so, and so it is: no thread writes for the session before.
            self.clients
                .iter_mut()
                .filter(|client| Some(client.id) == previous)
                .for_each(|client| client.alive = false);
        }
        let info = SessionInfo {
            tenant: TenantIndex(tenant),
            pid,
            client: "model".to_owned(),
            previous_session: previous,
            all_unmapped,
        };
        let id = self.engine.session_open(info, Time(self.now)).expect("the tenant is known");
        let client = Client {
            id,
            tenant,
            pid,
            open: true,
            alive: true,
            writes: Vec::new(),
            reads: BTreeMap::new(),
            read_leases: Vec::new(),
        };
        self.clients.push(client);
    }

    fn blocks(b: u8, c: u8) -> Vec<u64> {
        let (chain, first) = (u64::from(b) % CHAINS, u64::from(b) / 16 % LINKS);
        let count = 1 + u64::from(c) % (LINKS - first);
        (first..first + count).map(|link| chain * LINKS + link).collect()
    }

    fn reserve(&mut self, a: u8, b: u8, c: u8) {
        let Some(at) = self.client(a) else { return };
        let (id, tenant) = (self.clients[at].id, self.clients[at].tenant);
        let blocks = Self::blocks(b, c);
        let item = |block: &u64| ReserveItem {
            key: self.key(tenant, *block),
            parent: if block % LINKS == 0 { [0; 44] } else { self.key(tenant, block - 1).local },
            depth: (block % LINKS) as u32,
            length: length(*block),
        };
        let items: Vec<ReserveItem> = blocks.iter().map(item).collect();
        let now = Time(self.now);
        let lease = self.engine.lease_begin(id, LeaseKind::Write, now).expect("the session is open");
        // In two slices, as a long request would be.
        let middle = items.len() / 2;
        let mut answers = self.engine.reserve(id, lease, &items[..middle], now);
        answers.extend(self.engine.reserve(id, lease, &items[middle..], now));
        let (lease, _) = self.engine.lease_finish(lease, now);
        self.versions += 1;
        let version = u64::from(a) % 2 * self.versions;
        let writes: Vec<Write> = answers
            .iter()
            .enumerate()
            .filter_map(|(index, answer)| {
                let Reserved::Extent(extent) = *answer else { return None };
                let block = blocks[index];
                Some(Write { index: index as u32, block, extent, checksum: checksum(tenant, block, version) })
            })
            .collect();
        assert_eq!(lease == LeaseId(0), writes.is_empty());
        if !writes.is_empty() {
            self.clients[at].writes.push((lease, writes));
        }
    }

    pub fn put_bytes(&mut self, extent: Extent, checksum: u64, block: u64) {
        let bytes = content(checksum, length(block));
        let memory = self.memory.get_mut(&extent.segment).expect("a known segment");
        memory[extent.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
    }

    /// Any living process writes to what it has not given back, be it late, be its socket closed.
    fn write(&mut self, a: u8, b: u8) {
        let writers: Vec<usize> = (0..self.clients.len())
            .filter(|at| self.clients[*at].alive && !self.clients[*at].writes.is_empty())
            .collect();
        let Some(at) = writers.get(usize::from(a) % writers.len().max(1)) else { return };
        let writes = &self.clients[*at].writes;
        let writes = writes[usize::from(b) % writes.len()].1.clone();
        for write in writes {
            self.put_bytes(write.extent, write.checksum, write.block);
        }
    }

    fn commit(&mut self, a: u8, b: u8, c: u8) {
        let Some(at) = self.client(a) else { return };
        if self.clients[at].writes.is_empty() {
            return;
        }
        let lease_at = usize::from(b) % self.clients[at].writes.len();
        let (lease, writes) = self.clients[at].writes[lease_at].clone();
        let some: Vec<Write> = writes.iter().copied().filter(|write| c % 3 != 0 || write.index % 2 == 0).collect();
        for write in &some {
            self.put_bytes(write.extent, write.checksum, write.block);
        }
        let items: Vec<(u32, u64)> = some.iter().map(|write| (write.index, write.checksum)).collect();
        let id = self.clients[at].id;
        let outcomes = self.engine.commit(id, lease, &items, Time(self.now));
        let rest = &mut self.clients[at].writes[lease_at].1;
        for (write, outcome) in some.iter().zip(outcomes) {
            assert_ne!(outcome, Outcome::NotLeased, "each is committed once");
            if outcome == Outcome::Done {
                rest.retain(|other| other.index != write.index);
            }
        }
        if rest.is_empty() {
            self.clients[at].writes.remove(lease_at);
        }
    }

    fn abort(&mut self, a: u8, b: u8, c: u8) {
        let Some(at) = self.client(a) else { return };
        if self.clients[at].writes.is_empty() {
            return;
        }
        let lease_at = usize::from(b) % self.clients[at].writes.len();
        let (lease, writes) = &mut self.clients[at].writes[lease_at];
        let (lease, all) = (*lease, c % 2 == 0);
        let gone: Vec<u32> = if all { Vec::new() } else { vec![writes[0].index] };
        writes.retain(|write| !all && write.index != gone[0]);
        let empty = writes.is_empty();
        if empty {
            self.clients[at].writes.remove(lease_at);
        }
        let id = self.clients[at].id;
        self.engine.abort(id, lease, &gone, Time(self.now));
        assert_eq!(self.engine.abort(id, lease, &gone, Time(self.now)), 0, "once is enough");
    }

    fn acquire(&mut self, a: u8, b: u8, c: u8) {
        let Some(at) = self.client(a) else { return };
        let (id, tenant, now) = (self.clients[at].id, self.clients[at].tenant, Time(self.now));
        let blocks = Self::blocks(b, c);
        let keys: Vec<WireKey> = blocks.iter().map(|block| self.key(tenant, *block)).collect();
        let lease = self.engine.lease_begin(id, LeaseKind::Read, now).expect("the session is open");
        let answers = self.engine.acquire(id, lease, &keys, now);
        let leased = self.engine.lease_finish(lease, now).0 == lease;
        assert_eq!(leased, answers.iter().any(|answer| !matches!(answer, Acquired::Miss(_))));
        for (index, (answer, block)) in answers.into_iter().zip(&blocks).enumerate() {
            let read = match answer {
                Acquired::Miss(_) => continue,
                Acquired::Pending => None,
                Acquired::Ready { extent, length: bytes, checksum, tier } => {
                    assert_eq!((bytes, tier), (length(*block), 0));
                    Some(Read { block: *block, extent, checksum })
                }
            };
            self.pin(tenant, *block, 10 * SECOND);
            self.clients[at].reads.insert((lease.0, index as u32), read);
        }
        self.clients[at].read_leases.push((lease, blocks));
    }
}

pub fn client_tenant(clients: &[Client], session: SessionId) -> u16 {
    clients.iter().find(|client| client.id == session).map_or(0, |client| client.tenant)
}

/// A completion without place or length.
pub fn plain(id: u64, status: Status) -> Completion {
    Completion { id, status, ..Completion::default() }
}
