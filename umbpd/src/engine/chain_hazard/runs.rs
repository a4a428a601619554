//! Runs: blocks last used by one request, a piece of one chain.

use super::learn::CLASSES;
use crate::engine::policy::{Link, Nodes};
use crate::engine::slab::NONE;

/// Uses beyond this are not counted.
const USES_MAX: u8 = 3;

/// What a request looked like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A prompt not seen before.
    Fresh,
    /// It goes on just where an earlier one ended.
    On,
    /// It leaves an earlier one in the middle.
    Branch,
}

/// What is kept of a copy, in the room of its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// Its run, or NONE.
    pub(super) run: u32,
    /// 0 to 3.
    pub(super) uses: u8,
    /// A request ended here.
    pub(super) end: bool,
    pub(super) listed: bool,
    /// It was here before, and evicted.
    pub(super) known: bool,
}

impl State {
    pub(super) const NEW: Self = Self { run: NONE, uses: 0, end: false, listed: false, known: false };

    pub(super) fn of(nodes: &dyn Nodes, node: u32) -> Self {
        let Link { colder: run, hotter: bits } = nodes.link(node);
        Self { run, uses: (bits & 3) as u8, end: bits & 4 != 0, listed: bits & 8 != 0, known: bits & 16 != 0 }
    }

    pub(super) fn save(self, nodes: &mut dyn Nodes, node: u32) {
        let bits = [self.end, self.listed, self.known];
        let bits = bits.iter().rev().fold(0, |bits, bit| bits << 1 | u32::from(*bit)) << 2 | u32::from(self.uses);
        nodes.set_link(node, Link { colder: self.run, hotter: bits });
    }

    pub(super) fn used_again(self) -> Self {
        Self { uses: (self.uses + 1).min(USES_MAX), ..self }
    }
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Time of the use.
    pub(super) touched: u64,
    pub(super) slot: u32,
    /// Its deepest block.
    pub(super) deep: u32,
    /// The request's last block, or NONE.
    pub(super) last: u32,
    /// Blocks of it that are still here.
    pub(super) blocks: u32,
    /// Blocks of the request.
    pub(super) total: u32,
    /// Those at its head that had been seen before.
    pub(super) before: u32,
    pub(super) kind: Kind,
    /// Class of growth, 0 to 3, and of length, 0 to 4.
    pub(super) grow: u8,
    pub(super) len: u8,
    /// The queue that it stands in, where it does.
    pub(super) class: u8,
    pub(super) queued: bool,
    /// It hangs on a block that many chains share.
    pub(super) fanned: bool,
    /// It marked its last block, and the one before it, as an end.
    pub(super) marked: [bool; 2],
}

impl Run {
    /// The class of one of its blocks. A request's last block may be a partial one, which is hardly ever used again:
    /// these are a class of their own, whatever their request looked like.
    pub(super) fn class_of(&self, node: u32, uses: u8) -> u8 {
        if node == self.last { 0 } else { self.kind_of(uses) }
    }

    /// The class of one of its blocks that is no last one.
    pub(super) fn kind_of(&self, uses: u8) -> u8 {
        match self.kind {
            Kind::Fresh if uses == 0 => 1 + self.len,
            Kind::Fresh => 6,
            Kind::On => 7 + uses * 4 + self.grow,
            Kind::Branch if uses == 0 => 23 + self.grow / 3,
            Kind::Branch => 24 + uses,
        }
    }
}

const _: () = assert!(CLASSES == 28 && 24 + USES_MAX as usize == CLASSES - 1 && 7 + 3 * 4 + 3 < 23);

/// All runs.
pub(super) struct Runs {
    all: Vec<Run>,
    free: Vec<u32>,
}

impl Runs {
    pub(super) fn new() -> Self {
        Self { all: Vec::new(), free: Vec::new() }
    }

    pub(super) fn insert(&mut self, run: Run) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.all[number as usize] = run;
                number
            }
            None => {
                self.all.push(run);
                (self.all.len() - 1) as u32
            }
        }
    }

    pub(super) fn remove(&mut self, number: u32) {
        self.free.push(number);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.all.capacity() * size_of::<Run>() + self.free.capacity() * size_of::<u32>()
    }
}

impl std::ops::Index<u32> for Runs {
    type Output = Run;

    fn index(&self, number: u32) -> &Run {
        &self.all[number as usize]
    }
}

impl std::ops::IndexMut<u32> for Runs {
    fn index_mut(&mut self, number: u32) -> &mut Run {
        &mut self.all[number as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_is_within_the_table_and_no_two_kinds_share_one() {
        let run = |kind, grow, len| Run {
            touched: 0,
            slot: 0,
            deep: 0,
            last: NONE,
            blocks: 0,
            total: 0,
            before: 0,
            kind,
            grow,
            len,
            class: 0,
            queued: false,
            fanned: false,
            marked: [false; 2],
        };
        let mut seen = std::collections::BTreeMap::new();
        for kind in [Kind::Fresh, Kind::On, Kind::Branch] {
            for (grow, len, uses) in (0..4).flat_map(|g| (0..5).flat_map(move |l| (0..4).map(move |u| (g, l, u)))) {
                let class = run(kind, grow, len).class_of(1, uses);
                assert!(class > 0 && usize::from(class) < CLASSES);
                assert_eq!(*seen.entry(class).or_insert(kind), kind);
            }
        }
        assert_eq!((seen.len(), run(Kind::On, 0, 0).class_of(NONE, 3)), (CLASSES - 1, 0));
    }
}
