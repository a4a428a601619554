//! The engine's tables, and how a call begins and ends.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use umbp_protocol::message::{
    Event, KEYS_PER_MESSAGE_MAX, MissReason, NamespaceId, RemovedReason, SegmentId, SessionId, WireKey,
};

use super::api::{Action, Generations, Settings, TIERS_MAX, TenantIndex, TierIndex, TierSettings, Time, WritePolicy};
use super::ask::Waits;
use super::ghosts::Ghosts;
use super::hold::Hold;
use super::index::Index;
use super::lease::Lease;
use super::load::Promotion;
use super::lower::InFlight;
use super::namespace::Namespaces;
use super::orphans::Adrift;
use super::pool::{Pool, UNIT_BYTES};
use super::session::Session;
use super::slab::Words;
use super::tier::Tier;

/// The first tier.
pub(super) const DRAM: usize = 0;
/// Most keys in one call; longer requests are sliced by the caller under one lease.
pub const KEYS_PER_SLICE_MAX: usize = 512;
/// Longest chain: deeper blocks are refused as invalid.
pub const DEPTH_MAX: u32 = 65_535;

/// Something that falls due.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    Lease(u64),
    Hold {
        entry: u32,
        session: u64,
    },
    Operation(u64),
    Probe(u8),
    /// A tier's limit is tried higher.
    Limit(u8),
    /// A tier's failed deletes are tried again.
    Deletes(u8),
    /// A withdrawn segment's sessions should have unmapped it.
    Withdrawn(u32),
}

/// Counters of the whole engine; none ever decreases.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) asked: u64,
    /// By [`umbp_protocol::message::MissReason`]'s number.
    pub(super) misses: [u64; MissReason::ALL.len() + 1],
    /// Blocks that an Acquire, or the promotion it waited for, answered with a miss; by the same number.
    pub(super) load_misses: [u64; MissReason::ALL.len() + 1],
    pub(super) stored: u64,
    pub(super) refused: u64,
    pub(super) promotions: u64,
    pub(super) promotions_failed: u64,
    pub(super) acquired: u64,
    pub(super) bad_loads: u64,
    pub(super) leases_expired: u64,
    pub(super) holds_expired: u64,
    pub(super) holds_refused: u64,
    pub(super) stale_commits: u64,
    /// Contradictions between the engine's own tables; must stay 0.
    pub(super) faults: u64,
}

/// Keys that left a tier in this call, by tenant, tier and reason.
type Removals = BTreeMap<(u16, u8, u8), Vec<WireKey>>;

/// The tier engine. See the module for what it promises; every method takes the time, answers directly, and leaves
/// side effects for [`Engine::actions`], to be drained after each call and carried out in order before the answer
/// goes out.
pub struct Engine {
    pub(super) settings: Settings,
    /// Generation of each slot of the first tier: never decreases.
    pub(super) generations: Box<dyn Generations + Send>,
    pub(super) index: Index,
    pub(super) tiers: Vec<Tier>,
    pub(super) pool: Pool,
    /// Orphans of the first tier, per tenant.
    pub(super) adrift: Vec<Adrift>,
    /// Blocks that left the first tier for good, where that is of use.
    pub(super) sightings: Ghosts,
    pub(super) namespaces: Namespaces,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    /// Sessions that have ended and whose leases and holds are being let go, a slice at a time.
    pub(super) closing: BTreeSet<SessionId>,
    pub(super) leases: HashMap<u64, Lease>,
    pub(super) holds: BTreeMap<(u32, u64), Hold>,
    pub(super) promotions: HashMap<u32, Promotion>,
    /// Lookups that shared tiers are asked for.
    pub(super) tickets: HashMap<u64, Waits>,
    /// Loads of each entry, where a tier wants its copy after so many.
    pub(super) hits: Words<u8>,
    pub(super) counts_hits: bool,
    pub(super) operations: HashMap<u64, InFlight>,
    pub(super) timers: BTreeSet<(u64, Timer)>,
    pub(super) outbox: Vec<Action>,
    removals: Removals,
    /// Withdrawn in this call, to be unmapped in time.
    pub(super) withdrawn: Vec<SegmentId>,
    /// Logical clock: one step per touched batch.
    pub(super) clock: u64,
    pub(super) next_id: u64,
    pub(super) draining: bool,
    pub(super) counters: Counters,
    /// Entries touched by the call under way.
    pub(super) work: u64,
    /// Ancestors that were looked at in this call for those that a lower tier lacks.
    pub(super) climbed: u64,
    /// Evictions in the call under way.
    pub(super) evictions: usize,
    /// Searches for a victim that went on, in the call under way.
    pub(super) searches: usize,
    /// Scratch of [`Engine::touch`].
    pub(super) scratch: Vec<u64>,
}

impl Engine {
    /// An engine without segments and with no tier running. Panics never; settings beyond [`TIERS_MAX`] are cut.
    pub fn new(mut settings: Settings, generations: Box<dyn Generations + Send>) -> Self {
        settings.tiers.truncate(TIERS_MAX);
        settings.block_bytes = settings.block_bytes.min(u64::from(u32::MAX) - UNIT_BYTES);
        settings.headroom.resize(settings.tiers.len(), 0);
        for tenant in &mut settings.tenants {
            tenant.quota.resize(settings.tiers.len(), u64::MAX);
        }
        let tenants = settings.tenants.len();
        let tier = |(at, tier): (usize, &TierSettings)| {
            let shares: Vec<u64> = settings.tenants.iter().map(|tenant| tenant.quota[at]).collect();
            Tier::new(tier.clone(), &shares, settings.eviction)
        };
        let tiers = settings.tiers.iter().enumerate().map(tier).collect();
        Self {
            generations,
            index: Index::new(),
            tiers,
            pool: Pool::new(tenants),
            adrift: (0..tenants).map(|_| Adrift::default()).collect(),
            sightings: Ghosts::new(),
            namespaces: Namespaces::default(),
            sessions: BTreeMap::new(),
            closing: BTreeSet::new(),
            leases: HashMap::new(),
            holds: BTreeMap::new(),
            promotions: HashMap::new(),
            tickets: HashMap::new(),
            hits: Words::new(),
            counts_hits: settings.tiers.iter().any(|tier| matches!(tier.write, WritePolicy::AfterHits(_))),
            operations: HashMap::new(),
            timers: BTreeSet::new(),
            outbox: Vec::new(),
            removals: Removals::new(),
            withdrawn: Vec::new(),
            clock: 0,
            next_id: 1,
            draining: false,
            counters: Counters::default(),
            work: 0,
            climbed: 0,
            evictions: 0,
            searches: 0,
            scratch: Vec::new(),
            settings,
        }
    }

    /// Words that each tenant's generation table needs: one per extent that could exist at one time.
    pub fn generation_words(settings: &Settings) -> u64 {
        settings.tiers.first().map_or(0, |tier| tier.capacity.div_ceil(UNIT_BYTES))
    }

    /// What is to be done, in order. The daemon drains it after each call.
    pub fn actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.outbox)
    }

    /// One more segment of the pool, wholly free. It becomes a tenant's own when that tenant first needs it, unless
    /// it is named here. False if it cannot be taken: number known, too many, or shorter than a unit.
    pub fn segment_add(&mut self, id: SegmentId, bytes: u64, tenant: Option<TenantIndex>) -> bool {
        let tenant = tenant.map(|tenant| tenant.0).or((self.settings.tenants.len() == 1).then_some(0));
        let added = self.pool.add(id, bytes, tenant);
        if let (true, Some(tenant)) = (added, tenant) {
            self.push_segment(tenant, id, bytes);
        }
        added
    }

    /// The segments that sessions of the tenant map, for a session that begins. Later ones follow as events.
    pub fn segments_of(&self, tenant: TenantIndex) -> Vec<(SegmentId, u64)> {
        self.pool.segments_of(tenant.0)
    }

    /// Entries touched by the last call: moved in an order of eviction, evicted, expired or placed.
    pub fn last_work(&self) -> u64 {
        self.work
    }

    pub(super) fn push_segment(&mut self, tenant: u16, id: SegmentId, bytes: u64) {
        self.push_to_tenant(tenant, &Event::SegmentsAdded { segments: vec![(id, bytes)] });
    }

    pub(super) fn push_to_tenant(&mut self, tenant: u16, event: &Event) {
        for (id, session) in &self.sessions {
            if session.open && session.tenant == tenant {
                self.outbox.push(Action::Push { session: *id, event: event.clone() });
            }
        }
    }

    pub(super) fn push_to_all(&mut self, event: &Event) {
        for tenant in 0..self.settings.tenants.len() as u16 {
            self.push_to_tenant(tenant, event);
        }
    }

    /// Starts a call: work is counted anew.
    pub(super) fn begin(&mut self) {
        self.work = 0;
        self.climbed = 0;
        self.evictions = 0;
        self.searches = 0;
    }

    /// Ends a call: a slice of reclaim, operations for idle slots, and word of what left.
    pub(super) fn settle(&mut self, now: Time) {
        self.reclaim();
        self.pump(now);
        for segment in std::mem::take(&mut self.withdrawn) {
            self.timers.insert((now.0.saturating_add(self.settings.lease_ns), Timer::Withdrawn(segment.0)));
        }
        let removals = std::mem::take(&mut self.removals);
        for ((tenant, tier, reason), keys) in removals {
            let reason = match reason {
                2 => RemovedReason::Cleared,
                3 => RemovedReason::Failed,
                _ => RemovedReason::Evicted,
            };
            // A call that makes room for large blocks removes more than one message holds.
            for keys in keys.chunks(KEYS_PER_MESSAGE_MAX) {
                self.push_to_tenant(tenant, &Event::Removed { tier, reason, keys: keys.into() });
            }
        }
    }

    pub(super) fn removed(&mut self, tenant: u16, tier: usize, reason: RemovedReason, key: WireKey) {
        self.removals.entry((tenant, tier as u8, reason as u8)).or_default().push(key);
    }

    /// The tenant that owns a key's namespace.
    pub(super) fn owner(&self, namespace: NamespaceId) -> Option<u16> {
        self.namespaces.tenant(namespace)
    }

    pub(super) fn fault(&mut self) {
        self.counters.faults += 1;
        debug_assert!(false, "the engine's tables contradict each other");
    }

    pub(super) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    pub(super) fn tier_index(tier: usize) -> TierIndex {
        TierIndex(tier as u8)
    }
}
