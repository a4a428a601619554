//! What the engine's thread knows of one tier, and of one session.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::engine::api::TierState;
use crate::session::outbox::Outbox;
use crate::tier::TierLink;

/// How far the recovery of a persistent tier is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Nothing to recover.
    None,
    /// Blocks found so far.
    Running(u64),
    /// Blocks found in all.
    Done(u64),
    /// It ended early; what was found until then serves.
    Failed(String),
}

impl Recovery {
    /// For status.
    pub fn text(&self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Running(blocks) => format!("running, {blocks} blocks so far"),
            Self::Done(blocks) => format!("done, {blocks} blocks"),
            Self::Failed(why) => format!("ended early: {why}"),
        }
    }
}

/// A tier of the config.
pub struct TierSeat {
    /// Its name.
    pub name: String,
    /// Its backend, as config names it.
    pub backend: String,
    /// The plugin, its version and file, once it is loaded.
    pub plugin: Option<String>,
    /// The state that the loader and the thread know of; `Degraded` is the engine's to say.
    pub state: TierState,
    /// For people: the path taken, or why it does not serve.
    pub report: String,
    /// Its thread; none where the plugin is not open.
    pub link: Option<TierLink>,
    /// Its thread is still in the plugin's open, and nobody waits for it any more.
    pub abandoned: bool,
    /// The plugin recovers.
    pub persistent: bool,
    /// How far that is.
    pub recovery: Recovery,
    /// When it began, and how long it took until each block had its place; none while it runs or if it failed.
    pub recovery_time: (Option<Instant>, Option<Duration>),
    /// Recovered namespaces that are not served: their tenant is no longer configured, or there are too many.
    pub namespaces_left_out: u64,
    /// Corrupt blocks, as far as the log is concerned.
    pub corrupt: Burst,
}

/// One line of a kind in this time; what happens in between is counted in the next.
const BURST_LINE_EVERY_MS: u64 = 10_000;

/// Trouble that comes in bursts: the log has a line now and then, with a count.
#[derive(Debug, Default)]
pub struct Burst {
    last: Option<Instant>,
    silent: u64,
}

impl Burst {
    /// `count` more; answers how many the log is to tell of now, those of before included.
    pub(super) fn add(&mut self, count: u64, now: Instant) -> Option<u64> {
        self.silent += count;
        let every = Duration::from_millis(BURST_LINE_EVERY_MS);
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < every) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.silent))
    }
}

/// A mover of the config. None is used yet, so what is known of it at start stays.
pub struct MoverSeat {
    /// Its name.
    pub name: String,
    /// Its backend, as config names it.
    pub backend: String,
    /// The plugin, its version and file, once it is loaded.
    pub plugin: Option<String>,
    /// `Declared` or `Loaded`.
    pub state: TierState,
    /// For people: why it is not used.
    pub report: String,
    /// Its thread is still in the plugin, and nobody waits for it any more.
    pub abandoned: bool,
}

/// A session that is connected.
pub struct SessionSeat {
    /// What waits to be sent.
    pub outbox: RefCell<Outbox>,
    /// Something was put into the outbox, or the session is to end.
    pub wake: Notify,
    /// Why the session is to end, said by somebody else than its client.
    pub end: RefCell<Option<String>>,
    /// User of the process.
    pub uid: u32,
    /// The process.
    pub pid: i32,
    /// When it connected.
    pub since: Instant,
    /// Requests answered.
    pub requests: Cell<u64>,
    /// Lookups that wait for shared tiers.
    pub lookups_waiting: Cell<usize>,
}

impl SessionSeat {
    /// A session that has just connected.
    pub fn new(uid: u32, pid: i32) -> Self {
        Self {
            outbox: RefCell::default(),
            wake: Notify::new(),
            end: RefCell::default(),
            uid,
            pid,
            since: Instant::now(),
            requests: Cell::new(0),
            lookups_waiting: Cell::new(0),
        }
    }

    /// Ends the session from outside.
    pub fn end(&self, why: &str) {
        self.end.borrow_mut().get_or_insert_with(|| why.to_owned());
        self.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_has_one_line_in_its_time_and_the_next_counts_what_came_in_between() {
        let (mut burst, start) = (Burst::default(), Instant::now());
        let mut at = |ms: u64, count: u64| burst.add(count, start + Duration::from_millis(ms));
        assert_eq!(at(0, 16), Some(16));
        assert_eq!([at(1, 3), at(BURST_LINE_EVERY_MS - 1, 4)], [None, None]);
        assert_eq!(at(BURST_LINE_EVERY_MS, 1), Some(8));
    }
}
