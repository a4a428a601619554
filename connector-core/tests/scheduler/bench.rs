//! An engine's side for tests: a store that is a set of keys, a pool that counts pins, requests by number.

use std::collections::{HashMap, HashSet};

use umbp_connector_core::key::{BlockHash, GroupId, LocalKey};
use umbp_connector_core::metadata::{StoreEventId, StoreEventResult, WorkerMetadata};
use umbp_connector_core::plan::{BlockId, RequestId};
use umbp_connector_core::scheduler::{
    BlockPool, Cached, Config, Group, GroupKind, Hold, LookupId, Lookups, New, Object, Options, Resumed, Role,
    Scheduler, Step, StepOutput,
};
use umbp_connector_core::topology::RankTopology;

/// Tokens of a block of the plain groups below.
pub(crate) const BLOCK: u64 = 4;

/// A store that is a set of keys.
#[derive(Default)]
pub(crate) struct Store {
    pub(crate) keys: HashSet<LocalKey>,
    /// No lookup is answered.
    pub(crate) away: bool,
    pub(crate) under_way: HashMap<LookupId, (Vec<LocalKey>, Hold)>,
    /// Lookups under way are answered only by [`Store::settle`].
    pub(crate) slow: bool,
    pub(crate) asked: Vec<(Vec<LocalKey>, Hold)>,
    /// Holds by key; a load adopts one by [`Store::adopt`].
    pub(crate) held: HashMap<LocalKey, u64>,
    pub(crate) cancelled: u64,
    next: u64,
}

impl Store {
    fn answer(&mut self, keys: &[LocalKey], hold: Hold) -> Option<Vec<bool>> {
        if self.away {
            return None;
        }
        let found: Vec<bool> = keys.iter().map(|key| self.keys.contains(key)).collect();
        if hold == Hold::Hits {
            for (key, _) in keys.iter().zip(&found).filter(|(_, found)| **found) {
                *self.held.entry(*key).or_default() += 1;
            }
        }
        Some(found)
    }

    fn release(&mut self, key: &LocalKey) {
        if let Some(count) = self.held.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(key);
            }
        }
    }

    /// Workers have loaded these: their holds are over.
    pub(crate) fn adopt(&mut self, keys: impl IntoIterator<Item = LocalKey>) {
        for key in keys {
            self.release(&key);
        }
    }
}

impl Lookups for Store {
    fn lookup(&mut self, keys: &[LocalKey], hold: Hold) -> Option<Vec<bool>> {
        self.asked.push((keys.to_vec(), hold));
        self.answer(keys, hold)
    }

    fn submit(&mut self, keys: &[LocalKey], hold: Hold) -> LookupId {
        self.asked.push((keys.to_vec(), hold));
        let id = LookupId(self.next);
        self.next += 1;
        self.under_way.insert(id, (keys.to_vec(), hold));
        id
    }

    fn take(&mut self, lookup: LookupId) -> Option<Option<Vec<bool>>> {
        if self.slow {
            return None;
        }
        let (keys, hold) = self.under_way.remove(&lookup)?;
        Some(self.answer(&keys, hold))
    }

    fn cancel(&mut self, lookup: LookupId) {
        assert!(self.under_way.remove(&lookup).is_some(), "a lookup is given up once, before its answer");
        self.cancelled += 1;
    }

    fn unhold(&mut self, keys: &[LocalKey]) {
        for key in keys {
            assert!(self.held.contains_key(key), "what is not held is not given back: {key:?}");
            self.release(key);
        }
    }

    fn clear(&mut self) -> bool {
        self.keys.clear();
        true
    }
}

/// Counts pins; a pin that is given back was taken.
#[derive(Default)]
pub(crate) struct Pool {
    pub(crate) pins: HashMap<BlockId, u64>,
}

impl BlockPool for Pool {
    fn touch(&mut self, blocks: &[BlockId]) {
        for block in blocks {
            *self.pins.entry(*block).or_default() += 1;
        }
    }

    fn free(&mut self, blocks: &[BlockId]) {
        for block in blocks {
            let count = self.pins.get_mut(block).unwrap_or_else(|| panic!("{block:?} is freed without a pin"));
            *count -= 1;
            if *count == 0 {
                self.pins.remove(block);
            }
        }
    }
}

/// Switches as an engine sets them, all optional ones off.
pub(crate) fn options() -> Options {
    Options {
        load_async: false,
        lookup_async: false,
        enable_lookup: true,
        save_decode_cache: false,
        enable_partial_hash_hits: false,
        role: Role::Both,
        events: false,
        kv_event_max_objects: 1024,
        eagle: false,
    }
}

pub(crate) fn full(block_size: u64) -> Group {
    Group { kind: GroupKind::Full, block_size, eagle: false }
}

pub(crate) fn window(block_size: u64, window: u64) -> Group {
    Group { kind: GroupKind::SlidingWindow { window }, block_size, eagle: false }
}

pub(crate) fn config(groups: Vec<Group>) -> Config {
    Config {
        groups,
        topology: RankTopology::new(1, 1, 1, 1).expect("one rank"),
        num_workers: 1,
        prefix_match_unit: None,
        retention_interval: None,
        options: options(),
    }
}

/// Hashes of a text: hash i stands for its first (i + 1) hash blocks. Texts that share a front share hashes.
pub(crate) fn hashes(text: &[u32], unit: u64) -> Vec<BlockHash> {
    let mut state = 0xcbf2_9ce4_8422_2325_u64;
    let mut all = Vec::new();
    for (index, token) in text.iter().enumerate() {
        state = (state ^ u64::from(*token)).wrapping_mul(0x100_0000_01b3);
        if (index as u64 + 1).is_multiple_of(unit) {
            all.push(BlockHash::new(&state.to_le_bytes()).expect("8 bytes"));
        }
    }
    all
}

/// A scheduler, and what an engine would remember beside it.
pub(crate) struct Bench {
    pub(crate) scheduler: Scheduler<Store, Pool>,
    pub(crate) config: Config,
    workers: u32,
}

impl Bench {
    pub(crate) fn new(config: Config) -> Self {
        let workers = config.num_workers;
        let mut scheduler =
            Scheduler::new(config.clone(), Store::default(), Some(Pool::default())).expect("a config that can be");
        scheduler.bind_namespace();
        Self { scheduler, config, workers }
    }

    pub(crate) fn store(&mut self) -> &mut Store {
        self.scheduler.runtime()
    }

    pub(crate) fn pins(&mut self) -> usize {
        self.scheduler.pool().expect("a pool").pins.len()
    }

    pub(crate) fn request(&mut self, id: &str, prompt: &[u32]) {
        let unit = self.scheduler.geometry().hash_block;
        self.scheduler.add_request(&id.into(), prompt.len() as u64, prompt, &hashes(prompt, unit));
    }

    pub(crate) fn matched(&mut self, id: &str, local: u64) -> Option<u64> {
        self.scheduler.get_num_new_matched_tokens(&id.into(), local, &|_, _| false).tokens
    }

    pub(crate) fn admit(&mut self, id: &str, table: &[i64], external: u64) {
        let tables = self.tables(table);
        self.scheduler.update_state_after_alloc(&id.into(), &tables, external).expect("what was offered");
    }

    /// The same blocks in each group; enough where a test does not tell groups apart.
    pub(crate) fn tables(&self, table: &[i64]) -> Vec<Vec<BlockId>> {
        vec![table.iter().map(|id| BlockId(*id)).collect(); self.config.groups.len()]
    }

    pub(crate) fn new_row(&self, id: &str, table: &[i64], computed_tokens: u64, scheduled_tokens: u64) -> New {
        New { id: id.into(), computed_tokens, scheduled_tokens, block_ids: self.tables(table) }
    }

    /// A step of requests that go on in the memory they have: (id, computed before, computed in it).
    pub(crate) fn go_on(&mut self, rows: &[(&str, u64, u64)]) -> StepOutput {
        let cached = rows.iter().map(|(id, computed_tokens, scheduled_tokens)| Cached {
            id: (*id).into(),
            computed_tokens: *computed_tokens,
            scheduled_tokens: *scheduled_tokens,
            blocks: Resumed::No(None),
        });
        let step = Step { cached: cached.collect(), ..Step::default() };
        self.step(step)
    }

    pub(crate) fn step(&mut self, step: Step) -> StepOutput {
        self.scheduler.build_connector_meta(step)
    }

    pub(crate) fn finish(&mut self, id: &str) {
        self.scheduler.request_finished(&id.into());
        self.step(Step { finished: vec![id.into()], ..Step::default() });
    }

    /// All workers end the stores of a step; those that did not fail are there from now on, on all ranks.
    pub(crate) fn complete(&mut self, output: &StepOutput, failed: &[Object], now: f64) {
        let ranks = self.config.topology.key_ranks();
        for (group, hash) in objects(output).into_iter().filter(|object| !failed.contains(object)) {
            self.store().keys.extend(ranks.iter().map(|rank| LocalKey { hash, group, rank: *rank }));
        }
        let Some(event) = output.store_event else { return };
        self.report(event, self.workers, failed, now);
    }

    pub(crate) fn report(&mut self, event: StoreEventId, completed_workers: u32, failed: &[Object], now: f64) {
        let result = StoreEventResult { completed_workers, failed_objects: failed.iter().copied().collect() };
        let report = WorkerMetadata { store_events: [(event, result)].into() };
        self.scheduler.update_connector_output(&report, now);
    }

    /// A prompt that is computed in one step, stored and forgotten.
    pub(crate) fn store_prompt(&mut self, id: &str, prompt: &[u32], table: &[i64]) {
        self.request(id, prompt);
        self.matched(id, 0);
        self.admit(id, table, 0);
        let row = self.new_row(id, table, 0, prompt.len() as u64);
        let output = self.step(Step { new: vec![row], ..Step::default() });
        self.complete(&output, &[], 0.0);
        self.finish(id);
    }
}

/// A prompt of four whole blocks and one token.
pub(crate) fn prompt() -> Vec<u32> {
    (1..=17).collect()
}

/// Memory for it.
pub(crate) const TABLE: [i64; 5] = [1, 2, 3, 4, 5];
/// Other memory for it.
pub(crate) const OTHER: [i64; 5] = [11, 12, 13, 14, 15];

pub(crate) fn one_full() -> Bench {
    Bench::new(config(vec![full(BLOCK)]))
}

/// What a step stores.
pub(crate) fn objects(output: &StepOutput) -> Vec<Object> {
    let plans = output.stores.iter().flat_map(|(_, plans)| plans).chain(&output.store_plans);
    plans.map(|plan| plan.object()).collect()
}

/// Blocks that a step stores for one request, by id.
pub(crate) fn stored_blocks(output: &StepOutput, id: &str) -> Vec<i64> {
    let of = RequestId::from(id);
    let plans = output.stores.iter().filter(|(request, _)| *request == of).flat_map(|(_, plans)| plans);
    plans.map(|plan| plan.block.block_id.0).collect()
}

/// Blocks that a step loads, by id.
pub(crate) fn loaded_blocks(output: &StepOutput) -> Vec<i64> {
    output.loads.iter().flat_map(|(_, plans)| plans).map(|plan| plan.block_id.0).collect()
}

/// Keys of one group's hashes on all ranks.
pub(crate) fn keys(config: &Config, group: u16, hashes: &[BlockHash]) -> Vec<LocalKey> {
    let ranks = config.topology.key_ranks();
    let of = |hash: &BlockHash| {
        let hash = *hash;
        ranks.iter().map(move |rank| LocalKey { hash, group: GroupId(group), rank: *rank })
    };
    hashes.iter().flat_map(of).collect()
}
