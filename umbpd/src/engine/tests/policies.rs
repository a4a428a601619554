//! Laws of every eviction policy, over a small forest of blocks that the policies are told of as the engine does it.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::engine::api::EvictionPolicy;
use crate::engine::policy::{self, Link, Nodes, Policy, Search, Use};

const BLOCKS: u32 = 40;
const BYTES: u64 = 4096;
/// Copies that a search for a victim looks at, at most, in so small a forest.
const STEPS_MAX: u64 = 1024 + BLOCKS as u64;

const ALL: [EvictionPolicy; 3] = [EvictionPolicy::PrefixLru, EvictionPolicy::S3Fifo, EvictionPolicy::ChainHazard];

/// Block n hangs on block (n - 1) / 2: many chains with shared heads.
fn parent_of(block: u32) -> Option<u32> {
    (block > 0).then(|| (block - 1) / 2)
}

#[derive(Default)]
struct Copy {
    link: Option<Link>,
    mark: u32,
    pins: u32,
    listed: bool,
    stamp: u64,
}

/// A copy's number is its block's.
#[derive(Default)]
struct Forest {
    copies: BTreeMap<u32, Copy>,
    kids: BTreeMap<u32, u32>,
    steps: u64,
    clock: u64,
}

impl Nodes for Forest {
    fn link(&self, node: u32) -> Link {
        self.copies[&node].link.expect("set before it is read")
    }

    fn set_link(&mut self, node: u32, link: Link) {
        self.copies.get_mut(&node).expect("a copy").link = Some(link);
    }

    fn mark(&self, node: u32) -> u32 {
        self.copies[&node].mark
    }

    fn set_mark(&mut self, node: u32, mark: u32) {
        self.copies.get_mut(&node).expect("a copy").mark = mark;
    }

    fn kids(&self, node: u32) -> u32 {
        assert!(self.copies.contains_key(&node));
        self.kids.get(&node).copied().unwrap_or(0)
    }

    fn bytes(&self, _: u32) -> u64 {
        BYTES
    }

    fn stamp(&self, node: u32) -> u64 {
        self.copies[&node].stamp
    }

    fn step(&mut self) {
        self.steps += 1;
    }

    fn parent(&self, node: u32) -> Option<u32> {
        assert!(self.copies.contains_key(&node));
        parent_of(node).filter(|parent| self.copies.contains_key(parent))
    }
}

struct World {
    forest: Forest,
    policy: Box<dyn Policy>,
    is_lru: bool,
}

impl World {
    fn new(policy: EvictionPolicy) -> Self {
        let is_lru = policy == EvictionPolicy::PrefixLru;
        Self { forest: Forest::default(), policy: policy::make(policy, 20 * BYTES), is_lru }
    }

    fn path(block: u32) -> Vec<u32> {
        std::iter::successors(Some(block), |at| parent_of(*at)).collect()
    }

    fn in_order(&self, block: u32) -> bool {
        self.forest.copies.contains_key(&block) || self.forest.kids.get(&block).is_some_and(|kids| *kids > 0)
    }

    /// Tells the nearest ancestor in the order that it has one child more, or one less.
    fn tell_above(&mut self, block: u32, more: bool) {
        let mut at = block;
        while let Some(parent) = parent_of(at) {
            let before = self.in_order(parent);
            let kids = self.forest.kids.entry(parent).or_default();
            *kids = if more { *kids + 1 } else { *kids - 1 };
            let changed = if more { *kids == 1 } else { *kids == 0 };
            if let Some(listed) = self.forest.copies.get(&parent).map(|copy| copy.listed) {
                match (changed, more) {
                    (true, true) => self.policy.covered(&mut self.forest, parent, listed),
                    (true, false) => self.policy.exposed(&mut self.forest, parent, listed),
                    _ => {}
                }
                return;
            }
            if before == self.in_order(parent) {
                return;
            }
            at = parent;
        }
    }

    fn list(&mut self, block: u32) {
        let listed = |block: &u32| self.forest.copies.get(block).is_some_and(|copy| copy.listed);
        let above = Self::path(block).into_iter().skip(1).find(listed);
        self.forest.copies.get_mut(&block).expect("a copy").listed = true;
        self.policy.list(&mut self.forest, block, above);
    }

    fn unlist(&mut self, block: u32) {
        let copy = self.forest.copies.get_mut(&block).expect("a copy");
        if std::mem::take(&mut copy.listed) {
            self.policy.unlist(&mut self.forest, block);
        }
    }

    fn use_path(&mut self, block: u32, kind: Use) {
        self.forest.clock += 1;
        self.policy.begin(kind);
        for at in Self::path(block) {
            let clock = self.forest.clock;
            if let Some(copy) = self.forest.copies.get_mut(&at) {
                copy.stamp = clock;
                let listed = copy.listed;
                self.policy.used(&mut self.forest, at, listed, kind);
            }
        }
        self.policy.end(&mut self.forest, kind);
    }

    /// Stores a block, and before it what it hangs on, down from the last few ancestors.
    fn store(&mut self, block: u32, depth: usize) {
        let new: Vec<u32> = Self::path(block).into_iter().take(1 + depth % 4).collect();
        new.into_iter().rev().for_each(|at| self.put(at));
        self.use_path(block, Use::Store);
    }

    /// A copy comes in without a request, as it does in a lower tier.
    fn put(&mut self, block: u32) {
        if self.forest.copies.contains_key(&block) {
            return;
        }
        if !self.in_order(block) {
            self.tell_above(block, true);
        }
        self.forest.copies.insert(block, Copy::default());
        self.policy.arrived(&mut self.forest, block, print(block));
        self.list(block);
    }

    fn remove(&mut self, block: u32) {
        self.unlist(block);
        self.policy.departed(&mut self.forest, block, print(block));
        self.forest.copies.remove(&block);
        if !self.in_order(block) {
            self.tell_above(block, false);
        }
    }

    fn pin(&mut self, block: u32) {
        self.unlist(block);
        self.forest.copies.get_mut(&block).expect("a copy").pins += 1;
    }

    fn unpin(&mut self, block: u32) {
        let copy = self.forest.copies.get_mut(&block).expect("a copy");
        copy.pins -= 1;
        if copy.pins == 0 {
            self.list(block);
        }
    }

    fn victim(&mut self, before: u64) -> Option<u32> {
        self.forest.steps = 0;
        let victim = match self.policy.victim(&mut self.forest, before) {
            Search::Found(victim) => Some(victim),
            Search::None => None,
            Search::More => panic!("one search looks at all of so small a forest"),
        };
        assert!(self.forest.steps <= STEPS_MAX, "{} copies looked at", self.forest.steps);
        let victim = victim?;
        assert!(self.forest.copies[&victim].listed && self.forest.copies[&victim].stamp < before);
        for (block, copy) in &self.forest.copies {
            let is_below = *block != victim && Self::path(*block).contains(&victim);
            assert!(!(is_below && copy.listed), "{victim} before {block}, which hangs on it");
        }
        Some(victim)
    }

    fn step(&mut self, (what, a): (u8, u32)) {
        let block = a % BLOCKS;
        let here = self.forest.copies.contains_key(&block);
        match what {
            0..=4 => self.store(block, a as usize / 64),
            5..=6 if here => {
                self.use_path(block, Use::Load);
                self.pin(block);
            }
            7 if here => self.use_path(block, Use::Load),
            8 if here => self.use_path(block, Use::Guard),
            9..=11 if here && self.forest.copies[&block].pins > 0 => self.unpin(block),
            12..=15 => {
                let before = if what == 12 { self.forest.clock } else { u64::MAX };
                if let Some(victim) = self.victim(before) {
                    self.remove(victim);
                }
            }
            // Lost to a failure: in the middle of a chain, perhaps.
            16 if here && self.forest.copies[&block].pins == 0 => self.remove(block),
            17..=18 => self.put(block),
            _ => {}
        }
        let listed = self.forest.copies.values().filter(|copy| copy.listed).count() as u64;
        assert_eq!(self.policy.len(), listed);
        let blocked =
            |block: &u32| self.forest.copies.keys().any(|other| other != block && Self::path(*other).contains(block));
        let free = self.forest.copies.iter().any(|(block, copy)| copy.listed && (self.is_lru || !blocked(block)));
        assert!(self.policy.has_victim() || !free, "something may leave");
    }

    /// All pins end; then everything comes out, each once.
    fn empty(mut self) {
        let pinned: Vec<u32> = self.forest.copies.iter().filter(|(_, copy)| copy.pins > 0).map(|(n, _)| *n).collect();
        for block in pinned {
            self.forest.copies.get_mut(&block).expect("a copy").pins = 1;
            self.unpin(block);
        }
        while let Some(victim) = self.victim(u64::MAX) {
            self.remove(victim);
        }
        assert!(self.forest.copies.is_empty(), "left: {:?}", self.forest.copies.keys());
        assert_eq!((self.policy.len(), self.policy.has_victim()), (0, false));
    }
}

fn print(block: u32) -> u64 {
    (u64::from(block) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_policy_lets_a_block_leave_before_what_hangs_on_it_and_each_leaves_once(
        steps in prop::collection::vec((0_u8..19, any::<u32>()), 1..300)
    ) {
        for policy in ALL {
            let mut world = World::new(policy);
            steps.iter().for_each(|step| world.step(*step));
            world.empty();
        }
    }
}

#[test]
fn a_block_that_was_pinned_is_no_new_block() {
    // Used twice while it was pinned each time: it has moved on, and what is new leaves before it.
    let mut world = World::new(EvictionPolicy::S3Fifo);
    world.store(0, 0);
    for _ in 0..2 {
        world.use_path(0, Use::Load);
        world.pin(0);
        world.unpin(0);
    }
    // Roots of their own, as far as they are here.
    (20..36).for_each(|block| world.store(block, 0));
    let mut order = Vec::new();
    while let Some(victim) = world.victim(u64::MAX) {
        order.push(victim);
        world.remove(victim);
    }
    assert_eq!((order.len(), order.last()), (17, Some(&0)), "{order:?}");
}

#[test]
fn a_run_of_blocks_does_not_fork() {
    // Blocks that come in above others, by pieces, in an order that once left some behind for ever.
    let mut world = World::new(EvictionPolicy::ChainHazard);
    for (block, depth) in [(4, 0), (0, 0), (23, 2), (21, 0), (21, 3), (19, 3)] {
        world.store(block, depth);
    }
    world.empty();
}

#[test]
fn a_block_that_was_used_and_has_left_is_in_no_list_of_those_without_a_request() {
    // A copy's number is another's as soon as it has left: whoever is still asked of it, is asked of the wrong one.
    let blocks = 1000..1000 + 600;
    let mut world = World::new(EvictionPolicy::ChainHazard);
    blocks.clone().for_each(|block| world.put(block));
    world.policy.begin(Use::Load);
    for block in blocks.clone() {
        world.policy.used(&mut world.forest, block, true, Use::Load);
    }
    world.policy.end(&mut world.forest, Use::Load);
    blocks.clone().for_each(|block| world.remove(block));
    assert!(!world.policy.has_victim(), "an empty order");
    assert_eq!(world.victim(u64::MAX), None);
}

/// Searches until something is found, or there is nothing to find.
fn search(world: &mut World, before: u64) -> Option<u32> {
    for _ in 0..64 {
        match world.policy.victim(&mut world.forest, before) {
            Search::Found(victim) => return Some(victim),
            Search::None => return None,
            Search::More => {}
        }
    }
    panic!("a search without end");
}

#[test]
fn a_search_that_goes_on_finds_what_came_in_behind_it() {
    let mut world = World::new(EvictionPolicy::ChainHazard);
    world.store(1000, 0);
    world.pin(1000);
    let before = world.forest.clock + 1;
    (1001..1200).for_each(|block| world.store(block, 0));
    assert_eq!(world.policy.victim(&mut world.forest, before), Search::More);
    world.unpin(1000);
    assert_eq!(search(&mut world, before), Some(1000));
    world.remove(1000);
    assert_eq!(search(&mut world, before), None, "all others were used since");
}

#[test]
fn a_search_is_not_over_while_there_are_blocks_without_a_request() {
    let mut world = World::new(EvictionPolicy::ChainHazard);
    // A full tree: its inner blocks and one leaf are all that one call gives a run.
    (0..511).for_each(|block| world.put(block));
    world.forest.clock = 10;
    (0..510).for_each(|block| world.forest.copies.get_mut(&block).expect("a copy").stamp = 10);
    assert_eq!(search(&mut world, 10), Some(510));
}
