//! The loop of a tier's thread: the only place that calls its plugin once it serves.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use umbp_plugin_api::backend::Recovery;
use umbp_plugin_api::host::HostedBackend;
use umbp_plugin_api::{Completion, Operation, Status, Submitted};

use super::inbox::{Inbox, Message};
use super::queue::{Next, Queue};
use super::services::Services;
use super::{Command, End, SegmentInfo, Shared, TierLink};
use crate::engine::api::TierIndex;

/// Operations that a plugin had no room for are offered again after a completion, or after this long.
const BUSY_RETRY_MS: u64 = 10;
/// Figures are refreshed this often while nothing else happens.
const STATS_INTERVAL_MS: u64 = 500;
/// Most blocks in one page of recovery.
const RECOVER_PAGE_BLOCKS: usize = 1024;
/// Most operations in one call of submit.
const SUBMIT_BATCH_OPERATIONS: usize = 256;

/// A tier's thread, once its plugin is open.
pub struct Worker {
    tier: TierIndex,
    backend: HostedBackend,
    queue: Arc<Queue<Command>>,
    inbox: Arc<Inbox>,
    services: Arc<Services>,
    shared: Arc<Shared>,
    /// Operations that the plugin has not taken yet, oldest first. Bounded by the tier's slots.
    waiting: VecDeque<Operation>,
    /// The plugin was busy: nothing is offered until a completion or the retry.
    busy: bool,
}

impl Worker {
    /// Takes over an open plugin.
    pub fn new(tier: TierIndex, backend: HostedBackend, link: TierLink) -> Self {
        let TierLink { queue, inbox, services, shared } = link;
        Self { tier, backend, queue, inbox, services, shared, waiting: VecDeque::new(), busy: false }
    }

    /// Runs until shutdown.
    pub fn run(mut self) {
        loop {
            let wait = if self.busy { BUSY_RETRY_MS } else { STATS_INTERVAL_MS };
            match self.queue.next(Duration::from_millis(wait)) {
                Next::Command(Command::Shutdown { deadline }) => return self.shutdown(deadline),
                Next::Command(command) => self.obey(command),
                Next::Nudged => self.busy = false,
                Next::TimedOut if self.busy => self.busy = false,
                Next::TimedOut => self.refresh_stats(),
            }
            self.offer();
            self.look_for_panic();
        }
    }

    fn obey(&mut self, command: Command) {
        if self.shared.is_failed() {
            // Nothing is called any more; whoever waits for an answer gets none, and the engine knows the state.
            return;
        }
        match command {
            Command::Submit(operations) => self.waiting.extend(operations),
            Command::Cancel(ids) => self.cancel(&ids),
            Command::NamespacePut { id, digest, descriptor } => {
                let status = self.call("namespace_put", |b| b.namespace_put(id, &digest, &descriptor));
                match status {
                    Status::OK | Status::PANICKED => {}
                    // Any client can name one more, so it costs that namespace alone: its stores are refused one by one.
                    Status::NO_SPACE => self.services.add("namespaces_refused", 1),
                    _ => self.fail(format!("namespace_put of namespace {id} answered: {}", status.name())),
                }
            }
            Command::RegionRegister { id, address, length } => {
                // SAFETY: the segment stays mapped until RegionUnregister was answered with RegionGone.
                let status = self.call("region_register", |b| unsafe { b.region_register(id, address.0, length, "") });
                if !matches!(status, Status::OK | Status::PANICKED) {
                    self.fail(format!("region_register of segment {id} ({length} bytes) answered: {}", status.name()));
                }
            }
            Command::RegionUnregister(id) => {
                // Anything but OK: the backend may still use it, so nobody is told that it is free.
                if self.call("region_unregister", |b| b.region_unregister(id)) == Status::OK {
                    self.inbox.push(self.tier, Message::RegionGone(id));
                }
            }
            Command::SegmentRecreate { old, new, length } => self.recreate(old, new, length),
            Command::RecoverStart => match self.call("recover_namespaces", |b| b.recover_namespaces()) {
                Ok(namespaces) => self.inbox.push(self.tier, Message::Namespaces(namespaces)),
                Err(status) => self.recovery_failed(status),
            },
            Command::RecoverPage(cursor) => self.recover_page(cursor),
            Command::Stats(done) => {
                self.refresh_stats();
                let _ = done.send(());
            }
            Command::Shutdown { .. } => {}
        }
    }

    /// Runs one call into the plugin, leaving a note of it for those who wonder where this thread is.
    fn call<R>(&self, name: &'static str, call: impl FnOnce(&HostedBackend) -> R) -> R {
        self.shared.enter(name);
        let answer = call(&self.backend);
        self.shared.leave();
        answer
    }

    /// A panic in any call, or in a host service, ends the tier (P9).
    fn look_for_panic(&self) {
        if let Some(text) = self.backend.failure().filter(|_| !self.shared.is_failed()) {
            self.fail(format!("the backend panicked: {text}"));
        }
    }

    /// Hands waiting operations to the plugin, in order, until it is busy or has them all.
    fn offer(&mut self) {
        while !self.busy && !self.shared.is_failed() && !self.waiting.is_empty() {
            let count = self.waiting.len().min(SUBMIT_BATCH_OPERATIONS);
            let batch: Vec<Operation> = self.waiting.drain(..count).collect();
            let mut results = vec![Submitted::BUSY; count];
            self.services.expect(&batch);
            self.call("submit", |b| b.submit(&batch, &mut results));
            self.settle(&batch, &results);
        }
    }

    fn settle(&mut self, batch: &[Operation], results: &[Submitted]) {
        let (mut refused, mut again) = (Vec::new(), Vec::new());
        for (operation, result) in batch.iter().zip(results) {
            if *result == Submitted::ACCEPTED {
                continue;
            }
            let rejection = result.rejection();
            if rejection == Some(Status::PANICKED) {
                // The plugin may have taken it: its buffer stays quarantined, so no completion is made up.
                self.look_for_panic();
                continue;
            }
            if !self.services.unexpect(operation.id) {
                self.fail(format!("operation {} was completed and then not accepted", operation.id));
                continue;
            }
            match rejection {
                Some(status) => refused.push(Completion { id: operation.id, status, ..Completion::default() }),
                None if *result == Submitted::BUSY => again.push(*operation),
                None => self.fail(format!("submit answered {result:?}, which is no answer")),
            }
        }
        if !refused.is_empty() {
            self.inbox.complete(self.tier, &refused);
        }
        if !again.is_empty() {
            self.busy = true;
            self.services.add("busy", again.len() as u64);
            again.into_iter().rev().for_each(|operation| self.waiting.push_front(operation));
        }
    }

    fn cancel(&mut self, ids: &[u64]) {
        let mut ended = Vec::new();
        self.waiting.retain(|operation| {
            let kept = !ids.contains(&operation.id);
            if !kept {
                let (id, status) = (operation.id, Status::CANCELLED);
                ended.push(Completion { id, status, ..Completion::default() });
            }
            kept
        });
        if !ended.is_empty() {
            self.inbox.complete(self.tier, &ended);
        }
        self.call("cancel", |b| b.cancel(ids));
    }

    fn recreate(&mut self, old: u64, new: u64, length: u64) {
        if self.call("segment_destroy", |b| b.segment_destroy(old)) != Status::OK {
            return;
        }
        match self.call("segment_create", |b| b.segment_create(new, length)) {
            Ok(segment) => self.inbox.push(self.tier, Message::SegmentCreated(SegmentInfo::new(new, segment))),
            Err(error) => tracing::warn!("tier {}: segment {old} cannot be made anew: {error}", self.shared.name),
        }
    }

    fn recover_page(&mut self, cursor: u64) {
        let mut blocks = Vec::new();
        match self.call("recover", |b| b.recover(cursor, RECOVER_PAGE_BLOCKS, &mut blocks)) {
            Ok(Recovery::More(next)) => self.inbox.push(self.tier, Message::Recovered { blocks, next: Some(next) }),
            Ok(Recovery::Done) => self.inbox.push(self.tier, Message::Recovered { blocks, next: None }),
            Err(status) => self.recovery_failed(status),
        }
    }

    fn recovery_failed(&self, status: Status) {
        if status != Status::PANICKED {
            self.inbox.push(self.tier, Message::RecoveryFailed(status.name().to_owned()));
        }
    }

    fn refresh_stats(&self) {
        if self.shared.is_failed() {
            return;
        }
        if let Ok(stats) = self.call("stats", |b| b.stats()) {
            self.shared.set_stats(stats, self.services.in_flight(), self.waiting.len());
        }
    }

    fn fail(&self, why: String) {
        self.services.fail(why);
    }

    /// Every accepted operation completes in here (P5); afterwards no thread of the plugin runs (P10). One that has
    /// panicked is not entered: its threads may still touch the segments, so it is left as it is, not dropped.
    fn shutdown(self, deadline: Duration) {
        if self.call("shutdown", |b| b.shutdown(deadline)) == Status::OK {
            let shared = self.shared.clone();
            drop(self);
            shared.set_ended(End::Clean);
        } else {
            self.shared.set_ended(End::Left);
            std::mem::forget(self.backend);
        }
    }
}
