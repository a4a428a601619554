//! A transfer job on its way: request, copies, answer. Which keys are settled, and when the job may be reported, is
//! kept by [`TransferJob`]; this module says what to send when.
//!
//! Phases: Requesting (Reserve or Acquire is asked) → Copying (blocks are copied, or await their promotion) →
//! Committing (stores) → Closed (the lease is given back). A job has ended when every key is settled, no thread
//! touches its memory, and it is Closed; or still Requesting, when it was stopped early: then the late answer's lease
//! is given back by the continuation that receives it.
//!
//! Lock order: a job's state is the innermost lock; nothing is sent while it is held.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use umbp_connector_core::job::{Touch, TransferJob};
use umbp_protocol::message::{Acquired, LeaseId, Outcome as Done, Reply, Request};

use crate::options::Error;
use crate::outcome::{FailCause, Outcome};
use crate::pool::Copied;
use crate::region::{RegionsInUse, Resolved, Span};
use crate::session::{Lease, Session};
use crate::shared::Shared;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Engine to tier.
    Store,
    /// Tier to engine.
    Load,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Requesting,
    Copying,
    Committing,
    Closed,
}

struct State {
    transfer: TransferJob,
    outcomes: Vec<Outcome>,
    in_use: Option<RegionsInUse>,
    phase: Phase,
    lease: Option<Arc<Lease>>,
    /// Leased blocks that are neither copied nor given up: tasks, and those in `promoting`.
    left: usize,
    /// Indices in the lease that await their promotion.
    promoting: BTreeSet<u32>,
    /// Stores: index in the lease and checksum of what is written.
    written: Vec<(u32, u64)>,
    /// Loads: indices in the lease whose bytes were bad.
    bad: Vec<u32>,
    leased_count: usize,
    counted: bool,
}

pub(crate) struct Job {
    pub(crate) shared: Arc<Shared>,
    pub(crate) session: Option<Arc<Session>>,
    pub(crate) kind: Kind,
    pub(crate) keys: Vec<[u8; 44]>,
    pub(crate) deadline_ns: u64,
    /// Index in the job of each key that was asked for, in the order of the request.
    pub(crate) asked: Vec<usize>,
    blocks: Vec<(Range<usize>, u64)>,
    spans: Vec<Span>,
    stopped: AtomicBool,
    state: Mutex<State>,
    ended: Condvar,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {} blocks", self.kind, self.keys.len())
    }
}

impl Job {
    /// A job whose blocks with wrong runs are settled already.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        session: Option<Arc<Session>>,
        kind: Kind,
        keys: Vec<[u8; 44]>,
        resolved: Resolved,
        deadline_ns: u64,
    ) -> Arc<Self> {
        let Resolved { spans, blocks, in_use } = resolved;
        let asked = blocks.iter().enumerate().filter(|(_, (_, bytes))| *bytes > 0).map(|(index, _)| index).collect();
        let job = Self {
            shared: Arc::clone(shared),
            session,
            kind,
            deadline_ns,
            asked,
            stopped: AtomicBool::new(false),
            state: Mutex::new(State {
                transfer: TransferJob::new(keys.len()),
                outcomes: vec![Outcome::Cancelled; keys.len()],
                in_use: Some(in_use),
                phase: Phase::Requesting,
                lease: None,
                left: 0,
                promoting: BTreeSet::new(),
                written: Vec::new(),
                bad: Vec::new(),
                leased_count: 0,
                counted: false,
            }),
            ended: Condvar::new(),
            keys,
            blocks,
            spans,
        };
        let mut state = job.lock();
        for (index, (_, bytes)) in job.blocks.iter().enumerate() {
            if *bytes == 0 {
                state.settle(index, Outcome::Failed(FailCause::BadRuns));
            }
        }
        job.check_ended(&mut state);
        drop(state);
        Arc::new(job)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn spans_of(&self, index: usize) -> &[Span] {
        &self.spans[self.blocks[index].0.clone()]
    }

    pub(crate) fn bytes_of(&self, index: usize) -> u64 {
        self.blocks[index].1
    }

    pub(crate) fn session_digest(&self) -> [u8; 32] {
        self.session.as_ref().map_or([0; 32], |session| session.digest)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn belongs_to(&self, session: &Session) -> bool {
        self.session.as_ref().is_some_and(|own| std::ptr::eq(Arc::as_ptr(own), session))
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lock().counted
    }

    /// The results, once it has ended; waits for that at most `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) -> Option<Vec<Outcome>> {
        let end = Instant::now() + timeout;
        let mut state = self.lock();
        while !state.counted {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(state.outcomes.clone())
    }

    /// Settles all that is left and lets no further copy begin; a copy under way stops at its next piece. Blocks whose
    /// Commit is asked already are left to its answer, unless the session is gone.
    pub(crate) fn stop(self: &Arc<Self>, outcome: Outcome) {
        let mut state = self.lock();
        if state.counted || (state.phase == Phase::Committing && outcome != Outcome::Failed(FailCause::SessionLost)) {
            return;
        }
        self.stopped.store(true, Ordering::Relaxed);
        state.settle_rest(outcome);
        state.left -= state.promoting.len();
        state.promoting.clear();
        self.go_on(state);
    }

    /// The request failed as a whole.
    pub(crate) fn request_failed(&self, error: &Error) {
        let mut state = self.lock();
        state.settle_rest(Outcome::Failed(FailCause::from(error)));
        state.phase = Phase::Closed;
        self.check_ended(&mut state);
    }

    /// The answer is not one to the request: the stream is in doubt.
    pub(crate) fn wrong_answer(&self, request: &str) {
        let error = Error::SessionLost(format!("{request} was answered with something else"));
        if let Some(session) = &self.session {
            session.lose(error.clone());
        }
        self.request_failed(&error);
    }

    /// The request is answered: settles what needs no copy, and answers whether the rest is still wanted. Where it is
    /// not, or where there is no rest, the lease is given back here.
    pub(crate) fn begin_copies(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        settled: Vec<(usize, Outcome)>,
        promoting: BTreeSet<u32>,
        tasks: usize,
        leased_count: usize,
    ) -> bool {
        let mut state = self.lock();
        for (index, outcome) in settled {
            state.settle(index, outcome);
        }
        state.phase = Phase::Copying;
        state.leased_count = leased_count;
        state.lease = (lease.id.0 != 0).then(|| Arc::clone(lease));
        let wanted = !self.is_stopped();
        if wanted {
            state.left = tasks + promoting.len();
            state.promoting = promoting;
        }
        self.go_on(state);
        wanted
    }

    /// The right to copy a block; none if it is settled.
    pub(crate) fn touch(&self, index: usize) -> Option<Touch> {
        if self.is_stopped() {
            return None;
        }
        self.lock().transfer.touch(index).ok()
    }

    /// A block was settled before its copy began.
    pub(crate) fn skipped(self: &Arc<Self>) {
        let mut state = self.lock();
        state.left -= 1;
        self.go_on(state);
    }

    /// A copy has ended, well or not.
    pub(crate) fn copied(self: &Arc<Self>, touch: Touch, leased: u32, copied: Copied, tier: u8, bytes: u64) {
        let index = touch.index();
        let mut state = self.lock();
        state.transfer.release(touch);
        state.left -= 1;
        match (self.kind, copied) {
            (Kind::Store, Ok(checksum)) => state.written.push((leased, checksum)),
            (Kind::Load, Ok(_)) => state.settle(index, Outcome::Loaded { tier, bytes }),
            (_, Err(cause)) => {
                if cause == FailCause::ChecksumMismatch {
                    state.bad.push(leased);
                }
                state.settle(index, Outcome::Failed(cause));
            }
        }
        self.go_on(state);
    }

    /// A promotion has ended.
    pub(crate) fn promoted(self: &Arc<Self>, leased: u32, item: Acquired) {
        let mut state = self.lock();
        if !state.promoting.remove(&leased) {
            return;
        }
        let lease = state.lease.clone();
        drop(state);
        // The block is still counted in `left`, so the job cannot end meanwhile.
        let task = lease
            .ok_or(Outcome::Failed(FailCause::BadExtent))
            .and_then(|lease| crate::load::task(self, leased, item, &lease));
        match task {
            Ok(task) => self.shared.pool.push(vec![task]),
            Err(outcome) => self.skipped_with(leased, outcome),
        }
    }

    fn skipped_with(self: &Arc<Self>, leased: u32, outcome: Outcome) {
        if let Some(index) = self.asked.get(leased as usize) {
            self.lock().settle(*index, outcome);
        }
        self.skipped();
    }

    /// What is to be done now that something has changed. Sends without the lock, then takes it again to close.
    fn go_on(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.phase != Phase::Copying || state.left > 0 {
            return self.check_ended(&mut state);
        }
        let lease = state.lease.take();
        let (Some(lease), Some(session)) = (lease, &self.session) else {
            state.phase = Phase::Closed;
            return self.check_ended(&mut state);
        };
        session.drop_lease(lease.id);
        if self.kind == Kind::Load {
            let items = state.bad.iter().map(|index| (*index, false)).collect::<Vec<_>>();
            let leased_count = state.leased_count;
            drop(state);
            // Bad ones by name first; then all that are left, as good.
            let rest = items.len() < leased_count;
            if !items.is_empty() {
                session.tell(&Request::Release { lease: lease.id, items });
            }
            if rest {
                session.tell(&Request::Release { lease: lease.id, items: Vec::new() });
            }
            return self.close();
        }
        let open = |(leased, _): &(u32, u64)| state.transfer.results()[self.asked[*leased as usize]].is_none();
        let items: Vec<(u32, u64)> = state.written.iter().copied().filter(open).collect();
        if items.is_empty() {
            drop(state);
            session.tell(&Request::Abort { lease: lease.id, items: Vec::new() });
            return self.close();
        }
        state.phase = Phase::Committing;
        let all = items.len() == state.leased_count;
        drop(state);
        self.commit(session, lease.id, items, all);
    }

    fn close(&self) {
        let mut state = self.lock();
        state.phase = Phase::Closed;
        self.check_ended(&mut state);
    }

    fn commit(self: &Arc<Self>, session: &Arc<Session>, lease: LeaseId, items: Vec<(u32, u64)>, all: bool) {
        let indices: Vec<u32> = items.iter().map(|(leased, _)| *leased).collect();
        let job = Arc::clone(self);
        let then = move |answer| job.committed(lease, &indices, all, answer);
        session.call(&Request::Commit { lease, items }, Box::new(then));
    }

    fn committed(&self, lease: LeaseId, indices: &[u32], all: bool, answer: Result<Reply, Error>) {
        let mut abort = !all;
        let answers = match answer {
            Ok(Reply::Commit { items }) if items.len() == indices.len() => items,
            Ok(_) => return self.wrong_answer("Commit"),
            Err(error) => return self.request_failed(&error),
        };
        let mut state = self.lock();
        for (leased, answer) in indices.iter().zip(answers) {
            let index = self.asked[*leased as usize];
            let outcome = match answer {
                Done::Done => Outcome::Stored { bytes: self.bytes_of(index) },
                Done::LeaseExpired | Done::NotLeased => Outcome::Failed(FailCause::LeaseExpired),
            };
            abort |= answer != Done::Done;
            state.settle(index, outcome);
        }
        drop(state);
        if abort && let Some(session) = &self.session {
            // No thread of ours writes there any more, whatever became of the blocks.
            session.tell(&Request::Abort { lease, items: Vec::new() });
        }
        self.close();
    }

    fn check_ended(&self, state: &mut State) {
        let closed = matches!(state.phase, Phase::Requesting | Phase::Closed);
        if state.counted || !closed || !state.transfer.is_finished() {
            return;
        }
        state.counted = true;
        state.in_use = None;
        for outcome in &state.outcomes {
            self.shared.counters.add_outcome(*outcome, self.kind == Kind::Load);
        }
        self.shared.open_blocks.fetch_sub(self.keys.len() as u64, Ordering::AcqRel);
        self.ended.notify_all();
    }
}

impl State {
    /// The first outcome of a key counts.
    fn settle(&mut self, index: usize, outcome: Outcome) {
        if self.transfer.settle(index, outcome.key_result()).is_ok() {
            self.outcomes[index] = outcome;
        }
    }

    fn settle_rest(&mut self, outcome: Outcome) {
        for (cell, result) in self.outcomes.iter_mut().zip(self.transfer.results()) {
            if result.is_none() {
                *cell = outcome;
            }
        }
        self.transfer.settle_rest(outcome.key_result());
    }
}
