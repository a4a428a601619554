//! An intrusive list of copies, coldest to hottest: every move is O(1).

use super::policy::{Link, Nodes};
use super::slab::NONE;

/// See the module.
pub(super) struct List {
    coldest: u32,
    hottest: u32,
    len: u64,
}

impl List {
    pub(super) fn new() -> Self {
        Self { coldest: NONE, hottest: NONE, len: 0 }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn coldest(&self) -> Option<u32> {
        (self.coldest != NONE).then_some(self.coldest)
    }

    pub(super) fn hottest(&self) -> Option<u32> {
        (self.hottest != NONE).then_some(self.hottest)
    }

    pub(super) fn push_hottest(&mut self, nodes: &mut dyn Nodes, node: u32) {
        self.put_between(nodes, node, self.hottest, NONE);
    }

    pub(super) fn push_coldest(&mut self, nodes: &mut dyn Nodes, node: u32) {
        self.put_between(nodes, node, NONE, self.coldest);
    }

    /// Right on the colder side of a listed one.
    pub(super) fn push_below(&mut self, nodes: &mut dyn Nodes, node: u32, above: u32) {
        let colder = nodes.link(above).colder;
        self.put_between(nodes, node, colder, above);
    }

    fn put_between(&mut self, nodes: &mut dyn Nodes, node: u32, colder: u32, hotter: u32) {
        nodes.set_link(node, Link { colder, hotter });
        match colder {
            NONE => self.coldest = node,
            colder => {
                let link = nodes.link(colder);
                nodes.set_link(colder, Link { hotter: node, ..link });
            }
        }
        match hotter {
            NONE => self.hottest = node,
            hotter => {
                let link = nodes.link(hotter);
                nodes.set_link(hotter, Link { colder: node, ..link });
            }
        }
        self.len += 1;
    }

    /// Takes out one that is in the list.
    pub(super) fn remove(&mut self, nodes: &mut dyn Nodes, node: u32) {
        let Link { colder, hotter } = nodes.link(node);
        match colder {
            NONE => self.coldest = hotter,
            colder => {
                let link = nodes.link(colder);
                nodes.set_link(colder, Link { hotter, ..link });
            }
        }
        match hotter {
            NONE => self.hottest = colder,
            hotter => {
                let link = nodes.link(hotter);
                nodes.set_link(hotter, Link { colder, ..link });
            }
        }
        self.len -= 1;
    }
}
