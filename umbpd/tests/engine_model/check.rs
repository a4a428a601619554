//! The rest of the steps, the backend, and the laws:
//! 1. A reader whose generation still matches reads the bytes of its key, however late it is.
//! 2. What the backend reads for a put are the bytes of its key and checksum.
//! 3. Free and taken bytes add up to the pool; lower tiers stay within their capacity.
//! 4. No block leaves the first tier by eviction while a child of it, unpinned, stays there.
//! 5. Hits and misses add up to what was asked; the engine's tables never contradict each other.
//! 6. When all is over, nothing is pinned, quarantined or lost, and the medium holds just what the engine counts.
//! 7. What was cleared never hits before it is stored here anew, whatever other hosts have of it.
//! 8. Each ask is answered, failed or pending, and nobody waits for longer than the budget.

use std::collections::HashSet;

use serde_json::Value;
use umbp_plugin_api::types::code;
use umbp_plugin_api::{Completion, Operation, Status};
use umbp_protocol::message::{Found, LeaseId, Outcome, ReserveItem, Reserved, WireKey};
use umbpd::engine::LeaseKind;
use umbpd::engine::api::{Promote, Time, WritePolicy};

use crate::world::{CHAINS, LINKS, NVME, REMOTE, SECOND, UNIT, World, content, length, plain};

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

impl World {
    pub(crate) fn release(&mut self, a: u8, b: u8, c: u8) {
        let open: Vec<usize> = (0..self.clients.len()).filter(|at| self.clients[*at].open).collect();
        let Some(at) = open.get(usize::from(a) % open.len().max(1)).copied() else { return };
        let client = &self.clients[at];
        if client.read_leases.is_empty() {
            return;
        }
        // The youngest half, which may be alive.
        let (count, back) = (client.read_leases.len(), usize::from(b) % client.read_leases.len().div_ceil(2));
        let (lease, _) = client.read_leases[count - 1 - back];
        let (id, now) = (client.id, Time(self.now));
        // Reads outlive their release in this world: they are read late, and must fence themselves.
        let items = [(u32::from(c / 8 % 3), !c.is_multiple_of(5))];
        let first = self.engine.release(id, lease, &items, now);
        assert_ne!(self.engine.release(id, lease, &items, now), [Outcome::Done], "C2: {first:?} came first");
        assert_ne!(self.engine.release(id, LeaseId(lease.0 + 1_000_000), &items, now), [Outcome::Done]);
        if c.is_multiple_of(2) {
            self.engine.release(id, lease, &[], now);
        }
        // What is not pinned any more cannot be told from outside; the law of order asks for less then.
    }

    pub(crate) fn look(&mut self, a: u8, b: u8, c: u8) {
        let open: Vec<usize> = (0..self.clients.len()).filter(|at| self.clients[*at].open).collect();
        let Some(at) = open.get(usize::from(a) % open.len().max(1)).copied() else { return };
        let (id, tenant) = (self.clients[at].id, self.clients[at].tenant);
        let blocks: Vec<u64> = (0..LINKS).map(|link| u64::from(b) % CHAINS * LINKS + link).collect();
        let keys: Vec<WireKey> = blocks.iter().map(|block| self.key(tenant, *block)).collect();
        if c.is_multiple_of(5) {
            self.engine.unhold(id, &keys[..usize::from(c) % 7 % 6], Time(self.now));
            return;
        }
        self.ask_others(id, &keys, c);
        let found = self.engine.lookup(id, u32::from(c) * 20, &keys, Time(self.now));
        for (block, found) in blocks.iter().zip(found) {
            if matches!(found, Found::Hit { held: true, .. }) {
                self.pin(tenant, *block, 2 * SECOND);
            }
        }
        if c.is_multiple_of(2) {
            self.acquire(at as u8, b, u8::MAX);
        }
    }

    pub(crate) fn advance(&mut self, nanoseconds: u64) {
        self.now += nanoseconds;
        for _ in 0..10_000 {
            let next = self.engine.tick(Time(self.now));
            self.drain();
            if next.is_none_or(|next| next > Time(self.now)) {
                return;
            }
        }
        panic!("the engine never comes to rest");
    }

    pub(crate) fn close(&mut self, a: u8, b: u8) {
        let alive: Vec<usize> = (0..self.clients.len()).filter(|at| self.clients[*at].alive).collect();
        let Some(at) = alive.get(usize::from(a) % alive.len().max(1)).copied() else { return };
        let client = &mut self.clients[at];
        let gone = !b.is_multiple_of(3) || !client.open;
        client.open = false;
        client.alive = !gone;
        let id = client.id;
        if b.is_multiple_of(2) {
            self.engine.session_close(id, gone, Time(self.now));
        } else {
            self.engine.session_close(id, false, Time(self.now));
            if gone {
                self.engine.process_gone(id, Time(self.now));
            }
        }
    }

    pub(crate) fn renew(&mut self, a: u8) {
        for client in self.clients.iter().filter(|client| client.open) {
            let leases: Vec<LeaseId> = client.writes.iter().map(|(lease, _)| *lease).collect();
            let leases = &leases[..leases.len().min(usize::from(a) % 4)];
            self.engine.renew(client.id, leases, Time(self.now));
        }
    }

    pub(crate) fn rare(&mut self, a: u8, b: u8, c: u8) {
        match a % 4 {
            0 => {
                let Some(client) = self.clients.iter().find(|client| client.open) else { return };
                let (id, tenant) = (client.id, client.tenant);
                let (mut cursor, mut pinned) = (Some(0), 0);
                while let Some(at) = cursor {
                    let slice = self.engine.clear(id, None, at, Time(self.now));
                    (cursor, pinned) = (slice.next, pinned + slice.pinned);
                }
                if pinned == 0 {
                    self.cleared.insert(tenant, HashSet::new());
                }
            }
            1 if self.plan.may_fail && b < 16 => {
                self.engine.completed(NVME, &plain(u64::from(c) << 40 | 1 << 63, Status::OK), Time(self.now));
                self.failed = true;
            }
            2 => self.unmap(),
            _ => self.touch_buffer(b),
        }
    }

    /// The backend works on a buffer of some operation in flight, without completing it.
    fn touch_buffer(&mut self, b: u8) {
        if self.operations.is_empty() {
            return;
        }
        let at = usize::from(b) % self.operations.len();
        self.act(at);
    }

    fn act(&mut self, at: usize) {
        let (tier, operation, _) = self.operations[at];
        let bytes = content(operation.checksum, operation.length);
        let memory = self.memory.get_mut(&(operation.region as u32));
        match (operation.code, memory) {
            (code::PUT, Some(memory)) => {
                let found = &memory[operation.offset as usize..][..bytes.len()];
                assert!(found == bytes, "law 2: put {operation:?}");
            }
            // What a get leaves in its buffer when it fails is nobody's to read.
            (code::GET, Some(memory)) if tier == REMOTE && operation.id.is_multiple_of(2) => {
                memory[operation.offset as usize..][..bytes.len()].fill(0xee);
            }
            (code::GET, Some(memory)) => memory[operation.offset as usize..][..bytes.len()].copy_from_slice(&bytes),
            _ => {}
        }
        self.operations[at].2 = true;
    }

    pub(crate) fn complete(&mut self, a: u8, b: u8, c: u8) {
        if self.operations.is_empty() {
            return;
        }
        let at = usize::from(a) % self.operations.len();
        let status = match b % 10 {
            0 => Status::IO,
            1 => Status::CORRUPT,
            2 => Status::NO_SPACE,
            3 => Status::CANCELLED,
            _ => Status::OK,
        };
        self.finish(at, if c.is_multiple_of(2) { Status::OK } else { status });
    }

    pub(crate) fn finish(&mut self, at: usize, status: Status) {
        self.act(at);
        let (tier, operation, _) = self.operations[at];
        if tier == REMOTE {
            self.operations.swap_remove(at);
            return self.finish_remote(&operation, status);
        }
        if self.failed {
            // Nobody listens, and the buffers stay the backend's for good.
            return self.engine.completed(NVME, &plain(operation.id, status), Time(self.now));
        }
        self.operations.swap_remove(at);
        let mut completion =
            Completion { location: operation.location, length: operation.length, ..plain(operation.id, status) };
        let bytes = content(operation.checksum, operation.length);
        match operation.code {
            code::PUT if status == Status::OK => {
                completion.location = self.next_location;
                self.next_location += 1;
                self.medium.insert(completion.location, bytes);
            }
            code::GET => {
                let stored = self.medium.get(&operation.location).expect("it was put and not deleted");
                assert!(*stored == bytes, "the copy below is that of its checksum");
            }
            code::DELETE => {
                assert!(self.medium.contains_key(&operation.location), "deleted once");
                if matches!(status, Status::OK | Status::MISS) {
                    self.medium.remove(&operation.location);
                }
            }
            _ => {}
        }
        completion.status = status;
        // A put that found no space may be tried again later, and pins its block until then.
        let again = operation.code == code::PUT && status == Status::NO_SPACE;
        if again {
            self.tried_again.insert(operation.key);
        } else {
            self.tried_again.remove(&operation.key);
        }
        self.engine.completed(NVME, &completion, Time(self.now));
        self.drain();
    }

    /// (tenant, block) resident in the first tier.
    pub(crate) fn resident(&mut self) -> HashSet<(u16, u64)> {
        let mut found = HashSet::new();
        for tenant in 0..self.plan.tenants {
            let Some(client) = self.clients.iter().find(|client| client.open && client.tenant == tenant) else {
                continue;
            };
            let keys: Vec<WireKey> = (0..CHAINS * LINKS).map(|block| self.key(tenant, block)).collect();
            let answers = self.engine.lookup(client.id, 0, &keys, Time(self.now));
            let hits = answers.iter().enumerate().filter(|(_, found)| matches!(found, Found::Hit { tier: 0, .. }));
            found.extend(hits.map(|(block, _)| (tenant, block as u64)));
        }
        found
    }

    pub(crate) fn check(&mut self, before: &HashSet<(u16, u64)>) {
        self.check_readers();
        self.check_order(before);
        let status = self.engine.status();
        assert_eq!(status["faults"], 0, "law 5");
        let tiers = status["tiers"].as_array().expect("a list");
        let hits: u64 = tiers.iter().map(|tier| number(&tier["hits"])).sum();
        let misses: u64 = status["misses"].as_object().expect("a map").values().map(number).sum();
        assert_eq!(number(&status["asked"]), hits + misses, "law 5 (J4)");
        let dram = &tiers[0];
        let taken = number(&dram["used_bytes"]) + number(&dram["free_bytes"]);
        assert_eq!((taken, &dram["capacity_bytes"]), (self.pool_bytes(), &Value::from(self.pool_bytes())), "law 3");
        assert!(number(&dram["quarantined_bytes"]) <= number(&dram["used_bytes"]), "law 3");
        assert!(number(&tiers[1]["used_bytes"]) <= self.plan.nvme * UNIT, "law 3");
        let medium: u64 = self.medium.values().map(|bytes| (bytes.len() as u64).next_multiple_of(UNIT)).sum();
        assert!(medium <= self.plan.nvme * UNIT, "law 3");
        self.check_others(&status);
    }

    fn check_readers(&self) {
        for client in &self.clients {
            for read in client.reads.values().flatten() {
                let memory = &self.memory[&read.extent.segment];
                let expected = content(read.checksum, length(read.block));
                let whole = memory[read.extent.offset as usize..][..expected.len()] == expected;
                let current = self.words.get(client.tenant, read.extent.slot) == read.extent.generation;
                assert!(whole || !current, "law 1: block {} of {:?}", read.block, client.id);
                let own = read.checksum % 1000 == 1 + u64::from(client.tenant) + 10 * read.block;
                assert!(own, "a block of its own key and tenant");
            }
        }
    }

    fn check_order(&mut self, before: &HashSet<(u16, u64)>) {
        // Where blocks pass through the first tier, a parent may leave it while its child does not: both are below.
        let passing = self.plan.promote != Promote::OnAcquire;
        let late =
            [Some(self.plan.write), self.plan.remote.map(|(_, write)| write)].contains(&Some(WritePolicy::OnEvict));
        if late || passing || self.evicted.is_empty() {
            return;
        }
        let after = self.resident();
        let order: Vec<(u16, u64)> = self
            .evicted
            .iter()
            .filter_map(|key| {
                let tenant = self.namespaces.iter().position(|namespace| *namespace == key.namespace)? as u16;
                Some((tenant, World::block(key)))
            })
            .collect();
        for (at, (tenant, block)) in order.iter().enumerate() {
            let child = (*tenant, block + 1);
            let last = block % LINKS == LINKS - 1;
            let pinned = self.pinned_until.get(&child).is_some_and(|until| *until + SECOND * 4 > self.now);
            let key = self.key(*tenant, block + 1);
            let submitted = self.operations.iter().any(|(_, operation, _)| same(operation, &key));
            let waiting = self.tried_again.contains(&key.local);
            if last || pinned || submitted || waiting || !before.contains(&child) {
                continue;
            }
            let earlier = order[..at].contains(&child);
            let again = order[at..].contains(&child);
            assert!(
                earlier || !(after.contains(&child) || again),
                "law 4: {block} before its child, evicted {order:?}"
            );
        }
    }

    /// All clients die, all operations end, time passes.
    pub(crate) fn end(&mut self) {
        for at in 0..self.clients.len() {
            let id = self.clients[at].id;
            self.clients[at].alive = false;
            self.clients[at].open = false;
            self.engine.process_gone(id, Time(self.now));
            self.drain();
        }
        for _ in 0..100 {
            self.advance(SECOND / 2);
            self.finish_all();
        }
        let status = self.engine.status();
        for path in ["/leases/read", "/leases/write", "/holds/now"] {
            assert_eq!(status.pointer(path).expect("it is there"), 0, "law 6: {path}");
        }
        assert_eq!(status["sessions"], serde_json::json!([]), "law 6");
        if self.failed {
            return;
        }
        assert!(self.engine.is_idle());
        assert!(self.tickets.iter().all(|ticket| self.engine.asked_left(*ticket) == 0), "law 8");
        for tier in status["tiers"].as_array().expect("a list") {
            assert_eq!(tier["evictable_blocks"], number(&tier["resident_blocks"]) + self.doubted(tier), "law 6");
            assert_eq!(tier["quarantined_bytes"], 0, "law 6");
        }
        let medium: u64 = self.medium.values().map(|bytes| (bytes.len() as u64).next_multiple_of(UNIT)).sum();
        assert_eq!(status["tiers"][1]["used_bytes"], medium, "law 6");
        self.check(&HashSet::new());
        self.fill();
    }

    /// Everything in flight ends well, but for what a failed tier has.
    fn finish_all(&mut self) {
        let ends = |failed: bool, tier| !failed || tier != NVME;
        while let Some(at) = self.operations.iter().position(|(tier, ..)| ends(self.failed, *tier)) {
            self.finish(at, Status::OK);
        }
    }

    /// Hidden copies of the lower tier may be evicted too: what the medium has beyond the resident blocks.
    fn doubted(&self, tier: &Value) -> u64 {
        if tier["name"] == "nvme" { self.medium.len() as u64 - number(&tier["resident_blocks"]) } else { 0 }
    }

    /// The whole room of the first tier can be had again.
    fn fill(&mut self) {
        self.open_one();
        let id = self.clients.last().expect("just opened").id;
        let quota = self.plan.dram / u64::from(self.plan.tenants) - self.plan.promotion;
        for block in 1000..1000 + quota {
            let item = ReserveItem { key: self.key(0, block), parent: [0; 44], depth: 0, length: 1 };
            // What leaves only when its copy below is made, and a segment that changes hands, take a few rounds.
            let mut taken = false;
            for _ in 0..self.plan.dram {
                let now = Time(self.now);
                let lease = self.engine.lease_begin(id, LeaseKind::Write, now).expect("the session is open");
                taken = matches!(self.engine.reserve(id, lease, &[item], now)[0], Reserved::Extent(_));
                self.engine.lease_finish(lease, now);
                self.drain();
                self.finish_all();
                if taken {
                    break;
                }
            }
            // Segments of another tenant that hold something are not withdrawn.
            assert!(taken || self.plan.tenants > 1, "law 6: {block} of {quota}");
        }
    }

    fn open_one(&mut self) {
        self.step((0, 1, 0, 0));
    }
}

fn same(operation: &Operation, key: &WireKey) -> bool {
    operation.namespace_id == key.namespace.0 && operation.key == key.local
}
