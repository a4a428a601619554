//! Which holds somebody still wants. A session has one hold on a block, whoever asked for it; it is given up when the
//! last of them gives up.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use umbp_connector_core::key::LocalKey;

/// Keys that are kept count of; beyond it the rest is not, and their holds end by themselves.
const KEYS_MAX: usize = 65_536;

#[derive(Clone, Copy, Debug)]
struct Held {
    users: u32,
    until: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Holds {
    keys: HashMap<LocalKey, Held>,
}

impl Holds {
    /// Somebody's lookup holds these.
    pub(super) fn take(&mut self, keys: impl Iterator<Item = LocalKey>, now: Instant, hold: Duration) {
        for key in keys {
            if self.keys.len() >= KEYS_MAX && !self.keys.contains_key(&key) {
                self.keys.retain(|_, held| held.until > now);
                if self.keys.len() >= KEYS_MAX {
                    return;
                }
            }
            let until = now + hold;
            let held = self.keys.entry(key).or_insert(Held { users: 0, until });
            held.users = if held.until > now { held.users + 1 } else { 1 };
            held.until = until;
        }
    }

    /// Somebody wants them no more; answers those that nobody else wants. A key that is not kept count of may be
    /// another's: it is left to end by itself.
    pub(super) fn give_up(&mut self, keys: &[LocalKey], now: Instant) -> Vec<LocalKey> {
        let mut free = Vec::new();
        for key in keys {
            let Some(held) = self.keys.get_mut(key) else { continue };
            held.users = held.users.saturating_sub(1);
            let over = held.until <= now;
            if held.users == 0 || over {
                self.keys.remove(key);
                if !over {
                    free.push(*key);
                }
            }
        }
        free
    }

    /// Of these, those that nobody wants: for an answer that nobody took.
    pub(super) fn unwanted(&self, keys: &[LocalKey], now: Instant) -> Vec<LocalKey> {
        let wanted = |key: &LocalKey| self.keys.get(key).is_some_and(|held| held.until > now);
        keys.iter().filter(|key| !wanted(key)).copied().collect()
    }

    pub(super) fn clear(&mut self) {
        self.keys.clear();
    }
}

#[cfg(test)]
mod tests {
    use umbp_connector_core::key::{BlockHash, GroupId, Rank};

    use super::*;

    fn key(number: u8) -> LocalKey {
        let hash = BlockHash::new(&[number]).expect("a hash");
        LocalKey { hash, group: GroupId(0), rank: Rank::default() }
    }

    #[test]
    fn a_hold_that_two_requests_want_is_given_up_with_the_second() {
        let (mut holds, now, hold) = (Holds::default(), Instant::now(), Duration::from_secs(2));
        holds.take([key(1), key(2)].into_iter(), now, hold);
        holds.take([key(1)].into_iter(), now, hold);
        assert_eq!(holds.unwanted(&[key(1), key(3)], now), [key(3)]);
        assert_eq!(holds.give_up(&[key(1), key(2), key(3)], now), [key(2)]);
        assert_eq!(holds.give_up(&[key(1)], now), [key(1)]);
        assert_eq!(holds.give_up(&[key(1)], now), []);
    }

    #[test]
    fn a_hold_that_is_over_counts_for_nobody() {
        let (mut holds, now, hold) = (Holds::default(), Instant::now(), Duration::from_secs(2));
        holds.take([key(1), key(2)].into_iter(), now, hold);
        let later = now + hold;
        assert_eq!(holds.unwanted(&[key(1)], later), [key(1)]);
        assert_eq!(holds.give_up(&[key(2)], later), []);
        holds.take([key(1)].into_iter(), later, hold);
        assert_eq!(holds.give_up(&[key(1)], later), [key(1)], "the user of a hold that is over is not counted");
    }

    #[test]
    fn beyond_the_bound_keys_are_not_kept_count_of() {
        let (mut holds, now, hold) = (Holds::default(), Instant::now(), Duration::from_secs(2));
        let key = |number: usize| LocalKey { hash: BlockHash::new(&number.to_be_bytes()).expect("a hash"), ..key(0) };
        holds.take((0..KEYS_MAX + 1).map(key), now, hold);
        assert_eq!(holds.give_up(&[key(KEYS_MAX)], now), []);
        holds.take([key(KEYS_MAX)].into_iter(), now + hold, hold);
        assert_eq!(holds.keys.len(), 1, "those that are over make room");
    }
}
