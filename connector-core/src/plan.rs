//! What is to be moved: one block, or the blocks of one request, between engine memory and the store.
//!
//! Plans are made by the scheduler's side with the key of rank 0; each worker puts its own rank in (see
//! [`ObjectKey::localized`]). A plan says *which* block; where its bytes lie follows from the layout ([`PlanRuns`]).

use std::fmt;
use std::sync::Arc;

use crate::key::{BlockHash, GroupId, LocalKey, Rank, TextKey};
use crate::layout::{Layout, Run};

/// Index of a block in the engine's pool. Negative ones are nobody's, and fail alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub i64);

/// A request of the engine, by its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub Arc<str>);

impl From<&str> for RequestId {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A block in the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectKey {
    /// A block of the namespace that the runtime serves.
    Block(LocalKey),
    /// Any other name. The worker hands it on as it is; a runtime that does not know it fails it alone.
    Text(Arc<str>),
}

/// In front of the number of the group, the last field but one of a text key.
const GROUP_FIELD: &str = ":g";

impl ObjectKey {
    /// A text is a name until its hash is known: see [`Self::localized`].
    pub fn text(text: &str) -> Self {
        Self::Text(text.into())
    }

    /// Group and hash; none for a name that does not end in `:g<group>:<hash hex>`.
    pub fn object(&self) -> Option<(GroupId, BlockHash)> {
        match self {
            Self::Block(key) => Some((key.group, key.hash)),
            Self::Text(text) => {
                let (front, hash) = text.rsplit_once(':')?;
                let (_, group) = front.rsplit_once(GROUP_FIELD)?;
                Some((GroupId(group.parse().ok()?), BlockHash::from_hex(hash)?))
            }
        }
    }

    /// The same block on another rank, in a group. A name that ends in no hash stays what it is.
    #[must_use]
    pub fn localized(&self, group: GroupId, rank: Rank) -> Self {
        let hash = match self {
            Self::Block(key) => Some(key.hash),
            Self::Text(text) => text.rsplit_once(':').and_then(|(_, hash)| BlockHash::from_hex(hash)),
        };
        hash.map_or_else(|| self.clone(), |hash| Self::Block(LocalKey { hash, group, rank }))
    }

    /// The key as text; `namespace` is the name of the runtime's namespace.
    pub fn to_text(&self, namespace: &str) -> String {
        match self {
            Self::Block(local) => TextKey { namespace, local: *local }.to_string(),
            Self::Text(text) => text.to_string(),
        }
    }
}

impl From<LocalKey> for ObjectKey {
    fn from(key: LocalKey) -> Self {
        Self::Block(key)
    }
}

/// One block to be moved, load or store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockTransferPlan {
    /// Its key.
    pub key: ObjectKey,
    /// Where it is in the engine's pool.
    pub block_id: BlockId,
    /// Its KV cache group; none = all groups in one object, whose key is not the worker's to change.
    pub group: Option<GroupId>,
    /// Its hash, where the scheduler wants to hear of a failed store.
    pub block_hash: Option<BlockHash>,
    /// Store: hash of the block before it in the chain, of the same group and rank; none for a root.
    pub parent: Option<BlockHash>,
    /// Store: distance from the root, in blocks of its group.
    pub depth: u32,
    /// The request that it belongs to.
    pub request: Option<RequestId>,
}

impl BlockTransferPlan {
    /// A block to load.
    pub fn load(key: ObjectKey, block_id: BlockId, group: GroupId, request: &RequestId) -> Self {
        let request = Some(request.clone());
        Self { key, block_id, group: Some(group), block_hash: None, parent: None, depth: 0, request }
    }
}

/// Blocks of one request, moved as one job. Its rows share the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockBatch {
    /// The request.
    pub request: RequestId,
    /// Its blocks; `request` of the rows is not looked at.
    pub plans: Vec<BlockTransferPlan>,
}

/// What one request wants moved in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestPlans {
    /// Single plans. One plan may stand in two lists: it is the same if it is the same [`Arc`].
    List(Vec<Arc<BlockTransferPlan>>),
    /// Whole blocks, all of that request.
    Batch(BlockBatch),
}

impl RequestPlans {
    /// Nothing is to be moved.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::List(plans) => plans.is_empty(),
            Self::Batch(batch) => batch.plans.is_empty(),
        }
    }
}

/// Where the bytes of some plans lie, in the order of the plans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanRuns {
    runs: Vec<Run>,
    /// Per plan, where its runs end in `runs`.
    ends: Vec<usize>,
}

impl PlanRuns {
    /// The runs of each plan. A block that has none in this layout is left without, and fails alone in the runtime;
    /// without a layout that is each of them.
    pub fn of(plans: &[BlockTransferPlan], layout: Option<&Layout>) -> Self {
        let mut all = Self::default();
        for plan in plans {
            if let Some(layout) = layout {
                // An error leaves the list as it was.
                let _ = layout.runs_into(plan.block_id.0, plan.group, &mut all.runs);
            }
            all.ends.push(all.runs.len());
        }
        all
    }

    /// The runs of one plan, in the order of the regions; empty = nowhere.
    pub fn plan(&self, index: usize) -> &[Run] {
        let start = index.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.ends.get(index).map_or(&[], |end| &self.runs[start..*end])
    }
}
