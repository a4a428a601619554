//! What a scheduler asks of others: the store behind it, and the engine's pool of blocks.

use crate::key::LocalKey;
use crate::plan::BlockId;

/// A lookup under way, as the runtime numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LookupId(pub u64);

/// Whether the hits of a lookup are kept from eviction until the load that may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// They are, for a while that the runtime sets.
    Hits,
    /// They are not.
    Nothing,
}

/// Whether keys are in the store. Bounded in time by the runtime; no answer is a miss of every key.
pub trait Lookups {
    /// Asks and waits; one answer per key, none where the store does not answer.
    fn lookup(&mut self, keys: &[LocalKey], hold: Hold) -> Option<Vec<bool>>;

    /// Asks, and returns at once.
    fn submit(&mut self, keys: &[LocalKey], hold: Hold) -> LookupId;

    /// The answer, once; none while the lookup is under way. The inner none = the store did not answer.
    fn take(&mut self, lookup: LookupId) -> Option<Option<Vec<bool>>>;

    /// Gives a lookup up, with what it holds.
    fn cancel(&mut self, lookup: LookupId);

    /// These hits will not be loaded: their holds may end.
    fn unhold(&mut self, keys: &[LocalKey]) {
        let _ = keys;
    }

    /// Forgets every block of the namespace; false if some are left.
    fn clear(&mut self) -> bool;

    /// A step is planned: what is asked from now on belongs to the next one, as does the time that it takes.
    fn step_planned(&mut self) {}
}

/// Before there is a store nothing is there, and lookup 0 is one that is unanswered: a store that comes later counts its
/// own from 1.
impl<L: Lookups> Lookups for Option<L> {
    fn lookup(&mut self, keys: &[LocalKey], hold: Hold) -> Option<Vec<bool>> {
        self.as_mut()?.lookup(keys, hold)
    }

    fn submit(&mut self, keys: &[LocalKey], hold: Hold) -> LookupId {
        self.as_mut().map_or(LookupId(0), |store| store.submit(keys, hold))
    }

    fn take(&mut self, lookup: LookupId) -> Option<Option<Vec<bool>>> {
        self.as_mut().map_or(Some(None), |store| store.take(lookup))
    }

    fn cancel(&mut self, lookup: LookupId) {
        if let Some(store) = self {
            store.cancel(lookup);
        }
    }

    fn unhold(&mut self, keys: &[LocalKey]) {
        if let Some(store) = self {
            store.unhold(keys);
        }
    }

    fn clear(&mut self) -> bool {
        self.as_mut().is_none_or(Lookups::clear)
    }

    fn step_planned(&mut self) {
        if let Some(store) = self {
            store.step_planned();
        }
    }
}

/// The engine's block pool: pins keep blocks from being given to other requests.
pub trait BlockPool {
    /// Pins each block once.
    fn touch(&mut self, blocks: &[BlockId]);

    /// Gives pins back; the pool takes the first ones first.
    fn free(&mut self, blocks: &[BlockId]);
}
