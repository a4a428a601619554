//! What belongs to the process that made it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One value behind a lock, until it is ended. In a forked child there is none: the threads that serve it are the
/// parent's, and one of them may have held the lock at the fork, which nobody here would ever let go of.
pub(crate) struct OfProcess<T> {
    inner: Mutex<Option<T>>,
    process: u32,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { inner: Mutex::new(Some(value)), process: std::process::id() }
    }

    /// None where there is no value (any more).
    pub(crate) fn with<R>(&self, call: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.lock()?.as_mut().map(call)
    }

    /// Ends the value, if it is there; whoever else ends it meanwhile waits for that.
    pub(crate) fn end(&self, close: impl FnOnce(&mut T)) {
        if let Some(mut value) = self.lock() {
            if let Some(value) = value.as_mut() {
                close(value);
            }
            *value = None;
        }
    }

    fn lock(&self) -> Option<MutexGuard<'_, Option<T>>> {
        let is_ours = std::process::id() == self.process;
        is_ours.then(|| self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
