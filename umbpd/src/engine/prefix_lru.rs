//! `prefix-lru`: least recently used first, and a child always before its parent.
//!
//! One intrusive list, coldest to hottest. Invariant: every ancestor of a listed copy that is listed too lies on its
//! hotter side. A use moves a block to the hot end and then, one by one, all its ancestors (the engine walks them);
//! a copy that comes back from being pinned goes right behind its nearest listed ancestor, which the use that pinned
//! it has moved already. Both steps keep the invariant, and both are O(1) per block.

use super::list::List;
use super::policy::{Nodes, Policy, Search, Use};

/// See the module.
pub(super) struct PrefixLru {
    list: List,
}

impl PrefixLru {
    pub(super) fn new() -> Self {
        Self { list: List::new() }
    }
}

impl Policy for PrefixLru {
    fn list(&mut self, nodes: &mut dyn Nodes, node: u32, above: Option<u32>) {
        match above {
            Some(above) => self.list.push_below(nodes, node, above),
            None => self.list.push_hottest(nodes, node),
        }
    }

    fn list_coldest(&mut self, nodes: &mut dyn Nodes, node: u32) {
        self.list.push_coldest(nodes, node);
    }

    fn unlist(&mut self, nodes: &mut dyn Nodes, node: u32) {
        self.list.remove(nodes, node);
    }

    fn used(&mut self, nodes: &mut dyn Nodes, node: u32, listed: bool, _: Use) {
        if listed && self.list.hottest() != Some(node) {
            self.list.remove(nodes, node);
            self.list.push_hottest(nodes, node);
        }
    }

    /// If the coldest was used too lately, so were all others.
    fn victim(&mut self, nodes: &mut dyn Nodes, before: u64) -> Search {
        self.list.coldest().filter(|node| nodes.stamp(*node) < before).map_or(Search::None, Search::Found)
    }

    fn has_victim(&self) -> bool {
        self.list.coldest().is_some()
    }

    fn len(&self) -> u64 {
        self.list.len()
    }
}
