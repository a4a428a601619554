//! Connections that are not served: each is counted and told why, and the log has a line now and then.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::net::{SendFlags, send};
use tokio::net::UnixStream;
use umbp_protocol::encode_reply;
use umbp_protocol::message::Reply;

use super::refusal;
use crate::core::Hub;

/// One warning of a kind in this time; those in between are counted in the next.
const WARN_EVERY_MS: u64 = 10_000;
/// A connection that is turned away stays open this long, so that the Hello under way finds somebody and the refusal
/// is read.
const LINGER_MS: u64 = 1_000;
/// Connections that linger at one time; further ones are closed at once.
const LINGERING_MAX: usize = 64;

/// When which kind of trouble was last warned of.
#[derive(Debug, Default)]
pub struct Warned {
    kinds: RefCell<BTreeMap<&'static str, Kind>>,
    lingering: Rc<()>,
}

#[derive(Debug)]
struct Kind {
    last: Instant,
    silent: u64,
}

impl Warned {
    /// Whether to warn now, with how many of this kind have passed in silence since the last warning.
    fn due(&self, kind: &'static str, now: Instant) -> Option<u64> {
        let mut kinds = self.kinds.borrow_mut();
        let Some(known) = kinds.get_mut(kind) else {
            kinds.insert(kind, Kind { last: now, silent: 0 });
            return Some(0);
        };
        if now.saturating_duration_since(known.last) < Duration::from_millis(WARN_EVERY_MS) {
            known.silent += 1;
            return None;
        }
        known.last = now;
        Some(std::mem::take(&mut known.silent))
    }

    fn warn(&self, kind: &'static str, what: &str) {
        match self.due(kind, Instant::now()) {
            None => {}
            Some(0) => tracing::warn!("{what}"),
            Some(silent) => tracing::warn!("{what} (and {silent} times since the last such line)"),
        }
    }
}

impl Hub {
    /// Counts and warns of a connection that did not get as far as somebody to tell.
    pub(super) fn count_lost(&self, code: &'static str, what: &str) {
        self.count_end(code);
        self.warned.warn(code, what);
    }

    /// Counts, warns, and tells the client.
    pub(super) fn turn_away(&self, stream: UnixStream, code: &'static str, message: String) {
        self.count_lost(code, &format!("a connection is turned away: {message}"));
        let reply = Reply::Refused(refusal(code, message));
        let bytes = encode_reply(0, self.facts.boot_id, &reply);
        // A few bytes into an empty buffer. Whoever is gone already goes without.
        if send(&stream, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_err() {
            return;
        }
        if Rc::strong_count(&self.warned.lingering) <= LINGERING_MAX {
            let lingering = self.warned.lingering.clone();
            tokio::task::spawn_local(async move {
                // Its Hello, or its end, or neither in time.
                let _ = tokio::time::timeout(Duration::from_millis(LINGER_MS), stream.readable()).await;
                drop((stream, lingering));
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_warning_of_a_kind_is_given_in_its_time_and_counts_those_before_it() {
        let (warned, start) = (Warned::default(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!(warned.due("peer", at(0)), Some(0));
        assert_eq!(warned.due("connections", at(1)), Some(0), "another kind has its own time");
        assert_eq!([warned.due("peer", at(1)), warned.due("peer", at(WARN_EVERY_MS - 1))], [None, None]);
        assert_eq!(warned.due("peer", at(WARN_EVERY_MS)), Some(2));
        assert_eq!(warned.due("peer", at(WARN_EVERY_MS + 1)), None);
        assert_eq!(warned.due("peer", at(3 * WARN_EVERY_MS)), Some(1));
    }
}
