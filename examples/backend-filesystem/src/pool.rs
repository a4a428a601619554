//! Threads that do the work, and the promise that every operation taken completes exactly once.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use umbp_plugin_api::backend::Level;
use umbp_plugin_api::thread::spawn_guarded;
use umbp_plugin_api::{Completion, Host, Status};

/// One operation that was taken. However it is let go, it completes, and only once.
pub struct Ticket {
    host: Host,
    id: u64,
    ended: bool,
}

impl Ticket {
    /// For an operation that `submit` takes.
    pub fn new(host: &Host, id: u64) -> Self {
        Self { host: host.clone(), id, ended: false }
    }

    /// Completes it. The id is filled in.
    pub fn end(mut self, completion: Completion) {
        self.ended = true;
        self.host.complete(&[Completion { id: self.id, ..completion }]);
    }
}

impl Drop for Ticket {
    /// Let go without an end: its thread panicked.
    fn drop(&mut self) {
        if !self.ended {
            self.host.complete(&[Completion { id: self.id, status: Status::PANICKED, ..Completion::default() }]);
        }
    }
}

/// What a thread does with one operation; it ends the ticket.
pub type Work = Box<dyn FnOnce(Ticket) + Send>;

#[derive(Default)]
struct State {
    /// At most as many as the pool has slots, together with those at work.
    queue: VecDeque<(Ticket, Work)>,
    working: usize,
    threads: usize,
    closed: bool,
}

struct Shared {
    host: Host,
    slots: usize,
    // Held for moments only; no host service is called under it.
    state: Mutex<State>,
    changed: Condvar,
}

/// The threads.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Why an operation was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// All slots are in use.
    Busy,
    /// The pool is closed, or lost a thread.
    Closed,
}

impl Pool {
    /// Starts the threads.
    pub fn start(workers: usize, slots: u32, host: &Host) -> std::io::Result<Self> {
        let state = Mutex::new(State { threads: workers, ..State::default() });
        let shared = Arc::new(Shared { host: host.clone(), slots: slots as usize, state, changed: Condvar::new() });
        let pool = Self { shared, threads: Mutex::new(Vec::with_capacity(workers)) };
        for number in 0..workers {
            let (own, lost) = (Arc::clone(&pool.shared), Arc::clone(&pool.shared));
            let started = spawn_guarded(&format!("umbp-fs-{number}"), move || own.work(), move |why| lost.lost(why));
            match started {
                Ok(thread) => pool.threads().push(thread),
                Err(error) => {
                    pool.shared.state().threads = number;
                    pool.close(Duration::from_secs(1));
                    return Err(error);
                }
            }
        }
        Ok(pool)
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an operation, unless all slots are in use. Never waits for a file.
    pub fn take(&self, id: u64, work: Work) -> Result<(), NotTaken> {
        let mut state = self.shared.state();
        if state.closed {
            return Err(NotTaken::Closed);
        }
        if state.queue.len() + state.working >= self.shared.slots {
            return Err(NotTaken::Busy);
        }
        state.queue.push_back((Ticket::new(&self.shared.host, id), work));
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Ends what has not begun; what is at work ends by itself.
    pub fn cancel(&self, ids: &[u64]) {
        let mut state = self.shared.state();
        let (cancelled, kept) = state.queue.drain(..).partition(|(ticket, _)| ids.contains(&ticket.id));
        state.queue = kept;
        drop(state);
        end_all(cancelled, Status::CANCELLED);
    }

    /// Ends what has not begun, waits for what is at work, and for the threads, but not longer than `deadline`.
    pub fn close(&self, deadline: Duration) {
        let until = Instant::now() + deadline;
        let waiting = self.shared.close();
        end_all(waiting, Status::CANCELLED);
        let mut state = self.shared.state();
        while state.threads > 0 {
            let Some(left) = until.checked_duration_since(Instant::now()) else { return };
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        for thread in self.threads().drain(..) {
            let _ = thread.join();
        }
    }
}

/// Longest wait for the threads of a pool that was never closed.
const DROP_WAIT: Duration = Duration::from_secs(1);

impl Drop for Pool {
    fn drop(&mut self) {
        self.close(DROP_WAIT);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) -> VecDeque<(Ticket, Work)> {
        let mut state = self.state();
        state.closed = true;
        let waiting = std::mem::take(&mut state.queue);
        drop(state);
        self.changed.notify_all();
        waiting
    }

    /// The life of a thread.
    fn work(&self) {
        let mut state = self.state();
        loop {
            if let Some((ticket, work)) = state.queue.pop_front() {
                state.working += 1;
                drop(state);
                work(ticket);
                state = self.state();
                state.working -= 1;
            } else if state.closed {
                break;
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        state.threads -= 1;
        drop(state);
        self.changed.notify_all();
    }

    /// A thread panicked, and its ticket completed as it unwound. What it left half-done is not to be trusted.
    fn lost(&self, why: &str) {
        self.host.log(Level::Error, &format!("a worker of the filesystem backend panicked: {why}"));
        let waiting = self.close();
        {
            let mut state = self.state();
            state.working -= 1;
            state.threads -= 1;
        }
        self.changed.notify_all();
        end_all(waiting, Status::FAILED);
    }
}

fn end_all(waiting: VecDeque<(Ticket, Work)>, status: Status) {
    for (ticket, _) in waiting {
        ticket.end(Completion { status, ..Completion::default() });
    }
}
