//! Carrying out what the engine wants done.

use umbp_plugin_api::{Completion, Operation, Status};
use umbp_protocol::message::{Event, SegmentId, SessionId};

use super::hub::{Hub, Retiring};
use crate::engine::api::{Action, TierIndex, TierState};
use crate::tier::{Command, SegmentInfo};

impl Hub {
    /// In order. Operations for one tier that follow each other go in one command.
    pub(super) fn carry_out(&self, actions: Vec<Action>) {
        let mut batch: Vec<Operation> = Vec::new();
        let mut batch_tier = TierIndex(0);
        for action in actions {
            let Action::Submit { tier, operation } = action else {
                self.submit(batch_tier, &mut batch);
                self.carry_out_one(action);
                continue;
            };
            if tier != batch_tier {
                self.submit(batch_tier, &mut batch);
                batch_tier = tier;
            }
            batch.push(operation);
        }
        self.submit(batch_tier, &mut batch);
    }

    fn carry_out_one(&self, action: Action) {
        match action {
            Action::Submit { tier, operation } => self.submit(tier, &mut vec![operation]),
            Action::Cancel { tier, ids } => {
                if self.command(tier, Command::Cancel(ids)).is_err() {
                    self.count(tier, "cancels_dropped");
                }
            }
            Action::NamespacePut { tier, id, digest, descriptor } => {
                // Without it every later operation of the namespace would be refused one by one.
                if self.command(tier, Command::NamespacePut { id, digest, descriptor }).is_err() {
                    self.give_up(tier);
                }
            }
            Action::Push { session, event } => self.push(session, &event),
            Action::EndSession { session, why } => {
                if let Some(seat) = self.sessions.borrow().get(&session) {
                    seat.end(why);
                }
            }
            Action::Answered { ticket } => {
                if let Some(answered) = self.questions.borrow().get(&ticket) {
                    answered.notify_one();
                }
            }
            Action::SegmentFree { segment } => self.retire(segment),
        }
    }

    /// A tier that takes no more commands answers for none: its operations fail, and the engine learns so as it
    /// learns of any other completion.
    fn submit(&self, tier: TierIndex, batch: &mut Vec<Operation>) {
        if batch.is_empty() {
            return;
        }
        if let Err(Command::Submit(refused)) = self.command(tier, Command::Submit(std::mem::take(batch))) {
            self.count(tier, "queue_full");
            let status = Status::FAILED;
            let failed: Vec<Completion> = refused
                .iter()
                .map(|operation| Completion { id: operation.id, status, ..Completion::default() })
                .collect();
            self.inbox.complete(tier, &failed);
        }
    }

    /// Puts a command into a tier's queue, or gives it back.
    pub(crate) fn command(&self, tier: TierIndex, command: Command) -> Result<(), Command> {
        let tiers = self.tiers.borrow();
        match tiers.get(usize::from(tier.0)).and_then(|seat| seat.link.as_ref()) {
            Some(link) => link.queue.push(command),
            None => Err(command),
        }
    }

    /// A command that must not be lost does not fit: without it the tier is of no use.
    fn give_up(&self, tier: TierIndex) {
        let tiers = self.tiers.borrow();
        if let Some(link) = tiers.get(usize::from(tier.0)).and_then(|seat| seat.link.as_ref()) {
            link.services.fail("its command queue is full: the plugin does not return".to_owned());
        }
    }

    fn count(&self, tier: TierIndex, name: &str) {
        let tiers = self.tiers.borrow();
        if let Some(link) = tiers.get(usize::from(tier.0)).and_then(|seat| seat.link.as_ref()) {
            link.services.add(name, 1);
        }
    }

    /// Queues an event for a session; one that has ended meanwhile needs none.
    pub fn push(&self, session: SessionId, event: &Event) {
        let Some(seat) = self.sessions.borrow().get(&session).cloned() else { return };
        let boot_id = self.facts.boot_id;
        if let Event::SegmentsAdded { segments } = event {
            let (segments, fds) = self.segment_fds(segments);
            seat.outbox.borrow_mut().push_event(boot_id, &Event::SegmentsAdded { segments }, fds);
        } else {
            seat.outbox.borrow_mut().push_event(boot_id, event, Vec::new());
        }
        seat.wake.notify_one();
    }

    // --- segments --------------------------------------------------------------------------------------------------

    /// Takes a new segment in: every other tier may be asked to read and write it, then the engine gives it out.
    pub fn add_segment(&self, info: SegmentInfo) {
        let id = info.id as u32;
        for tier in self.open_tiers_below() {
            let command = Command::RegionRegister { id: info.id, address: info.address, length: info.length };
            if self.command(tier, command).is_err() {
                self.give_up(tier);
            }
        }
        let length = info.length;
        self.segments.borrow_mut().insert(id, info);
        self.next_segment.set(self.next_segment.get().max(id + 1));
        if !self.with(|engine, _| engine.segment_add(SegmentId(id), length, None)) {
            tracing::warn!("segment {id} of {length} bytes cannot be used");
        }
    }

    /// Tiers, besides the first, whose plugin is open.
    pub(super) fn open_tiers_below(&self) -> Vec<TierIndex> {
        let tiers = self.tiers.borrow();
        let open = tiers.iter().enumerate().skip(1).filter(|(_, seat)| seat.link.is_some());
        open.map(|(at, _)| TierIndex(at as u8)).collect()
    }

    /// A segment is unmapped by every session: the other tiers let go of it, then it is made anew. Where a tier has
    /// failed or hangs, its plugin may still write there, and the segment's memory stays out of use.
    fn retire(&self, segment: SegmentId) {
        let Some(info) = self.segments.borrow_mut().remove(&segment.0) else { return };
        let tiers = self.open_tiers_below();
        let id = info.id;
        self.retiring.borrow_mut().insert(segment.0, Retiring { info, tiers_left: tiers.len() });
        for tier in &tiers {
            // One that takes no command does not answer, so the segment waits for ever, which is the safe end.
            let _ = self.command(*tier, Command::RegionUnregister(id));
        }
        if tiers.is_empty() {
            self.make_anew(segment.0);
        }
    }

    /// A tier has let go of a segment.
    pub(super) fn region_gone(&self, id: u64) {
        let id = id as u32;
        let last = match self.retiring.borrow_mut().get_mut(&id) {
            Some(retiring) => {
                retiring.tiers_left = retiring.tiers_left.saturating_sub(1);
                retiring.tiers_left == 0
            }
            None => false,
        };
        if last {
            self.make_anew(id);
        }
    }

    fn make_anew(&self, id: u32) {
        let Some(Retiring { info, .. }) = self.retiring.borrow_mut().remove(&id) else { return };
        let new = self.next_segment.get();
        self.next_segment.set(new + 1);
        let command = Command::SegmentRecreate { old: info.id, new: u64::from(new), length: info.length };
        if self.command(TierIndex(0), command).is_err() {
            self.give_up(TierIndex(0));
        }
    }

    /// The loader or the tier's thread says something of a tier.
    pub fn set_tier(&self, tier: TierIndex, state: TierState, report: Option<String>) {
        if let Some(seat) = self.tiers.borrow_mut().get_mut(usize::from(tier.0)) {
            seat.state = state;
            if let Some(report) = report {
                seat.report = report;
            }
        }
        self.with(|engine, now| engine.tier_state(tier, state, now));
    }
}
