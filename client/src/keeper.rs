//! The client's one timer thread: it attaches and re-attaches with backoff, renews leases at half their life, and
//! ends what is past its deadline.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use umbp_protocol::message::{KEYS_PER_MESSAGE_MAX, Reply, Request};

use crate::clock::{after, ms, now_ns};
use crate::outcome::{Counter, FailCause, Outcome};
use crate::session::{Lease, Session};
use crate::shared::Shared;

/// Wait after the first failed attempt to attach; it doubles with each further one.
const BACKOFF_FIRST_MS: u64 = 10;
/// The longest wait between two attempts to attach.
const BACKOFF_LAST_MS: u64 = 1000;
/// The longest wait, before attaching anew, for the old session's mappings to go.
const UNMAP_WAIT_MS: u64 = 2000;

struct Alarm {
    due_ns: u64,
    closing: bool,
}

/// When the thread is to wake next.
pub(crate) struct Keeper {
    alarm: Mutex<Alarm>,
    rung: Condvar,
    /// The same as the alarm's, to be compared without a lock.
    due_ns: AtomicU64,
}

impl Default for Keeper {
    fn default() -> Self {
        let alarm = Mutex::new(Alarm { due_ns: u64::MAX, closing: false });
        Self { alarm, rung: Condvar::new(), due_ns: AtomicU64::new(u64::MAX) }
    }
}

impl Keeper {
    /// Something is due then; wakes the thread if it would sleep longer.
    pub(crate) fn nudge(&self, due_ns: u64) {
        if due_ns < self.due_ns.load(Ordering::Acquire) {
            let mut alarm = self.alarm.lock().unwrap_or_else(PoisonError::into_inner);
            alarm.due_ns = alarm.due_ns.min(due_ns);
            self.due_ns.fetch_min(due_ns, Ordering::AcqRel);
            self.rung.notify_all();
        }
    }

    pub(crate) fn close(&self) {
        self.alarm.lock().unwrap_or_else(PoisonError::into_inner).closing = true;
        self.rung.notify_all();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.alarm.lock().unwrap_or_else(PoisonError::into_inner).closing
    }

    /// From here on every nudge is noted, whatever its time.
    fn begin(&self) {
        self.due_ns.store(u64::MAX, Ordering::Release);
    }

    /// Sleeps until then, or an earlier nudge.
    fn sleep_until(&self, due_ns: u64) {
        let mut alarm = self.alarm.lock().unwrap_or_else(PoisonError::into_inner);
        alarm.due_ns = alarm.due_ns.min(due_ns);
        self.due_ns.store(alarm.due_ns, Ordering::Release);
        loop {
            let now = now_ns();
            if alarm.closing || alarm.due_ns <= now {
                break;
            }
            let wait = Duration::from_nanos(alarm.due_ns - now);
            alarm = self.rung.wait_timeout(alarm, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
        alarm.due_ns = u64::MAX;
    }
}

/// Runs until the client closes.
pub(crate) fn run(shared: &Arc<Shared>) {
    let (mut backoff_ms, mut attempt_ns) = (BACKOFF_FIRST_MS, 0);
    while !shared.keeper.is_closing() {
        shared.keeper.begin();
        let mut due = u64::MAX;
        match shared.session() {
            Some(session) => {
                (backoff_ms, attempt_ns) = (BACKOFF_FIRST_MS, 0);
                due = due.min(session.check_calls(now_ns())).min(renew(shared, &session));
            }
            None if attempt_ns > now_ns() => due = attempt_ns,
            None => {
                if shared.attach(Duration::from_millis(UNMAP_WAIT_MS)) {
                    continue;
                }
                // A fleet of engines that lost one daemon should not knock all at once: up to a quarter is added.
                let wait_ms = backoff_ms + now_ns() % (backoff_ms / 4 + 1);
                attempt_ns = after(now_ns(), Duration::from_millis(wait_ms));
                backoff_ms = (2 * backoff_ms).min(BACKOFF_LAST_MS);
                due = attempt_ns;
            }
        }
        due = due.min(stop_late_jobs(shared));
        shared.keeper.sleep_until(due);
    }
}

fn stop_late_jobs(shared: &Shared) -> u64 {
    let (now, mut due) = (now_ns(), u64::MAX);
    for job in shared.open_jobs() {
        if job.deadline_ns <= now {
            job.stop(Outcome::Failed(FailCause::JobTimedOut));
        } else {
            due = due.min(job.deadline_ns);
        }
    }
    due
}

/// Asks more time for leases in the second half of their life. One that is over is not renewed: its job stops itself.
fn renew(shared: &Arc<Shared>, session: &Arc<Session>) -> u64 {
    let (now, mut due, mut asked) = (now_ns(), u64::MAX, Vec::new());
    for lease in session.leases() {
        let deadline = lease.deadline_ns.load(Ordering::Relaxed);
        let half = deadline.saturating_sub(lease.life_ns / 2);
        if deadline <= now {
            continue;
        }
        if half <= now && asked.len() < KEYS_PER_MESSAGE_MAX {
            // Unless the answer comes first, look again in half of what is left.
            due = due.min(now + (deadline - now) / 2);
            asked.push(lease);
        } else {
            due = due.min(half);
        }
    }
    if !asked.is_empty() {
        let request = Request::Renew { leases: asked.iter().map(|lease| lease.id).collect() };
        let shared = Arc::downgrade(shared);
        let then = move |answer| {
            if let (Ok(Reply::Renew { lease_ms }), Some(shared)) = (answer, shared.upgrade()) {
                renewed(&shared, &asked, &lease_ms, now);
            }
        };
        session.call(&request, Box::new(then));
    }
    due
}

fn renewed(shared: &Shared, asked: &[Arc<Lease>], lease_ms: &[u32], sent_ns: u64) {
    for (lease, life_ms) in asked.iter().zip(lease_ms) {
        if *life_ms == 0 {
            lease.deadline_ns.store(0, Ordering::Relaxed);
        } else {
            let deadline = sent_ns.saturating_add(ms(*life_ms));
            lease.deadline_ns.fetch_max(deadline, Ordering::Relaxed);
            shared.counters.add(Counter::LeasesRenewed, 1);
        }
    }
}
