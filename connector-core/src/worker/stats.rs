//! What a worker counts between two reports.

use super::Worker;
use super::job::Direction;
use crate::runtime::Runtime;

/// Counters of one direction. `submitted` counts plans, the others objects: two plans of one key are one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationStats {
    /// Blocks asked for.
    pub submitted: u64,
    /// Objects that are where they should be.
    pub completed: u64,
    /// Objects that are not, cancelled ones left out.
    pub failed: u64,
    /// Bytes of the completed blocks.
    pub num_bytes: u64,
}

/// Counters of one interval; none = nothing happened in that direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferStats {
    /// Loads.
    pub load: Option<OperationStats>,
    /// Stores.
    pub store: Option<OperationStats>,
}

impl OperationStats {
    fn add(&mut self, more: Self) {
        let sums = [&mut self.submitted, &mut self.completed, &mut self.failed, &mut self.num_bytes];
        for (sum, more) in sums.into_iter().zip([more.submitted, more.completed, more.failed, more.num_bytes]) {
            *sum = sum.saturating_add(more);
        }
    }
}

impl TransferStats {
    pub(super) fn record(&mut self, direction: Direction, more: OperationStats) {
        let sum = match direction {
            Direction::Load => &mut self.load,
            Direction::Store => &mut self.store,
        };
        sum.get_or_insert_default().add(more);
    }

    /// Adds another worker's interval, or a later one.
    pub fn aggregate(&mut self, other: Self) {
        for (direction, more) in [(Direction::Load, other.load), (Direction::Store, other.store)] {
            if let Some(more) = more {
                self.record(direction, more);
            }
        }
    }
}

impl<R: Runtime> Worker<R> {
    /// Counters since the last call; none if nothing happened.
    pub fn get_kv_connector_stats(&mut self) -> Option<TransferStats> {
        let stats = std::mem::take(&mut self.stats);
        (stats != TransferStats::default()).then_some(stats)
    }
}
