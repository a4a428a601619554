//! The end of a finished request that no later step will store.

use crate::plan::{BlockId, RequestId};

use super::Scheduler;
use super::config::GroupKind;
use super::request::NULL_BLOCK;
use super::seam::{BlockPool, Lookups};
use super::step::BoundaryOffload;
use super::store::StorePlan;

impl<L: Lookups, P: BlockPool> Scheduler<L, P> {
    /// A finished request offers the states at its end; they are pinned at once, and stored with the next step. Answers
    /// false: the engine need not keep the blocks.
    pub fn register_finished_partial_tail(
        &mut self,
        id: &RequestId,
        tables: &[Vec<BlockId>],
        offloads: &[BoundaryOffload],
        computed_tokens: u64,
        in_flight_tokens: u64,
    ) -> bool {
        if self.can_hand_over() && in_flight_tokens == 0 {
            let plans = self.tail(id, tables, offloads, computed_tokens);
            if !plans.is_empty() {
                self.pins.add_tail(plans, self.pool.as_mut());
            }
        }
        false
    }

    fn can_hand_over(&self) -> bool {
        self.bound && self.pool.is_some() && self.config.options.role != super::Role::Consumer
    }

    fn tail(
        &mut self,
        id: &RequestId,
        tables: &[Vec<BlockId>],
        offloads: &[BoundaryOffload],
        computed: u64,
    ) -> Vec<StorePlan> {
        let Some(request) = self.requests.get_mut(id) else { return Vec::new() };
        request.table = Some(tables.to_vec());
        let Some(request) = self.requests.get(id) else { return Vec::new() };
        let fits = |offload: &&BoundaryOffload| {
            offload.tokens == computed
                && computed.is_multiple_of(self.geometry.hash_block)
                && offload.block_id != NULL_BLOCK
        };
        let mut plans: Vec<StorePlan> =
            offloads.iter().filter(fits).filter_map(|offload| self.boundary(id, request, offload)).collect();
        if plans.is_empty() {
            return plans;
        }
        for group in &self.geometry.matched {
            let span = self.geometry.spans[*group];
            if self.config.groups[*group].kind != GroupKind::Full || computed.is_multiple_of(span) {
                continue;
            }
            // Without the block that holds the boundary the states are of no use.
            match self.plan(id, request, *group, computed / span, computed) {
                Some(plan) => plans.push(plan),
                None => return Vec::new(),
            }
        }
        plans.retain(|plan| !self.pins.is_under_way(&plan.object()));
        plans
    }
}
