//! A queue between threads. It needs no bound of its own: each entry carries a ticket, and tickets are bounded.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};

/// Locks; a panic of another holder leaves the value usable, since every critical section here keeps it whole.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// First in, first out, until closed.
pub(crate) struct Queue<T> {
    state: Mutex<(VecDeque<T>, bool)>,
    filled: Condvar,
}

impl<T> Queue<T> {
    /// Empty and open.
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new((VecDeque::new(), false)), filled: Condvar::new() }
    }

    /// Appends; gives the entry back where the queue is closed.
    pub(crate) fn push(&self, entry: T) -> Result<(), T> {
        let mut state = locked(&self.state);
        if state.1 {
            return Err(entry);
        }
        state.0.push_back(entry);
        self.filled.notify_one();
        Ok(())
    }

    /// The next entry; waits for one. `None` once closed and empty.
    pub(crate) fn pop(&self) -> Option<T> {
        let mut state = locked(&self.state);
        loop {
            if let Some(entry) = state.0.pop_front() {
                return Some(entry);
            }
            if state.1 {
                return None;
            }
            state = self.filled.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// All entries; waits for one. Empty once closed and empty.
    pub(crate) fn pop_all(&self) -> VecDeque<T> {
        let first = self.pop();
        let mut all = std::mem::take(&mut locked(&self.state).0);
        if let Some(first) = first {
            all.push_front(first);
        }
        all
    }

    /// Takes one entry out of its turn.
    pub(crate) fn remove(&self, is_meant: impl Fn(&T) -> bool) -> Option<T> {
        let mut state = locked(&self.state);
        let at = state.0.iter().position(is_meant)?;
        state.0.remove(at)
    }

    /// What is in it stays to be popped; nothing is taken any more.
    pub(crate) fn close(&self) {
        locked(&self.state).1 = true;
        self.filled.notify_all();
    }
}
