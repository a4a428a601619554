//! How copies come into their policy's order and out of it, and how their uses are told to it.

use umbp_protocol::message::WireKey;

use super::index::{CUT, Index};
use super::policy::{Link, Nodes, Policy, Search, Use};
use super::slab::{NONE, Slab, Words};
use super::state::{DRAM, Engine};
use super::tier::{BlockCopy, CopyState, LISTED, TRACKED, Tier, UNPLACED};

/// Searches for a victim that one call goes on with at most, where they find none among those that they look at.
const SEARCHES_PER_CALL_MAX: usize = 64;

/// What a policy sees of a tier.
struct View<'a> {
    tier: usize,
    copies: &'a mut Slab<BlockCopy>,
    marks: &'a mut Words<u32>,
    kids: &'a Words<u32>,
    index: &'a Index,
    work: &'a mut u64,
}

impl Nodes for View<'_> {
    fn link(&self, node: u32) -> Link {
        self.copies[node].link
    }

    fn set_link(&mut self, node: u32, link: Link) {
        self.copies[node].link = link;
    }

    fn mark(&self, node: u32) -> u32 {
        self.marks.get(node)
    }

    fn set_mark(&mut self, node: u32, mark: u32) {
        self.marks.set(node, mark);
    }

    fn kids(&self, node: u32) -> u32 {
        self.kids.get(self.copies[node].entry)
    }

    fn bytes(&self, node: u32) -> u64 {
        u64::from(self.copies[node].bytes)
    }

    fn stamp(&self, node: u32) -> u64 {
        self.index[self.copies[node].entry].stamp
    }

    fn step(&mut self) {
        *self.work += 1;
    }

    fn parent(&self, node: u32) -> Option<u32> {
        let above = self.index.above(self.copies[node].entry)?;
        let copy = self.index.copy(above, self.tier);
        (copy != NONE && self.copies[copy].is(TRACKED)).then_some(copy)
    }
}

/// A word that stands for a key; the same in every life, since nothing but the key goes into it.
pub(super) fn print_of(key: &WireKey) -> u64 {
    let mut print = u64::from(key.namespace.0).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for chunk in key.local.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        print = (print ^ u64::from_le_bytes(word)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        print ^= print >> 32;
    }
    print
}

impl Engine {
    /// Calls the policy of a tenant in a tier.
    fn with_order<T>(
        &mut self,
        tier: usize,
        tenant: usize,
        call: impl FnOnce(&mut dyn Policy, &mut dyn Nodes) -> T,
    ) -> T {
        let Tier { orders, copies, marks, kids, .. } = &mut self.tiers[tier];
        call(&mut *orders[tenant], &mut View { tier, copies, marks, kids, index: &self.index, work: &mut self.work })
    }

    fn tenant_at(&self, tier: usize, slot: u32) -> usize {
        usize::from(self.tiers[tier].copies[slot].tenant)
    }

    /// A copy of the first tier that is being written or filled: its ancestors must not leave before it is there.
    fn is_coming(&self, tier: usize, entry: u32) -> bool {
        let copy = self.index.copy(entry, tier);
        let state = |copy: u32| self.tiers[tier].copies[copy].state;
        copy != NONE && matches!(state(copy), CopyState::Writing | CopyState::Filling)
    }

    /// A copy of the first tier is to be written or filled.
    pub(super) fn expect(&mut self, entry: u32) {
        if self.tiers[DRAM].wants_ends && self.tiers[DRAM].kids.get(entry) == 0 {
            self.cover_above(DRAM, entry);
        }
    }

    /// It will not be, or it is there and tracked from now on.
    pub(super) fn unexpect(&mut self, entry: u32) {
        if self.tiers[DRAM].wants_ends && self.tiers[DRAM].kids.get(entry) == 0 {
            self.uncover_above(DRAM, entry);
        }
    }

    /// The policy learns of a copy, once.
    pub(super) fn track(&mut self, tier: usize, slot: u32) {
        let copy = &mut self.tiers[tier].copies[slot];
        if copy.is(TRACKED) {
            return;
        }
        copy.flags |= TRACKED;
        let (entry, tenant) = (copy.entry, usize::from(copy.tenant));
        if self.tiers[tier].wants_ends {
            if self.tiers[tier].kids.get(entry) == 0 {
                self.cover_above(tier, entry);
            }
            let print = print_of(&self.index[entry].key);
            self.with_order(tier, tenant, |order, nodes| order.arrived(nodes, slot, print));
        }
    }

    /// The policy forgets a copy.
    pub(super) fn untrack(&mut self, tier: usize, slot: u32) {
        self.unlist(tier, slot);
        let copy = &mut self.tiers[tier].copies[slot];
        if !copy.is(TRACKED) {
            return;
        }
        copy.flags &= !TRACKED;
        let (entry, tenant) = (copy.entry, usize::from(copy.tenant));
        if self.tiers[tier].wants_ends {
            let print = print_of(&self.index[entry].key);
            self.with_order(tier, tenant, |order, nodes| order.departed(nodes, slot, print));
            if self.tiers[tier].kids.get(entry) == 0 {
                self.uncover_above(tier, entry);
            }
        }
    }

    /// The entry's tracked copy in a tier, if it has one.
    fn tracked(&self, tier: usize, entry: u32) -> Option<u32> {
        let copy = self.index.copy(entry, tier);
        (copy != NONE && self.tiers[tier].copies[copy].is(TRACKED)).then_some(copy)
    }

    /// The entry has a copy in the order from now on, itself or below it: its nearest ancestor there is no end of a
    /// chain. Entries without a copy of their own in between count along.
    fn cover_above(&mut self, tier: usize, entry: u32) {
        let mut at = entry;
        while let Some(parent) = self.index.above(at) {
            let kids = self.tiers[tier].kids.get(parent);
            self.tiers[tier].kids.set(parent, kids + 1);
            self.work += 1;
            if let Some(copy) = self.tracked(tier, parent) {
                if kids == 0 {
                    let (tenant, listed) = (self.tenant_at(tier, copy), self.tiers[tier].copies[copy].is(LISTED));
                    self.with_order(tier, tenant, |order, nodes| order.covered(nodes, copy, listed));
                }
                return;
            }
            if kids > 0 || self.is_coming(tier, parent) {
                return;
            }
            at = parent;
        }
    }

    /// The reverse of [`Engine::cover_above`].
    fn uncover_above(&mut self, tier: usize, entry: u32) {
        let mut at = entry;
        while let Some(parent) = self.index.above(at) {
            let kids = self.tiers[tier].kids.get(parent);
            if kids == 0 {
                return self.fault();
            }
            self.tiers[tier].kids.set(parent, kids - 1);
            self.work += 1;
            if kids > 1 {
                return;
            }
            if let Some(copy) = self.tracked(tier, parent) {
                let (tenant, listed) = (self.tenant_at(tier, copy), self.tiers[tier].copies[copy].is(LISTED));
                self.with_order(tier, tenant, |order, nodes| order.exposed(nodes, copy, listed));
                return;
            }
            if self.is_coming(tier, parent) {
                return;
            }
            at = parent;
        }
    }

    /// Says where an entry hangs, as [`Index::hang`] does. What hangs below it moves along, and a copy of its own
    /// (doubted, since the entry is resident nowhere) is a new one in its order.
    pub(super) fn hang(&mut self, entry: u32, parent: Option<WireKey>, depth: u32) {
        let moved: Vec<(usize, Option<u32>, bool)> = (0..self.tiers.len())
            .filter(|tier| self.tiers[*tier].wants_ends)
            .map(|tier| (tier, self.tracked(tier, entry), self.tiers[tier].kids.get(entry) > 0))
            .collect();
        for (tier, copy, has_kids) in &moved {
            copy.iter().for_each(|copy| self.untrack(*tier, *copy));
            if *has_kids {
                self.uncover_above(*tier, entry);
            }
        }
        self.index.hang(entry, parent, depth);
        if self.hits.get(entry) > 0 {
            // Those of a block that was here before, or of another one under this number.
            self.hits.set(entry, 0);
        }
        for (tier, copy, has_kids) in moved {
            if has_kids {
                self.cover_above(tier, entry);
            }
            copy.into_iter().for_each(|copy| self.list(tier, copy));
        }
    }

    /// Puts an unpinned copy where it may be evicted, behind its nearest ancestor that may be evicted too.
    pub(super) fn list(&mut self, tier: usize, slot: u32) {
        let copy = &self.tiers[tier].copies[slot];
        let evictable = matches!(copy.state, CopyState::Resident | CopyState::Doubted);
        if copy.pins > 0 || copy.flags & (LISTED | UNPLACED) != 0 || !evictable {
            return;
        }
        let above = if self.tiers[tier].wants_ends { None } else { self.listed_above(tier, copy.entry) };
        self.track(tier, slot);
        self.tiers[tier].copies[slot].flags |= LISTED;
        let tenant = self.tenant_at(tier, slot);
        self.with_order(tier, tenant, |order, nodes| order.list(nodes, slot, above));
    }

    fn listed_above(&self, tier: usize, entry: u32) -> Option<u32> {
        let mut at = entry;
        while let Some(parent) = self.index.above(at) {
            let found = self.index.copy(parent, tier);
            if found != NONE && self.tiers[tier].copies[found].is(LISTED) {
                return Some(found);
            }
            at = parent;
        }
        None
    }

    /// Puts an unpinned copy of an earlier life where it leaves before all others.
    pub(super) fn list_coldest(&mut self, tier: usize, slot: u32) {
        self.track(tier, slot);
        self.tiers[tier].copies[slot].flags |= LISTED;
        let tenant = self.tenant_at(tier, slot);
        self.with_order(tier, tenant, |order, nodes| order.list_coldest(nodes, slot));
    }

    pub(super) fn unlist(&mut self, tier: usize, slot: u32) {
        if self.tiers[tier].copies[slot].is(LISTED) {
            self.tiers[tier].copies[slot].flags &= !LISTED;
            let tenant = self.tenant_at(tier, slot);
            self.with_order(tier, tenant, |order, nodes| order.unlist(nodes, slot));
        }
    }

    /// The copy of a tenant that leaves a tier first, among those whose entry was last used before `first_stamp`. From
    /// the first tier orphans leave before all others.
    pub(super) fn coldest(&mut self, tier: usize, tenant: usize, first_stamp: u64) -> Option<u32> {
        if let Some(orphan) = (tier == DRAM).then(|| self.orphan_to_evict(tenant, first_stamp)).flatten() {
            return Some(orphan);
        }
        loop {
            match self.with_order(tier, tenant, |order, nodes| order.victim(nodes, first_stamp)) {
                Search::Found(slot) => return Some(slot),
                Search::More if self.searches < SEARCHES_PER_CALL_MAX => self.searches += 1,
                Search::More | Search::None => return None,
            }
        }
    }

    /// A block and all its ancestors were used, the deepest first. Give tails first: then the first walk to the root
    /// covers the rest of its chain.
    pub(super) fn touch(&mut self, kind: Use, entries: impl Iterator<Item = u32>) {
        self.clock += 1;
        let mut path = std::mem::take(&mut self.scratch);
        for entry in entries {
            let mut at = Some(entry);
            while let Some(slot) = at.filter(|slot| self.index[*slot].stamp != self.clock) {
                self.index[slot].stamp = self.clock;
                path.push(u64::from(self.index[slot].depth()) << 32 | u64::from(slot));
                at = self.index.above(slot);
            }
        }
        path.sort_unstable_by(|a, b| b.cmp(a));
        for entry in path.iter().rev().map(|packed| *packed as u32) {
            if self.index[entry].flags & CUT != 0 {
                // Its head may be there again.
                self.index.settle_unnoted(entry);
            }
        }
        for tier in 0..self.tiers.len() {
            self.touch_tier(tier, kind, &path);
        }
        if kind == Use::Load {
            path.iter().rev().for_each(|packed| self.sighted(*packed as u32));
        }
        self.work += path.len() as u64;
        path.clear();
        self.scratch = path;
    }

    /// A block and its ancestors are to stay in one tier, for the moment: no use of theirs, and none elsewhere.
    pub(super) fn warm(&mut self, tier: usize, entry: u32) {
        let mut path = std::mem::take(&mut self.scratch);
        let mut at = Some(entry);
        while let Some(slot) = at {
            path.push(u64::from(self.index[slot].depth()) << 32 | u64::from(slot));
            at = self.index.above(slot);
        }
        self.touch_tier(tier, Use::Guard, &path);
        self.work += path.len() as u64;
        path.clear();
        self.scratch = path;
    }

    /// All entries of a call are of one tenant.
    fn touch_tier(&mut self, tier: usize, kind: Use, path: &[u64]) {
        let Tier { orders, copies, marks, kids, .. } = &mut self.tiers[tier];
        let mut view = View { tier, copies, marks, kids, index: &self.index, work: &mut self.work };
        let mut begun = None;
        for entry in path.iter().map(|packed| *packed as u32) {
            let copy = view.index.copy(entry, tier);
            if copy == NONE || !view.copies[copy].is(TRACKED) {
                continue;
            }
            let (tenant, listed) = (usize::from(view.copies[copy].tenant), view.copies[copy].is(LISTED));
            if begun.is_none() {
                begun = Some(tenant);
                orders[tenant].begin(kind);
            }
            orders[tenant].used(&mut view, copy, listed, kind);
        }
        if let Some(tenant) = begun {
            orders[tenant].end(&mut view, kind);
        }
    }
}
