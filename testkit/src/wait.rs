//! Asking until something is so.

use std::time::{Duration, Instant};

/// A test that waits longer than this for anything has failed; two busy cores start a cluster in a few seconds.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// Between two questions.
const PAUSE: Duration = Duration::from_millis(10);

/// Asks until the answer is one, and panics with `what` after [`DEADLINE`].
pub fn until<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    within(DEADLINE, ask).unwrap_or_else(|| panic!("{what}: not within {DEADLINE:?}"))
}

/// Asks until the answer is one, or the time is over. Asks at least once.
pub fn within<T>(time: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + time;
    loop {
        let answer = ask();
        if answer.is_some() || Instant::now() >= end {
            return answer;
        }
        // What is waited for happens in another process, which tells nobody.
        std::thread::sleep(PAUSE);
    }
}
