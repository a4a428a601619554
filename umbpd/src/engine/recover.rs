//! What persistent tiers hold from an earlier life.
//!
//! Records come in batches of any order. They are indexed at once, and hit from then on; their place in the order of
//! eviction they get when the tier is done, the most recent first, each behind its ancestors, all of them colder
//! than what has been used in this life.

use umbp_connector_core::key::LocalKey;
use umbp_plugin_api::types::{KEY_BYTES, RecoveredBlock};
use umbp_protocol::message::{NamespaceId, WireKey};

use super::api::{TierIndex, Time};
use super::slab::NONE;
use super::state::{DEPTH_MAX, DRAM, Engine};
use super::tier::{BlockCopy, CopyState, LISTED, Stray, UNPLACED, Unplaced};

/// Recovered copies that get their place in one call.
const PLACE_SLICE_BLOCKS: usize = 512;

impl Engine {
    /// Blocks that a tier holds; their namespaces have been given by [`Engine::namespace`]. Answers how many are of
    /// use: a malformed one is left out, and so is one that has been put anew meanwhile, which is deleted.
    pub fn recovered(&mut self, tier: TierIndex, blocks: &[RecoveredBlock], now: Time) -> usize {
        self.begin();
        let tier = usize::from(tier.0);
        if tier == DRAM || tier >= self.tiers.len() {
            return 0;
        }
        self.tiers[tier].recovery_done = false;
        self.tiers[tier].recovery_over = false;
        let count = blocks.iter().filter(|block| self.recover_one(tier, block)).count();
        self.work += blocks.len() as u64;
        self.settle(now);
        count
    }

    /// The tier has handed over all.
    pub fn recovery_done(&mut self, tier: TierIndex, now: Time) {
        self.begin();
        if let Some(tier) = self.tiers.get_mut(usize::from(tier.0)) {
            tier.recovery_done = true;
            tier.recovery_over = true;
            tier.cleared.clear();
        }
        self.place_slice();
        self.settle(now);
    }

    fn recover_one(&mut self, tier: usize, block: &RecoveredBlock) -> bool {
        let namespace = NamespaceId(block.namespace_id);
        let whole = matches!(LocalKey::from_bytes(&block.key), Ok(Some(_))) && block.length > 0;
        let bytes = self.tiers[tier].rounded(block.length);
        let Some(tenant) = self.owner(namespace).filter(|_| whole && bytes <= u64::from(u32::MAX)) else {
            return false;
        };
        let key = WireKey { namespace, local: block.key };
        let entry = self.index.find_or_insert(key, block.depth.min(DEPTH_MAX));
        let known = self.index.copy(entry, tier);
        if known != NONE {
            let copy = &self.tiers[tier].copies[known];
            // While its put is under way nobody knows where it lies: what was found may be that very block.
            let located = !matches!(copy.state, CopyState::Putting | CopyState::Doomed);
            if located && copy.place != block.location {
                self.tiers[tier].take_stray(Stray {
                    key,
                    location: block.location,
                    length: block.length,
                    checksum: block.checksum,
                    bytes,
                    tenant,
                });
            }
            return false;
        }
        let fresh = self.index.is_ghost(entry);
        if fresh {
            self.hang_recovered(entry, block);
            self.index[entry].length = block.length as u32;
            self.index[entry].checksum = block.checksum;
        }
        // Cleared, other bytes than those of this life, or more than a block may have now: of no use, and deleted.
        let known = &self.index[entry];
        let useful = !self.tiers[tier].was_cleared(tenant, namespace)
            && u64::from(known.length) == block.length
            && block.length <= self.settings.block_bytes
            && (known.checksum == block.checksum || known.resident() == 0);
        if useful && known.resident() == 0 {
            self.index[entry].checksum = block.checksum;
        }
        let mut copy = BlockCopy::new(entry, tenant, block.location, bytes as u32, CopyState::Doubted);
        copy.flags = UNPLACED;
        let slot = self.tiers[tier].copies.insert(copy);
        self.index.set_copy(entry, tier, slot);
        self.tiers[tier].used[usize::from(tenant)] += bytes;
        if useful {
            self.make_resident(tier, slot);
            self.tiers[tier].unplaced.push(Unplaced { recency: block.recency, slot });
        } else {
            self.delete_lower(tier, slot);
        }
        useful
    }

    /// Hangs a recovered entry, or one that another host stored, on its parent, where that keeps depths falling toward the root; else on none.
    pub(super) fn hang_recovered(&mut self, entry: u32, block: &RecoveredBlock) {
        let known = &self.index[entry];
        let depth = block.depth.min(DEPTH_MAX);
        let depth = if known.children > 0 { depth.min(known.depth()) } else { depth };
        let key = WireKey { local: block.parent, ..known.key };
        let above = self.index.find(&key);
        let fits = depth > 0
            && block.parent != [0; KEY_BYTES]
            && block.parent != block.key
            && matches!(LocalKey::from_bytes(&block.parent), Ok(Some(_)))
            && above.is_none_or(|above| {
                let known = &self.index[above];
                known.depth() < depth || (known.parent == NONE && self.index.is_ghost(above))
            });
        self.hang(entry, fits.then_some(key), depth);
    }

    /// Whether each copy of a tier that recovery brought has its place.
    pub fn has_placed(&self, tier: TierIndex) -> bool {
        self.tiers.get(usize::from(tier.0)).is_some_and(|tier| tier.recovery_over && tier.unplaced.is_empty())
    }

    /// Places a slice of recovered copies. True if more is left.
    pub(super) fn place_slice(&mut self) -> bool {
        let mut left = false;
        for tier in DRAM + 1..self.tiers.len() {
            if !self.tiers[tier].recovery_done {
                continue;
            }
            for _ in 0..PLACE_SLICE_BLOCKS {
                let Some(next) = self.tiers[tier].unplaced.pop() else { break };
                self.place(tier, next.slot);
            }
            left |= !self.tiers[tier].unplaced.is_empty();
        }
        left
    }

    /// Gives a copy its place, and before it all its ancestors that have none yet.
    fn place(&mut self, tier: usize, slot: u32) {
        let mut path = Vec::new();
        let mut at = (self.tiers[tier].copies[slot].entry != NONE).then(|| self.tiers[tier].copies[slot].entry);
        while let Some(entry) = at {
            let copy = self.index.copy(entry, tier);
            if copy != NONE && self.tiers[tier].copies[copy].is(UNPLACED) {
                path.push(copy);
            } else if copy != NONE && self.tiers[tier].copies[copy].is(LISTED) {
                break;
            }
            at = self.index.above(entry);
        }
        self.work += path.len() as u64;
        for copy in path.into_iter().rev() {
            let below = &mut self.tiers[tier];
            let record = &mut below.copies[copy];
            record.flags &= !UNPLACED;
            let (entry, pins, state) = (record.entry, record.pins, record.state);
            // All that it hangs on has been told by now.
            self.index.settle_unnoted(entry);
            if self.index[entry].stamp != 0 {
                // Used in this life, itself or through a descendant.
                self.list(tier, copy);
            } else if pins == 0 && matches!(state, CopyState::Resident | CopyState::Doubted) {
                self.list_coldest(tier, copy);
            }
        }
    }
}
