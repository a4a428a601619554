//! What a scheduler knows of one request.

use crate::key::{BlockHash, LocalKey};
use crate::plan::{BlockId, BlockTransferPlan};

use super::seam::LookupId;

/// An asynchronous lookup of one request, and what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) lookup: LookupId,
    pub(super) local: u64,
    pub(super) tokens: u64,
    pub(super) hashes: usize,
    pub(super) last: Option<BlockHash>,
}

/// A match that waits for memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Matched {
    pub(super) local: u64,
    /// Tokens beyond the local prefix.
    pub(super) tokens: u64,
    /// Group, index in its table, key.
    pub(super) blocks: Vec<(usize, usize, BlockHash)>,
}

/// A load that waits for its step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unsent {
    pub(super) plans: Vec<BlockTransferPlan>,
    /// Holds that workers adopt once it is sent.
    pub(super) held: Vec<LocalKey>,
}

/// One request.
#[derive(Clone, Debug, Default)]
pub(super) struct Request {
    pub(super) prompt_tokens: u64,
    pub(super) num_tokens: u64,
    /// Kept only for KV events.
    pub(super) tokens: Vec<u32>,
    /// Hash i covers tokens up to (i + 1) hash blocks, and all before.
    pub(super) hashes: Vec<BlockHash>,
    /// Memory, per group; none until the engine gave some.
    pub(super) table: Option<Vec<Vec<BlockId>>>,
    /// Tokens that are stored, or will be (the watermark).
    pub(super) saved: u64,
    /// Tokens that came from the store at the last admission.
    pub(super) restored: u64,
    /// The last step rested on a load, and left what it computed unstored.
    pub(super) owed: bool,
    pub(super) asked: Option<Asked>,
    pub(super) matched: Option<Matched>,
    /// A load to be sent in the next step.
    pub(super) load: Option<Unsent>,
    /// Keys that a lookup may hold for this request.
    pub(super) held: Vec<LocalKey>,
    /// A load of its has failed since it began, or was preempted last.
    pub(super) load_failed: bool,
    pub(super) finished: bool,
}

impl Request {
    /// The hash that ends at a token; none where it does not exist (yet).
    pub(super) fn hash(&self, end: u64, hash_block: u64) -> Option<BlockHash> {
        let index = (end / hash_block).checked_sub(1)?;
        if !end.is_multiple_of(hash_block) {
            return None;
        }
        self.hashes.get(index as usize).copied()
    }

    pub(super) fn block(&self, group: usize, index: usize) -> Option<BlockId> {
        self.table.as_ref()?.get(group)?.get(index).copied().filter(|block| *block != NULL_BLOCK)
    }
}

/// The block that stands for none in the engine's tables.
pub(super) const NULL_BLOCK: BlockId = BlockId(0);
