//! A circuit breaker: after so many failures in a row nothing is tried for a while, then one probe decides.
//!
//! It does nothing by itself and reads no clock: the time is an argument.

use std::time::{Duration, Instant};

/// What a breaker does with calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Calls go through. So many have failed since the last one that did not.
    Closed(u32),
    /// Calls are refused; a probe is due at this time.
    Open(Instant),
    /// Calls are refused while the one probe is under way.
    HalfOpen,
}

/// A turn that is worth a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Closed before.
    Opened,
    /// Open or half-open before.
    Closed,
}

/// A breaker.
#[derive(Clone, Debug)]
pub struct Breaker {
    failures: u32,
    pause: Duration,
    state: State,
}

impl Breaker {
    /// A closed one, which opens after `failures` in a row and probes after `pause`.
    pub fn new(failures: u32, pause: Duration) -> Self {
        Self { failures, pause, state: State::Closed(0) }
    }

    /// What it does now.
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether a call may be tried.
    pub fn admits(&self) -> bool {
        matches!(self.state, State::Closed(_))
    }

    /// A call was answered. One that began before the breaker opened closes nothing: the probe does.
    pub fn answered(&mut self) {
        if let State::Closed(failures) = &mut self.state {
            *failures = 0;
        }
    }

    /// A call was not answered.
    pub fn failed(&mut self, now: Instant) -> Option<Turn> {
        let State::Closed(failures) = &mut self.state else { return None };
        *failures += 1;
        if *failures < self.failures {
            return None;
        }
        self.state = State::Open(now + self.pause);
        Some(Turn::Opened)
    }

    /// Whether the probe is to be made now. At most one is under way: who is told so makes it, and reports its end.
    pub fn probe(&mut self, now: Instant) -> bool {
        match self.state {
            State::Open(due) if now >= due => {
                self.state = State::HalfOpen;
                true
            }
            _ => false,
        }
    }

    /// The probe has ended.
    pub fn probed(&mut self, answered: bool, now: Instant) -> Option<Turn> {
        if self.state != State::HalfOpen {
            return None;
        }
        if answered {
            self.state = State::Closed(0);
            return Some(Turn::Closed);
        }
        self.state = State::Open(now + self.pause);
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAUSE: Duration = Duration::from_secs(1);

    #[test]
    fn it_opens_after_failures_in_a_row_and_closes_by_a_probe() {
        let start = Instant::now();
        let mut breaker = Breaker::new(3, PAUSE);
        assert_eq!((breaker.failed(start), breaker.failed(start)), (None, None));
        breaker.answered();
        assert_eq!((breaker.failed(start), breaker.failed(start)), (None, None));
        assert!(breaker.admits() && !breaker.probe(start));
        assert_eq!(breaker.failed(start), Some(Turn::Opened));
        assert!(!breaker.admits());
        // What was under way when it opened changes nothing.
        breaker.answered();
        assert_eq!(breaker.failed(start), None);
        assert_eq!(breaker.state(), State::Open(start + PAUSE));
        assert!(!breaker.probe(start + PAUSE / 2));
        assert!(breaker.probe(start + PAUSE));
        // One probe at a time, and no call beside it.
        assert!(!breaker.probe(start + PAUSE * 9) && !breaker.admits());
        assert_eq!(breaker.probed(false, start + PAUSE), None);
        assert!(!breaker.probe(start + PAUSE) && breaker.probe(start + PAUSE * 2));
        assert_eq!(breaker.probed(true, start + PAUSE * 2), Some(Turn::Closed));
        assert_eq!(breaker.state(), State::Closed(0));
        assert_eq!(breaker.probed(true, start + PAUSE * 2), None);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Answered,
        Failed,
        Probe,
        Probed(bool),
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Answered),
            Just(Step::Failed),
            Just(Step::Probe),
            any::<bool>().prop_map(Step::Probed),
            (1..2000u64).prop_map(Step::Wait),
        ]
    }

    proptest! {
        #[test]
        fn whatever_happens_it_admits_only_when_closed_and_a_good_probe_closes_it(
            most in 1..6u32, steps in proptest::collection::vec(step(), 0..200),
        ) {
            let mut now = Instant::now();
            let mut breaker = Breaker::new(most, PAUSE);
            let (mut row, mut opened, mut probing) = (0, None, false);
            for step in steps {
                match step {
                    Step::Answered => {
                        breaker.answered();
                        row = 0;
                    }
                    Step::Failed => {
                        let closed = breaker.admits();
                        row += u32::from(closed);
                        let turn = breaker.failed(now);
                        prop_assert_eq!(turn == Some(Turn::Opened), closed && row == most);
                        if turn.is_some() {
                            opened = Some(now);
                            row = 0;
                        }
                    }
                    Step::Probe => {
                        let due = !probing && opened.is_some_and(|at| now >= at + PAUSE);
                        let begun = breaker.probe(now);
                        prop_assert_eq!(begun, due);
                        probing |= begun;
                    }
                    Step::Probed(good) => {
                        let turn = breaker.probed(good, now);
                        prop_assert_eq!(turn == Some(Turn::Closed), probing && good);
                        if probing {
                            opened = if good { None } else { Some(now) };
                            row = 0;
                        }
                        probing = false;
                    }
                    Step::Wait(ms) => now += Duration::from_millis(ms),
                }
                prop_assert_eq!(breaker.admits(), opened.is_none());
                prop_assert_eq!(breaker.state() == State::HalfOpen, probing);
            }
            // From any state, two probes at most lead back.
            now += PAUSE;
            if breaker.probe(now) || probing {
                prop_assert_eq!(breaker.probed(true, now), Some(Turn::Closed));
            }
            prop_assert!(breaker.admits());
        }
    }
}
