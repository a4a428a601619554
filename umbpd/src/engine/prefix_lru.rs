//! `prefix-lru`: least recently used first, and a child always before its parent.
//!
//! One intrusive list, coldest to hottest. Invariant: every ancestor of a listed copy that is listed too lies on its
//! hotter side. A use moves a block to the hot end and then, one by one, all its ancestors (the engine walks them);
//! a copy that comes back from being pinned goes right behind its nearest listed ancestor, which the use that pinned
//! it has moved already. Both steps keep the invariant, and both are O(1) per block.

use super::policy::{Link, Nodes, Policy};
use super::slab::NONE;

/// See the module.
pub(super) struct PrefixLru {
    coldest: u32,
    hottest: u32,
    len: u64,
}

impl PrefixLru {
    pub(super) fn new() -> Self {
        Self { coldest: NONE, hottest: NONE, len: 0 }
    }

    fn put_between(&mut self, nodes: &mut dyn Nodes, node: u32, colder: u32, hotter: u32) {
        nodes.set_link(node, Link { colder, hotter });
        if colder == NONE {
            self.coldest = node;
        } else {
            let link = nodes.link(colder);
            nodes.set_link(colder, Link { hotter: node, ..link });
        }
        if hotter == NONE {
            self.hottest = node;
        } else {
            let link = nodes.link(hotter);
            nodes.set_link(hotter, Link { colder: node, ..link });
        }
        self.len += 1;
    }
}

impl Policy for PrefixLru {
    fn insert(&mut self, nodes: &mut dyn Nodes, node: u32, above: Option<u32>) {
        match above {
            Some(above) => {
                let colder = nodes.link(above).colder;
                self.put_between(nodes, node, colder, above);
            }
            None => self.put_between(nodes, node, self.hottest, NONE),
        }
    }

    fn insert_coldest(&mut self, nodes: &mut dyn Nodes, node: u32) {
        self.put_between(nodes, node, NONE, self.coldest);
    }

    fn touch(&mut self, nodes: &mut dyn Nodes, node: u32) {
        if self.hottest != node {
            self.remove(nodes, node);
            self.put_between(nodes, node, self.hottest, NONE);
        }
    }

    fn remove(&mut self, nodes: &mut dyn Nodes, node: u32) {
        let Link { colder, hotter } = nodes.link(node);
        if colder == NONE {
            self.coldest = hotter;
        } else {
            let link = nodes.link(colder);
            nodes.set_link(colder, Link { hotter, ..link });
        }
        if hotter == NONE {
            self.hottest = colder;
        } else {
            let link = nodes.link(hotter);
            nodes.set_link(hotter, Link { colder, ..link });
        }
        self.len -= 1;
    }

    fn victim(&self) -> Option<u32> {
        (self.coldest != NONE).then_some(self.coldest)
    }

    fn len(&self) -> u64 {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Nodes for Vec<Link> {
        fn link(&self, node: u32) -> Link {
            self[node as usize]
        }

        fn set_link(&mut self, node: u32, link: Link) {
            self[node as usize] = link;
        }
    }

    fn check(steps: impl Fn(&mut PrefixLru, &mut Vec<Link>), order: &[u32]) {
        let mut nodes = vec![Link { colder: NONE, hotter: NONE }; 8];
        let mut list = PrefixLru::new();
        steps(&mut list, &mut nodes);
        let mut found = Vec::new();
        while let Some(node) = list.victim() {
            list.remove(&mut nodes, node);
            found.push(node);
        }
        assert_eq!((found.as_slice(), list.len()), (order, 0));
    }

    #[test]
    fn victims_leave_in_order_of_last_use() {
        check(|list, nodes| (0..4).for_each(|n| list.insert(nodes, n, None)), &[0, 1, 2, 3]);
        check(
            |list, nodes| {
                (0..4).for_each(|n| list.insert(nodes, n, None));
                [1, 0, 3].iter().for_each(|n| list.touch(nodes, *n));
            },
            &[2, 1, 0, 3],
        );
    }

    #[test]
    fn a_child_is_put_right_behind_its_ancestor() {
        check(
            |list, nodes| {
                (0..3).for_each(|n| list.insert(nodes, n, None));
                list.insert(nodes, 5, Some(1));
                list.insert(nodes, 6, Some(0));
            },
            &[6, 0, 5, 1, 2],
        );
    }

    #[test]
    fn the_coldest_end_takes_what_was_used_before_all_others() {
        check(
            |list, nodes| {
                list.insert(nodes, 0, None);
                list.insert_coldest(nodes, 1);
                list.insert_coldest(nodes, 2);
            },
            &[2, 1, 0],
        );
    }
}
