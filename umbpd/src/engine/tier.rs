//! What the engine keeps for one tier: its copies, their order of eviction, its queues and its counters.

use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use umbp_plugin_api::Status;
use umbp_protocol::message::{NamespaceId, WireKey};

use super::api::{EvictionPolicy, TierSettings, TierState};
use super::ask::Asks;
use super::deletes::{DELETE_RETRY_NS, FAILED_DELETES_MAX};
use super::policy::{self, Link, Policy};
use super::slab::{NONE, Slab, Words};

/// Time after which a tier's limit is tried higher, in nanoseconds.
pub const LIMIT_RAISE_EVERY_NS: u64 = 10_000_000_000;
/// Places that an empty queue of background puts keeps.
const PUTS_KEPT: usize = 1024;
/// Part of the capacity by which it is raised at first: 1/256, or the put that did not fit if that is more.
const RAISE_SHARE: u64 = 256;

/// Life of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyState {
    /// The slot is free.
    Free,
    /// First tier: leased to a writer.
    Writing,
    /// First tier: being filled by a promotion; without an entry, one that nobody waits for any more but that its
    /// backend may still write to.
    Filling,
    /// Lower tiers: its put is submitted.
    Putting,
    /// Readable.
    Resident,
    /// Lower tiers: its last load failed or is overdue; kept for the medium's sake, hidden from all.
    Doubted,
    /// Leaves as soon as its last pin does.
    Doomed,
    /// Lower tiers: its delete is queued or submitted.
    Deleting,
    /// Lower tiers: its delete failed and will be tried again; hidden, and its room taken, until it is done.
    Undeleted,
    /// First tier: a late or dead writer may still write to it.
    Quarantined,
}

/// The copy is in its policy's order.
pub(super) const LISTED: u8 = 1;
/// First tier: leaves once its demotion is done, unless it is used before.
pub(super) const LEAVING: u8 = 2;
/// Shared tiers: leaves with its last pin, and is not deleted.
pub(super) const FORGOTTEN: u8 = 2;
/// Recovered, and waiting for its place in the policy's order.
pub(super) const UNPLACED: u8 = 4;
/// First tier: came up for a load, and leaves when nobody reads it any more.
pub(super) const PASSING: u8 = 8;
/// First tier: `QUEUED << tier` is set while a background put into that tier is queued.
pub(super) const QUEUED: u8 = 8;
/// First tier: such a put into any tier.
pub(super) const ANY_QUEUED: u8 = QUEUED << 1 | QUEUED << 2 | QUEUED << 3;
/// Its policy knows the copy, listed or not.
pub(super) const TRACKED: u8 = 128;

/// One copy of a block in one tier.
pub(super) struct BlockCopy {
    /// First tier: packed place of the extent. Lower tiers: the backend's location.
    pub(super) place: u64,
    /// Its entry, or NONE once detached.
    pub(super) entry: u32,
    pub(super) link: Link,
    /// Reasons why it must stay: leases, holds, submitted operations.
    pub(super) pins: u32,
    /// Room that it takes, in bytes, rounded up.
    pub(super) bytes: u32,
    pub(super) tenant: u16,
    pub(super) state: CopyState,
    pub(super) flags: u8,
}

impl BlockCopy {
    pub(super) fn new(entry: u32, tenant: u16, place: u64, bytes: u32, state: CopyState) -> Self {
        let link = Link { colder: NONE, hotter: NONE };
        Self { place, entry, link, pins: 0, bytes, tenant, state, flags: 0 }
    }

    pub(super) fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// First tier: a background put of it is queued.
    pub(super) fn is_queued(&self) -> bool {
        self.is(ANY_QUEUED)
    }
}

/// A background put that waits. The generation tells whether the copy it stands for is still there.
#[derive(Clone, Copy)]
pub(super) struct QueuedPut {
    pub(super) dram: u32,
    pub(super) generation: u64,
}

/// A recovered copy that waits for its place; the most recent comes first.
#[derive(PartialEq, Eq)]
pub(super) struct Unplaced {
    pub(super) recency: u64,
    pub(super) slot: u32,
}

impl Ord for Unplaced {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.recency, self.slot).cmp(&(other.recency, other.slot))
    }
}

impl PartialOrd for Unplaced {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// What recovery found under a key that had been put anew by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stray {
    pub(super) key: WireKey,
    pub(super) location: u64,
    pub(super) length: u64,
    pub(super) checksum: u64,
    pub(super) bytes: u64,
    pub(super) tenant: u16,
}

/// Counters of a tier; none ever decreases.
#[derive(Default)]
pub(super) struct TierCounters {
    pub(super) hits: u64,
    /// Blocks that were found here and handed out to be loaded.
    pub(super) loaded: u64,
    pub(super) stored: u64,
    pub(super) promoted: u64,
    pub(super) evicted: u64,
    pub(super) demoted: u64,
    /// Background puts given up: no room in the queue, evicted before their turn, tier down, no space.
    pub(super) dropped: u64,
    /// Blocks that the admission policy kept out of it when they were stored or evicted above.
    pub(super) not_admitted: u64,
    /// First tier: copies that left after a load, since their block had not been loaded often enough.
    pub(super) passed_through: u64,
    /// Tries of a put that were refused for lack of space: so it is found out what fits. No errors; a block that is
    /// given up over it is dropped.
    pub(super) limit_found: u64,
    /// Shared tiers: puts that found other bytes there than ours.
    pub(super) present_other: u64,
    pub(super) timeouts: u64,
    /// Completions that no operation in flight stands for.
    pub(super) unknown_completions: u64,
    /// By status, as in [`Status`]; the last counts all others.
    pub(super) errors: [u64; ERROR_KINDS],
}

/// Kinds of errors that are counted apart.
pub(super) const ERROR_KINDS: usize = 12;

impl TierCounters {
    pub(super) fn error(&mut self, status: Status) {
        self.errors[(status.0 as usize).min(ERROR_KINDS - 1)] += 1;
    }
}

/// One tier.
pub(super) struct Tier {
    pub(super) settings: TierSettings,
    /// Bytes that its backend can really hold, as far as is known: at most the capacity. A backend keeps records of
    /// its own, and its medium may fill before the capacity does.
    pub(super) limit: u64,
    /// Bytes by which the limit is raised next; doubled while nothing is refused.
    limit_step: u64,
    /// A timer stands for the next raise.
    pub(super) limit_timer: bool,
    pub(super) state: TierState,
    pub(super) copies: Slab<BlockCopy>,
    /// Order of eviction, per tenant.
    pub(super) orders: Vec<Box<dyn Policy>>,
    /// The policy's word about each copy, where it wants that.
    pub(super) marks: Words<u32>,
    /// How many children each entry has with a copy here, or with a descendant's copy here; where the policy wants it.
    pub(super) kids: Words<u32>,
    pub(super) wants_ends: bool,
    /// Bytes taken, per tenant, rounded up; copies being written, filled, deleted and quarantined included.
    pub(super) used: Vec<u64>,
    /// Bytes that deletes have freed in this life.
    pub(super) deleted_bytes: u64,
    /// Resident copies.
    pub(super) resident: u64,
    pub(super) counters: TierCounters,
    /// Promotions (entries) that wait for an operation slot.
    pub(super) gets: VecDeque<u32>,
    pub(super) deletes: VecDeque<u32>,
    /// Recovered second copies of blocks, to be deleted.
    pub(super) strays: VecDeque<Stray>,
    /// Copies whose delete failed, and that wait until it is tried again.
    pub(super) undeleted: VecDeque<u32>,
    pub(super) undeleted_strays: VecDeque<Stray>,
    /// Time until the next try, in nanoseconds.
    pub(super) delete_retry_ns: u64,
    /// A timer stands for it.
    pub(super) delete_retry_waits: bool,
    /// Shared tiers: what they are asked.
    pub(super) asks: Option<Box<Asks>>,
    pub(super) puts: VecDeque<QueuedPut>,
    /// Puts refused for lack of space: DRAM slot, and times tried. They are tried again.
    pub(super) retries: VecDeque<(u32, u8)>,
    /// Live blocks and bytes in `puts`; the rest of it is stale.
    pub(super) queued_blocks: u64,
    pub(super) queued_bytes: u64,
    pub(super) in_flight: u32,
    pub(super) puts_in_flight: u32,
    pub(super) deletes_in_flight: u32,
    /// Bytes, per tenant, of copies on their way out: lower tiers, a delete is queued or submitted; first tier, a
    /// demotion is.
    pub(super) freeing: Vec<u64>,
    /// Deadlines missed since the last answer in time.
    pub(super) misses_in_a_row: u32,
    pub(super) probing: bool,
    pub(super) unplaced: BinaryHeap<Unplaced>,
    pub(super) recovery_done: bool,
    /// Cleared while recovery could still bring blocks in: a tenant, and one of its namespaces or all. At most one
    /// item for each namespace and tenant.
    pub(super) cleared: BTreeSet<(u16, Option<NamespaceId>)>,
    /// Recovery is over, so that nothing needs to be remembered of a clear.
    pub(super) recovery_over: bool,
}

impl Tier {
    /// The background put that waits longest. A queue that has become empty gives the memory of a burst back.
    pub(super) fn next_put(&mut self) -> Option<QueuedPut> {
        let put = self.puts.pop_front();
        if self.puts.is_empty() {
            self.puts.shrink_to(PUTS_KEPT);
        }
        put
    }

    /// `shares`: the most bytes that each tenant may have here.
    pub(super) fn new(settings: TierSettings, shares: &[u64], eviction: EvictionPolicy) -> Self {
        let tenants = shares.len();
        let part = |share: &u64| policy::make(eviction, (*share).min(settings.capacity));
        let orders: Vec<_> = shares.iter().map(part).collect();
        Self {
            limit: settings.capacity,
            limit_step: 0,
            limit_timer: false,
            asks: settings.shared.map(|shared| Box::new(Asks::new(shared))),
            settings,
            state: TierState::Declared,
            copies: Slab::new(),
            wants_ends: orders.first().is_some_and(|order| order.wants_ends()),
            orders,
            marks: Words::new(),
            kids: Words::new(),
            used: vec![0; tenants],
            deleted_bytes: 0,
            resident: 0,
            counters: TierCounters::default(),
            gets: VecDeque::new(),
            deletes: VecDeque::new(),
            strays: VecDeque::new(),
            undeleted: VecDeque::new(),
            undeleted_strays: VecDeque::new(),
            delete_retry_ns: DELETE_RETRY_NS,
            delete_retry_waits: false,
            puts: VecDeque::new(),
            retries: VecDeque::new(),
            queued_blocks: 0,
            queued_bytes: 0,
            in_flight: 0,
            puts_in_flight: 0,
            deletes_in_flight: 0,
            freeing: vec![0; tenants],
            misses_in_a_row: 0,
            probing: false,
            unplaced: BinaryHeap::new(),
            recovery_done: true,
            cleared: BTreeSet::new(),
            recovery_over: false,
        }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used.iter().sum()
    }

    /// Bytes taken and not on their way out.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.used_bytes().saturating_sub(self.freeing.iter().sum())
    }

    /// A put was refused for lack of space, and is no longer counted: what fits is what is there now, and what was
    /// deleted since the put was submitted, since that may have been there when it was refused.
    pub(super) fn lower_limit(&mut self, refused_bytes: u64, freed_since: u64) {
        self.limit = self.limit.min(self.used_bytes().saturating_add(freed_since));
        self.limit_step = (self.settings.capacity / RAISE_SHARE).max(refused_bytes).max(1);
    }

    /// Room may have come free: the limit is tried higher, whether or not anything fits below it now. True if it is
    /// still below the capacity.
    pub(super) fn raise_limit(&mut self) -> bool {
        self.limit = self.limit.saturating_add(self.limit_step).min(self.settings.capacity);
        self.limit_step = self.limit_step.saturating_mul(2);
        self.limit < self.settings.capacity
    }

    /// A clear. What recovery brings in of it later is deleted then.
    pub(super) fn remember_clear(&mut self, tenant: u16, namespace: Option<NamespaceId>) {
        if !self.recovery_over {
            self.cleared.insert((tenant, namespace));
        }
    }

    /// Whether a clear came before this block of an earlier life.
    pub(super) fn was_cleared(&self, tenant: u16, namespace: NamespaceId) -> bool {
        self.cleared.contains(&(tenant, None)) || self.cleared.contains(&(tenant, Some(namespace)))
    }

    /// Its room counts until it is deleted.
    pub(super) fn take_stray(&mut self, stray: Stray) {
        self.used[usize::from(stray.tenant)] += stray.bytes;
        self.freeing[usize::from(stray.tenant)] += stray.bytes;
        self.strays.push_back(stray);
    }

    /// Blocks whose delete failed.
    pub(super) fn undeleted_blocks(&self) -> usize {
        self.undeleted.len() + self.undeleted_strays.len()
    }

    /// Its copies can leave: what is evicted is forgotten, or deletes do not fail.
    pub(super) fn makes_room(&self) -> bool {
        self.asks.is_some() || self.undeleted_blocks() < FAILED_DELETES_MAX
    }

    pub(super) fn running(&self) -> bool {
        self.state == TierState::Running
    }

    /// Rounds a payload up to what it takes here.
    pub(super) fn rounded(&self, length: u64) -> u64 {
        length.next_multiple_of(self.settings.alignment.max(1))
    }
}
