//! Keys of blocks that are gone, in four bytes each.

/// Keys that one key can stand among; the oldest of them gives way.
const WAYS: usize = 8;

/// A bounded memory of keys, by their prints. It may take a stranger for a key that it knows, once in some 10,000.
pub(super) struct Ghosts {
    /// The latest first; 0 where there is none.
    sets: Vec<[u32; WAYS]>,
}

impl Ghosts {
    pub(super) fn new() -> Self {
        Self { sets: Vec::new() }
    }

    fn place(&self, print: u64) -> (usize, u32) {
        let set = ((u128::from(print) * self.sets.len() as u128) >> 64) as usize;
        (set, (print as u32).max(1))
    }

    /// Remembers a key, among about `keys`.
    pub(super) fn keep(&mut self, print: u64, keys: u64) {
        let wanted = (keys as usize / WAYS).max(1);
        if wanted > 2 * self.sets.len() {
            // The tier grew: what was known is forgotten, which costs some second chances once.
            self.sets = vec![[0; WAYS]; wanted];
        }
        let (set, print) = self.place(print);
        self.sets[set].rotate_right(1);
        self.sets[set][0] = print;
    }

    /// Whether the key is known; it is not from then on.
    pub(super) fn take(&mut self, print: u64) -> bool {
        if self.sets.is_empty() {
            return false;
        }
        let (set, print) = self.place(print);
        let found = self.sets[set].iter_mut().find(|known| **known == print);
        found.map(|known| *known = 0).is_some()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.sets.capacity() * size_of::<[u32; WAYS]>()
    }
}
