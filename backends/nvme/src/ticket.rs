//! The promise of exactly one completion per accepted operation, and the count of those in flight.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use umbp_plugin_api::{Completion, Host, Status};

use crate::queue::locked;

/// Operations in flight of one tier, at most as many as the host granted; one more is `BUSY`.
pub(crate) struct Slots {
    granted: u32,
    state: Mutex<SlotsState>,
    idle: Condvar,
}

struct SlotsState {
    taken: u32,
    /// Given back already, so that the host may submit from inside its sink, but still being told.
    telling: u32,
    closed: bool,
}

impl Slots {
    /// All free.
    pub(crate) fn new(granted: u32) -> Arc<Self> {
        let state = Mutex::new(SlotsState { taken: 0, telling: 0, closed: false });
        Arc::new(Self { granted, state, idle: Condvar::new() })
    }

    /// Takes one. `Ok(None)`: all are taken. `Err`: shutdown has begun.
    pub(crate) fn take(self: &Arc<Self>, id: u64, host: &Host) -> Result<Option<Ticket>, ()> {
        let mut state = locked(&self.state);
        if state.closed {
            return Err(());
        }
        if state.taken >= self.granted {
            return Ok(None);
        }
        state.taken += 1;
        Ok(Some(Ticket { id, host: host.clone(), slots: self.clone() }))
    }

    /// No more are given out.
    pub(crate) fn close(&self) {
        locked(&self.state).closed = true;
    }

    /// Waits until all are free; false at the deadline.
    pub(crate) fn wait_idle(&self, deadline: Instant) -> bool {
        let mut state = locked(&self.state);
        while state.taken + state.telling > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.idle.wait_timeout(state, left).unwrap_or_else(|e| e.into_inner()).0;
        }
        true
    }

    fn tell(&self, host: &Host, completion: Completion) {
        let mut state = locked(&self.state);
        state.taken -= 1;
        state.telling += 1;
        drop(state);
        host.complete(&[completion]);
        let mut state = locked(&self.state);
        state.telling -= 1;
        if state.taken + state.telling == 0 {
            self.idle.notify_all();
        }
    }
}

/// Completes its operation exactly once: by [`Self::finish`], or as failed when dropped.
pub(crate) struct Ticket {
    id: u64,
    host: Host,
    slots: Arc<Slots>,
}

impl Ticket {
    /// The operation's id.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Completes with everything that `completion` says but the id.
    pub(crate) fn finish(self, completion: Completion) {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped nor used again, so each field is moved out once.
        let (host, slots) = unsafe { (std::ptr::read(&this.host), std::ptr::read(&this.slots)) };
        slots.tell(&host, Completion { id: this.id, ..completion });
    }

    /// Completes with a status and an errno, 0 for none.
    pub(crate) fn fail(self, status: Status, errno: i32) {
        self.finish(Completion { status, errno, ..Completion::default() });
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.slots.tell(&self.host, Completion { id: self.id, status: Status::FAILED, ..Completion::default() });
    }
}
