//! Tries of reads that fail: apart in time, since an error may pass, and bounded, since it may stay.

use std::time::{Duration, Instant};

/// From one try to the next at least; each waits as long as all before it together.
const TRIES_APART_MIN: Duration = Duration::from_millis(10);

/// How long one path's recovery tries again.
pub(crate) struct Patience {
    /// For all that fails. Each read is given half of what is left, so that many of them end as well, and so that an
    /// error that stays a while after the first was given up finds patience still.
    left: Duration,
    /// First failed at, and to be tried again at.
    failing: Option<(Instant, Instant)>,
}

impl Patience {
    /// For so long in all.
    pub(crate) fn new(total: Duration) -> Self {
        Self { left: total, failing: None }
    }

    /// A read that failed is not to be tried again yet.
    pub(crate) fn waits(&self, now: Instant) -> bool {
        self.failing.is_some_and(|(_, again)| now < again)
    }

    /// The read has failed; true when it is to be given up.
    pub(crate) fn failed(&mut self, now: Instant) -> bool {
        let (share, since) = (self.left / 2, self.failing.map_or(now, |(since, _)| since));
        let spent = now.saturating_duration_since(since);
        if spent >= share {
            // Where others went first in between, it may be more than its share.
            self.left -= share;
            self.failing = None;
            return true;
        }
        self.failing = Some((since, now + spent.max(TRIES_APART_MIN).min(share - spent)));
        false
    }

    /// The read has succeeded.
    pub(crate) fn succeeded(&mut self) {
        self.failing = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: Duration = Duration::from_secs(5);

    /// How often a read that always fails is tried, and for how long.
    fn give_up(patience: &mut Patience, from: Instant) -> (u32, Duration) {
        let (mut now, mut tries) = (from, 1);
        while !patience.failed(now) {
            let again = patience.failing.expect("to be tried again").1;
            assert!(again > now && patience.waits(now) && !patience.waits(again));
            (now, tries) = (again, tries + 1);
        }
        (tries, now - from)
    }

    #[test]
    fn many_reads_that_fail_are_tried_for_the_total_at_most_and_each_more_than_once_at_first() {
        let (mut patience, start) = (Patience::new(TOTAL), Instant::now());
        let (tries, first) = give_up(&mut patience, start);
        assert_eq!((tries, first), (10, TOTAL / 2));
        let rest: Duration = (0..1000).map(|_| give_up(&mut patience, start).1).sum();
        assert!(first + rest <= TOTAL, "{rest:?}");
        assert_eq!(give_up(&mut patience, start), (1, Duration::ZERO), "then each only once");
    }

    #[test]
    fn a_read_that_succeeds_leaves_the_patience_as_it_was() {
        let (mut patience, start) = (Patience::new(TOTAL), Instant::now());
        for _ in 0..100 {
            assert!(!patience.failed(start));
            patience.succeeded();
            assert!(!patience.waits(start));
        }
        assert_eq!(give_up(&mut patience, start).1, TOTAL / 2);
    }

    #[test]
    fn a_read_tried_late_is_given_up_and_costs_its_share_alone() {
        let (mut patience, start) = (Patience::new(TOTAL), Instant::now());
        assert!(!patience.failed(start));
        assert!(patience.failed(start + 100 * TOTAL));
        assert_eq!(give_up(&mut patience, start).1, TOTAL / 4);
    }

    #[test]
    fn without_patience_a_read_is_given_up_at_once() {
        assert!(Patience::new(Duration::ZERO).failed(Instant::now()));
    }
}
