//! Store events, and the pins on the blocks that they read.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::key::{BlockHash, GroupId};
use crate::metadata::StoreEventId;
use crate::plan::BlockId;

use super::seam::BlockPool;
use super::store::{Object, StorePlan};

struct Event {
    plans: Vec<StorePlan>,
    workers_left: u32,
    failed: HashSet<Object>,
}

/// Blocks of a finished request, pinned until the next step's event takes them over.
pub(super) struct Tail {
    pub(super) plans: Vec<StorePlan>,
}

impl Tail {
    fn blocks(&self) -> Vec<BlockId> {
        self.plans.iter().map(|plan| plan.block.block_id).collect()
    }

    pub(super) fn free<P: BlockPool>(self, pool: Option<&mut P>) {
        if let Some(pool) = pool {
            pool.free(&self.blocks());
        }
    }
}

/// Open events and unsent tails.
pub(super) struct Pins {
    num_workers: u32,
    next: u64,
    events: BTreeMap<StoreEventId, Event>,
    tails: Vec<Tail>,
    /// Events that an object is in.
    under_way: HashMap<Object, u32>,
}

impl Pins {
    pub(super) fn new(num_workers: u32) -> Self {
        Self { num_workers, next: 0, events: BTreeMap::new(), tails: Vec::new(), under_way: HashMap::new() }
    }

    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub(super) fn has_tails(&self) -> bool {
        !self.tails.is_empty()
    }

    pub(super) fn is_under_way(&self, object: &Object) -> bool {
        self.under_way.contains_key(object)
    }

    /// All stores of a step form one event; its blocks are pinned until every worker has ended it.
    pub(super) fn open<P: BlockPool>(&mut self, plans: Vec<StorePlan>, pool: Option<&mut P>) -> Option<StoreEventId> {
        if plans.is_empty() {
            return None;
        }
        if let Some(pool) = pool {
            let blocks: Vec<BlockId> = plans.iter().map(|plan| plan.block.block_id).collect();
            pool.touch(&blocks);
        }
        for plan in &plans {
            *self.under_way.entry(plan.object()).or_default() += 1;
        }
        let id = StoreEventId(self.next);
        self.next += 1;
        self.events.insert(id, Event { plans, workers_left: self.num_workers, failed: HashSet::new() });
        Some(id)
    }

    /// Workers have ended an event. Once all have: what was stored. An unknown event is left alone.
    pub(super) fn complete<P: BlockPool>(
        &mut self,
        id: StoreEventId,
        workers: u32,
        failed: impl IntoIterator<Item = (GroupId, BlockHash)>,
        pool: Option<&mut P>,
    ) -> Option<Vec<StorePlan>> {
        let event = self.events.get_mut(&id)?;
        event.failed.extend(failed);
        event.workers_left = event.workers_left.saturating_sub(workers);
        if event.workers_left > 0 {
            return None;
        }
        let event = self.events.remove(&id)?;
        for plan in &event.plans {
            if let Some(count) = self.under_way.get_mut(&plan.object()) {
                *count -= 1;
                if *count == 0 {
                    self.under_way.remove(&plan.object());
                }
            }
        }
        if let Some(pool) = pool {
            // Tails leave the pool first.
            let blocks: Vec<BlockId> = event.plans.iter().rev().map(|plan| plan.block.block_id).collect();
            pool.free(&blocks);
        }
        Some(event.plans.into_iter().filter(|plan| !event.failed.contains(&plan.object())).collect())
    }

    pub(super) fn add_tail<P: BlockPool>(&mut self, plans: Vec<StorePlan>, pool: Option<&mut P>) {
        let tail = Tail { plans };
        if let Some(pool) = pool {
            pool.touch(&tail.blocks());
        }
        self.tails.push(tail);
    }

    pub(super) fn take_tails(&mut self) -> Vec<Tail> {
        std::mem::take(&mut self.tails)
    }
}
