//! What goes into the tier engine and what comes out of it, besides the protocol's own messages.

use umbp_plugin_api::Operation;
use umbp_protocol::message::{Event, SegmentId, SessionId};

/// Nanoseconds of CLOCK_MONOTONIC. The engine reads no clock: each call brings the time along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time(pub u64);

/// Index of a tier in config order; 0 is the mappable one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TierIndex(pub u8);

/// Index of a tenant in config order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantIndex(pub u16);

/// Most tiers in one deployment.
pub const TIERS_MAX: usize = 4;

/// What the engine knows of a tier at start.
#[derive(Clone, Debug)]
pub struct TierSettings {
    /// Name in the config.
    pub name: String,
    /// Most bytes it may hold, payloads rounded up to `alignment`.
    pub capacity: u64,
    /// Rounding of a payload in this tier, in bytes.
    pub alignment: u64,
    /// Longest payload it takes, in bytes.
    pub largest_payload: u64,
    /// Operations in flight that it was granted.
    pub slots: u32,
    /// An operation past this counts as missed, in nanoseconds.
    pub deadline_ns: u64,
    /// When it gets its copy; of no meaning for the first tier.
    pub write: WritePolicy,
    /// Other hosts store and delete there too.
    pub shared: Option<Shared>,
}

/// What a tier is asked about that hosts share, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Longest that a lookup waits for answers, in nanoseconds; 0 = it waits for none.
    pub lookup_budget_ns: u64,
    /// How long an answer that a block is not there is believed, in nanoseconds.
    pub negative_ns: u64,
}

/// A lookup that shared tiers are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// How far the answers to a lookup's asks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Answers that are worth waiting for and not there yet.
    pub left: usize,
    /// Nothing is to be waited for any longer.
    pub until: Time,
}

/// When a lower tier gets its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePolicy {
    /// In the background, after the commit.
    Through,
    /// When the copy in the first tier is evicted.
    OnEvict,
    /// In the background, once the block has been loaded this many times.
    AfterHits(u8),
}

/// What leaves a tier first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// The deepest of the least recently used chains.
    PrefixLru,
    /// First in first out, in two queues, with a memory of what left lately.
    S3Fifo,
    /// The end of the chain whose next use is the least likely, as learned from uses seen.
    ChainHazard,
}

/// Which blocks lower tiers take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Every one.
    All,
    /// Those that are loaded, or stored anew, after their first store; with what lies above them.
    SecondSighting,
    /// Those at least this many blocks from the start of their chain; with what lies above them.
    MinDepth(u32),
}

/// What becomes of a block that is loaded from a lower tier. Loads always go through the first tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promote {
    /// It stays in the first tier, as just used.
    OnAcquire,
    /// It leaves the first tier after the read, until it has been loaded this many times.
    AfterHits(u8),
}

/// A tenant and its share of each tier.
#[derive(Clone, Debug)]
pub struct TenantSettings {
    /// Name in the config.
    pub name: String,
    /// Most bytes in each tier, in tier order.
    pub quota: Vec<u64>,
}

/// All that the engine is told once.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Tiers, the mappable one first.
    pub tiers: Vec<TierSettings>,
    /// Tenants, in config order.
    pub tenants: Vec<TenantSettings>,
    /// Bytes of each tier that reclaim keeps free, in tier order.
    pub headroom: Vec<u64>,
    /// Bytes of the first tier that only promotions may use, inside its capacity.
    pub promotion_budget: u64,
    /// What leaves a tier first.
    pub eviction: EvictionPolicy,
    /// Which blocks lower tiers take.
    pub admission: Admission,
    /// What becomes of a block that is loaded from a lower tier.
    pub promote: Promote,
    /// Life of a lease, in nanoseconds.
    pub lease_ns: u64,
    /// Longest hold, in nanoseconds.
    pub hold_ns: u64,
    /// Most bytes that one session may hold.
    pub hold_bytes: u64,
    /// Most quarantined bytes of one session, beyond which its Reserves are refused.
    pub quarantine_bytes: u64,
    /// Most bytes waiting for their background copy; beyond it tails are dropped and counted.
    pub background_bytes: u64,
    /// Largest block, in bytes.
    pub block_bytes: u64,
}

/// What the engine wants done. Actions are drained after every call, in order.
#[derive(Debug)]
pub enum Action {
    /// Hand an operation to a tier. Its `region` is a segment's number.
    Submit {
        /// The tier.
        tier: TierIndex,
        /// The operation.
        operation: Operation,
    },
    /// Ask a tier to end operations early.
    Cancel {
        /// The tier.
        tier: TierIndex,
        /// Ids of operations.
        ids: Vec<u64>,
    },
    /// Introduce a namespace to a tier, before the first operation that names it.
    NamespacePut {
        /// The tier.
        tier: TierIndex,
        /// Its number.
        id: u32,
        /// Digest of the descriptor.
        digest: [u8; 32],
        /// Tenant and descriptor, as bytes.
        descriptor: Vec<u8>,
    },
    /// Push an event to a session.
    Push {
        /// The session.
        session: SessionId,
        /// The event.
        event: Event,
    },
    /// End a session from this side, telling it why; its close follows as for any other.
    EndSession {
        /// The session.
        session: SessionId,
        /// For people.
        why: &'static str,
    },
    /// Nothing is left of what a lookup waits for.
    Answered {
        /// The lookup.
        ticket: Ticket,
    },
    /// A segment is unmapped by every session and holds nothing: destroy it and create one anew.
    SegmentFree {
        /// The segment.
        segment: SegmentId,
    },
}

/// The generation tables, one per tenant, which clients read after each copy. The daemon's form writes shared
/// memory; tests use plain vectors. A word is set before any answer that could let its extent be reused.
pub trait Generations {
    /// The slot's word in a tenant's table: 0 at first.
    fn get(&self, tenant: TenantIndex, slot: u32) -> u64;

    /// Raises the slot's word in a tenant's table above what the slot's word ever was in any tenant's: it may have been
    /// another's before.
    fn advance(&mut self, tenant: TenantIndex, slot: u32);
}

/// State of a tier, as its runner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierState {
    /// Named in config; not loaded, with the reason in the report.
    Declared,
    /// The shared object is loaded; not open yet.
    Loaded,
    /// It serves.
    Running,
    /// It misses its deadlines: lookups are misses, stores are dropped and counted, it is probed.
    Degraded,
    /// It is not called any more.
    Failed,
}

impl TierState {
    /// Its name on status pages and in events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Declared => "declared",
            Self::Loaded => "loaded",
            Self::Running => "running",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
        }
    }
}
