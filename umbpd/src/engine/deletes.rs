//! Deletes that a backend did not do. The block is still there: its copy stays hidden and its room taken, and the
//! delete is tried again until it is done, a slice at a time and ever more rarely while it fails.

use umbp_plugin_api::Status;

use super::api::Time;
use super::evict::RECLAIM_SLICE_ENTRIES;
use super::state::{Engine, Timer};
use super::tier::{CopyState, Stray};

/// Time until failed deletes of a tier are tried again, in nanoseconds; doubled while they fail.
pub const DELETE_RETRY_NS: u64 = 1_000_000_000;
/// Longest such time, in nanoseconds.
const DELETE_RETRY_MAX_NS: u64 = 64 * DELETE_RETRY_NS;
/// Failed deletes of a tier from which on nothing more is evicted there: it would free no room either.
pub(super) const FAILED_DELETES_MAX: usize = 64;

/// Whether the block is gone for good: deleted, or not there.
pub(super) fn is_gone(status: Status) -> bool {
    status == Status::OK || status == Status::MISS
}

impl Engine {
    /// A delete of a copy has ended.
    pub(super) fn delete_done(&mut self, tier: usize, lower: u32, status: Status, now: Time) {
        let copy = &self.tiers[tier].copies[lower];
        let (bytes, tenant) = (u64::from(copy.bytes), usize::from(copy.tenant));
        self.tiers[tier].deletes_in_flight -= 1;
        self.tiers[tier].freeing[tenant] -= bytes;
        if is_gone(status) {
            self.tiers[tier].delete_retry_ns = DELETE_RETRY_NS;
            self.tiers[tier].deleted_bytes += bytes;
            return self.free_lower(tier, lower);
        }
        self.tiers[tier].copies[lower].state = CopyState::Undeleted;
        self.tiers[tier].undeleted.push_back(lower);
        self.retry_deletes_later(tier, now);
    }

    /// A delete of a stray has ended.
    pub(super) fn stray_done(&mut self, tier: usize, stray: Stray, status: Status, now: Time) {
        let below = &mut self.tiers[tier];
        below.deletes_in_flight -= 1;
        below.freeing[usize::from(stray.tenant)] -= stray.bytes;
        if is_gone(status) {
            below.delete_retry_ns = DELETE_RETRY_NS;
            below.deleted_bytes += stray.bytes;
            below.used[usize::from(stray.tenant)] -= stray.bytes;
            return;
        }
        below.undeleted_strays.push_back(stray);
        self.retry_deletes_later(tier, now);
    }

    fn retry_deletes_later(&mut self, tier: usize, now: Time) {
        let below = &mut self.tiers[tier];
        if !below.delete_retry_waits {
            below.delete_retry_waits = true;
            self.timers.insert((now.0.saturating_add(below.delete_retry_ns), Timer::Deletes(tier as u8)));
        }
    }

    /// Time to try a slice of the failed deletes again. The next slice has its turn later: it may fail alike.
    pub(super) fn retry_deletes(&mut self, tier: usize, now: Time) -> usize {
        let below = &mut self.tiers[tier];
        below.delete_retry_waits = false;
        below.delete_retry_ns = (2 * below.delete_retry_ns).min(DELETE_RETRY_MAX_NS);
        let mut tried = 0;
        while tried < RECLAIM_SLICE_ENTRIES {
            if let Some(lower) = below.undeleted.pop_front() {
                let copy = &mut below.copies[lower];
                copy.state = CopyState::Deleting;
                below.freeing[usize::from(copy.tenant)] += u64::from(copy.bytes);
                below.deletes.push_back(lower);
            } else if let Some(stray) = below.undeleted_strays.pop_front() {
                below.freeing[usize::from(stray.tenant)] += stray.bytes;
                below.strays.push_back(stray);
            } else {
                break;
            }
            tried += 1;
        }
        if below.undeleted_blocks() > 0 {
            self.retry_deletes_later(tier, now);
        }
        tried.max(1)
    }
}
