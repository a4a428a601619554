//! A deployment with a tier that other hosts share, and the answers that it gives.

use umbp_plugin_api::types::code;
use umbp_plugin_api::{Completion, Operation, Status};
use umbp_protocol::message::SessionId;

use super::rig::{BLOCK, Rig, checksum, settings};
use crate::engine::api::{Asked, Settings, Shared, Ticket, TierIndex};

pub(super) const REMOTE: TierIndex = TierIndex(1);
pub(super) const BUDGET_NS: u64 = 2_000_000;
pub(super) const NEGATIVE_NS: u64 = 1_000_000_000;

/// Two tiers, the second of which is shared.
pub(super) fn shared(blocks: [u64; 2]) -> Settings {
    let mut settings = settings(&blocks);
    settings.tiers[1].shared = Some(Shared { lookup_budget_ns: BUDGET_NS, negative_ns: NEGATIVE_NS });
    settings
}

/// The answer that a block is there as another host of the same content stored it: `parent` is its number and depth.
pub(super) fn found(rig: &Rig, n: u64, parent: Option<(u64, u32)>) -> Completion {
    let key = rig.key(n);
    Completion {
        location: n + 500,
        length: BLOCK,
        checksum: checksum(&key),
        depth: parent.map_or(0, |(_, depth)| depth + 1),
        parent: parent.map_or([0; 44], |(parent, _)| rig.key(parent).local),
        ..Completion::default()
    }
}

impl Rig {
    /// Asks for blocks, as a lookup does before it looks.
    pub(super) fn ask(&mut self, session: SessionId, numbers: &[u64]) -> (Ticket, Asked) {
        let keys: Vec<_> = numbers.iter().map(|n| self.key(*n)).collect();
        let now = self.time();
        let ticket = self.engine.ask_begin(now);
        for slice in keys.chunks(crate::engine::KEYS_PER_SLICE_MAX) {
            self.engine.ask(session, ticket, slice, now);
        }
        self.drain();
        (ticket, self.engine.asked(ticket))
    }

    /// The block's ask that is in flight longest.
    pub(super) fn take_ask(&mut self, n: u64) -> Operation {
        let key = self.key(n).local;
        let is_it = |(_, operation): &(TierIndex, Operation)| operation.code == code::EXISTS && operation.key == key;
        let at = self.operations.iter().position(is_it);
        self.operations.remove(at.unwrap_or_else(|| panic!("{n} is asked for"))).1
    }

    /// Ends it with this answer.
    pub(super) fn answer(&mut self, n: u64, answer: Completion) -> Operation {
        let operation = self.take_ask(n);
        self.complete(REMOTE, Completion { id: operation.id, ..answer });
        operation
    }

    pub(super) fn answer_status(&mut self, n: u64, status: Status) {
        self.answer(n, Completion { status, ..Completion::default() });
    }

    /// Another host's block becomes known.
    pub(super) fn learn(&mut self, session: SessionId, n: u64, parent: Option<(u64, u32)>) {
        self.ask(session, &[n]);
        let answer = found(self, n, parent);
        self.answer(n, answer);
    }

    /// A number of the shared tier's asks.
    pub(super) fn asks(&self, name: &str) -> u64 {
        self.status(&format!("/tiers/1/ask/{name}")).as_u64().unwrap_or_else(|| panic!("{name} is a number"))
    }

    /// Ends the oldest get with this status; answers it.
    pub(super) fn end_get(&mut self, status: Status) -> Operation {
        self.finish(code::GET, status)
    }
}
