//! From a match to a load, once the request has memory.

use std::collections::HashSet;

use crate::key::{GroupId, LocalKey};
use crate::plan::{BlockId, BlockTransferPlan, RequestId};

use super::Scheduler;
use super::request::Unsent;
use super::seam::{BlockPool, Lookups};

/// An admission that contradicts the match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// The engine took another number of tokens than was offered.
    #[error("memory for {taken} external tokens, but the match offered {offered}: take all of it or none")]
    OtherCount {
        /// What the engine says.
        taken: u64,
        /// What the match said.
        offered: u64,
    },
}

impl<L: Lookups, P: BlockPool> Scheduler<L, P> {
    /// A request has memory, `tables` per group, and takes `external_tokens` of what was matched.
    pub fn update_state_after_alloc(
        &mut self,
        id: &RequestId,
        tables: &[Vec<BlockId>],
        external_tokens: u64,
    ) -> Result<(), AllocationError> {
        self.drop_lookup(id);
        let Some(request) = self.requests.get_mut(id) else { return Ok(()) };
        let offered = request.matched.as_ref().map_or(0, |matched| matched.tokens);
        if external_tokens != 0 && external_tokens != offered {
            return Err(AllocationError::OtherCount { taken: external_tokens, offered });
        }
        request.table = Some(tables.to_vec());
        request.saved = 0;
        // One for memory that the request had before is no more.
        self.drop_load(id);
        if external_tokens == 0 {
            self.drop_match(id);
            return Ok(());
        }
        let Some(request) = self.requests.get_mut(id) else { return Ok(()) };
        let Some(matched) = request.matched.take() else { return Ok(()) };
        request.restored = matched.local + matched.tokens;
        let mut plans = Vec::new();
        let mut wanted = HashSet::new();
        for (group, index, hash) in matched.blocks {
            let Some(block_id) = request.block(group, index) else { continue };
            let group = GroupId(group as u16);
            let key = LocalKey { hash, group, rank: self.ranks[0] };
            wanted.insert((group, hash));
            plans.push(BlockTransferPlan::load(key.into(), block_id, group, id));
        }
        let held = std::mem::take(&mut request.held);
        let (held, unwanted): (Vec<LocalKey>, Vec<LocalKey>) =
            held.into_iter().partition(|key| wanted.contains(&(key.group, key.hash)));
        request.load = Some(Unsent { plans, held });
        self.admissions += 1;
        self.loads.insert(self.admissions, id.clone());
        if !unwanted.is_empty() {
            self.runtime.unhold(&unwanted);
        }
        Ok(())
    }

    /// Loads have failed, as the engine is told: of whole requests, or in blocks, which may be several requests'.
    ///
    /// An engine that lost all of an asynchronous load asks for a match again. A store that finds a block and never
    /// loads it would be asked, and tried, for ever: such a request computes, until it is preempted.
    pub fn loads_failed(&mut self, requests: &[RequestId], blocks: &HashSet<BlockId>) {
        for id in requests {
            if let Some(request) = self.requests.get_mut(id) {
                request.load_failed = true;
            }
        }
        if blocks.is_empty() {
            return;
        }
        // A table may be an old one, unless the request has been restored into it.
        for request in self.requests.values_mut().filter(|request| request.restored > 0) {
            let mut table = request.table.iter().flatten().flatten();
            request.load_failed |= table.any(|block| blocks.contains(block));
        }
    }
}
