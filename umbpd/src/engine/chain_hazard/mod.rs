//! `chain-hazard`: of all ends of chains, that one leaves whose next use is the least likely per time.
//!
//! Blocks last used by one request form a *run*. A block's *class* says what that request looked like (a fresh prompt,
//! one that goes on from an earlier one, one that branches off; how much it added; how often the block was used), and
//! how much more or less often than others such blocks are used again is learned, from what is here and from what left
//! lately. The victim is the deep end of the run with the greatest `rarity(age) / worth(class)`. Rarity never falls
//! with age, so within a class this is tail-first LRU, and so it is as long as nothing is learned: no class locks in.
//! docs/eviction.md says where this comes from and what it is worth.
//!
//! Where requests begin and end is told by the engine's calls: the blocks of one are a path from a block to its root.
//! A store right below the last block of what was just loaded or stored goes on with that request.
//!
//! Modules in reading order: [`runs`] (runs, and what is kept of a copy), `request` (how they come about), [`learn`],
//! [`ghosts`].

mod ghosts;
mod learn;
mod request;
mod runs;

use std::collections::{BTreeMap, BTreeSet};

use self::ghosts::{Ghost, Ghosts};
use self::learn::{CLASSES, Learned};
use self::runs::{Run, Runs, State};
use super::policy::{Nodes, Policy, Search, Use};
use super::slab::NONE;

/// Ghosts, as a multiple of the blocks that fit.
const GHOSTS_FACTOR: u64 = 4;
/// Worth of last blocks below which they are taken for partial ones, and leave by themselves.
const DEAD_WORTH: f64 = 0.25;
/// Runs of one class that a search for a victim looks at at most.
const SCAN_MAX: usize = 64;
/// Copies without a request that one call gives a run at most.
const STRAYS_MAX: usize = 256;
/// Bytes of one queued run in an ordered set, about.
const QUEUED_BYTES: usize = 24;
/// Blocks that are taken to fit at most, while only one has been seen.
const FIRST_SCALE_MAX: u64 = 1 << 18;
const ALL_CLASSES: u32 = (1 << CLASSES) - 1;

/// See the module.
pub(super) struct ChainHazard {
    capacity_bytes: u64,
    /// Blocks that fit, about; 0 before the first.
    scale: u64,
    learned: Learned,
    ghosts: Ghosts,
    runs: Runs,
    /// Runs whose deep end may leave, by class, the oldest first.
    queues: Vec<BTreeSet<(u64, u32)>>,
    queued: usize,
    /// Of each queue's first run.
    scores: [f64; CLASSES],
    /// Bit of each class whose score is to be computed anew.
    stale: u32,
    /// Copies, and those that are listed.
    blocks: u64,
    listed: u64,
    /// Listed, and in no run yet: they came in without a request. By the number that their mark holds, oldest first.
    /// Who is in it no more has left it ([`ChainHazard::forget_stray`]): a copy's number is soon another copy's, and
    /// that may be another tenant's.
    strays: BTreeMap<u32, u32>,
    next_stray: u32,
    /// Blocks of the call under way, the deepest first.
    path: Vec<u32>,
    /// Time of last use of the next that was used before all others; it falls.
    cold: u64,
    /// The search for a victim that is under way: its bound of time, and the place that each queue is looked at from.
    /// No run before that place has a deep end that is older than the bound.
    search: (u64, [(u64, u32); CLASSES]),
}

/// Time of the first use; before it lies what earlier lives left.
const TIME_ZERO: u64 = 1 << 40;

impl ChainHazard {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        Self {
            capacity_bytes,
            scale: 0,
            learned: Learned::new(0, TIME_ZERO, 0),
            ghosts: Ghosts::new(0),
            runs: Runs::new(),
            queues: vec![BTreeSet::new(); CLASSES],
            queued: 0,
            scores: [0.0; CLASSES],
            stale: ALL_CLASSES,
            blocks: 0,
            listed: 0,
            strays: BTreeMap::new(),
            next_stray: 0,
            path: Vec::new(),
            cold: TIME_ZERO,
            search: (0, [(0, 0); CLASSES]),
        }
    }

    /// Learns anew, for another number of blocks: ages and memories are measured by it.
    fn rescale(&mut self, blocks: u64) {
        self.scale = blocks;
        // What was used before this is watched no longer.
        let slot = self.learned.slot + learn::slots();
        self.learned = Learned::new(blocks, self.learned.now, slot);
        self.ghosts = Ghosts::new((blocks * GHOSTS_FACTOR) as usize);
        self.stale = ALL_CLASSES;
    }

    /// The run may leave from its deep end on, if that is free to.
    fn queue(&mut self, nodes: &dyn Nodes, number: u32) {
        let run = self.runs[number];
        if run.queued || run.deep == NONE || nodes.kids(run.deep) > 0 {
            return;
        }
        let state = State::of(nodes, run.deep);
        if !state.listed {
            return;
        }
        // Where all blocks are full, the last is like the others, and must not hide what lies above it.
        let class = match self.learned.worth(0) < DEAD_WORTH {
            true => run.class_of(run.deep, state.uses),
            false => run.kind_of(state.uses),
        };
        (self.runs[number].class, self.runs[number].queued) = (class, true);
        let place = (run.touched, number);
        self.queues[usize::from(class)].insert(place);
        // It may have come in behind a search that goes on.
        let from = &mut self.search.1[usize::from(class)];
        *from = place.min(*from);
        self.queued += 1;
        self.stale |= 1 << class;
    }

    fn unqueue(&mut self, number: u32) {
        let run = &mut self.runs[number];
        if run.queued {
            run.queued = false;
            self.queues[usize::from(run.class)].remove(&(run.touched, number));
            self.queued -= 1;
            self.stale |= 1 << run.class;
        }
    }

    /// The copy has a run from now on, or may be evicted no more.
    fn forget_stray(&mut self, nodes: &dyn Nodes, node: u32) {
        let number = nodes.mark(node);
        if self.strays.get(&number) == Some(&node) {
            self.strays.remove(&number);
        }
    }

    /// The run of which this is the deep end.
    fn run_ending_at(&self, nodes: &dyn Nodes, node: u32) -> Option<u32> {
        let run = State::of(nodes, node).run;
        (run != NONE && self.runs[run].deep == node).then_some(run)
    }

    /// The block is no longer part of its run. Its deep end moves up; any other is followed by all that lies above
    /// it, or has been parted from that.
    fn leave(&mut self, nodes: &dyn Nodes, node: u32) {
        let number = State::of(nodes, node).run;
        if number == NONE {
            return;
        }
        if self.runs[number].deep == node {
            self.unqueue(number);
            let above = nodes.parent(node).filter(|above| State::of(nodes, *above).run == number);
            self.runs[number].deep = above.unwrap_or(NONE);
        }
        let run = &mut self.runs[number];
        run.blocks -= 1;
        if run.blocks == 0 {
            self.unqueue(number);
            self.runs.remove(number);
        }
    }

    /// A block in the middle of its run goes, though its children stay: what lies above it is a run of its own.
    fn part(&mut self, nodes: &mut dyn Nodes, node: u32) {
        let number = State::of(nodes, node).run;
        if number == NONE || self.runs[number].deep == node {
            return;
        }
        let mut above = nodes.parent(node).filter(|above| State::of(nodes, *above).run == number);
        let Some(deep) = above else { return };
        let upper = Run { deep, last: NONE, blocks: 0, queued: false, ..self.runs[number] };
        let upper = self.runs.insert(upper);
        while let Some(at) = above {
            nodes.step();
            State { run: upper, ..State::of(nodes, at) }.save(nodes, at);
            self.runs[upper].blocks += 1;
            self.runs[number].blocks -= 1;
            above = nodes.parent(at).filter(|above| State::of(nodes, *above).run == number);
        }
        self.queue(nodes, upper);
    }
}

impl Policy for ChainHazard {
    fn wants_ends(&self) -> bool {
        true
    }

    fn arrived(&mut self, nodes: &mut dyn Nodes, node: u32, print: u64) {
        self.blocks += 1;
        if self.scale == 0 {
            // One block says little of the others: where more come to fit, that is learned when room is short.
            self.rescale((self.capacity_bytes / nodes.bytes(node).max(1)).clamp(1, FIRST_SCALE_MAX));
        }
        let mut state = State::NEW;
        if let Some(ghost) = self.ghosts.take(print, self.learned.slot) {
            self.learned.used(ghost.class, ghost.slot);
            state = State { uses: ghost.uses, end: ghost.end, known: true, ..state }.used_again();
        }
        state.save(nodes, node);
    }

    fn departed(&mut self, nodes: &mut dyn Nodes, node: u32, print: u64) {
        self.blocks -= 1;
        let state = State::of(nodes, node);
        if state.run == NONE {
            return;
        }
        let run = self.runs[state.run];
        let class = run.class_of(node, state.uses);
        self.part(nodes, node);
        self.leave(nodes, node);
        if self.learned.is_watched(run.slot) {
            let ghost = Ghost { slot: run.slot, class, uses: state.uses, end: state.end };
            if let Some(out) = self.ghosts.keep(print, ghost, self.learned.slot) {
                self.learned.forget(out.class, out.slot);
            }
        }
    }

    fn list(&mut self, nodes: &mut dyn Nodes, node: u32, _: Option<u32>) {
        self.listed += 1;
        let state = State { listed: true, ..State::of(nodes, node) };
        state.save(nodes, node);
        if state.run == NONE {
            nodes.set_mark(node, self.next_stray);
            self.strays.insert(self.next_stray, node);
            self.next_stray = self.next_stray.wrapping_add(1);
        } else if let Some(run) = self.run_ending_at(nodes, node) {
            self.queue(nodes, run);
        }
    }

    fn list_coldest(&mut self, nodes: &mut dyn Nodes, node: u32) {
        self.listed += 1;
        let state = State { listed: true, ..State::of(nodes, node) };
        state.save(nodes, node);
        match self.run_ending_at(nodes, node) {
            Some(run) => self.queue(nodes, run),
            None if state.run == NONE => self.adopt(nodes, node, true),
            None => {}
        }
    }

    fn unlist(&mut self, nodes: &mut dyn Nodes, node: u32) {
        self.listed -= 1;
        let state = State { listed: false, ..State::of(nodes, node) };
        state.save(nodes, node);
        self.forget_stray(nodes, node);
        if let Some(run) = self.run_ending_at(nodes, node) {
            self.unqueue(run);
        }
    }

    fn covered(&mut self, nodes: &mut dyn Nodes, node: u32, _: bool) {
        if let Some(run) = self.run_ending_at(nodes, node) {
            self.unqueue(run);
        }
    }

    fn exposed(&mut self, nodes: &mut dyn Nodes, node: u32, _: bool) {
        if let Some(run) = self.run_ending_at(nodes, node) {
            self.queue(nodes, run);
        }
    }

    fn begin(&mut self, _: Use) {
        self.path.clear();
    }

    fn used(&mut self, _: &mut dyn Nodes, node: u32, _: bool, kind: Use) {
        if kind != Use::Guard {
            self.path.push(node);
        }
    }

    fn end(&mut self, nodes: &mut dyn Nodes, kind: Use) {
        if kind != Use::Guard {
            self.requests(nodes, kind);
        }
    }

    fn victim(&mut self, nodes: &mut dyn Nodes, before: u64) -> Search {
        self.adopt_strays(nodes);
        if self.queued == 0 {
            return if self.strays.is_empty() { Search::None } else { Search::More };
        }
        // A victim is asked for where room is short: then what is here is what fits.
        if self.blocks > 2 * self.scale || 2 * self.blocks < self.scale {
            self.rescale(self.blocks);
        }
        while self.stale != 0 {
            let class = self.stale.trailing_zeros() as usize;
            self.stale &= self.stale - 1;
            let age = self.queues[class].first().map(|(touched, _)| self.learned.now - touched);
            self.scores[class] = age.map_or(0.0, |age| self.learned.rarity(age) / self.learned.worth(class as u8));
        }
        let mut classes: [usize; CLASSES] = std::array::from_fn(|class| class);
        classes.sort_by(|a, b| self.scores[*b].total_cmp(&self.scores[*a]));
        if self.search.0 != before {
            self.search = (before, [(0, 0); CLASSES]);
        }
        let mut left = !self.strays.is_empty();
        for class in classes {
            let mut looked_at = 0;
            for (touched, number) in self.queues[class].range(self.search.1[class]..).take(SCAN_MAX) {
                nodes.step();
                let deep = self.runs[*number].deep;
                if nodes.stamp(deep) < before {
                    return Search::Found(deep);
                }
                looked_at += 1;
                self.search.1[class] = (*touched, number + 1);
            }
            left |= looked_at == SCAN_MAX;
        }
        if left { Search::More } else { Search::None }
    }

    fn has_victim(&self) -> bool {
        self.queued > 0 || !self.strays.is_empty()
    }

    fn len(&self) -> u64 {
        self.listed
    }

    fn memory_bytes(&self) -> usize {
        let queues = (self.queued + self.strays.len()) * QUEUED_BYTES;
        self.runs.memory_bytes() + self.ghosts.memory_bytes() + self.learned.memory_bytes() + queues
    }
}
