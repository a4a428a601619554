//! What the driver thread is asked, and the way there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use crate::port::Wake;
use crate::queue::locked;
use crate::regions::Address;
use crate::transfer::Transfer;

/// What the driver thread is asked.
pub(crate) enum Command {
    /// Move a block.
    Transfer(Box<Transfer>),
    /// End queued transfers with these ids.
    Cancel(Vec<u64>),
    /// Register memory; answers its buffers.
    Register { address: Address, length: u64, reply: std::sync::mpsc::Sender<Vec<u16>> },
    /// Let go of memory.
    Unregister { buffers: Arc<[u16]>, reply: std::sync::mpsc::Sender<()> },
    /// End when nothing is left; from this time on, queued transfers are cancelled.
    Stop(Instant),
}

/// Commands on their way to the driver thread. Transfers are bounded by their tickets, the rest by the host's calls.
pub(crate) struct Inbox {
    state: Mutex<(Vec<Command>, bool)>,
    waker: OnceLock<Arc<dyn Wake>>,
    signalled: AtomicBool,
}

impl Inbox {
    /// Empty and open.
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new((Vec::new(), false)), waker: OnceLock::new(), signalled: AtomicBool::new(false) }
    }

    /// Hands over; gives the command back where the thread has ended.
    pub(crate) fn push(&self, command: Command) -> Result<(), Command> {
        let mut state = locked(&self.state);
        if state.1 {
            return Err(command);
        }
        state.0.push(command);
        drop(state);
        if !self.signalled.swap(true, Ordering::AcqRel)
            && let Some(waker) = self.waker.get()
        {
            waker.wake();
        }
        Ok(())
    }

    /// Has the driver thread look around, though nothing is handed over.
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    /// Everything handed over so far.
    pub(crate) fn take(&self) -> Vec<Command> {
        self.signalled.store(false, Ordering::Release);
        std::mem::take(&mut locked(&self.state).0)
    }

    /// Takes nothing any more, if nothing is in it.
    pub(crate) fn close_if_empty(&self) -> bool {
        let mut state = locked(&self.state);
        state.1 |= state.0.is_empty();
        state.1
    }

    /// Takes nothing any more; answers what is in it.
    pub(crate) fn close(&self) -> Vec<Command> {
        let mut state = locked(&self.state);
        state.1 = true;
        std::mem::take(&mut state.0)
    }

    /// How the driver thread is woken.
    pub(crate) fn connect(&self, waker: Arc<dyn Wake>) {
        let _ = self.waker.set(waker);
    }
}
