//! Blocks evicted lately: how they were used, in four bytes each.

/// Keys that one key can stand among; the oldest of them gives way.
const WAYS: usize = 4;
/// Slots of time that a ghost can tell apart.
const SLOTS: u32 = 1 << 11;

/// A block evicted lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ghost {
    /// Slot of time of its last use.
    pub(super) slot: u32,
    pub(super) class: u8,
    /// 0 to 3.
    pub(super) uses: u8,
    /// A request ended here once.
    pub(super) end: bool,
}

/// Fingerprint (13 bits, never 0), slot (11), class (5), uses (2), end (1). 0 where there is none.
fn pack(print: u32, ghost: Ghost) -> u32 {
    print << 19
        | (ghost.slot % SLOTS) << 8
        | u32::from(ghost.class) << 3
        | u32::from(ghost.uses.min(3)) << 1
        | u32::from(ghost.end)
}

/// A bounded memory.
pub(super) struct Ghosts {
    sets: Vec<[u32; WAYS]>,
}

impl Ghosts {
    /// Room for about so many.
    pub(super) fn new(keys: usize) -> Self {
        Self { sets: vec![[0; WAYS]; (keys / WAYS).max(16)] }
    }

    fn place(&self, print: u64) -> (usize, u32) {
        let set = ((u128::from(print) * self.sets.len() as u128) >> 64) as usize;
        (set, (print as u32 & 0x1FFF).max(1))
    }

    fn unpack(now: u32, packed: u32) -> Ghost {
        let back = now.wrapping_sub(packed >> 8) % SLOTS;
        Ghost {
            slot: now.saturating_sub(back),
            class: (packed >> 3 & 31) as u8,
            uses: (packed >> 1 & 3) as u8,
            end: packed & 1 != 0,
        }
    }

    /// Takes a block out, if it is there. `now` is the slot of time.
    pub(super) fn take(&mut self, print: u64, now: u32) -> Option<Ghost> {
        let (set, print) = self.place(print);
        let found = self.sets[set].iter_mut().find(|packed| **packed >> 19 == print)?;
        Some(Self::unpack(now, std::mem::replace(found, 0)))
    }

    /// Puts a block in; answers the one that gave way.
    pub(super) fn keep(&mut self, print: u64, ghost: Ghost, now: u32) -> Option<Ghost> {
        let (set, print) = self.place(print);
        let age = |packed: u32| if packed == 0 { u32::MAX } else { now.wrapping_sub(packed >> 8) % SLOTS };
        let oldest = self.sets[set].iter_mut().max_by_key(|packed| age(**packed))?;
        let out = std::mem::replace(oldest, pack(print, ghost));
        (out != 0).then(|| Self::unpack(now, out))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.sets.capacity() * size_of::<[u32; WAYS]>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ghost_comes_back_once_as_it_was_and_the_oldest_of_its_set_gives_way() {
        let mut ghosts = Ghosts::new(1);
        let ghost = |slot| Ghost { slot, class: 27, uses: 3, end: true };
        let print = |n: u64| n << 1 | 1;
        for n in 0..WAYS as u64 {
            assert_eq!(ghosts.keep(print(n), ghost(1000 + n as u32), 1010), None);
        }
        assert_eq!(ghosts.keep(print(9), ghost(1008), 1010), Some(ghost(1000)));
        assert_eq!(ghosts.take(print(0), 1010), None);
        assert_eq!(ghosts.take(print(3), 1010), Some(ghost(1003)));
        assert_eq!(ghosts.take(print(3), 1010), None);
    }
}
