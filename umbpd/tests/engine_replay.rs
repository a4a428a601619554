//! Real traces through the engine alone: its order of eviction against known figures.
//!
//! One tier, no headroom, no promotion budget; time stands still and blocks have no bytes. The traces are data of
//! others and not part of this repository: `UMBP_TRACES` names their folder, by default `../shared/traces` beside
//! the repository. Without them the tests say so and pass.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;

use umbp_protocol::message::{Acquired, Found, NamespaceId, ReserveItem, Reserved, SegmentId, SessionId, WireKey};
use umbpd::engine::api::{
    Admission, EvictionPolicy, Generations, Promote, Settings, TenantIndex, TenantSettings, TierIndex, TierSettings,
    TierState, Time, WritePolicy,
};
use umbpd::engine::{Engine, KEYS_PER_SLICE_MAX, LeaseKind, SessionInfo};

const BLOCK: u64 = 4096;

/// How far below tail-first LRU the hit ratio may lie.
const TOLERANCE: f64 = 0.005;

struct Trace {
    requests: Vec<Vec<u64>>,
    unique: usize,
}

fn trace(name: &str) -> Option<Trace> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/traces");
    let folder = std::env::var_os("UMBP_TRACES").map_or_else(|| PathBuf::from(beside), PathBuf::from);
    let path = folder.join(name);
    let Ok(text) = std::fs::read_to_string(&path) else {
        eprintln!("skipped: no trace at {} (UMBP_TRACES names the folder)", path.display());
        return None;
    };
    let line = |line: &str| -> Vec<u64> {
        let request: serde_json::Value = serde_json::from_str(line).expect("a line of the trace is JSON");
        serde_json::from_value(request["hash_ids"].clone()).expect("hash_ids is a list of numbers")
    };
    let requests: Vec<Vec<u64>> = text.lines().map(line).collect();
    let unique = requests.iter().flatten().collect::<HashSet<_>>().len();
    Some(Trace { requests, unique })
}

struct NoWords;

impl Generations for NoWords {
    fn set(&mut self, _: TenantIndex, _: u32, _: u64) {}
}

struct Replay {
    engine: Engine,
    session: SessionId,
    namespace: NamespaceId,
}

impl Replay {
    fn new(blocks: usize) -> Self {
        let capacity = blocks as u64 * BLOCK;
        let tier = TierSettings {
            name: "dram".to_owned(),
            capacity,
            alignment: BLOCK,
            largest_payload: BLOCK,
            slots: 1,
            deadline_ns: u64::MAX,
        };
        let settings = Settings {
            tiers: vec![tier],
            tenants: vec![TenantSettings { name: "default".to_owned(), quota: vec![u64::MAX] }],
            headroom: vec![0],
            promotion_budget: 0,
            eviction: EvictionPolicy::PrefixLru,
            write: WritePolicy::Through,
            admission: Admission::All,
            promote: Promote::OnAcquire,
            lease_ns: 1_000_000_000,
            hold_ns: 1_000_000_000,
            hold_bytes: u64::MAX,
            quarantine_bytes: u64::MAX,
            background_bytes: 0,
            block_bytes: BLOCK,
        };
        let mut engine = Engine::new(settings, Box::new(NoWords));
        engine.segment_add(SegmentId(0), capacity, None);
        engine.tier_state(TierIndex(0), TierState::Running, Time(0));
        let namespace = engine.namespace(TenantIndex(0), b"").expect("the first");
        let info = SessionInfo {
            tenant: TenantIndex(0),
            pid: 1,
            client: "replay".to_owned(),
            previous_session: None,
            all_unmapped: false,
        };
        let session = engine.session_open(info, Time(0)).expect("the tenant is known");
        Self { engine, session, namespace }
    }

    fn key(&self, block: u64) -> WireKey {
        let mut local = [0; 44];
        local[..8].copy_from_slice(&(block + 1).to_le_bytes());
        local[32] = 8;
        WireKey { namespace: self.namespace, local }
    }

    /// A request whose first `known` blocks the inference engine has itself: it asks for the rest, loads the hits
    /// and stores what is missing. Answers how many blocks hit, all before them having hit too.
    fn request(&mut self, blocks: &[u64], known: usize) -> usize {
        let keys: Vec<WireKey> = blocks.iter().map(|block| self.key(*block)).collect();
        let asked = &keys[known..];
        let found: Vec<Found> = asked
            .chunks(KEYS_PER_SLICE_MAX)
            .flat_map(|slice| self.engine.lookup(self.session, 0, slice, Time(0)))
            .collect();
        let hits = found.iter().take_while(|found| matches!(found, Found::Hit { .. })).count();
        self.load(&asked[..hits]);
        self.store(&keys, known);
        self.engine.actions();
        hits
    }

    fn load(&mut self, keys: &[WireKey]) {
        let Some(lease) = self.engine.lease_begin(self.session, LeaseKind::Read, Time(0)) else { return };
        for slice in keys.chunks(KEYS_PER_SLICE_MAX) {
            let answers = self.engine.acquire(self.session, lease, slice, Time(0));
            assert!(answers.iter().all(|answer| matches!(answer, Acquired::Ready { .. })), "a hit loads");
        }
        self.engine.lease_finish(lease, Time(0));
        while !self.engine.release(self.session, lease, &[], Time(0)).is_empty() {}
    }

    fn store(&mut self, keys: &[WireKey], known: usize) {
        let item = |at: usize| ReserveItem {
            key: keys[at],
            parent: if at == 0 { [0; 44] } else { keys[at - 1].local },
            depth: at as u32,
            length: BLOCK,
        };
        let items: Vec<ReserveItem> = (known..keys.len()).map(item).collect();
        let lease = self.engine.lease_begin(self.session, LeaseKind::Write, Time(0)).expect("the session is open");
        let mut written = Vec::new();
        for (at, slice) in items.chunks(KEYS_PER_SLICE_MAX).enumerate() {
            let answers = self.engine.reserve(self.session, lease, slice, Time(0));
            let leased = answers.iter().enumerate().filter(|(_, answer)| matches!(answer, Reserved::Extent(_)));
            written.extend(leased.map(|(n, _)| ((at * KEYS_PER_SLICE_MAX + n) as u32, 0)));
        }
        self.engine.lease_finish(lease, Time(0));
        for slice in written.chunks(KEYS_PER_SLICE_MAX) {
            self.engine.commit(self.session, lease, slice, Time(0));
        }
    }

    fn orphan_share(&self) -> f64 {
        self.engine.status()["orphan_share"].as_f64().expect("a number")
    }
}

/// The prefix cache of an inference engine: block numbers, least recently used first out, tails before heads.
struct Front {
    room: usize,
    stamps: HashMap<u64, u64>,
    order: VecDeque<(u64, u64)>,
    clock: u64,
}

impl Front {
    fn new(room: usize) -> Self {
        Self { room, stamps: HashMap::new(), order: VecDeque::new(), clock: 0 }
    }

    fn known(&self, blocks: &[u64]) -> usize {
        blocks.iter().take_while(|block| self.stamps.contains_key(block)).count()
    }

    fn take(&mut self, blocks: &[u64]) {
        for block in blocks.iter().rev() {
            self.clock += 1;
            self.stamps.insert(*block, self.clock);
            self.order.push_back((*block, self.clock));
        }
        while self.stamps.len() > self.room {
            let Some((block, stamp)) = self.order.pop_front() else { return };
            if self.stamps.get(&block) == Some(&stamp) {
                self.stamps.remove(&block);
            }
        }
    }
}

/// Replays and answers hits, blocks, and the largest orphan share seen at a thousand points.
fn replay(trace: &Trace, blocks: usize, mut front: Option<Front>) -> (usize, usize, f64) {
    let mut replay = Replay::new(blocks);
    let (mut hits, mut total, mut orphans) = (0, 0, 0.0_f64);
    let every = trace.requests.len() / 1000 + 1;
    for (at, request) in trace.requests.iter().enumerate() {
        let known = front.as_ref().map_or(0, |front| front.known(request));
        hits += replay.request(request, known);
        total += request.len();
        if let Some(front) = front.as_mut() {
            front.take(request);
        }
        if at % every == 0 {
            orphans = orphans.max(replay.orphan_share());
        }
    }
    (hits, total, orphans.max(replay.orphan_share()))
}

/// Capacities as shares of the unique blocks, with the hit ratio of tail-first LRU.
fn check(name: &str, lru: [(f64, f64); 4]) {
    let Some(trace) = trace(name) else { return };
    for (share, expected) in lru {
        let blocks = (trace.unique as f64 * share) as usize;
        let (hits, total, orphans) = replay(&trace, blocks, None);
        let ratio = hits as f64 / total as f64;
        eprintln!("{name}: {blocks} blocks, hit ratio {ratio:.4} (LRU {expected:.4}), orphans {orphans:.5}");
        assert!(ratio >= expected - TOLERANCE, "{name} at {share}: {ratio:.4} is below {expected:.4}");
        assert!(orphans <= 0.001, "{name} at {share}: orphan share {orphans}");
    }
}

#[test]
fn conversation_hits_as_tail_first_lru_does() {
    check("conversation_trace.jsonl", [(0.05, 0.1958), (0.10, 0.2789), (0.25, 0.3535), (0.50, 0.3631)]);
}

#[test]
fn synthetic_hits_as_tail_first_lru_does() {
    check("synthetic_trace.jsonl", [(0.05, 0.1566), (0.10, 0.2623), (0.25, 0.4441), (0.50, 0.5888)]);
}

#[test]
fn with_room_for_all_every_block_seen_before_hits() {
    let Some(trace) = trace("conversation_trace.jsonl") else { return };
    assert_eq!(replay(&trace, trace.unique, None), (105_710, 288_500, 0.0));
}

#[test]
fn with_a_prefix_cache_in_front_no_parent_ages_out_before_its_child() {
    // Only tails are asked for: their heads are hot in the engine's own cache, and would age out here.
    for name in ["conversation_trace.jsonl", "synthetic_trace.jsonl"] {
        let Some(trace) = trace(name) else { return };
        for share in [20, 10, 4] {
            let blocks = trace.unique / share;
            let (hits, total, orphans) = replay(&trace, blocks, Some(Front::new(blocks / 4)));
            eprintln!("{name}: {blocks} blocks behind {}, {hits} of {total} hit, orphans {orphans:.5}", blocks / 4);
            assert!(orphans <= 0.001, "{name}, {blocks} blocks: orphan share {orphans}");
        }
    }
}
