//! The scheduler's side: which blocks a request gets from the store, and which of its blocks go there.
//!
//! Sans I/O. The engine's calls come in as they are made ([`Scheduler`]'s methods carry their names); the store and the
//! block pool are behind two traits ([`Lookups`], [`BlockPool`]); time is an argument. It knows no engine's objects.
//!
//! Files in reading order: `config` (sizes), `prefix` (how much of a prompt is there), `lookup` (asking for it), `load`,
//! `store` (what goes to the store), `keep` (which blocks a later match can use), `pins` (store events and the memory
//! they hold), `tail` (what a finished request leaves), `kv_events` (what others are told).

mod config;
mod keep;
mod kv_events;
mod load;
mod lookup;
mod pins;
mod prefix;
mod request;
mod seam;
mod step;
mod store;
mod tail;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

pub use config::{Config, ConfigError, GROUPS_MAX, Geometry, Group, GroupKind, Options, Role};
pub use kv_events::KvEvent;
pub use load::AllocationError;
pub use lookup::Matching;
pub use seam::{BlockPool, Hold, LookupId, Lookups};
pub use step::{BoundaryOffload, Cached, New, Resumed, Step, StepOutput};
pub use store::{Object, StorePlan};

use crate::key::{BlockHash, GroupId, LocalKey, Rank};
use crate::plan::{BlockId, RequestId};
use kv_events::KvEvents;
use pins::Pins;
use prefix::Class;
use request::Request;

/// Most steps that an engine plans before the report of the first is in; more are taken as so many.
pub const UNREPORTED_STEPS_MAX: u32 = 64;

/// The scheduler's side of one engine.
pub struct Scheduler<L, P> {
    config: Config,
    geometry: Geometry,
    classes: Vec<Class>,
    ranks: Vec<Rank>,
    /// Loads and stores begin only once there is a namespace.
    bound: bool,
    runtime: L,
    pool: Option<P>,
    requests: HashMap<RequestId, Request>,
    pins: Pins,
    events: KvEvents,
    /// Loads to be sent in the next step, in the order of their admission.
    loads: BTreeMap<u64, RequestId>,
    admissions: u64,
    unreported_steps: u32,
    /// Per step, latest first: blocks that synchronous loads fill, and whose report may not be in.
    unreported: VecDeque<HashSet<BlockId>>,
}

impl<L: Lookups, P: BlockPool> Scheduler<L, P> {
    /// A scheduler without a namespace: see [`Self::bind_namespace`]. Without a pool nothing is pinned.
    pub fn new(config: Config, runtime: L, pool: Option<P>) -> Result<Self, ConfigError> {
        let geometry = Geometry::of(&config)?;
        let classes = prefix::classes(&config, &geometry);
        let events = KvEvents::new(config.options.events, config.options.kv_event_max_objects);
        Ok(Self {
            ranks: config.topology.key_ranks(),
            pins: Pins::new(config.num_workers),
            geometry,
            classes,
            bound: false,
            runtime,
            pool,
            requests: HashMap::new(),
            events,
            loads: BTreeMap::new(),
            admissions: 0,
            unreported_steps: 0,
            unreported: VecDeque::new(),
            config,
        })
    }

    /// The sizes in force.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The store has a namespace from now on.
    pub fn bind_namespace(&mut self) {
        self.bound = true;
    }

    /// Synchronous loads of so many steps, the one that is planned included, may fail without that it is known. A
    /// request that has a block of theirs stores nothing meanwhile, and makes up for it later: what it computes there
    /// may rest on bytes that never came. 0 is the reference's rule (only the request that loads, in its own step); an
    /// engine that plans a step once the one before is reported has 1, one that plans a step ahead 2.
    pub fn set_unreported_steps(&mut self, steps: u32) {
        self.unreported_steps = steps.min(UNREPORTED_STEPS_MAX);
        self.unreported.truncate(self.unreported_steps as usize);
    }

    /// What it asks.
    pub fn runtime(&mut self) -> &mut L {
        &mut self.runtime
    }

    /// The pool, if one is bound.
    pub fn pool(&mut self) -> Option<&mut P> {
        self.pool.as_mut()
    }

    /// A new request, or one whose name is used anew. Hash i covers the tokens up to (i + 1) hash blocks.
    pub fn add_request(&mut self, id: &RequestId, prompt_tokens: u64, tokens: &[u32], hashes: &[BlockHash]) {
        self.forget(id);
        let kept = if self.config.options.events { tokens.to_vec() } else { Vec::new() };
        let request = Request {
            prompt_tokens,
            num_tokens: tokens.len() as u64,
            tokens: kept,
            hashes: hashes.to_vec(),
            ..Request::default()
        };
        self.requests.insert(id.clone(), request);
    }

    /// A request has more tokens, and perhaps more hashes. An unknown one is left alone.
    pub fn grow(&mut self, id: &RequestId, tokens: &[u32], hashes: &[BlockHash]) {
        let events = self.config.options.events;
        let Some(request) = self.requests.get_mut(id) else { return };
        request.num_tokens += tokens.len() as u64;
        request.hashes.extend_from_slice(hashes);
        if events {
            request.tokens.extend_from_slice(tokens);
        }
    }

    /// The engine is done with a request, or gave it up, in whatever state it is.
    pub fn request_finished(&mut self, id: &RequestId) {
        let Some(request) = self.requests.get_mut(id) else { return };
        request.finished = true;
        self.drop_lookup(id);
        self.drop_match(id);
        self.drop_load(id);
    }

    /// The engine must come back, even with no request to run.
    pub fn has_pending_push_work(&self) -> bool {
        self.pins.has_tails() || self.pins.has_events() || self.events.is_due_or_under_way()
    }

    /// Forgets all that is stored. Refused (false) while stores are under way.
    pub fn reset_store(&mut self) -> bool {
        if self.pins.has_tails() || self.pins.has_events() {
            return false;
        }
        let ids: Vec<RequestId> = self.requests.keys().cloned().collect();
        for id in &ids {
            self.drop_lookup(id);
            self.drop_match(id);
            self.drop_load(id);
        }
        let cleared = self.runtime.clear();
        if cleared {
            self.events.clear(&mut self.runtime);
        }
        cleared
    }

    fn forget(&mut self, id: &RequestId) {
        self.drop_lookup(id);
        self.drop_match(id);
        self.drop_load(id);
        self.requests.remove(id);
    }

    fn drop_lookup(&mut self, id: &RequestId) {
        if let Some(asked) = self.requests.get_mut(id).and_then(|request| request.asked.take()) {
            self.runtime.cancel(asked.lookup);
        }
    }

    fn drop_match(&mut self, id: &RequestId) {
        let Some(request) = self.requests.get_mut(id) else { return };
        request.matched = None;
        let held = std::mem::take(&mut request.held);
        if !held.is_empty() {
            self.runtime.unhold(&held);
        }
    }

    /// A load that was not sent never will be; nobody adopts its holds.
    fn drop_load(&mut self, id: &RequestId) {
        let Some(load) = self.requests.get_mut(id).and_then(|request| request.load.take()) else { return };
        self.loads.retain(|_, of| of != id);
        if !load.held.is_empty() {
            self.runtime.unhold(&load.held);
        }
    }

    /// The keys of one block, of all ranks.
    fn keys_of(ranks: &[Rank], group: usize, hash: BlockHash) -> impl Iterator<Item = LocalKey> + '_ {
        ranks.iter().map(move |rank| LocalKey { hash, group: GroupId(group as u16), rank: *rank })
    }
}
