//! An engine's own prefix cache, as far as it decides which blocks are asked of the tiers: least recently used, with
//! the tail of a chain older than its head (vLLM frees a request's blocks in that order).

use std::collections::{BTreeMap, HashMap};

/// Ids of the blocks that an engine still has in accelerator memory.
pub(crate) struct PrefixCache {
    capacity: usize,
    stamps: HashMap<u64, u64>,
    by_age: BTreeMap<u64, u64>,
    clock: u64,
}

impl PrefixCache {
    /// Room for `capacity` blocks; 0 = no such cache.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, stamps: HashMap::new(), by_age: BTreeMap::new(), clock: 0 }
    }

    /// How many blocks at the head of the chain are here.
    pub(crate) fn leading(&self, chain: &[u64]) -> usize {
        chain.iter().take_while(|id| self.stamps.contains_key(id)).count()
    }

    /// The request has run: its blocks are here now, the head most recent.
    pub(crate) fn touch(&mut self, chain: &[u64]) {
        if self.capacity == 0 {
            return;
        }
        for id in chain.iter().rev() {
            self.clock += 1;
            if let Some(old) = self.stamps.insert(*id, self.clock) {
                self.by_age.remove(&old);
            }
            self.by_age.insert(self.clock, *id);
        }
        while self.stamps.len() > self.capacity {
            let Some((_, oldest)) = self.by_age.pop_first() else { return };
            self.stamps.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_of_the_oldest_chain_goes_first() {
        let mut cache = PrefixCache::new(5);
        cache.touch(&[1, 2, 3]);
        cache.touch(&[1, 4, 5]);
        assert_eq!(cache.leading(&[1, 2, 3]), 3, "all five fit");
        cache.touch(&[6]);
        assert_eq!(cache.leading(&[1, 2, 3]), 2, "3 is the oldest tail");
        assert_eq!(cache.leading(&[1, 4, 5]), 3);
        cache.touch(&[7, 8]);
        assert_eq!(cache.leading(&[1, 4, 5]), 2);
    }

    #[test]
    fn a_chain_longer_than_the_cache_keeps_its_head() {
        let mut cache = PrefixCache::new(2);
        cache.touch(&[1, 2, 3, 4]);
        assert_eq!(cache.leading(&[1, 2, 3, 4]), 2);
        let mut none = PrefixCache::new(0);
        none.touch(&[1, 2]);
        assert_eq!(none.leading(&[1, 2]), 0);
    }
}
