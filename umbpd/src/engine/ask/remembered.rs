//! Keys that are remembered for a time.

use std::collections::{HashMap, VecDeque};

use umbp_protocol::message::WireKey;

use super::super::api::Time;

/// Most keys that one table remembers; at it the oldest is forgotten, and asked for, or put, once more.
pub const REMEMBERED_MAX: usize = 65_536;
/// Keys that one call forgets at most because their time is over.
const EXPIRE_SLICE_KEYS: usize = 1024;

/// A bounded set whose members expire. It reads no clock: its time is the latest that a call has brought along.
pub(super) struct Remembered {
    life_ns: u64,
    now: u64,
    /// Until when each is believed.
    keys: HashMap<WireKey, u64>,
    /// The same in the order of time; what `keys` has not, or with another time, is stale.
    order: VecDeque<(u64, WireKey)>,
}

impl Remembered {
    pub(super) fn new(life_ns: u64) -> Self {
        Self { life_ns, now: 0, keys: HashMap::new(), order: VecDeque::new() }
    }

    pub(super) fn insert(&mut self, key: WireKey, now: Time) {
        self.expire(now);
        if self.life_ns == 0 {
            return;
        }
        if self.order.len() >= REMEMBERED_MAX {
            self.pop();
        }
        let until = self.now.saturating_add(self.life_ns);
        self.keys.insert(key, until);
        self.order.push_back((until, key));
    }

    pub(super) fn remove(&mut self, key: &WireKey) {
        self.keys.remove(key);
    }

    pub(super) fn has(&self, key: &WireKey) -> bool {
        self.keys.get(key).is_some_and(|until| *until > self.now)
    }

    /// Time passes; a slice of those whose time is over is forgotten.
    pub(super) fn expire(&mut self, now: Time) {
        self.now = self.now.max(now.0);
        for _ in 0..EXPIRE_SLICE_KEYS {
            if self.order.front().is_none_or(|(until, _)| *until > self.now) {
                break;
            }
            self.pop();
        }
        if self.order.is_empty() && self.order.capacity() > 0 {
            self.order = VecDeque::new();
            self.keys = HashMap::new();
        }
    }

    fn pop(&mut self) {
        let Some((until, key)) = self.order.pop_front() else { return };
        if self.keys.get(&key) == Some(&until) {
            self.keys.remove(&key);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }
}

#[cfg(test)]
mod tests {
    use umbp_protocol::message::NamespaceId;

    use super::*;

    fn key(n: u64) -> WireKey {
        let mut local = [0; 44];
        local[..8].copy_from_slice(&n.to_le_bytes());
        WireKey { namespace: NamespaceId(1), local }
    }

    #[test]
    fn a_key_is_remembered_for_its_time_from_the_last_word_on() {
        let mut table = Remembered::new(100);
        table.insert(key(1), Time(0));
        table.insert(key(1), Time(60));
        table.insert(key(2), Time(90));
        table.expire(Time(150));
        assert_eq!([1, 2, 3].map(|n| table.has(&key(n))), [true, true, false]);
        table.expire(Time(160));
        assert_eq!((table.has(&key(1)), table.has(&key(2)), table.len()), (false, true, 1));
        table.remove(&key(2));
        assert_eq!((table.has(&key(2)), table.len()), (false, 0));
    }

    #[test]
    fn at_the_bound_the_oldest_is_forgotten_and_time_is_passed_over_in_slices() {
        let mut table = Remembered::new(10);
        for n in 0..REMEMBERED_MAX as u64 + 5 {
            table.insert(key(n), Time(0));
        }
        assert_eq!(table.len(), REMEMBERED_MAX);
        assert_eq!((table.has(&key(4)), table.has(&key(5))), (false, true));
        table.expire(Time(10));
        assert!(!table.has(&key(60_000)), "not believed, though its slice has not come");
        assert_eq!(table.len(), REMEMBERED_MAX - EXPIRE_SLICE_KEYS);
    }

    #[test]
    fn without_a_life_nothing_is_remembered() {
        let mut table = Remembered::new(0);
        table.insert(key(1), Time(5));
        assert_eq!((table.has(&key(1)), table.len()), (false, 0));
    }
}
