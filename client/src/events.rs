//! What the daemon pushed, kept for whoever keeps beliefs about residency: a bounded queue that never blocks the
//! session. What does not fit is dropped, counted, and replaced by one [`ClientEvent::Resync`].

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use umbp_protocol::message::{RemovedReason, SessionId, WireKey};

/// Most events that wait to be taken; at it all of them become one Resync.
pub const EVENTS_MAX: usize = 1024;

/// News of the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// A session began; beliefs about residency start anew.
    Attached {
        /// The session.
        session: SessionId,
        /// The daemon's life.
        boot_id: u64,
    },
    /// The session ended: until Attached every lookup is a miss.
    Detached {
        /// Why, for people.
        reason: String,
    },
    /// Copies left a tier.
    Removed {
        /// Index of the tier.
        tier: u8,
        /// Why.
        reason: RemovedReason,
        /// Their keys, all of the session's own namespace: the daemon tells a tenant's sessions of all its namespaces.
        keys: Vec<WireKey>,
    },
    /// A tier changed its state.
    TierState {
        /// Index of the tier.
        tier: u8,
        /// Name of the new state.
        state: String,
    },
    /// Events were dropped, here or in the daemon: forget beliefs about residency.
    Resync,
    /// The daemon shuts down.
    Draining,
}

#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    waiting: Mutex<VecDeque<ClientEvent>>,
    more: Condvar,
}

impl EventQueue {
    /// Answers how many events were dropped for it.
    pub(crate) fn push(&self, event: ClientEvent) -> usize {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut dropped = 0;
        if waiting.len() >= EVENTS_MAX {
            dropped = waiting.len();
            waiting.clear();
            waiting.push_back(ClientEvent::Resync);
        }
        waiting.push_back(event);
        self.more.notify_all();
        dropped
    }

    /// Takes all that is there, waiting for the first at most `timeout`.
    pub(crate) fn take(&self, timeout: Duration) -> Vec<ClientEvent> {
        let end = Instant::now() + timeout;
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while waiting.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            waiting = self.more.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        waiting.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_nobody_takes_become_one_resync() {
        let queue = EventQueue::default();
        let dropped: usize = (0..=EVENTS_MAX).map(|_| queue.push(ClientEvent::Draining)).sum();
        assert_eq!(dropped, EVENTS_MAX);
        assert_eq!(queue.take(Duration::ZERO), [ClientEvent::Resync, ClientEvent::Draining]);
        assert_eq!(queue.take(Duration::ZERO), []);
    }
}
