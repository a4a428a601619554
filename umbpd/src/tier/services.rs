//! What a tier's plugin may call: log, count, and the completion sink.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

use umbp_plugin_api::backend::{HostServices, Level};
use umbp_plugin_api::{Completion, Operation, Status};

use super::inbox::{Inbox, Message};
use super::queue::Queue;
use super::{Command, Shared, lock};
use crate::engine::api::TierIndex;

/// Most counter names of one tier; more are added up under "other".
const COUNTERS_MAX: usize = 128;
/// Longest line that a plugin may log, in bytes; the rest is cut.
const LOG_LINE_MAX_BYTES: usize = 1024;

/// One tier's side of the host. It lives as long as the plugin holds it.
pub struct Services {
    tier: TierIndex,
    inbox: Arc<Inbox>,
    queue: Arc<Queue<Command>>,
    shared: Arc<Shared>,
    counters: Mutex<BTreeMap<String, u64>>,
    in_flight: Mutex<HashSet<u64>>,
}

impl Services {
    /// For a tier that was granted `slots` operations in flight.
    pub fn new(
        tier: TierIndex,
        slots: u32,
        inbox: Arc<Inbox>,
        queue: Arc<Queue<Command>>,
        shared: Arc<Shared>,
    ) -> Self {
        let in_flight = Mutex::new(HashSet::with_capacity(slots as usize));
        Self { tier, inbox, queue, shared, counters: Mutex::default(), in_flight }
    }

    /// Operations are about to be submitted: their completions may come from now on, even before submit returns.
    pub fn expect(&self, operations: &[Operation]) {
        lock(&self.in_flight).extend(operations.iter().map(|operation| operation.id));
    }

    /// An operation was not taken after all; false if its completion has come, which breaks the contract.
    pub fn unexpect(&self, id: u64) -> bool {
        lock(&self.in_flight).remove(&id)
    }

    /// Operations that the plugin has and has not completed.
    pub fn in_flight(&self) -> usize {
        lock(&self.in_flight).len()
    }

    /// Adds to a counter.
    pub fn add(&self, name: &str, delta: u64) {
        let mut counters = lock(&self.counters);
        let name = if counters.len() < COUNTERS_MAX || counters.contains_key(name) { name } else { "other" };
        match counters.get_mut(name) {
            Some(sum) => *sum = sum.saturating_add(delta),
            None => drop(counters.insert(name.to_owned(), delta)),
        }
    }

    /// The tier has failed: nothing but shutdown is called any more.
    pub fn fail(&self, why: String) {
        if !self.shared.is_failed() {
            self.shared.set_failed();
            self.inbox.push(self.tier, Message::Failed(why));
        }
    }

    /// All counters, for status.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        lock(&self.counters).clone()
    }
}

impl HostServices for Services {
    fn log(&self, level: Level, text: &str) {
        let mut end = text.len().min(LOG_LINE_MAX_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let (tier, text) = (&self.shared.name, &text[..end]);
        match level {
            Level::Error => tracing::error!("tier {tier}: {text}"),
            Level::Warn => tracing::warn!("tier {tier}: {text}"),
            Level::Info => tracing::info!("tier {tier}: {text}"),
            Level::Debug => tracing::debug!("tier {tier}: {text}"),
        }
    }

    fn count(&self, name: &str, delta: u64) {
        self.add(name, delta);
    }

    fn complete(&self, completions: &[Completion]) {
        let mut wrong = None;
        let known: Vec<Completion> = {
            let mut in_flight = lock(&self.in_flight);
            completions
                .iter()
                .filter(|c| {
                    in_flight.remove(&c.id) || {
                        wrong = Some(c.id);
                        false
                    }
                })
                .copied()
                .collect()
        };
        if let Some(id) = wrong {
            self.add("contract.unknown_completion", (completions.len() - known.len()) as u64);
            let why = format!("it completed operation {id}, which is not in flight (unknown, or completed before)");
            self.fail(why);
        }
        if known.iter().any(|completion| completion.status == Status::PANICKED) {
            self.fail("a thread of the plugin has panicked".to_owned());
        }
        if !known.is_empty() {
            self.inbox.complete(self.tier, &known);
            self.queue.nudge();
        }
    }
}
