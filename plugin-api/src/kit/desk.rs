//! The host's side of a life: it knows which operations are in flight, and counts what comes back.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::HostServices;
use crate::backend::Level;
use crate::types::{Completion, Status};

/// Most lines of a backend's log that are kept for a report.
const KEPT_LINES: usize = 8;

#[derive(Default)]
struct Book {
    next: u64,
    /// In flight, or about to be submitted.
    open: HashSet<u64>,
    done: HashMap<u64, Completion>,
    faults: Vec<String>,
    lines: Vec<String>,
}

/// The host services that the kit gives to a backend.
#[derive(Default)]
pub(super) struct Desk {
    book: Mutex<Book>,
    arrived: Condvar,
}

impl Desk {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for an operation, which counts as in flight from now on: its completion may come before `submit`
    /// returns.
    pub(super) fn expect(&self) -> u64 {
        let mut book = self.book();
        book.next += 1;
        let id = book.next;
        book.open.insert(id);
        id
    }

    /// `submit` did not accept it: no completion may come, nor have come.
    pub(super) fn forget(&self, id: u64) {
        let mut book = self.book();
        book.open.remove(&id);
        if book.done.remove(&id).is_some() {
            book.faults.push(format!("operation {id} was not accepted, and yet it completed"));
        }
    }

    /// Waits until all of these completed, and gives the completions in this order.
    pub(super) fn wait(&self, ids: &[u64], longest: Duration) -> Result<Vec<Completion>, String> {
        let deadline = Instant::now() + longest;
        let mut book = self.book();
        loop {
            let missing = ids.iter().filter(|id| !book.done.contains_key(id)).count();
            if missing == 0 {
                return Ok(ids.iter().filter_map(|id| book.done.remove(id)).collect());
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                let lines = Self::last_lines(&book);
                let of = ids.len();
                return Err(format!(
                    "{missing} of {of} accepted operations did not complete within {longest:?}{lines}"
                ));
            };
            book = self.arrived.wait_timeout(book, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until at most `most` operations are in flight.
    pub(super) fn wait_until_open(&self, most: usize, longest: Duration) -> Result<(), String> {
        let deadline = Instant::now() + longest;
        let mut book = self.book();
        while book.open.len() > most {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                return Err(format!("{} operations did not complete within {longest:?}", book.open.len()));
            };
            book = self.arrived.wait_timeout(book, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Operations in flight now.
    pub(super) fn open(&self) -> usize {
        self.book().open.len()
    }

    /// The completion of an operation, if it came; without waiting.
    pub(super) fn take(&self, id: u64) -> Option<Completion> {
        self.book().done.remove(&id)
    }

    /// Broken promises so far: completions that nobody waited for, or that came twice.
    pub(super) fn faults(&self) -> Vec<String> {
        self.book().faults.clone()
    }

    fn last_lines(book: &Book) -> String {
        if book.lines.is_empty() { String::new() } else { format!("; it logged:\n{}", book.lines.join("\n")) }
    }
}

impl HostServices for Desk {
    fn log(&self, level: Level, text: &str) {
        let mut book = self.book();
        if book.lines.len() == KEPT_LINES {
            book.lines.remove(0);
        }
        book.lines.push(format!("{level:?}: {text}"));
    }

    fn count(&self, _name: &str, _delta: u64) {}

    fn complete(&self, completions: &[Completion]) {
        let mut book = self.book();
        for completion in completions {
            let id = completion.id;
            if completion.status == Status::PANICKED {
                book.faults.push(format!("operation {id} ended with `panicked`"));
            }
            if book.open.remove(&id) {
                book.done.insert(id, *completion);
            } else if id <= book.next && id != 0 {
                book.faults.push(format!("operation {id} completed a second time, as {:?}", completion.status));
            } else {
                book.faults.push(format!("operation {id} completed, but it was never submitted"));
            }
        }
        drop(book);
        self.arrived.notify_all();
    }
}
