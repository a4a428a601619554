//! What an eviction policy is asked, and what it may know. One value per tenant and tier; one policy per file.
//!
//! Life of a copy in an order: [`Policy::arrived`], then any number of listings (it may be evicted) and unlistings
//! (it is pinned), then [`Policy::departed`]. A copy that is pinned and given back is no new block: what a policy
//! keeps about it, in the copy's *mark*, lasts from its arrival to its departure.
//!
//! Law of every policy: a victim has no listed descendant. `prefix-lru` keeps it by its order alone, from calls that
//! come children first; others have the engine tell them which copies are ends of chains
//! ([`Policy::wants_ends`]) and evict nothing else.

use super::api::EvictionPolicy;
use super::chain_hazard::ChainHazard;
use super::prefix_lru::PrefixLru;
use super::s3_fifo::S3Fifo;

/// Two neighbours of a copy in its policy's order; a policy may give them a meaning of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) colder: u32,
    pub(super) hotter: u32,
}

/// What a policy may see of a tier's copies, and where it keeps what it knows of each.
pub(super) trait Nodes {
    fn link(&self, node: u32) -> Link;
    fn set_link(&mut self, node: u32, link: Link);
    /// The policy's own word about a copy; of no meaning until it is set on arrival.
    fn mark(&self, node: u32) -> u32;
    fn set_mark(&mut self, node: u32, mark: u32);
    /// How many children have a copy in this order, or one of a descendant. Kept only where [`Policy::wants_ends`].
    fn kids(&self, node: u32) -> u32;
    /// No copy of a descendant is in this order, pinned or not. Kept only where [`Policy::wants_ends`].
    fn is_end(&self, node: u32) -> bool {
        self.kids(node) == 0
    }
    /// Room that the copy takes.
    fn bytes(&self, node: u32) -> u64;
    /// Logical time of the last use of the block or of a descendant.
    fn stamp(&self, node: u32) -> u64;
    /// A copy is looked at: counted as work of the call.
    fn step(&mut self);
    /// The copy of the parent block, where that is in this order.
    fn parent(&self, node: u32) -> Option<u32>;
}

/// Why blocks are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// To be read, or held to be read: the blocks and all before them.
    Load,
    /// What was just written, and all before it.
    Store,
    /// A store is about to follow: they must not leave now, and that is all.
    Guard,
}

/// What a search for a victim came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    Found(u32),
    /// None among so many; the next search with the same bound of time goes on from there.
    More,
    None,
}

/// Order of eviction among the copies of one tenant in one tier.
pub(super) trait Policy: Send {
    /// The engine shall keep marks, and tell which copies are ends of chains.
    fn wants_ends(&self) -> bool {
        false
    }

    /// A copy that was not here before. `print` stands for its key: the same block has the same, at all times.
    fn arrived(&mut self, _nodes: &mut dyn Nodes, _node: u32, _print: u64) {}

    /// The copy, unlisted by now, is gone. Its parent is still known.
    fn departed(&mut self, _nodes: &mut dyn Nodes, _node: u32, _print: u64) {}

    /// The copy may be evicted from now on. `above` is its nearest ancestor that may be evicted too: the copy must
    /// leave before it. Without one the copy counts as just used.
    fn list(&mut self, nodes: &mut dyn Nodes, node: u32, above: Option<u32>);

    /// The copy may be evicted, and was last used before all others.
    fn list_coldest(&mut self, nodes: &mut dyn Nodes, node: u32);

    /// The copy is pinned, or about to go.
    fn unlist(&mut self, nodes: &mut dyn Nodes, node: u32);

    /// A copy got its first descendant in this order: it is no end of a chain any more.
    fn covered(&mut self, _nodes: &mut dyn Nodes, _node: u32, _listed: bool) {}

    /// A copy lost its last descendant in this order.
    fn exposed(&mut self, _nodes: &mut dyn Nodes, _node: u32, _listed: bool) {}

    /// Uses of one call begin.
    fn begin(&mut self, _kind: Use) {}

    /// A copy is used; children come before their parents, and with each come all its ancestors.
    fn used(&mut self, nodes: &mut dyn Nodes, node: u32, listed: bool, kind: Use);

    /// Uses of one call are complete.
    fn end(&mut self, _nodes: &mut dyn Nodes, _kind: Use) {}

    /// The copy that leaves first, among those last used before the engine's logical time `before`. Looks at a bounded
    /// number of copies.
    fn victim(&mut self, nodes: &mut dyn Nodes, before: u64) -> Search;

    /// Whether something may be evicted.
    fn has_victim(&self) -> bool;

    /// Number of listed copies.
    fn len(&self) -> u64;

    /// Bytes that the policy takes beside marks.
    fn memory_bytes(&self) -> usize {
        0
    }
}

/// The policy of this name, for a tenant's part of a tier.
pub(super) fn make(policy: EvictionPolicy, capacity_bytes: u64) -> Box<dyn Policy> {
    match policy {
        EvictionPolicy::PrefixLru => Box::new(PrefixLru::new()),
        EvictionPolicy::S3Fifo => Box::new(S3Fifo::new()),
        EvictionPolicy::ChainHazard => Box::new(ChainHazard::new(capacity_bytes)),
    }
}
