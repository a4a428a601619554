//! Operations under way: how many bytes they hold, and that each ends exactly once, whatever becomes of its task.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;
use umbp_plugin_api::{Completion, Host, Status};

/// All operations under way.
pub(crate) struct Flights {
    host: Host,
    bytes_max: u64,
    inner: Mutex<Inner>,
    landed: Condvar,
}

#[derive(Default)]
struct Inner {
    closed: bool,
    bytes: u64,
    /// What each is done by, where it has a task of its own.
    tasks: HashMap<u64, Option<AbortHandle>>,
}

/// Why one may not begin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotNow {
    /// Too much is under way.
    Busy,
    /// None begins any more.
    Closed,
}

impl Flights {
    pub(crate) fn new(host: Host, bytes_max: u64) -> Arc<Self> {
        Arc::new(Self { host, bytes_max, inner: Mutex::default(), landed: Condvar::new() })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an operation that holds so many bytes. One that alone is too large begins when nothing else holds any.
    pub(crate) fn begin(self: &Arc<Self>, id: u64, bytes: u64) -> Result<Flight, NotNow> {
        let mut inner = self.inner();
        if inner.closed {
            return Err(NotNow::Closed);
        }
        if bytes > 0 && inner.bytes > 0 && inner.bytes + bytes > self.bytes_max {
            return Err(NotNow::Busy);
        }
        inner.bytes += bytes;
        inner.tasks.insert(id, None);
        Ok(Flight { flights: self.clone(), id, bytes, ended: false })
    }

    /// The task that does it: it may be ended early. One that has ended by now needs none.
    pub(crate) fn done_by(&self, id: u64, task: AbortHandle) {
        if let Some(known) = self.inner().tasks.get_mut(&id) {
            *known = Some(task);
        }
    }

    /// Asks tasks to end early; their operations complete as cancelled, unless they are done by then.
    pub(crate) fn cancel(&self, ids: &[u64]) {
        let inner = self.inner();
        let tasks: Vec<AbortHandle> = ids.iter().filter_map(|id| inner.tasks.get(id)?.clone()).collect();
        drop(inner);
        tasks.iter().for_each(AbortHandle::abort);
    }

    /// None begins any more.
    pub(crate) fn close(&self) {
        self.inner().closed = true;
    }

    /// Ends all tasks early.
    pub(crate) fn cancel_all(&self) {
        let ids: Vec<u64> = self.inner().tasks.keys().copied().collect();
        self.cancel(&ids);
    }

    /// Waits until none is under way. False if that takes longer.
    pub(crate) fn wait_landed(&self, wait: Duration) -> bool {
        let end = Instant::now() + wait;
        let mut inner = self.inner();
        while !inner.tasks.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            inner = self.landed.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// One operation under way. Dropped without an end, it ends as cancelled; in a panic, as panicked.
///
/// Whoever holds it touches the operation's buffer; so it goes after everything else that does.
pub(crate) struct Flight {
    flights: Arc<Flights>,
    id: u64,
    bytes: u64,
    ended: bool,
}

impl Flight {
    /// The operation is over. Its buffer is not touched any more.
    pub(crate) fn end(mut self, completion: Completion) {
        self.complete(completion);
    }

    fn complete(&mut self, completion: Completion) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let mut inner = self.flights.inner();
        inner.bytes -= self.bytes;
        inner.tasks.remove(&self.id);
        drop(inner);
        self.flights.host.complete(&[Completion { id: self.id, ..completion }]);
        self.flights.landed.notify_all();
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let status = if std::thread::panicking() { Status::PANICKED } else { Status::CANCELLED };
        self.complete(Completion { status, ..Completion::default() });
    }
}
