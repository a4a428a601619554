//! Clear: forgets what a tenant, or one of its namespaces, has stored.

use umbp_protocol::message::{NamespaceId, RemovedReason, SessionId};

use super::api::Time;
use super::slab::NONE;
use super::state::{DRAM, Engine, KEYS_PER_SLICE_MAX};
use super::tier::{CopyState, FORGOTTEN};

/// What one slice of a clear did, and where the next begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClearSlice {
    /// Blocks forgotten.
    pub removed: u64,
    /// Blocks left, since they are in use.
    pub pinned: u64,
    /// Cursor of the next slice; `None` = done.
    pub next: Option<u32>,
}

impl Engine {
    /// Forgets unpinned blocks of the session's tenant, in one namespace or in all; a slice of the index from
    /// `cursor` on, which is 0 at first. What recovery brings in of them afterwards is deleted too; of a shared tier
    /// what is known is deleted, and nothing of them is asked for in this life. Another tenant's namespace holds
    /// nothing of this session's (K12).
    pub fn clear(&mut self, session: SessionId, namespace: Option<NamespaceId>, cursor: u32, now: Time) -> ClearSlice {
        self.begin();
        let mut slice = ClearSlice { removed: 0, pinned: 0, next: None };
        let Some(tenant) = self.tenant_of(session) else { return slice };
        let own = namespace.is_none_or(|namespace| self.owner(namespace) == Some(tenant));
        for tier in self.tiers.iter_mut().skip(DRAM + 1).filter(|_| own) {
            tier.remember_clear(tenant, namespace);
            if let Some(asks) = &mut tier.asks {
                asks.remember_clear(tenant, namespace);
            }
        }
        let end = cursor.saturating_add(KEYS_PER_SLICE_MAX as u32);
        for slot in cursor..end {
            let Some(entry) = self.index.at(slot) else { break };
            let Some(entry) = entry else { continue };
            let wanted = namespace.is_none_or(|wanted| wanted == entry.key.namespace);
            if !wanted || self.owner(entry.key.namespace) != Some(tenant) {
                continue;
            }
            match self.clear_entry(slot) {
                (_, true) => slice.pinned += 1,
                (true, false) => slice.removed += 1,
                (false, false) => {}
            }
        }
        self.work += KEYS_PER_SLICE_MAX as u64;
        slice.next = self.index.at(end).map(|_| end);
        self.settle(now);
        slice
    }

    /// Whether copies left, and whether some had to stay.
    fn clear_entry(&mut self, entry: u32) -> (bool, bool) {
        let (mut removed, mut pinned) = (false, false);
        let copies = self.index.copies(entry);
        for (tier, slot) in copies.into_iter().enumerate().filter(|(_, slot)| *slot != NONE) {
            let copy = &self.tiers[tier].copies[slot];
            let resident = copy.state == CopyState::Resident;
            match copy.state {
                CopyState::Resident | CopyState::Doubted if copy.pins == 0 => {
                    removed |= resident;
                    if tier == DRAM {
                        self.drop_dram(slot, RemovedReason::Cleared);
                    } else {
                        let (tenant, key) = (copy.tenant, self.index[entry].key);
                        if resident {
                            self.removed(tenant, tier, RemovedReason::Cleared, key);
                        }
                        self.delete_lower(tier, slot);
                    }
                }
                CopyState::Doomed if tier != DRAM => {
                    // Deleted with its last pin, though it was only to be forgotten.
                    self.tiers[tier].copies[slot].flags &= !FORGOTTEN;
                }
                CopyState::Deleting | CopyState::Undeleted | CopyState::Doomed => {}
                _ => pinned = true,
            }
        }
        (removed, pinned)
    }
}
