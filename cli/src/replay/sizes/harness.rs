//! An engine of the daemon and its one client, without a daemon: one tier in memory, blocks of no bytes, and time that
//! stands still.

use miette::miette;
use umbp_connector_core::key::{BlockHash, GroupId, LocalKey, Rank};
use umbp_protocol::message::{Acquired, Found, NamespaceId, ReserveItem, Reserved, SegmentId, SessionId, WireKey};
use umbpd::engine::api::{
    Admission, EvictionPolicy, Generations, Promote, Settings, TenantIndex, TenantSettings, TierIndex, TierSettings,
    TierState, Time, WritePolicy,
};
use umbpd::engine::{Engine, KEYS_PER_SLICE_MAX, LeaseKind, SessionInfo};

use super::Case;
use crate::replay::orphans;
use crate::replay::prefix_cache::PrefixCache;
use crate::replay::report::ratio;

/// What a block takes in the engine's books.
const BLOCK_BYTES: u64 = 4096;
/// Times in a replay at which orphans are counted.
const SAMPLES: usize = 1000;
/// Time does not pass.
const NOW: Time = Time(0);
const NEVER_NS: u64 = 1_000_000_000;

/// Nobody reads them but the engine.
#[derive(Default)]
struct Words(Vec<u64>);

impl Generations for Words {
    fn get(&self, _: TenantIndex, slot: u32) -> u64 {
        self.0.get(slot as usize).copied().unwrap_or(0)
    }

    fn advance(&mut self, _: TenantIndex, slot: u32) {
        if self.0.len() <= slot as usize {
            self.0.resize(slot as usize + 1, 0);
        }
        self.0[slot as usize] += 1;
    }
}

struct Harness {
    engine: Engine,
    session: SessionId,
    namespace: NamespaceId,
}

/// Hit ratio, and the largest share of orphans seen.
pub(crate) fn replay(case: &Case<'_>, policy: EvictionPolicy, blocks: u64) -> miette::Result<(f64, f64)> {
    let mut harness = Harness::new(blocks, case.headroom.of(blocks), policy)?;
    let mut front = PrefixCache::new(case.gpu_blocks);
    let (mut hits, mut total, mut orphans) = (0, 0, 0.0_f64);
    let every = case.requests.len() / SAMPLES + 1;
    for (at, request) in case.requests.iter().enumerate() {
        let keys = harness.keys(&request.ids)?;
        let found = harness.request(&keys, front.leading(&request.ids))?;
        if at >= case.warm_up {
            hits += found as u64;
            total += keys.len() as u64;
        }
        front.touch(&request.ids);
        if at.is_multiple_of(every) {
            orphans = orphans.max(harness.orphan_share());
        }
    }
    Ok((ratio(hits, total), orphans.max(harness.orphans_at_the_end(case)?)))
}

impl Harness {
    fn new(blocks: u64, headroom: u64, policy: EvictionPolicy) -> miette::Result<Self> {
        let capacity = blocks * BLOCK_BYTES;
        let tier = TierSettings {
            name: "dram".to_owned(),
            capacity,
            alignment: BLOCK_BYTES,
            largest_payload: BLOCK_BYTES,
            slots: 1,
            deadline_ns: u64::MAX,
            write: WritePolicy::Through,
            shared: None,
        };
        let settings = Settings {
            tiers: vec![tier],
            tenants: vec![TenantSettings { name: "replay".to_owned(), quota: vec![u64::MAX] }],
            headroom: vec![headroom * BLOCK_BYTES],
            promotion_budget: 0,
            eviction: policy,
            admission: Admission::All,
            promote: Promote::OnAcquire,
            lease_ns: NEVER_NS,
            hold_ns: NEVER_NS,
            hold_bytes: u64::MAX,
            quarantine_bytes: u64::MAX,
            background_bytes: 0,
            block_bytes: BLOCK_BYTES,
        };
        let mut engine = Engine::new(settings, Box::new(Words::default()));
        engine.segment_add(SegmentId(0), capacity, None);
        engine.tier_state(TierIndex(0), TierState::Running, NOW);
        let namespace = engine.namespace(TenantIndex(0), b"replay").ok_or_else(|| miette!("no namespace"))?;
        let info = SessionInfo {
            tenant: TenantIndex(0),
            pid: std::process::id(),
            client: "replay".to_owned(),
            previous_session: None,
            all_unmapped: false,
        };
        let session = engine.session_open(info, NOW).ok_or_else(|| miette!("no session"))?;
        Ok(Self { engine, session, namespace })
    }

    fn keys(&self, ids: &[u64]) -> miette::Result<Vec<WireKey>> {
        let key = |id: &u64| {
            let hash = BlockHash::new(&id.to_le_bytes())?;
            let local = LocalKey { hash, group: GroupId::default(), rank: Rank::default() };
            Ok(WireKey { namespace: self.namespace, local: local.to_bytes() })
        };
        let keys: Result<Vec<_>, umbp_connector_core::key::KeyError> = ids.iter().map(key).collect();
        keys.map_err(|error| miette!("{error}"))
    }

    /// A request whose first `known` blocks its engine has itself: it asks for the rest, loads the hits and stores
    /// what is missing. Answers how many blocks hit, all before them having hit too.
    fn request(&mut self, keys: &[WireKey], known: usize) -> miette::Result<usize> {
        let asked = &keys[known..];
        let found: Vec<Found> = asked
            .chunks(KEYS_PER_SLICE_MAX)
            .flat_map(|slice| self.engine.lookup(self.session, 0, slice, NOW))
            .collect();
        let hits = found.iter().take_while(|found| matches!(found, Found::Hit { .. })).count();
        self.load(&asked[..hits])?;
        self.store(keys, known)?;
        self.engine.actions();
        Ok(hits)
    }

    fn load(&mut self, keys: &[WireKey]) -> miette::Result<()> {
        let begun = self.engine.lease_begin(self.session, LeaseKind::Read, NOW);
        let lease = begun.ok_or_else(|| miette!("no lease to read"))?;
        for slice in keys.chunks(KEYS_PER_SLICE_MAX) {
            let answers = self.engine.acquire(self.session, lease, slice, NOW);
            if !answers.iter().all(|answer| matches!(answer, Acquired::Ready { .. })) {
                return Err(miette!("a block that was found did not load"));
            }
        }
        self.engine.lease_finish(lease, NOW);
        while !self.engine.release(self.session, lease, &[], NOW).is_empty() {}
        Ok(())
    }

    fn store(&mut self, keys: &[WireKey], known: usize) -> miette::Result<()> {
        let item = |at: usize| ReserveItem {
            key: keys[at],
            parent: if at == 0 { [0; 44] } else { keys[at - 1].local },
            depth: at as u32,
            length: BLOCK_BYTES,
        };
        let items: Vec<ReserveItem> = (known..keys.len()).map(item).collect();
        let begun = self.engine.lease_begin(self.session, LeaseKind::Write, NOW);
        let lease = begun.ok_or_else(|| miette!("no lease to write"))?;
        let mut written = Vec::new();
        for (at, slice) in items.chunks(KEYS_PER_SLICE_MAX).enumerate() {
            let answers = self.engine.reserve(self.session, lease, slice, NOW);
            let leased = answers.iter().enumerate().filter(|(_, answer)| matches!(answer, Reserved::Extent(_)));
            written.extend(leased.map(|(n, _)| ((at * KEYS_PER_SLICE_MAX + n) as u32, 0)));
        }
        self.engine.lease_finish(lease, NOW);
        for slice in written.chunks(KEYS_PER_SLICE_MAX) {
            self.engine.commit(self.session, lease, slice, NOW);
        }
        Ok(())
    }

    fn orphan_share(&self) -> f64 {
        self.engine.status()["orphan_share"].as_f64().unwrap_or(1.0)
    }

    /// Counted anew, over all blocks of the trace.
    fn orphans_at_the_end(&mut self, case: &Case<'_>) -> miette::Result<f64> {
        let blocks = orphans::unique_blocks(case.requests);
        let ids: Vec<u64> = blocks.iter().map(|block| block.id).collect();
        let mut is_resident = Vec::with_capacity(ids.len());
        for slice in ids.chunks(KEYS_PER_SLICE_MAX) {
            let keys = self.keys(slice)?;
            let found = self.engine.lookup(self.session, 0, &keys, NOW);
            is_resident.extend(found.iter().map(|found| matches!(found, Found::Hit { .. })));
        }
        Ok(orphans::orphan_share(&blocks, &is_resident))
    }
}
