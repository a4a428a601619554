//! What an eviction policy is asked. One value per tenant and tier; one policy per file.

/// Two neighbours of a copy in its policy's order; a policy may give them a meaning of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) colder: u32,
    pub(super) hotter: u32,
}

/// Where the links of a tier's copies live.
pub(super) trait Nodes {
    fn link(&self, node: u32) -> Link;
    fn set_link(&mut self, node: u32, link: Link);
}

/// Order of eviction among the unpinned, resident copies of one tenant in one tier. The engine calls `touch` for
/// children before their parents, so that a policy by recency alone keeps chains whole.
pub(super) trait Policy: Send {
    /// The copy may be evicted from now on. `above` is its nearest ancestor that may be evicted too: the copy must
    /// leave before it. Without one the copy counts as just used.
    fn insert(&mut self, nodes: &mut dyn Nodes, node: u32, above: Option<u32>);
    /// The copy may be evicted, and was last used before all others.
    fn insert_coldest(&mut self, nodes: &mut dyn Nodes, node: u32);
    /// The copy is used.
    fn touch(&mut self, nodes: &mut dyn Nodes, node: u32);
    /// The copy is pinned or gone.
    fn remove(&mut self, nodes: &mut dyn Nodes, node: u32);
    /// The copy that leaves first.
    fn victim(&self) -> Option<u32>;
    /// Number of copies.
    fn len(&self) -> u64;
}
