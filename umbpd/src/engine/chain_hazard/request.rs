//! How the engine's calls become requests, and requests runs.

use std::collections::HashMap;

use super::runs::{Kind, Run, State};
use super::{ALL_CLASSES, ChainHazard};
use crate::engine::policy::{Nodes, Use};
use crate::engine::slab::NONE;

/// Children from which on a block counts as shared by unrelated chains.
const FAN_KIDS: u32 = 8;
/// A request's growth falls into classes: up to so many blocks that were not seen before.
const GROW_BLOCKS: [u32; 3] = [4, 8, 16];
/// A fresh prompt's length does: up to so many blocks.
const LEN_BLOCKS: [u32; 4] = [16, 32, 64, 128];

/// How many of these are below.
fn above(steps: &[u32], blocks: u32) -> u8 {
    steps.iter().filter(|step| blocks > **step).count() as u8
}

impl ChainHazard {
    /// A call is complete: its blocks are one path to a root, or several where it was about several chains.
    pub(super) fn requests(&mut self, nodes: &mut dyn Nodes, kind: Use) {
        let path = std::mem::take(&mut self.path);
        if path.is_empty() {
            return;
        }
        for piece in pieces(nodes, &path) {
            self.learned.begin();
            self.stale = ALL_CLASSES;
            let added = match self.open_run(nodes, kind, &piece) {
                Some((number, at)) => self.go_on(nodes, kind, number, &piece, at),
                None => self.new_request(nodes, kind, &piece),
            };
            self.learned.end(added as u64);
            self.stale = ALL_CLASSES;
        }
        self.path = path;
        self.adopt_strays(nodes);
    }

    /// The run that this path goes on with, and where in the path its last block is.
    fn open_run(&self, nodes: &dyn Nodes, kind: Use, piece: &[u32]) -> Option<(u32, usize)> {
        let ends_at = |at: &usize| {
            let run = State::of(nodes, piece[*at]).run;
            // A run is one path: where something has come in below its last block already, more is a run of its own.
            run != NONE && self.runs[run].last == piece[*at] && self.runs[run].deep == piece[*at]
        };
        let at = match kind {
            // What is stored now lies below what the request had.
            Use::Store => piece.iter().position(|node| State::of(nodes, *node).run != NONE).filter(ends_at)?,
            // The next slice of one long load.
            _ => (1..piece.len()).find(ends_at)?,
        };
        let number = State::of(nodes, piece[at]).run;
        let run = &self.runs[number];
        let age = self.learned.now.saturating_sub(run.touched + u64::from(run.total));
        let is_open = if kind == Use::Store { age <= self.learned.first_age() } else { age == 0 };
        is_open.then_some((number, at))
    }

    fn new_request(&mut self, nodes: &mut dyn Nodes, kind: Use, piece: &[u32]) -> usize {
        let number = self.runs.insert(self.blank_run(self.learned.now));
        let attached = piece.iter().position(|node| State::of(nodes, *node).run != NONE);
        let fanned = attached.is_some_and(|at| nodes.kids(piece[at]) >= FAN_KIDS + u32::from(at > 0));
        let mut old = 0;
        for node in piece {
            old += u32::from(self.take_in(nodes, number, *node));
        }
        let known = self.known_among(nodes, &piece[..attached.unwrap_or(piece.len())]);
        let run = &mut self.runs[number];
        (run.deep, run.total, run.before, run.fanned) =
            (piece[0], piece.len() as u32, old + known, fanned && known == 0);
        self.settle(nodes, kind, number, piece);
        piece.len()
    }

    /// More blocks of a request, below its last one so far.
    fn go_on(&mut self, nodes: &mut dyn Nodes, kind: Use, number: u32, piece: &[u32], at: usize) -> usize {
        if at == 0 {
            // Nothing new here: the store was of another tier.
            return 0;
        }
        self.unqueue(number);
        let run = self.runs[number];
        for (node, marked) in piece[at..].iter().zip(run.marked) {
            if marked {
                State { end: false, ..State::of(nodes, *node) }.save(nodes, *node);
            }
        }
        for node in &piece[at..] {
            let state = State::of(nodes, *node);
            if state.run == number {
                self.learned.forget(run.class_of(*node, state.uses), run.slot);
            }
        }
        let mut old = 0;
        for node in &piece[..at] {
            old += u32::from(self.take_in(nodes, number, *node));
        }
        let known = self.known_among(nodes, &piece[..at]);
        let run = &mut self.runs[number];
        if old > 0 || known > 0 {
            run.before = run.total + old + known;
            run.fanned = false;
        }
        (run.deep, run.total, run.marked) = (piece[0], run.total + at as u32, [false; 2]);
        self.settle(nodes, kind, number, piece);
        at
    }

    /// A block becomes part of a run. True if it was here before.
    fn take_in(&mut self, nodes: &mut dyn Nodes, number: u32, node: u32) -> bool {
        let mut state = State::of(nodes, node);
        let was_here = state.run != NONE;
        if was_here {
            let run = self.runs[state.run];
            self.learned.used(run.class_of(node, state.uses), run.slot);
            self.leave(nodes, node);
            state = state.used_again();
        } else {
            self.forget_stray(nodes, node);
        }
        State { run: number, ..state }.save(nodes, node);
        self.runs[number].blocks += 1;
        was_here
    }

    /// How many of these new blocks, from the head on, had been seen before: all above one that is known are.
    fn known_among(&self, nodes: &mut dyn Nodes, new: &[u32]) -> u32 {
        let Some(deepest) = new.iter().position(|node| State::of(nodes, *node).known) else { return 0 };
        let mut uses = 1;
        for node in &new[deepest..] {
            let state = State::of(nodes, *node);
            uses = uses.max(state.uses);
            State { uses, known: false, ..state }.save(nodes, *node);
        }
        (new.len() - deepest) as u32
    }

    /// Says what the request looks like now, and watches its blocks from here on.
    fn settle(&mut self, nodes: &mut dyn Nodes, kind: Use, number: u32, piece: &[u32]) {
        let mut run = self.runs[number];
        let added = run.total.saturating_sub(run.before);
        let from_head = |place: u32| piece.len().checked_sub(1 + place as usize).map(|at| piece[at]);
        let is_end = |place: &u32| from_head(*place).is_some_and(|node| State::of(nodes, node).end);
        let ended = (1..run.before).rev().find(is_end).map_or(0, |place| place + 1);
        run.kind = if added == 0 || (run.before > 0 && ended == run.before) {
            Kind::On
        } else if run.before == 0 || run.fanned {
            Kind::Fresh
        } else {
            Kind::Branch
        };
        (run.last, run.grow, run.len) = (piece[0], above(&GROW_BLOCKS, added), above(&LEN_BLOCKS, run.total));
        for node in piece {
            let state = State::of(nodes, *node);
            if state.run == number {
                self.learned.watch(run.class_of(*node, state.uses), run.slot);
            }
        }
        // A load may be followed by the store that ends the request.
        if kind == Use::Store {
            for (node, marked) in piece.iter().zip(&mut run.marked) {
                let state = State::of(nodes, *node);
                *marked = !state.end;
                State { end: true, ..state }.save(nodes, *node);
            }
        }
        self.runs[number] = run;
        self.queue(nodes, number);
    }

    fn blank_run(&self, touched: u64) -> Run {
        Run {
            touched,
            slot: self.learned.slot,
            deep: NONE,
            last: NONE,
            blocks: 0,
            total: 0,
            before: 0,
            kind: Kind::Fresh,
            grow: 0,
            len: 0,
            class: 0,
            queued: false,
            fanned: false,
            marked: [false; 2],
        }
    }

    /// Listed copies that came in without a request get a run, the oldest first.
    pub(super) fn adopt_strays(&mut self, nodes: &mut dyn Nodes) {
        for _ in 0..super::STRAYS_MAX {
            let Some((_, node)) = self.strays.pop_first() else { return };
            nodes.step();
            self.adopt(nodes, node, false);
        }
    }

    /// A copy without a request: it came up from a lower tier, down from the first, or from an earlier life (then it
    /// is colder than all others). It goes on with the run of its parent, where that ends there and is as young.
    pub(super) fn adopt(&mut self, nodes: &mut dyn Nodes, node: u32, is_cold: bool) {
        let state = State::of(nodes, node);
        let parent = nodes.parent(node);
        let is_young = |run: &Run| {
            let age = self.learned.now.saturating_sub(run.touched + u64::from(run.total));
            if is_cold { run.touched < super::TIME_ZERO } else { age <= self.learned.first_age() }
        };
        let above =
            parent.and_then(|parent| self.run_ending_at(nodes, parent)).filter(|run| is_young(&self.runs[*run]));
        let number = above.unwrap_or_else(|| {
            if is_cold {
                self.cold = self.cold.saturating_sub(1);
            }
            let kind = match (state.uses, parent) {
                (1.., _) => Kind::On,
                (0, None) => Kind::Fresh,
                (0, Some(_)) => Kind::Branch,
            };
            let touched = if is_cold { self.cold } else { self.learned.now };
            self.runs.insert(Run { kind, ..self.blank_run(touched) })
        });
        self.unqueue(number);
        State { run: number, known: false, ..state }.save(nodes, node);
        let run = &mut self.runs[number];
        run.blocks += 1;
        run.deep = node;
        let (class, slot) = (run.class_of(node, state.uses), run.slot);
        self.learned.watch(class, slot);
        self.queue(nodes, number);
    }
}

/// Parts a call's blocks, the deepest first, into paths of blocks that hang on each other.
fn pieces(nodes: &dyn Nodes, path: &[u32]) -> Vec<Vec<u32>> {
    let mut pieces: Vec<Vec<u32>> = Vec::new();
    // By the block that comes next in it.
    let mut open: HashMap<u32, usize> = HashMap::new();
    for node in path {
        let piece = open.remove(node).unwrap_or_else(|| {
            pieces.push(Vec::new());
            pieces.len() - 1
        });
        pieces[piece].push(*node);
        if let Some(parent) = nodes.parent(*node) {
            open.entry(parent).or_insert(piece);
        }
    }
    pieces
}
