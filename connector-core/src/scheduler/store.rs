//! What goes to the store: whole blocks between two watermarks, and states at boundaries.

use std::collections::HashSet;

use crate::key::{BlockHash, GroupId, LocalKey};
use crate::plan::{BlockTransferPlan, RequestId};

use super::Scheduler;
use super::config::GroupKind;
use super::keep::Keep;
use super::request::Request;
use super::seam::{BlockPool, Hold, Lookups};
use super::step::BoundaryOffload;

/// A block's identity apart from ranks.
pub type Object = (GroupId, BlockHash);

/// One block to be stored, and what KV events tell of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePlan {
    /// What workers do.
    pub block: BlockTransferPlan,
    /// Its group.
    pub group: GroupId,
    /// Its hash.
    pub hash: BlockHash,
    /// Hash at its start; none for the first block.
    pub parent: Option<BlockHash>,
    /// Its tokens; empty without KV events.
    pub tokens: Vec<u32>,
    /// Tokens of a block of its group.
    pub block_size: u64,
}

impl StorePlan {
    /// Group and hash.
    pub fn object(&self) -> Object {
        (self.group, self.hash)
    }
}

impl<L: Lookups, P: BlockPool> Scheduler<L, P> {
    /// The blocks of one request that become whole in this step, and are worth storing.
    pub(super) fn plan_stores(
        &mut self,
        id: &RequestId,
        computed: u64,
        total: u64,
        planned: &mut HashSet<Object>,
    ) -> Vec<StorePlan> {
        let hash_block = self.geometry.hash_block;
        let save_decode = self.config.options.save_decode_cache;
        let Some(request) = self.requests.get_mut(id) else { return Vec::new() };
        let prompt = request.prompt_tokens;
        // After a failed load the engine goes back to what is there. What it computes anew is stored anew, if the store
        // (which is asked below the restored length) has lost it.
        request.saved = request.saved.min(computed / hash_block * hash_block);
        // A step that loads stores nothing; what it computed of the prompt is made up for by the next one.
        let owed = std::mem::take(&mut request.owed);
        if !save_decode && computed >= prompt && !owed {
            return Vec::new();
        }
        let total = if save_decode { total } else { total.min(prompt) };
        let end = total.min(request.hashes.len() as u64 * hash_block) / hash_block * hash_block;
        let begin = request.saved;
        if end <= begin {
            return Vec::new();
        }
        request.saved = end;
        let candidates = self.candidates(id, begin, end);
        let mut plans = self.without_present(id, candidates);
        plans.retain(|plan| !planned.contains(&plan.object()) && !self.pins.is_under_way(&plan.object()));
        planned.extend(plans.iter().map(StorePlan::object));
        plans
    }

    fn candidates(&self, id: &RequestId, begin: u64, end: u64) -> Vec<(u64, StorePlan)> {
        let mut plans = Vec::new();
        let Some(request) = self.requests.get(id) else { return plans };
        let keep = Keep {
            config: &self.config,
            geometry: &self.geometry,
            classes: &self.classes,
            prompt_tokens: request.prompt_tokens,
        };
        for (position, group) in self.geometry.matched.iter().enumerate() {
            let span = self.geometry.spans[*group];
            for index in begin / span..end / span {
                let block_end = (index + 1) * span;
                let Some(plan) = self.plan(id, request, *group, index, block_end) else { continue };
                if keep.is_useful(position, *group, block_end) {
                    plans.push((block_end, plan));
                }
            }
        }
        plans
    }

    /// The plan for one block whose key's hash ends at `end`; none for a null block, or one without a hash.
    pub(super) fn plan(
        &self,
        id: &RequestId,
        request: &Request,
        group: usize,
        index: u64,
        end: u64,
    ) -> Option<StorePlan> {
        let block_id = request.block(group, index as usize)?;
        self.plan_for(id, request, group, index, end, block_id)
    }

    fn plan_for(
        &self,
        id: &RequestId,
        request: &Request,
        group: usize,
        index: u64,
        end: u64,
        block_id: crate::plan::BlockId,
    ) -> Option<StorePlan> {
        let (hash_block, span) = (self.geometry.hash_block, self.geometry.spans[group]);
        let hash = request.hash(end, hash_block)?;
        let start = index * span;
        let parent = request.hash(start, hash_block);
        let tokens = request.tokens.get(start as usize..end as usize).map(<[u32]>::to_vec).unwrap_or_default();
        let of = GroupId(group as u16);
        let key = LocalKey { hash, group: of, rank: self.ranks[0] };
        let block = BlockTransferPlan {
            key: key.into(),
            block_id,
            group: Some(of),
            block_hash: Some(hash),
            parent,
            depth: u32::try_from(index).unwrap_or(u32::MAX),
            request: Some(id.clone()),
        };
        Some(StorePlan { block, group: of, hash, parent, tokens, block_size: span })
    }

    /// Without those that the store has already, of a request that came from there.
    fn without_present(&mut self, id: &RequestId, candidates: Vec<(u64, StorePlan)>) -> Vec<StorePlan> {
        let restored = self.requests.get(id).map_or(0, |request| request.restored);
        let asked: Vec<LocalKey> = candidates
            .iter()
            .filter(|(end, _)| *end <= restored)
            .flat_map(|(_, plan)| Self::keys_of(&self.ranks, usize::from(plan.group.0), plan.hash))
            .collect();
        if asked.is_empty() {
            return candidates.into_iter().map(|(_, plan)| plan).collect();
        }
        let answer = self.runtime.lookup(&asked, Hold::Nothing).filter(|answer| answer.len() == asked.len());
        let ranks = self.ranks.len();
        let mut there =
            answer.iter().flat_map(|answer| answer.chunks(ranks)).map(|ranks| ranks.iter().all(|there| *there));
        let mut plans = Vec::new();
        for (end, plan) in candidates {
            if end > restored || !there.next().unwrap_or(false) {
                plans.push(plan);
            }
        }
        plans
    }

    /// States that the engine keeps at boundaries, with their exact blocks.
    pub(super) fn plan_boundaries(
        &self,
        id: &RequestId,
        offloads: &[BoundaryOffload],
        planned: &mut HashSet<Object>,
        plans: &mut Vec<StorePlan>,
    ) {
        let Some(request) = self.requests.get(id).filter(|request| !request.finished) else { return };
        for offload in offloads {
            let Some(plan) = self.boundary(id, request, offload) else { continue };
            if planned.contains(&plan.object()) || self.pins.is_under_way(&plan.object()) {
                continue;
            }
            planned.insert(plan.object());
            plans.push(plan);
        }
    }

    /// One state; none if it is no state's group, or has no block or hash.
    pub(super) fn boundary(&self, id: &RequestId, request: &Request, offload: &BoundaryOffload) -> Option<StorePlan> {
        let group = self.config.groups.get(offload.group)?;
        let span = *self.geometry.spans.get(offload.group)?;
        if !matches!(group.kind, GroupKind::Mamba { .. }) || offload.block_id == super::request::NULL_BLOCK {
            return None;
        }
        let index = offload.tokens.div_ceil(span).checked_sub(1)?;
        self.plan_for(id, request, offload.group, index, offload.tokens, offload.block_id)
    }
}
