//! The queue of commands to a tier's thread.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::lock;

/// Most commands that wait for one tier, besides shutdown. Operations are bounded by the tier's slots already; what
/// fills the queue is a plugin that does not return. At the bound a command is refused and its blocks fail.
pub const COMMANDS_MAX: usize = 8192;

struct Inner<T> {
    commands: VecDeque<T>,
    nudged: bool,
    closed: bool,
}

/// A bounded queue with a wake-up that needs no command. Lock order: nothing else is locked while its lock is held.
pub struct Queue<T> {
    inner: Mutex<Inner<T>>,
    changed: Condvar,
}

/// What ended a wait.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// The next command.
    Command(T),
    /// Somebody called [`Queue::nudge`].
    Nudged,
    /// Nothing came.
    TimedOut,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let inner = Inner { commands: VecDeque::new(), nudged: false, closed: false };
        Self { inner: Mutex::new(inner), changed: Condvar::new() }
    }
}

impl<T> Queue<T> {
    fn locked(&self) -> MutexGuard<'_, Inner<T>> {
        lock(&self.inner)
    }

    /// Never blocks; gives the command back when the queue is full or closed.
    pub fn push(&self, command: T) -> Result<(), T> {
        let mut inner = self.locked();
        if inner.closed || inner.commands.len() >= COMMANDS_MAX {
            return Err(command);
        }
        inner.commands.push_back(command);
        self.changed.notify_one();
        Ok(())
    }

    /// The last command: it passes all that wait, and none is taken after it.
    pub fn close_with(&self, command: T) {
        let mut inner = self.locked();
        if !inner.closed {
            inner.closed = true;
            inner.commands.push_front(command);
            self.changed.notify_one();
        }
    }

    /// Wakes the thread without a command.
    pub fn nudge(&self) {
        let mut inner = self.locked();
        inner.nudged = true;
        self.changed.notify_one();
    }

    /// Commands that wait.
    pub fn waiting(&self) -> usize {
        self.locked().commands.len()
    }

    /// Waits for a command, a nudge, or the end of `wait`. Commands come before nudges.
    pub fn next(&self, wait: Duration) -> Next<T> {
        let until = Instant::now() + wait;
        let mut inner = self.locked();
        loop {
            if let Some(command) = inner.commands.pop_front() {
                return Next::Command(command);
            }
            if std::mem::take(&mut inner.nudged) {
                return Next::Nudged;
            }
            let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                return Next::TimedOut;
            };
            inner = self.changed.wait_timeout(inner, left).unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shutdown_passes_a_full_queue() {
        let queue = Queue::default();
        for n in 0..COMMANDS_MAX {
            assert_eq!(queue.push(n), Ok(()));
        }
        assert_eq!(queue.push(0), Err(0), "full");
        queue.close_with(usize::MAX);
        assert_eq!(queue.next(Duration::ZERO), Next::Command(usize::MAX));
        assert_eq!(queue.push(1), Err(1), "closed");
        assert_eq!(queue.next(Duration::ZERO), Next::Command(0));
    }

    #[test]
    fn a_nudge_is_not_lost_before_the_wait() {
        let queue = Queue::<()>::default();
        queue.nudge();
        assert_eq!(queue.next(Duration::ZERO), Next::Nudged);
        assert_eq!(queue.next(Duration::ZERO), Next::TimedOut);
    }
}
