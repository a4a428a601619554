//! The shared tier, and the other hosts that use it.

use serde_json::Value;
use umbp_plugin_api::types::code;
use umbp_plugin_api::{Completion, Operation, Status};
use umbp_protocol::message::{Found, SessionId, WireKey};
use umbpd::engine::api::{TierIndex, Time};

use crate::world::{BUDGET_NS, CHAINS, LINKS, REMOTE, RemoteBlock, UNIT, World, checksum, length, plain};

impl World {
    /// Another host stores, changes or deletes blocks of a chain, of a tenant that we have too.
    pub(crate) fn others(&mut self, a: u8, b: u8, c: u8) {
        if self.plan.remote.is_none() {
            return;
        }
        let tenant = u16::from(a) % self.plan.tenants;
        let chain = u64::from(b) % CHAINS * LINKS;
        for block in chain..chain + 1 + u64::from(b) / 16 % LINKS {
            self.other_stores(tenant, block, c);
        }
    }

    fn other_stores(&mut self, tenant: u16, block: u64, c: u8) {
        let key = self.key(tenant, block);
        if c.is_multiple_of(4) {
            self.remote.remove(&(key.namespace.0, key.local));
            return;
        }
        let parent = match block % LINKS {
            0 => [0; 44],
            // One that lies about its place.
            _ if c % 16 == 7 => self.key(tenant, u64::from(c) % (CHAINS * LINKS)).local,
            _ => self.key(tenant, block - 1).local,
        };
        let depth = if c % 16 == 11 { u32::from(c) } else { (block % LINKS) as u32 };
        let location = self.next_location;
        self.next_location += 1;
        let known = RemoteBlock {
            location,
            checksum: checksum(tenant, block, u64::from(c) % 3),
            length: length(block),
            depth,
            parent,
        };
        self.remote.insert((key.namespace.0, key.local), known);
    }

    /// As a lookup does before it looks; it may give up at once.
    pub(crate) fn ask_others(&mut self, session: SessionId, keys: &[WireKey], c: u8) {
        if !self.engine.asks_others() {
            return;
        }
        let now = Time(self.now);
        let ticket = self.engine.ask_begin(now);
        let (first, rest) = keys.split_at(usize::from(c) % keys.len());
        self.engine.ask(session, ticket, first, now);
        self.engine.ask(session, ticket, rest, now);
        let asked = self.engine.asked(ticket);
        assert!(asked.left <= keys.len() && asked.until.0 <= self.now + BUDGET_NS, "law 8: {asked:?}");
        self.drain();
        let is_ask =
            |(tier, operation, _): &(TierIndex, Operation, bool)| *tier == REMOTE && operation.code == code::EXISTS;
        while let Some(at) = self.operations.iter().position(is_ask).filter(|_| !c.is_multiple_of(4)) {
            self.finish(at, Status::OK);
        }
        if c.is_multiple_of(3) {
            self.engine.ask_end(ticket);
        } else {
            self.tickets.push(ticket);
        }
    }

    /// The shared tier does an operation, or fails it.
    pub(crate) fn finish_remote(&mut self, operation: &Operation, status: Status) {
        let mut completion = plain(operation.id, status);
        if status == Status::OK {
            completion.status = self.carry_out(operation, &mut completion);
        }
        self.engine.completed(REMOTE, &completion, Time(self.now));
        self.drain();
    }

    fn carry_out(&mut self, operation: &Operation, completion: &mut Completion) -> Status {
        let place = (operation.namespace_id, operation.key);
        let known = self.remote.get(&place);
        match (operation.code, known) {
            (code::PUT, Some(known)) if known.length != operation.length => return Status::FAILED,
            (code::PUT, Some(known)) => (completion.location, completion.checksum) = (known.location, known.checksum),
            (code::PUT, None) => {
                let location = self.next_location;
                self.next_location += 1;
                (completion.location, completion.checksum) = (location, operation.checksum);
                let &Operation { checksum, length, depth, parent, .. } = operation;
                self.remote.insert(place, RemoteBlock { location, checksum, length, depth, parent });
            }
            (_, None) => return Status::MISS,
            (code::EXISTS, Some(known)) => {
                (completion.location, completion.length) = (known.location, known.length);
                (completion.checksum, completion.depth) = (known.checksum, known.depth);
                completion.parent = known.parent;
                match operation.id % 16 {
                    0 => completion.length = 0,
                    1 => completion.length = u64::MAX - 7,
                    2 => completion.checksum = 0,
                    _ => {}
                }
            }
            (_, Some(known)) if known.location != operation.location => return Status::MISS,
            (code::GET, Some(known)) => {
                assert_eq!((known.checksum, known.length), (operation.checksum, operation.length), "of one block");
                completion.length = known.length;
                let bytes = crate::world::content(known.checksum, known.length);
                let memory = self.memory.get_mut(&(operation.region as u32)).expect("a known segment");
                memory[operation.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
            }
            (code::DELETE, Some(_)) => drop(self.remote.remove(&place)),
            _ => return Status::UNSUPPORTED,
        }
        Status::OK
    }

    /// Laws 3, 7 and 8, as far as the shared tier can break them.
    pub(crate) fn check_others(&mut self, status: &Value) {
        let Some((units, _)) = self.plan.remote else { return };
        let number = |path: &str| status.pointer(path).and_then(Value::as_u64).expect("a number");
        let ask = |name: &str| number(&format!("/tiers/2/ask/{name}"));
        assert!(number("/tiers/2/used_bytes") <= units * UNIT, "law 3");
        let ended: u64 = ["found", "absent", "not_taken", "failed"].map(ask).iter().sum();
        assert_eq!(ask("asked"), ended + ask("in_flight") + ask("waiting"), "law 8");
        for (tenant, since) in &self.cleared {
            let Some(client) = self.clients.iter().find(|client| client.open && client.tenant == *tenant) else {
                continue;
            };
            let blocks: Vec<u64> = (0..CHAINS * LINKS).filter(|block| !since.contains(block)).collect();
            let keys: Vec<WireKey> = blocks.iter().map(|block| self.key(*tenant, *block)).collect();
            let found = self.engine.lookup(client.id, 0, &keys, Time(self.now));
            let is_hit = |found: &Found| matches!(found, Found::Hit { .. });
            assert_eq!(found.iter().position(is_hit).map(|at| blocks[at]), None, "law 7: of tenant {tenant}");
        }
    }
}
