//! An engine in small: it asks, admits, runs, preempts and ends requests, and knows what a scheduler must never say.

use std::collections::{BTreeMap, HashMap, HashSet};

use umbp_connector_core::key::{BlockHash, GroupId, LocalKey};
use umbp_connector_core::plan::{BlockId, RequestId};
use umbp_connector_core::scheduler::{Cached, Config, GroupKind, Matching, New, Object, Resumed, Step, StepOutput};

use crate::bench::{Bench, hashes, objects};

/// Tokens that a request may come to have, decoded ones included.
const TOKENS_MAX: u64 = 96;
/// Requests of one history.
pub(crate) const REQUESTS: usize = 4;

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Add { at: usize, family: u32, tokens: u64 },
    Admit { at: usize, local_blocks: u64, take: bool },
    Loaded { at: usize, kept_blocks: Option<u64> },
    Step { chunk: u64 },
    Preempt { at: usize },
    Finish { at: usize },
    Stored { which: usize, fails: bool },
    Evict { which: usize },
    Away { away: bool },
    TakeEvents,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    /// Its load is to be sent, or is sent.
    Loading,
    /// It has memory, and has not run in it.
    Ready,
    Running,
}

#[derive(Clone, Debug)]
struct Request {
    text: Vec<u32>,
    prompt: u64,
    state: State,
    computed: u64,
    /// Where a load that comes leaves it.
    restored: u64,
    table: Vec<Vec<BlockId>>,
    ran: bool,
}

/// An engine that runs events, and checks what the scheduler says to each.
pub(crate) struct Engine {
    bench: Bench,
    requests: BTreeMap<usize, Request>,
    /// Requests that the engine has taken the memory of, or that ended, since the last step.
    preempted: Vec<RequestId>,
    finished: Vec<RequestId>,
    open: Vec<StepOutput>,
    blocks: i64,
    now: f64,
    /// Keys that were there when a request was matched, per request.
    seen: HashMap<usize, HashSet<LocalKey>>,
    loaded: HashSet<BlockId>,
    /// Matches of more than nothing.
    pub(crate) matches: usize,
}

/// Texts of two families share their first 20 tokens.
fn text(family: u32, tokens: u64) -> Vec<u32> {
    (0..tokens as u32).map(|token| token + 1000 * family * (token / 20)).collect()
}

fn name(at: usize) -> RequestId {
    format!("r{at}").as_str().into()
}

impl Engine {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            bench: Bench::new(config),
            requests: BTreeMap::new(),
            preempted: Vec::new(),
            finished: Vec::new(),
            open: Vec::new(),
            blocks: 0,
            now: 0.0,
            seen: HashMap::new(),
            loaded: HashSet::new(),
            matches: 0,
        }
    }

    /// The store has the first tokens of both families, but for some keys.
    pub(crate) fn fill(&mut self, missing: &HashSet<usize>) {
        let geometry = self.bench.scheduler.geometry().clone();
        let mut keys = Vec::new();
        for (family, group) in [0, 1].into_iter().flat_map(|family| geometry.matched.iter().map(move |at| (family, at)))
        {
            let all = hashes(&text(family, 48), geometry.hash_block);
            keys.extend(crate::bench::keys(&self.bench.config, *group as u16, &all));
        }
        let kept = keys.into_iter().enumerate().filter(|(index, _)| !missing.contains(index)).map(|(_, key)| key);
        self.bench.store().keys.extend(kept);
    }

    fn unit(&self) -> u64 {
        self.bench.scheduler.geometry().hash_block
    }

    pub(crate) fn run(&mut self, event: &Event) {
        match *event {
            Event::Add { at, family, tokens } => self.add(at, family, tokens),
            Event::Admit { at, local_blocks, take } => self.admit(at, local_blocks, take),
            Event::Loaded { at, kept_blocks } => self.load_came(at, kept_blocks),
            Event::Step { chunk } => self.step(chunk),
            Event::Preempt { at } => {
                let is_running = |request: &&mut Request| request.state == State::Running;
                if let Some(request) = self.requests.get_mut(&at).filter(is_running) {
                    (request.state, request.computed) = (State::Waiting, 0);
                    self.preempted.push(name(at));
                }
            }
            Event::Finish { at } => {
                if self.requests.remove(&at).is_some() {
                    self.bench.scheduler.request_finished(&name(at));
                    self.finished.push(name(at));
                }
            }
            Event::Stored { which, fails } if !self.open.is_empty() => {
                let output = self.open.remove(which % self.open.len());
                let failed: Vec<Object> = objects(&output).into_iter().filter(|_| fails).collect();
                self.now += 0.3;
                self.bench.complete(&output, &failed, self.now);
            }
            Event::Stored { .. } => {}
            Event::Evict { which } => {
                let mut keys: Vec<LocalKey> = self.bench.store().keys.iter().copied().collect();
                keys.sort();
                if let Some(key) = which.checked_rem(keys.len()).map(|which| keys[which]) {
                    self.bench.store().keys.remove(&key);
                }
            }
            Event::Away { away } => self.bench.store().away = away,
            Event::TakeEvents => {
                self.now += 0.6;
                self.bench.scheduler.take_events(self.now);
            }
        }
    }

    fn add(&mut self, at: usize, family: u32, tokens: u64) {
        if self.requests.contains_key(&at) || self.finished.contains(&name(at)) {
            return;
        }
        let text = text(family, tokens);
        let hashes = hashes(&text, self.unit());
        self.bench.scheduler.add_request(&name(at), tokens, &text, &hashes);
        let table = Vec::new();
        let (state, ran) = (State::Waiting, false);
        let request = Request { text, prompt: tokens, state, computed: 0, restored: 0, table, ran };
        self.requests.insert(at, request);
    }

    fn admit(&mut self, at: usize, local_blocks: u64, take: bool) {
        let Some(request) = self.requests.get(&at).filter(|request| request.state == State::Waiting) else { return };
        if self.preempted.contains(&name(at)) {
            return;
        }
        let block = self.bench.scheduler.geometry().block;
        let tokens = request.text.len() as u64;
        let local = (local_blocks * block).min((tokens - 1) / block * block);
        let away = self.bench.store().away;
        let there = self.bench.store().keys.clone();
        let mut found = self.ask(at, local);
        if found.tokens.is_none() {
            found = self.ask(at, local);
        }
        let matched = found.tokens.expect("an answer that is there is taken");
        assert!(local + matched < tokens, "the whole prompt of {tokens} is matched: {local} + {matched}");
        assert!(!away || matched == 0, "{matched} tokens of a store that does not answer");
        self.matches += usize::from(matched > 0);
        self.check_present(at, local, local + matched, &there);
        let external = if take { matched } else { 0 };
        let table = self.allocate();
        self.bench.scheduler.update_state_after_alloc(&name(at), &table, external).expect("what was offered");
        self.seen.insert(at, there);
        let request = self.requests.get_mut(&at).expect("the request");
        request.table = table;
        request.restored = local + external;
        let waits = external > 0 && found.load_async;
        (request.state, request.computed) =
            if waits { (State::Loading, local) } else { (State::Ready, request.restored) };
    }

    fn ask(&mut self, at: usize, local: u64) -> Matching {
        self.bench.scheduler.get_num_new_matched_tokens(&name(at), local, &|_, _| true)
    }

    /// Enough for all that the request may come to have; groups that need but the end have null blocks in front.
    fn allocate(&mut self) -> Vec<Vec<BlockId>> {
        let spans = self.bench.scheduler.geometry().spans.clone();
        let mut table = Vec::new();
        for span in spans {
            let count = TOKENS_MAX.div_ceil(span);
            table.push((0..count).map(|_| self.next_block()).collect());
        }
        table
    }

    fn next_block(&mut self) -> BlockId {
        self.blocks += 1;
        BlockId(self.blocks)
    }

    /// Every block of a group of full attention that lies whole in the match is there, on all ranks.
    fn check_present(&self, at: usize, from: u64, to: u64, there: &HashSet<LocalKey>) {
        let geometry = self.bench.scheduler.geometry();
        let all = hashes(&self.requests[&at].text, geometry.hash_block);
        // Where matches may end inside a block, the hash of a block's last token need not be the one that is there.
        let inside = self.bench.config.options.enable_partial_hash_hits;
        for group in geometry.matched.iter().filter(|_| !inside) {
            let span = geometry.spans[*group];
            let need = match self.bench.config.groups[*group].kind {
                GroupKind::Full => u64::MAX,
                GroupKind::SlidingWindow { window } => (window - 1).div_ceil(span),
                _ => 1,
            };
            let ends = (from / span + 1..=to / span).rev().take(usize::try_from(need).unwrap_or(usize::MAX));
            for end in ends.map(|block| block * span) {
                let hash = all[(end / geometry.hash_block) as usize - 1];
                let has = |rank| there.contains(&LocalKey { hash, group: GroupId(*group as u16), rank });
                assert!(self.bench.config.topology.key_ranks().into_iter().all(has), "group {group} to {end} of {to}");
            }
        }
    }

    /// An asynchronous load ends: whole, or with so many blocks; then the engine has the request anew.
    fn load_came(&mut self, at: usize, kept_blocks: Option<u64>) {
        let block = self.bench.scheduler.geometry().block;
        let Some(request) = self.requests.get_mut(&at).filter(|request| request.state == State::Loading) else {
            return;
        };
        if request.table.iter().flatten().all(|block| !self.loaded.contains(block)) {
            return;
        }
        let several = self.bench.config.groups.len() > 1;
        request.computed = match kept_blocks {
            None => request.restored,
            Some(_) if several => 0,
            Some(kept) => (request.computed + kept * block).min(request.restored),
        };
        request.state = State::Ready;
        let table = request.table.clone();
        self.bench.scheduler.update_state_after_alloc(&name(at), &table, 0).expect("nothing is taken");
    }

    fn step(&mut self, chunk: u64) {
        let mut step = Step { preempted: std::mem::take(&mut self.preempted), ..Step::default() };
        step.finished = std::mem::take(&mut self.finished);
        let unit = self.unit();
        let mut totals = HashMap::new();
        for (at, request) in &mut self.requests {
            if !matches!(request.state, State::Ready | State::Running) {
                continue;
            }
            let had = request.text.len() as u64;
            if request.computed >= had && had < TOKENS_MAX {
                let before = hashes(&request.text, unit).len();
                request.text.push(5000 + *at as u32);
                let new = hashes(&request.text, unit).split_off(before);
                self.bench.scheduler.grow(&name(*at), &[5000 + *at as u32], &new);
            }
            let scheduled_tokens = chunk.min(request.text.len() as u64 - request.computed);
            if scheduled_tokens == 0 {
                continue;
            }
            let (id, computed_tokens) = (name(*at), request.computed);
            let is_first = request.state == State::Ready;
            let whole = request.table.clone();
            if is_first && !request.ran {
                step.new.push(New { id, computed_tokens, scheduled_tokens, block_ids: whole });
            } else {
                let blocks = if is_first { Resumed::Yes(whole) } else { Resumed::No(None) };
                step.cached.push(Cached { id, computed_tokens, scheduled_tokens, blocks });
            }
            request.computed += scheduled_tokens;
            (request.state, request.ran) = (State::Running, true);
            totals.insert(name(*at), (*at, request.computed));
        }
        let gone: HashSet<RequestId> = step.finished.iter().cloned().collect();
        let output = self.bench.step(step);
        self.check_loads(&output, &gone);
        self.check_stores(&output, &totals);
        if output.store_event.is_some() {
            self.open.push(output);
        }
    }

    fn check_loads(&mut self, output: &StepOutput, gone: &HashSet<RequestId>) {
        for (id, plans) in &output.loads {
            assert!(!gone.contains(id), "{id} has ended, and is loaded");
            let (at, request) =
                self.requests.iter().find(|(at, _)| name(**at) == *id).expect("a request that is there");
            for plan in plans {
                let group = usize::from(plan.group.expect("a group").0);
                assert!(request.table[group].contains(&plan.block_id), "{id}: a block of nobody");
                let (group, hash) = plan.key.object().expect("a block's key");
                let keys =
                    self.bench.config.topology.key_ranks().into_iter().map(|rank| LocalKey { hash, group, rank });
                let keys: Vec<LocalKey> = keys.collect();
                assert!(keys.iter().all(|key| self.seen[at].contains(key)), "{id}: loads what no lookup found");
                self.loaded.insert(plan.block_id);
                self.bench.store().adopt(keys);
            }
        }
    }

    /// Each stored block is computed with this step, is its request's own, and is in no other event.
    fn check_stores(&self, output: &StepOutput, totals: &HashMap<RequestId, (usize, u64)>) {
        let geometry = self.bench.scheduler.geometry();
        let loading: HashSet<&RequestId> = output.loads.iter().map(|(id, _)| id).collect();
        let mut objects: HashSet<Object> = self.open.iter().flat_map(objects).collect();
        for (id, plans) in &output.stores {
            let (at, total) = totals.get(id).unwrap_or_else(|| panic!("{id} does not run, and is stored"));
            let request = &self.requests[at];
            assert!(!loading.contains(id), "{id} loads and stores in one step");
            let all: Vec<BlockHash> = hashes(&request.text, geometry.hash_block);
            for plan in plans {
                let (group, span) = (usize::from(plan.group.0), geometry.spans[usize::from(plan.group.0)]);
                let place = all.iter().position(|hash| *hash == plan.hash).expect("a hash of the request");
                let end = (place as u64 + 1) * geometry.hash_block;
                assert!(end <= *total, "{id}: a block to {end} is stored, {total} tokens are computed");
                assert!(self.bench.config.options.save_decode_cache || end <= request.prompt, "{id}: {end} is decoded");
                assert_eq!(plan.block.block_id, request.table[group][(end / span) as usize - 1], "{id} to {end}");
                assert!(objects.insert(plan.object()), "{id} to {end} is under way already");
            }
        }
    }

    /// All ends: nothing is left.
    pub(crate) fn end(&mut self) {
        let left: Vec<usize> = self.requests.keys().copied().collect();
        for at in left {
            self.run(&Event::Finish { at });
        }
        self.step(1);
        while !self.open.is_empty() {
            self.run(&Event::Stored { which: 0, fails: false });
        }
        assert_eq!(self.bench.pins(), 0, "pins");
        self.bench.store().away = false;
        for _ in 0..8 {
            self.now += 2.0;
            self.bench.scheduler.take_events(self.now);
        }
        let store = self.bench.store();
        assert!(store.held.is_empty(), "held: {:?}", store.held);
        assert!(self.bench.scheduler.reset_store());
        assert!(!self.bench.scheduler.has_pending_push_work());
        assert!(self.bench.store().under_way.is_empty(), "lookups under way");
    }
}
