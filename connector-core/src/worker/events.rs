//! KV events of a worker: blocks that left the store.

use super::Worker;
use crate::key::{BlockHash, GroupId};
use crate::runtime::Runtime;

/// A block that this worker stored is in no tier any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RemovedBlock {
    /// Its group.
    pub group: GroupId,
    /// Its hash.
    pub hash: BlockHash,
}

impl<R: Runtime> Worker<R> {
    /// Blocks evicted since the last call, in order. They are taken from the runtime also when nobody wants events,
    /// so that they do not pile up there.
    pub fn get_kv_events(&mut self) -> Vec<RemovedBlock> {
        let evicted = if self.closed { Vec::new() } else { self.runtime.take_evicted_keys() };
        if !self.options.enable_kv_cache_events {
            return Vec::new();
        }
        let removed = |(group, hash)| RemovedBlock { group, hash };
        evicted.iter().filter_map(|key| key.object().map(removed)).collect()
    }
}
