//! The engine's tables, and the few moves that everything else is made of: pin, unpin, touch, attach, let go.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use umbp_protocol::message::{Event, Extent, MissReason, NamespaceId, RemovedReason, SegmentId, SessionId, WireKey};

use super::api::{Action, Generations, Settings, TIERS_MAX, TenantIndex, TierIndex, Time};
use super::hold::Hold;
use super::index::Index;
use super::lease::Lease;
use super::load::Promotion;
use super::lower::InFlight;
use super::namespace::Namespaces;
use super::pool::{Place, Pool, UNIT_BYTES};
use super::session::Session;
use super::slab::{NONE, Slab};
use super::tier::{BlockCopy, CopyState, LEAVING, LISTED, QUEUED, Tier, UNPLACED};

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
    Hold { entry: u32, session: u64 },
    Operation(u64),
    Probe(u8),
}

/// Counters of the whole engine; none ever decreases.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) asked: u64,
    /// By [`MissReason`]'s number.
    pub(super) misses: [u64; 8],
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
    generations: Box<dyn Generations + Send>,
    /// Generation of each slot of the first tier: never decreases.
    words: Slab<u64>,
    pub(super) index: Index,
    pub(super) tiers: Vec<Tier>,
    pub(super) pool: Pool,
    pub(super) namespaces: Namespaces,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    /// Sessions that have ended and whose leases and holds are being let go, a slice at a time.
    pub(super) closing: BTreeSet<SessionId>,
    pub(super) leases: HashMap<u64, Lease>,
    pub(super) holds: BTreeMap<(u32, u64), Hold>,
    pub(super) promotions: HashMap<u32, Promotion>,
    pub(super) operations: HashMap<u64, InFlight>,
    pub(super) timers: BTreeSet<(u64, Timer)>,
    pub(super) outbox: Vec<Action>,
    removals: Removals,
    /// Logical clock: one step per touched batch.
    pub(super) clock: u64,
    pub(super) next_id: u64,
    pub(super) draining: bool,
    pub(super) counters: Counters,
    /// Entries touched by the call under way.
    pub(super) work: u64,
    /// Evictions in the call under way.
    pub(super) evictions: usize,
    scratch: Vec<u64>,
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
        Self {
            generations,
            words: Slab::new(),
            index: Index::new(),
            tiers: settings.tiers.iter().map(|tier| Tier::new(tier.clone(), tenants)).collect(),
            pool: Pool::new(tenants),
            namespaces: Namespaces::default(),
            sessions: BTreeMap::new(),
            closing: BTreeSet::new(),
            leases: HashMap::new(),
            holds: BTreeMap::new(),
            promotions: HashMap::new(),
            operations: HashMap::new(),
            timers: BTreeSet::new(),
            outbox: Vec::new(),
            removals: Removals::new(),
            clock: 0,
            next_id: 1,
            draining: false,
            counters: Counters::default(),
            work: 0,
            evictions: 0,
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
        self.evictions = 0;
    }

    /// Ends a call: a slice of reclaim, operations for idle slots, and word of what left.
    pub(super) fn settle(&mut self, now: Time) {
        self.reclaim();
        self.pump(now);
        let removals = std::mem::take(&mut self.removals);
        for ((tenant, tier, reason), keys) in removals {
            let reason = match reason {
                2 => RemovedReason::Cleared,
                3 => RemovedReason::Failed,
                _ => RemovedReason::Evicted,
            };
            self.push_to_tenant(tenant, &Event::Removed { tier, reason, keys });
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

    // --- generations -----------------------------------------------------------------------------------------------

    pub(super) fn generation(&self, slot: u32) -> u64 {
        self.words[slot]
    }

    pub(super) fn words_bytes(&self) -> usize {
        self.words.memory_bytes()
    }

    /// From here on no earlier lease of this slot means anything.
    pub(super) fn advance(&mut self, slot: u32) {
        let tenant = self.tiers[DRAM].copies[slot].tenant;
        self.words[slot] += 1;
        self.generations.set(TenantIndex(tenant), slot, self.words[slot]);
    }

    pub(super) fn extent(&self, slot: u32) -> Extent {
        let place = Place::unpacked(self.tiers[DRAM].copies[slot].place);
        let (segment, offset) = self.pool.address(place);
        Extent { segment: segment.0, slot, offset, generation: self.words[slot] }
    }

    // --- copies ----------------------------------------------------------------------------------------------------

    /// A copy in the first tier on an extent that was just taken.
    pub(super) fn dram_copy(&mut self, entry: u32, tenant: u16, place: Place, bytes: u64, state: CopyState) -> u32 {
        let copy = BlockCopy::new(entry, tenant, place.packed(), bytes as u32, state);
        let slot = self.tiers[DRAM].copies.insert(copy);
        if slot == self.words.high() {
            self.words.insert(0);
        }
        self.index[entry].copies[DRAM] = slot;
        self.advance(slot);
        slot
    }

    /// Parts a copy from its entry. The caller collects the entry once it is done with it.
    pub(super) fn detach(&mut self, tier: usize, slot: u32) {
        self.tiers[tier].unlist(slot);
        let entry = self.tiers[tier].copies[slot].entry;
        if entry == NONE {
            return;
        }
        if tier == DRAM {
            self.unqueue(slot);
            self.set_leaving(slot, false);
        }
        if self.tiers[tier].copies[slot].state == CopyState::Resident {
            self.tiers[tier].resident -= 1;
            self.index.lost(entry);
        }
        self.tiers[tier].copies[slot].entry = NONE;
        self.index[entry].copies[tier] = NONE;
    }

    /// Forgets background puts of a copy that have not been submitted.
    pub(super) fn unqueue(&mut self, slot: u32) {
        let copy = &mut self.tiers[DRAM].copies[slot];
        let (flags, bytes) = (copy.flags, u64::from(copy.bytes));
        copy.flags &= !(QUEUED << 1 | QUEUED << 2 | QUEUED << 3);
        for tier in 1..self.tiers.len() {
            if flags & QUEUED << tier != 0 {
                let tier = &mut self.tiers[tier];
                tier.queued_blocks -= 1;
                tier.queued_bytes -= bytes;
                tier.counters.dropped += 1;
            }
        }
    }

    /// Gives a copy's room back. It is detached and unpinned.
    pub(super) fn free_dram(&mut self, slot: u32) {
        self.advance(slot);
        let copy = &mut self.tiers[DRAM].copies[slot];
        let (bytes, tenant, place) = (u64::from(copy.bytes), copy.tenant, Place::unpacked(copy.place));
        copy.state = CopyState::Free;
        copy.flags = 0;
        self.tiers[DRAM].used[usize::from(tenant)] -= bytes;
        self.tiers[DRAM].copies.remove(slot);
        if !self.pool.release(place, bytes / UNIT_BYTES) {
            self.fault();
        }
    }

    /// Forgets a copy of a lower tier that takes no room there any more.
    pub(super) fn free_lower(&mut self, tier: usize, slot: u32) {
        let entry = self.tiers[tier].copies[slot].entry;
        self.detach(tier, slot);
        let tier = &mut self.tiers[tier];
        let copy = &mut tier.copies[slot];
        let (bytes, tenant) = (u64::from(copy.bytes), usize::from(copy.tenant));
        copy.state = CopyState::Free;
        copy.flags = 0;
        tier.used[tenant] -= bytes;
        tier.copies.remove(slot);
        if entry != NONE {
            self.index.collect(entry);
        }
    }

    /// The copy becomes readable.
    pub(super) fn make_resident(&mut self, tier: usize, slot: u32) {
        self.tiers[tier].copies[slot].state = CopyState::Resident;
        self.tiers[tier].resident += 1;
        self.index.gained(self.tiers[tier].copies[slot].entry);
        self.list(tier, slot);
    }

    /// Puts an unpinned copy where it may be evicted, behind its nearest ancestor that may be evicted too.
    pub(super) fn list(&mut self, tier: usize, slot: u32) {
        let copy = &self.tiers[tier].copies[slot];
        let evictable = matches!(copy.state, CopyState::Resident | CopyState::Doubted);
        if copy.pins > 0 || copy.flags & (LISTED | UNPLACED) != 0 || !evictable {
            return;
        }
        let mut at = copy.entry;
        let above = loop {
            let Some(parent) = self.index.above(at) else { break None };
            let found = self.index[parent].copies[tier];
            if found != NONE && self.tiers[tier].copies[found].is(LISTED) {
                break Some(found);
            }
            at = parent;
        };
        let tier = &mut self.tiers[tier];
        tier.copies[slot].flags |= LISTED;
        let tenant = usize::from(tier.copies[slot].tenant);
        tier.orders[tenant].insert(&mut tier.copies, slot, above);
    }

    pub(super) fn pin(&mut self, tier: usize, slot: u32) {
        self.tiers[tier].unlist(slot);
        self.tiers[tier].copies[slot].pins += 1;
    }

    /// Marks a copy of the first tier that leaves once its demotion is done, or takes the mark away: it is used.
    pub(super) fn set_leaving(&mut self, slot: u32, leaving: bool) {
        let copy = &mut self.tiers[DRAM].copies[slot];
        if copy.is(LEAVING) == leaving {
            return;
        }
        copy.flags ^= LEAVING;
        let (bytes, tenant) = (u64::from(copy.bytes), usize::from(copy.tenant));
        let sum = &mut self.tiers[DRAM].freeing[tenant];
        *sum = if leaving { *sum + bytes } else { *sum - bytes };
    }

    /// One reason less to stay. A doomed copy leaves with its last pin, others may be evicted again.
    pub(super) fn unpin(&mut self, tier: usize, slot: u32) {
        let copy = &mut self.tiers[tier].copies[slot];
        if copy.pins == 0 {
            return self.fault();
        }
        copy.pins -= 1;
        if copy.pins > 0 {
            return;
        }
        match (copy.state, tier) {
            (CopyState::Doomed, DRAM) => self.free_dram(slot),
            (CopyState::Doomed, _) => self.delete_lower(tier, slot),
            _ if copy.is(LEAVING) => self.drop_dram(slot, RemovedReason::Evicted),
            _ => {
                copy.flags &= !UNPLACED;
                self.list(tier, slot);
            }
        }
    }

    /// A block and all its ancestors were used: each moves to the hot end, the deepest first. Give tails first: then
    /// the first walk to the root covers the rest of its chain.
    pub(super) fn touch(&mut self, entries: impl Iterator<Item = u32>) {
        self.clock += 1;
        let mut path = std::mem::take(&mut self.scratch);
        for entry in entries {
            let mut at = Some(entry);
            while let Some(slot) = at.filter(|slot| self.index[*slot].stamp != self.clock) {
                self.index[slot].stamp = self.clock;
                path.push(u64::from(self.index[slot].depth) << 32 | u64::from(slot));
                at = self.index.above(slot);
            }
        }
        path.sort_unstable_by(|a, b| b.cmp(a));
        for slot in path.iter().map(|packed| *packed as u32) {
            for tier in 0..self.tiers.len() {
                let copy = self.index[slot].copies[tier];
                if copy != NONE && self.tiers[tier].copies[copy].is(LISTED) {
                    self.tiers[tier].touch(copy);
                }
            }
        }
        self.work += path.len() as u64;
        path.clear();
        self.scratch = path;
    }

    /// The fastest tier that can serve the entry, or why none can.
    pub(super) fn locate(&self, entry: u32) -> Result<usize, MissReason> {
        let mut reason = MissReason::Absent;
        for (at, slot) in self.index[entry].copies.iter().enumerate().filter(|(_, slot)| **slot != NONE) {
            match self.tiers[at].copies[*slot].state {
                CopyState::Resident if self.tiers[at].running() => return Ok(at),
                CopyState::Resident => reason = MissReason::TierDown,
                CopyState::Writing => reason = MissReason::Writing,
                _ => {}
            }
        }
        Err(reason)
    }

    pub(super) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    pub(super) fn tier_index(tier: usize) -> TierIndex {
        TierIndex(tier as u8)
    }
}
