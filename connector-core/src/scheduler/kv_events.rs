//! What others are told of the store's blocks: stored once they are there on all ranks, removed once they are not.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::key::{BlockHash, GroupId, LocalKey, Rank};
use crate::metadata::{StoreEventId, WorkerMetadata};

use super::Scheduler;
use super::seam::{BlockPool, Hold, LookupId, Lookups};
use super::store::{Object, StorePlan};

/// Objects that one residency check asks for.
const CHECK_OBJECTS_MAX: usize = 256;
/// Published objects among them.
const RECHECK_OBJECTS_MAX: usize = 128;
/// Seconds between two checks of published objects.
const RECHECK_SECONDS: f64 = 1.0;
/// Seconds until an object whose check failed is asked for again. Meanwhile it is not due, so that a store which does
/// not answer keeps no engine awake.
const RETRY_SECONDS: f64 = 1.0;

/// News for whoever routes requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// A block is in the store, on all ranks.
    Stored {
        /// Its hash.
        hash: BlockHash,
        /// Its group.
        group: GroupId,
        /// Hash at its start; none for the first block.
        parent: Option<BlockHash>,
        /// Its tokens.
        tokens: Vec<u32>,
        /// Tokens of a block of its group.
        block_size: u64,
    },
    /// It is no longer there.
    Removed {
        /// Its hash.
        hash: BlockHash,
        /// Its group.
        group: GroupId,
    },
}

struct Tracked {
    plan: StorePlan,
    published: bool,
    /// Its place among the objects to be checked, until a check has answered for what is stored now.
    waiting: Option<u64>,
    /// When it was stored last, in order: an answer to an older question does not count.
    stored: u64,
    /// Order of its last check.
    checked: u64,
}

struct Check {
    lookup: LookupId,
    objects: Vec<(Object, u64)>,
}

/// Objects that events follow.
pub(super) struct KvEvents {
    on: bool,
    max_objects: usize,
    objects: HashMap<Object, Tracked>,
    waiting: BTreeMap<u64, Object>,
    check: Option<Check>,
    ready: Vec<KvEvent>,
    checks: u64,
    stores: u64,
    last_recheck: Option<f64>,
    /// Those whose check failed; they wait again at `retry_at`.
    delayed: BTreeMap<u64, Object>,
    retry_at: f64,
}

impl KvEvents {
    pub(super) fn new(on: bool, max_objects: usize) -> Self {
        Self {
            on,
            max_objects,
            objects: HashMap::new(),
            waiting: BTreeMap::new(),
            check: None,
            ready: Vec::new(),
            checks: 0,
            stores: 0,
            last_recheck: None,
            delayed: BTreeMap::new(),
            retry_at: 0.0,
        }
    }

    pub(super) fn is_due_or_under_way(&self) -> bool {
        self.check.is_some() || !self.waiting.is_empty()
    }

    pub(super) fn clear(&mut self, runtime: &mut impl Lookups) {
        if let Some(check) = self.check.take() {
            runtime.cancel(check.lookup);
        }
        self.objects.clear();
        self.waiting.clear();
        self.delayed.clear();
    }

    /// What an event stored waits for a check.
    fn stored(&mut self, plans: Vec<StorePlan>) {
        if !self.on {
            return;
        }
        for plan in plans {
            let object = plan.object();
            self.stores += 1;
            let stored = self.stores;
            let full = self.objects.len() >= self.max_objects;
            match self.objects.get_mut(&object) {
                Some(tracked) => {
                    tracked.stored = stored;
                    let place = *tracked.waiting.get_or_insert(stored);
                    self.delayed.remove(&place);
                    self.waiting.insert(place, object);
                }
                None if full => {}
                None => {
                    let tracked = Tracked { plan, published: false, waiting: Some(stored), stored, checked: 0 };
                    self.objects.insert(object, tracked);
                    self.waiting.insert(stored, object);
                }
            }
        }
    }

    fn forget(&mut self, object: &Object) -> bool {
        let Some(tracked) = self.objects.remove(object) else { return false };
        if let Some(place) = tracked.waiting {
            self.waiting.remove(&place);
            self.delayed.remove(&place);
        }
        tracked.published
    }

    /// Takes the answer of the check under way, then begins the next one.
    fn pump(&mut self, runtime: &mut impl Lookups, ranks: &[Rank], now: f64) {
        if let Some(check) = &self.check {
            let Some(answer) = runtime.take(check.lookup) else { return };
            if let Some(check) = self.check.take() {
                self.answer(check, answer, ranks.len(), now);
            }
        }
        if now >= self.retry_at {
            self.waiting.append(&mut self.delayed);
        }
        let mut objects = Vec::new();
        let is_due = self.last_recheck.is_none_or(|last| now - last >= RECHECK_SECONDS);
        if is_due {
            let mut published: Vec<(u64, Object)> = self
                .objects
                .iter()
                .filter(|(_, tracked)| tracked.published)
                .map(|(object, tracked)| (tracked.checked, *object))
                .collect();
            published.sort_by_key(|(checked, _)| *checked);
            objects.extend(published.into_iter().take(RECHECK_OBJECTS_MAX).map(|(_, object)| object));
        }
        // One that waits besides is asked for once.
        let published: HashSet<Object> = objects.iter().copied().collect();
        let left = CHECK_OBJECTS_MAX - objects.len();
        objects.extend(self.waiting.values().filter(|object| !published.contains(object)).take(left).copied());
        if objects.is_empty() {
            return;
        }
        if is_due {
            self.last_recheck = Some(now);
        }
        let keys: Vec<LocalKey> = objects
            .iter()
            .flat_map(|(group, hash)| {
                ranks.iter().map(move |rank| LocalKey { hash: *hash, group: *group, rank: *rank })
            })
            .collect();
        let lookup = runtime.submit(&keys, Hold::Nothing);
        let seen = objects.into_iter().map(|object| (object, self.objects.get(&object).map_or(0, |of| of.stored)));
        self.check = Some(Check { lookup, objects: seen.collect() });
    }

    fn answer(&mut self, check: Check, answer: Option<Vec<bool>>, ranks: usize, now: f64) {
        let answer = answer.filter(|answer| answer.len() == check.objects.len() * ranks);
        for (at, (object, stored)) in check.objects.into_iter().enumerate() {
            let Some(tracked) = self.objects.get_mut(&object) else { continue };
            if tracked.stored != stored {
                continue;
            }
            self.checks += 1;
            tracked.checked = self.checks;
            let Some(answer) = &answer else {
                // Nobody knows: what was told stays so, and what waits is asked for later.
                if let Some(place) = tracked.waiting {
                    self.waiting.remove(&place);
                    self.delayed.insert(place, object);
                    self.retry_at = now + RETRY_SECONDS;
                }
                continue;
            };
            if let Some(place) = tracked.waiting.take() {
                self.waiting.remove(&place);
            }
            let there = answer[at * ranks..(at + 1) * ranks].iter().all(|there| *there);
            let (group, hash) = object;
            if there && !tracked.published {
                tracked.published = true;
                let StorePlan { parent, block_size, .. } = tracked.plan;
                let tokens = std::mem::take(&mut tracked.plan.tokens);
                self.ready.push(KvEvent::Stored { hash, group, parent, tokens, block_size });
            } else if !there && self.forget(&object) {
                self.ready.push(KvEvent::Removed { hash, group });
            }
        }
    }
}

impl<L: Lookups, P: BlockPool> Scheduler<L, P> {
    /// Workers report. Pins of events that every worker has ended are given back. `now` in seconds of any clock that
    /// does not go back.
    pub fn update_connector_output(&mut self, output: &WorkerMetadata, now: f64) {
        for (event, result) in &output.store_events {
            self.complete(*event, result.completed_workers, result.failed_objects.iter().copied());
        }
        if self.events.on {
            self.events.pump(&mut self.runtime, &self.ranks, now);
        }
    }

    fn complete(&mut self, event: StoreEventId, workers: u32, failed: impl IntoIterator<Item = Object>) {
        if let Some(stored) = self.pins.complete(event, workers, failed, self.pool.as_mut()) {
            self.events.stored(stored);
        }
    }

    /// Workers saw these evicted.
    pub fn invalidate_kv_events(&mut self, removed: &[Object]) {
        for object in removed {
            self.events.forget(object);
        }
    }

    /// News since the last call.
    pub fn take_events(&mut self, now: f64) -> Vec<KvEvent> {
        if self.events.on {
            self.events.pump(&mut self.runtime, &self.ranks, now);
        }
        std::mem::take(&mut self.events.ready)
    }
}
