//! `s3-fifo`: first in, first out, in two queues, tails before heads.
//!
//! After Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023): what is new enters a small queue
//! of a tenth of the blocks, and moves on to the main queue if it was used twice meanwhile; what leaves the small
//! queue unused stays known for a while (the ghost), and enters the main queue if it comes again; the main queue gives
//! blocks that were used another round.
//!
//! Only ends of chains leave, so that a parent never leaves before its child. A block whose turn comes while a child
//! or a pin keeps it steps out of its queue, and is due as soon as it is kept no more. A block that is followed by its
//! child at once leaves its place to that child: tails before heads.
//!
//! A load is a use. A store is one of all blocks before the stored ones, which the engine may have had in its own
//! cache; but a request may store in several pieces, or load first, and is one use all the same: so a store counts
//! only for blocks neither loaded since the last one nor used while the last few blocks came in.

use super::ghosts::Ghosts;
use super::list::List;
use super::policy::{Nodes, Policy, Search, Use};

/// The small queue's part of all blocks: one in this many.
const SMALL_PART: u64 = 10;
/// Uses from which a block moves on from the small queue.
const MOVE_USES: u32 = 2;
/// Uses beyond this are not counted.
const USES_MAX: u32 = 3;
/// A store is one with the last use while fewer than one block in so many has come in between.
const ONE_USE_PART: u64 = 32;
/// Arrivals are told apart by so many.
const STEP: u64 = 32;
/// Copies that one search for a victim looks at at most.
const SCAN_MAX: usize = 1024;

/// What is kept of a copy, in its mark.
#[derive(Clone, Copy)]
struct Mark(u32);

impl Mark {
    const MAIN: u32 = 1;
    const IN_QUEUE: u32 = 1 << 1;
    const LISTED: u32 = 1 << 2;
    /// It has had its turn to enter: from here on it is due when it comes back.
    const ENTERED: u32 = 1 << 3;
    const LOADED: u32 = 1 << 4;
    /// It came in with the store under way.
    const FRESH: u32 = 1 << 5;
    const USES_SHIFT: u32 = 6;
    const USES: u32 = 3 << Self::USES_SHIFT;
    /// Rounds of the main queue.
    const ROUNDS_SHIFT: u32 = 8;
    const ROUNDS: u32 = 7 << Self::ROUNDS_SHIFT;
    /// Arrivals when it was used last, in steps of [`STEP`], wrapping.
    const WHEN_SHIFT: u32 = 16;

    fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    fn with(self, flag: u32, on: bool) -> Self {
        Self(if on { self.0 | flag } else { self.0 & !flag })
    }

    fn uses(self) -> u32 {
        (self.0 & Self::USES) >> Self::USES_SHIFT
    }

    fn with_uses(self, uses: u32) -> Self {
        Self(self.0 & !Self::USES | uses << Self::USES_SHIFT)
    }

    fn rounds(self) -> u32 {
        (self.0 & Self::ROUNDS) >> Self::ROUNDS_SHIFT
    }

    fn with_rounds(self, rounds: u32) -> Self {
        Self(self.0 & !Self::ROUNDS | rounds.min(7) << Self::ROUNDS_SHIFT)
    }

    fn at(self, arrivals: u64) -> Self {
        let when = (arrivals / STEP) as u16;
        Self(self.0 & u32::from(u16::MAX) | u32::from(when) << Self::WHEN_SHIFT)
    }

    /// Arrivals since the last use.
    fn since(self, arrivals: u64) -> u64 {
        let when = (self.0 >> Self::WHEN_SHIFT) as u16;
        u64::from(((arrivals / STEP) as u16).wrapping_sub(when)) * STEP
    }
}

/// See the module.
pub(super) struct S3Fifo {
    small: List,
    main: List,
    /// Blocks of each queue, those that have stepped out included.
    small_blocks: u64,
    main_blocks: u64,
    /// Blocks that ever came in.
    arrivals: u64,
    /// Rounds of the block that left last.
    rounds: u32,
    listed: u64,
    /// Ends of chains that are listed.
    free_ends: u64,
    ghosts: Ghosts,
}

impl S3Fifo {
    pub(super) fn new() -> Self {
        let (small, main, ghosts) = (List::new(), List::new(), Ghosts::new());
        Self { small, main, small_blocks: 0, main_blocks: 0, arrivals: 0, rounds: 0, listed: 0, free_ends: 0, ghosts }
    }

    fn queue(&mut self, mark: Mark) -> &mut List {
        if mark.has(Mark::MAIN) { &mut self.main } else { &mut self.small }
    }

    /// Stands in its queue from now on, at the hot end or, if it is due, at the cold end.
    fn enter(&mut self, nodes: &mut dyn Nodes, node: u32, mark: Mark, due: bool) {
        let mark = mark.with(Mark::IN_QUEUE | Mark::ENTERED, true);
        nodes.set_mark(node, mark.0);
        let queue = self.queue(mark);
        if due { queue.push_coldest(nodes, node) } else { queue.push_hottest(nodes, node) }
    }

    fn step_out(&mut self, nodes: &mut dyn Nodes, node: u32) -> Mark {
        let mark = Mark(nodes.mark(node));
        if mark.has(Mark::IN_QUEUE) {
            self.queue(mark).remove(nodes, node);
        }
        let mark = mark.with(Mark::IN_QUEUE, false);
        nodes.set_mark(node, mark.0);
        mark
    }

    /// The block belongs to the main queue from now on, and so does all that lies above it: else parents that their
    /// children keep would fill up the small queue for good.
    fn move_on(&mut self, nodes: &mut dyn Nodes, node: u32) {
        let mut at = Some(node);
        while let Some(node) = at {
            let mark = Mark(nodes.mark(node));
            if mark.has(Mark::MAIN) {
                return;
            }
            nodes.step();
            let waits = mark.has(Mark::IN_QUEUE);
            let mark = self.step_out(nodes, node).with(Mark::MAIN, true).with_uses(0).with_rounds(0);
            nodes.set_mark(node, mark.0);
            self.small_blocks -= 1;
            self.main_blocks += 1;
            if waits {
                self.enter(nodes, node, mark, false);
            }
            at = nodes.parent(node);
        }
    }

    fn next_due(&self) -> Option<u32> {
        let blocks = self.small_blocks + self.main_blocks;
        let small_first = self.small_blocks * SMALL_PART >= blocks;
        let (first, second) = if small_first { (&self.small, &self.main) } else { (&self.main, &self.small) };
        first.coldest().or(second.coldest())
    }

    fn list_at(&mut self, nodes: &mut dyn Nodes, node: u32, coldest: bool) {
        let mark = Mark(nodes.mark(node)).with(Mark::LISTED, true);
        nodes.set_mark(node, mark.0);
        self.listed += 1;
        let is_end = nodes.is_end(node);
        self.free_ends += u64::from(is_end);
        // One whose turn has come waits outside until nothing hangs on it.
        if !mark.has(Mark::IN_QUEUE) && (is_end || !mark.has(Mark::ENTERED)) {
            self.enter(nodes, node, mark, coldest || mark.has(Mark::ENTERED));
        }
    }
}

impl Policy for S3Fifo {
    fn wants_ends(&self) -> bool {
        true
    }

    fn arrived(&mut self, nodes: &mut dyn Nodes, node: u32, print: u64) {
        self.small_blocks += 1;
        self.arrivals += 1;
        // The store that brought it is no use of it.
        nodes.set_mark(node, Mark(Mark::LOADED | Mark::FRESH).at(self.arrivals).0);
        if self.ghosts.take(print) {
            self.move_on(nodes, node);
        }
        // Its parent came in right before it, and leaves it its place: a long chain is one turn, not many.
        if let Some(parent) = nodes.parent(node) {
            let (own, above) = (Mark(nodes.mark(node)), Mark(nodes.mark(parent)));
            if above.has(Mark::FRESH) && above.has(Mark::MAIN) == own.has(Mark::MAIN) {
                self.step_out(nodes, parent);
            }
        }
    }

    fn departed(&mut self, nodes: &mut dyn Nodes, node: u32, print: u64) {
        let mark = self.step_out(nodes, node);
        self.rounds = mark.rounds();
        if mark.has(Mark::MAIN) {
            self.main_blocks -= 1;
        } else {
            self.small_blocks -= 1;
            let blocks = self.small_blocks + self.main_blocks + 1;
            self.ghosts.keep(print, blocks - blocks / SMALL_PART);
        }
    }

    fn list(&mut self, nodes: &mut dyn Nodes, node: u32, _: Option<u32>) {
        self.list_at(nodes, node, false);
    }

    fn list_coldest(&mut self, nodes: &mut dyn Nodes, node: u32) {
        self.list_at(nodes, node, true);
    }

    fn unlist(&mut self, nodes: &mut dyn Nodes, node: u32) {
        nodes.set_mark(node, Mark(nodes.mark(node)).with(Mark::LISTED, false).0);
        self.listed -= 1;
        self.free_ends -= u64::from(nodes.is_end(node));
    }

    fn covered(&mut self, _: &mut dyn Nodes, _: u32, listed: bool) {
        self.free_ends -= u64::from(listed);
    }

    fn exposed(&mut self, nodes: &mut dyn Nodes, node: u32, listed: bool) {
        // It has been through the rounds of the child that stood for it: else each block of a chain would have all
        // of its own, and a chain would never leave.
        let mark = Mark(nodes.mark(node));
        let mark = mark.with_uses(mark.uses().saturating_sub(self.rounds)).with_rounds(mark.rounds() + self.rounds);
        nodes.set_mark(node, mark.0);
        if listed {
            self.free_ends += 1;
            if !mark.has(Mark::IN_QUEUE) {
                self.enter(nodes, node, mark, true);
            }
        }
    }

    fn used(&mut self, nodes: &mut dyn Nodes, node: u32, _: bool, kind: Use) {
        let mark = Mark(nodes.mark(node));
        let counts = match kind {
            Use::Guard => return,
            Use::Load => true,
            Use::Store => {
                let blocks = self.small_blocks + self.main_blocks;
                !mark.has(Mark::LOADED) && mark.since(self.arrivals) * ONE_USE_PART > blocks
            }
        };
        let uses = (mark.uses() + u32::from(counts)).min(USES_MAX);
        nodes.set_mark(
            node,
            mark.with(Mark::FRESH, false).with(Mark::LOADED, kind == Use::Load).with_uses(uses).at(self.arrivals).0,
        );
    }

    fn victim(&mut self, nodes: &mut dyn Nodes, before: u64) -> Search {
        let mut second_best = None;
        let mut guarded = 0;
        for _ in 0..SCAN_MAX {
            let Some(node) = self.next_due().filter(|_| self.free_ends > 0) else { return Search::None };
            nodes.step();
            let mark = Mark(nodes.mark(node));
            let evictable = nodes.stamp(node) < before;
            guarded += u64::from(!evictable);
            if guarded > self.small.len() + self.main.len() {
                // All that is left belongs to the very request that needs room.
                return second_best.map_or(Search::None, Search::Found);
            }
            if !mark.has(Mark::LISTED) || !nodes.is_end(node) {
                self.step_out(nodes, node);
            } else if !mark.has(Mark::MAIN) && mark.uses() >= MOVE_USES {
                self.move_on(nodes, node);
            } else if evictable && (!mark.has(Mark::MAIN) || mark.uses() == 0) {
                return Search::Found(node);
            } else {
                // Another round; for one of the very request that needs room, without a use less.
                second_best = second_best.or(evictable.then_some(node));
                let mark = self.step_out(nodes, node);
                let spent = u32::from(evictable);
                let mark = mark.with_uses(mark.uses().saturating_sub(spent)).with_rounds(mark.rounds() + spent);
                self.enter(nodes, node, mark, false);
            }
        }
        second_best.map_or(Search::More, Search::Found)
    }

    fn has_victim(&self) -> bool {
        self.free_ends > 0
    }

    fn len(&self) -> u64 {
        self.listed
    }

    fn memory_bytes(&self) -> usize {
        self.ghosts.memory_bytes()
    }
}
