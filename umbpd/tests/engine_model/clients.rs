//! What clients do: open, store, write late, commit, abort, acquire.

use std::collections::BTreeMap;

use umbp_protocol::message::{Acquired, Extent, LeaseId, Outcome, ReserveItem, Reserved, WireKey};
use umbpd::engine::api::{TenantIndex, Time};
use umbpd::engine::{LeaseKind, SessionInfo};

use crate::world::{CHAINS, Client, LINKS, Read, SECOND, World, Write, checksum, content, length};

impl World {
    fn client(&self, choice: u8) -> Option<usize> {
        let open: Vec<usize> = (0..self.clients.len()).filter(|at| self.clients[*at].open).collect();
        (!open.is_empty()).then(|| open[usize::from(choice) % open.len()])
    }

    pub(crate) fn open(&mut self, a: u8) {
        if self.clients.iter().filter(|client| client.open).count() >= 4 {
            return;
        }
        let gone = self.clients.iter().find(|client| !client.open && client.alive && a.is_multiple_of(2));
        let (previous, pid, tenant) = match gone {
            Some(client) => (Some(client.id), client.pid, client.tenant),
            None => (None, 1000 + self.clients.len() as u32, u16::from(a / 2) % self.plan.tenants),
        };
        let all_unmapped = a.is_multiple_of(4);
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

    pub(crate) fn reserve(&mut self, a: u8, b: u8, c: u8) {
        let Some(at) = self.client(a) else { return };
        let (id, tenant) = (self.clients[at].id, self.clients[at].tenant);
        let blocks = Self::blocks(b, c);
        let item = |block: &u64| ReserveItem {
            key: self.key(tenant, *block),
            parent: if block.is_multiple_of(LINKS) { [0; 44] } else { self.key(tenant, block - 1).local },
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

    pub(crate) fn put_bytes(&mut self, extent: Extent, checksum: u64, block: u64) {
        let bytes = content(checksum, length(block));
        let memory = self.memory.get_mut(&extent.segment).expect("a known segment");
        memory[extent.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
    }

    /// Any living process writes to what it has not given back, be it late, be its socket closed.
    pub(crate) fn write(&mut self, a: u8, b: u8) {
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

    /// Those whose session is over, or was over before, write all at once.
    pub(crate) fn write_late(&mut self) {
        let late = self.clients.iter().filter(|client| client.alive && !client.open);
        let writes: Vec<Write> =
            late.flat_map(|client| client.writes.iter().flat_map(|(_, writes)| writes)).copied().collect();
        for write in writes {
            self.put_bytes(write.extent, write.checksum, write.block);
        }
    }

    pub(crate) fn commit(&mut self, a: u8, b: u8, c: u8) {
        let Some(at) = self.client(a) else { return };
        if self.clients[at].writes.is_empty() {
            return;
        }
        // 255: the youngest.
        let count = self.clients[at].writes.len();
        let lease_at = if b == 255 { count - 1 } else { usize::from(b) % count };
        let (lease, writes) = self.clients[at].writes[lease_at].clone();
        let some: Vec<Write> =
            writes.iter().copied().filter(|write| !c.is_multiple_of(3) || write.index.is_multiple_of(2)).collect();
        for write in &some {
            self.put_bytes(write.extent, write.checksum, write.block);
        }
        let items: Vec<(u32, u64)> = some.iter().map(|write| (write.index, write.checksum)).collect();
        let (id, tenant) = (self.clients[at].id, self.clients[at].tenant);
        let outcomes = self.engine.commit(id, lease, &items, Time(self.now));
        let rest = &mut self.clients[at].writes[lease_at].1;
        for (write, outcome) in some.iter().zip(outcomes) {
            assert_ne!(outcome, Outcome::NotLeased, "each is committed once");
            if outcome == Outcome::Done {
                self.cleared.entry(tenant).and_modify(|since| since.extend([write.block]));
                rest.retain(|other| other.index != write.index);
            }
        }
        if rest.is_empty() {
            self.clients[at].writes.remove(lease_at);
        }
    }

    pub(crate) fn abort(&mut self, a: u8, b: u8, c: u8) {
        let Some(at) = self.client(a) else { return };
        if self.clients[at].writes.is_empty() {
            return;
        }
        let lease_at = usize::from(b) % self.clients[at].writes.len();
        let (lease, writes) = &mut self.clients[at].writes[lease_at];
        let (lease, all) = (*lease, c.is_multiple_of(2));
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

    pub(crate) fn acquire(&mut self, a: u8, b: u8, c: u8) {
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
