//! The golden traces of the scheduler, replayed.

use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use umbp_connector_core::key::{GroupId, TextKey};
use umbp_connector_core::metadata::{StoreEventId, StoreEventResult, WorkerMetadata};
use umbp_connector_core::plan::{BlockTransferPlan, ObjectKey};
use umbp_connector_core::scheduler::{KvEvent, Scheduler, StepOutput, StorePlan};

use crate::common::{replay_all, shipped};
use crate::exceptions::{self, EXCEPTIONS};
use crate::read;
use crate::script::{Asked, ScriptedLookups, ScriptedPool};
use crate::truth::Truth;

/// Scenarios in the shipped file.
pub(crate) const SCENARIOS: usize = 200;

/// In traces that are not the shipped ones: which mark allows which call to differ in which field. Such a trace is
/// compared up to there.
const MARKS: [(&str, &str, &str); 4] = [
    ("sync-load-suffix-not-stored", "build_connector_meta", "returns"),
    ("handoff-key-in-flight-twice", "build_connector_meta", "returns"),
    ("event-lost-on-lookup-error", "update_connector_output", "submits"),
    ("event-lost-on-lookup-error", "take_events", "submits"),
];

/// Traces of boundary states with events: compared to their end, but with the tokens of the block, and the hash at its
/// start as parent, in place of no tokens and a hash somewhere inside the block.
const CORRECTED: [&str; 7] =
    ["sched-00029", "sched-00048", "sched-00158", "sched-00181", "sched-00191", "sched-00193", "sched-00209"];
const CORRECTED_MARK: &str = "handoff-event-without-tokens";

type Scripted = Scheduler<ScriptedLookups, ScriptedPool>;

pub(crate) struct Replay {
    scheduler: Scripted,
    namespace: String,
    events: bool,
    now: f64,
}

impl Replay {
    pub(crate) fn start(case: &Value) -> Result<Self, String> {
        let config = &case["config"];
        let namespace = config["namespace"].as_str().expect("a namespace").to_owned();
        let pool = (config["pool"] == true).then(ScriptedPool::default);
        let checked = read::config(config);
        let mut scheduler =
            Scheduler::new(checked, ScriptedLookups::new(&namespace), pool).map_err(|error| error.to_string())?;
        if config["bound"] == true {
            scheduler.bind_namespace();
        }
        let geometry = scheduler.geometry();
        let derived = json!({
            "block_size": geometry.block,
            "hash_block_size": geometry.hash_block,
            "load_async": geometry.load_async,
            "matched_groups": geometry.matched,
            "tokens_per_block": geometry.spans,
            "lookup_units": geometry.units,
            "ranks": ranks(config),
        });
        if derived != case["derived"] {
            return Err(format!("derived: {derived} instead of {}", case["derived"]));
        }
        let events = config["options"]["events"] == true;
        Ok(Self { scheduler, namespace, events, now: 0.0 })
    }

    /// One step; what it returns (absent = nothing) and its error.
    pub(crate) fn call(&mut self, step: &Value) -> Result<Option<Value>, &'static str> {
        if let Some(now) = step["now"].as_f64() {
            self.now = now;
        }
        let scheduler = &mut self.scheduler;
        let returns = match step["op"].as_str().expect("an op") {
            "request" => {
                let (tokens, hashes) = (read::tokens(&step["tokens"]), read::hashes(&step["hashes"]));
                scheduler.add_request(
                    &read::id(&step["id"]),
                    read::number(&step["num_prompt_tokens"]),
                    &tokens,
                    &hashes,
                );
                None
            }
            "grow" => {
                scheduler.grow(&read::id(&step["id"]), &read::tokens(&step["tokens"]), &read::hashes(&step["hashes"]));
                None
            }
            "bind_namespace" => {
                scheduler.bind_namespace();
                None
            }
            "lookup_done" => {
                scheduler.runtime().done.insert(read::number(&step["job"]), step["answer"].clone());
                None
            }
            "get_num_new_matched_tokens" => Some(matched(scheduler, step)),
            "update_state_after_alloc" => {
                let tables = read::tables(&step["block_ids"]);
                let external = read::number(&step["external_tokens"]);
                scheduler
                    .update_state_after_alloc(&read::id(&step["id"]), &tables, external)
                    .map_err(|_| "AssertionError")?;
                None
            }
            "build_connector_meta" => {
                let output = scheduler.build_connector_meta(read::step(step));
                Some(self.output(&output))
            }
            "register_finished_partial_tail" => {
                let (tables, offloads) = (read::tables(&step["block_ids"]), read::offloads(&step["offloads"]));
                let (computed, in_flight) =
                    (read::number(&step["computed_tokens"]), read::number(&step["in_flight_tokens"]));
                let id = read::id(&step["id"]);
                assert!(!scheduler.register_finished_partial_tail(&id, &tables, &offloads, computed, in_flight));
                None
            }
            "request_finished" => {
                scheduler.request_finished(&read::id(&step["id"]));
                None
            }
            "update_connector_output" => {
                scheduler.update_connector_output(&worker_metadata(&step["store_events"]), self.now);
                None
            }
            "invalidate_kv_events" => {
                scheduler.invalidate_kv_events(&read::objects(&step["removed"]));
                None
            }
            "take_events" => Some(scheduler.take_events(self.now).into_iter().map(event).collect()),
            "reset_store" => {
                scheduler.runtime().clear_returns = step["clear_returns"] == true;
                Some(Value::Bool(scheduler.reset_store()))
            }
            other => panic!("op {other}"),
        };
        Ok(returns)
    }

    fn key(&self, key: &ObjectKey) -> Value {
        let ObjectKey::Block(local) = key else { panic!("a block's key: {key:?}") };
        TextKey { namespace: &self.namespace, local: *local }.to_string().into()
    }

    fn output(&self, output: &StepOutput) -> Value {
        let mut returns = Map::new();
        returns.insert("async_load".into(), output.async_load.into());
        returns.insert("store_event".into(), output.store_event.map_or(json!(-1), |event| event.0.into()));
        let mut put = |name: &str, list: Vec<Value>| {
            if !list.is_empty() {
                returns.insert(name.into(), list.into());
            }
        };
        let mut loads: Vec<_> = output.loads.iter().collect();
        loads.sort_by(|a, b| a.0.cmp(&b.0));
        put("loads", loads.into_iter().map(|(id, plans)| json!([id.to_string(), self.load(plans)])).collect());
        put("stores", output.stores.iter().map(|(id, plans)| json!([id.to_string(), self.columns(plans)])).collect());
        put("store_plans", output.store_plans.iter().map(|plan| self.single(plan)).collect());
        put("preempted", output.preempted.iter().map(|id| id.to_string().into()).collect());
        returns.into()
    }

    fn load(&self, plans: &[BlockTransferPlan]) -> Value {
        json!({
            "keys": plans.iter().map(|plan| self.key(&plan.key)).collect::<Vec<_>>(),
            "block_ids": plans.iter().map(|plan| plan.block_id.0).collect::<Vec<_>>(),
            "groups": plans.iter().map(|plan| plan.group.map(|group| group.0)).collect::<Vec<_>>(),
        })
    }

    fn columns(&self, plans: &[StorePlan]) -> Value {
        let mut columns = json!({
            "keys": plans.iter().map(|plan| self.key(&plan.block.key)).collect::<Vec<_>>(),
            "block_ids": plans.iter().map(|plan| plan.block.block_id.0).collect::<Vec<_>>(),
            "groups": plans.iter().map(|plan| plan.group.0).collect::<Vec<_>>(),
            "hashes": plans.iter().map(|plan| plan.hash.to_string()).collect::<Vec<_>>(),
            "block_sizes": plans.iter().map(|plan| plan.block_size).collect::<Vec<_>>(),
        });
        if self.events {
            columns["parents"] = plans.iter().map(|plan| plan.parent.map(|hash| hash.to_string())).collect();
            columns["tokens"] = plans.iter().map(|plan| plan.tokens.clone()).collect();
        }
        columns
    }

    fn single(&self, plan: &StorePlan) -> Value {
        let parent = plan.parent.filter(|_| self.events).map(|hash| hash.to_string());
        json!({
            "request": plan.block.request.as_ref().map(ToString::to_string),
            "key": self.key(&plan.block.key),
            "block_id": plan.block.block_id.0,
            "group": plan.group.0,
            "hash": plan.hash.to_string(),
            "parent": parent,
            "tokens": plan.tokens,
            "block_size": plan.block_size,
        })
    }

    /// What the step said and asked, in the form of `expect`.
    pub(crate) fn found(&mut self, returned: Result<Option<Value>, &'static str>) -> Value {
        let mut found = Map::new();
        match returned {
            Ok(Some(returns)) => drop(found.insert("returns".into(), returns)),
            Ok(None) => {}
            Err(error) => drop(found.insert("error".into(), error.into())),
        }
        let Asked { lookups, submits, cancels, clears } = std::mem::take(&mut self.scheduler.runtime().asked);
        let pool = self.scheduler.pool().map(|pool| std::mem::take(&mut pool.calls)).unwrap_or_default();
        let cancels: Vec<Value> = cancels.into_iter().map(Value::from).collect();
        for (name, list) in [("lookups", lookups), ("submits", submits), ("cancels", cancels), ("pool", pool)] {
            if !list.is_empty() {
                found.insert(name.into(), list.into());
            }
        }
        if clears > 0 {
            found.insert("clears".into(), clears.into());
        }
        found.insert("pending_push_work".into(), self.scheduler.has_pending_push_work().into());
        found.into()
    }
}

impl Replay {
    /// The next lookups are answered as these of the same keys; others with `default` for every key.
    pub(crate) fn answer_by_keys(&mut self, lookups: &[Value], default: char) {
        self.scheduler.runtime().by_keys = Some((lookups.to_vec(), default));
    }

    /// A lookup under way is answered: all is there.
    pub(crate) fn answer_present(&mut self, job: u64, keys: usize) {
        self.scheduler.runtime().done.insert(job, "1".repeat(keys).into());
    }
}

fn matched(scheduler: &mut Scripted, step: &Value) -> Value {
    let cached: HashSet<_> = read::objects(&step["local_cached"]).into_iter().collect();
    let is_cached = |group: usize, hash| cached.contains(&(GroupId(group as u16), hash));
    let local = read::number(&step["local_tokens"]);
    let found = scheduler.get_num_new_matched_tokens(&read::id(&step["id"]), local, &is_cached);
    json!({ "tokens": found.tokens, "async": found.load_async })
}

fn ranks(config: &Value) -> Value {
    let ranks = read::config(config).topology.key_ranks();
    ranks.iter().map(|rank| json!([rank.tp, rank.pcp, rank.dcp, rank.pp])).collect()
}

fn worker_metadata(events: &Value) -> WorkerMetadata {
    let result = |event: &Value| {
        let result = StoreEventResult {
            completed_workers: read::number(&event["completed_workers"]) as u32,
            failed_objects: read::objects(&event["failed"]).into_iter().collect(),
        };
        (StoreEventId(read::number(&event["event"])), result)
    };
    let store_events: BTreeMap<_, _> = read::list(events).iter().map(result).collect();
    WorkerMetadata { store_events }
}

fn event(event: KvEvent) -> Value {
    match event {
        KvEvent::Stored { hash, group, parent, tokens, block_size } => json!({
            "stored": hash.to_string(),
            "group": group.0,
            "parent": parent.map(|hash| hash.to_string()),
            "tokens": tokens,
            "block_size": block_size,
        }),
        KvEvent::Removed { hash, group } => json!({ "removed": hash.to_string(), "group": group.0 }),
    }
}

/// The same, with what has no order in one order.
pub(crate) fn normal(expect: &Value) -> Value {
    let mut expect = expect.clone();
    if let Some(cancels) = expect.get_mut("cancels").and_then(Value::as_array_mut) {
        cancels.sort_by_key(|job| job.as_u64());
    }
    for call in expect.get_mut("pool").and_then(Value::as_array_mut).into_iter().flatten() {
        if call[0] == "touch" {
            call[1].as_array_mut().expect("blocks").sort_by_key(|block| block.as_i64());
        }
    }
    if let Some(loads) = expect.pointer_mut("/returns/loads").and_then(Value::as_array_mut) {
        loads.sort_by(|a, b| a[0].as_str().cmp(&b[0].as_str()));
    }
    if let Some(map) = expect.as_object_mut() {
        map.retain(|_, value| !value.is_null());
    }
    expect
}

/// What `expect` may hold.
pub(crate) const FIELDS: [&str; 8] =
    ["error", "returns", "lookups", "submits", "cancels", "pool", "clears", "pending_push_work"];

/// The first difference.
struct Difference {
    step: usize,
    field: &'static str,
    text: String,
}

/// The first difference of one scenario, or none.
fn difference(case: &Value) -> Result<Option<Difference>, String> {
    let mut replay = Replay::start(case)?;
    let mut truth = Truth::of(case);
    for (index, step) in read::list(&case["steps"]).iter().enumerate() {
        truth.learn(step);
        let expect = step.get("expect");
        let answers = expect.map_or(&[][..], |expect| read::list(&expect["lookups"]));
        replay.scheduler.runtime().answers = answers.iter().map(|lookup| lookup["answer"].clone()).collect();
        let returned = replay.call(step);
        let found = replay.found(returned);
        let Some(expect) = expect else { continue };
        let mut expect = normal(expect);
        if replay.events {
            truth.correct_all(&mut expect);
        }
        if let Some(field) = FIELDS.into_iter().find(|field| found.get(field) != expect.get(field)) {
            let (found, expect) = (&found[field], &expect[field]);
            let text = format!("step {index} {}: {field}\n  found  {found}\n  expect {expect}", step["op"]);
            return Ok(Some(Difference { step: index, field, text }));
        }
        if expect.get("error").is_some() {
            break;
        }
    }
    Ok(None)
}

pub(crate) fn replay(case: &Value) -> Result<(), String> {
    let name = case["name"].as_str().unwrap_or_default();
    if let Some(exception) = EXCEPTIONS.iter().find(|(of, ..)| *of == name) {
        return exceptions::replay(case, *exception);
    }
    match difference(case)? {
        None => Ok(()),
        Some(found) if is_foreign(name) && is_marked(case, &found) => Ok(()),
        Some(found) => Err(found.text),
    }
}

/// The trace itself allows this difference.
fn is_marked(case: &Value, found: &Difference) -> bool {
    let marks = read::list(&case["quirks"]);
    let op = &case["steps"][found.step]["op"];
    MARKS.iter().any(|(mark, of, field)| op == of && found.field == *field && marks.iter().any(|one| one == mark))
}

/// No trace of the shipped file.
fn is_foreign(name: &str) -> bool {
    static SHIPPED: LazyLock<HashSet<String>> = LazyLock::new(|| {
        let names = shipped("scheduler.jsonl").into_iter().filter_map(|case| case["name"].as_str().map(str::to_owned));
        names.collect()
    });
    !SHIPPED.contains(name)
}

#[test]
fn every_golden_trace_of_the_scheduler_replays() {
    replay_all("scheduler.jsonl", SCENARIOS, replay);
}

/// Nothing is left out, or corrected, that the traces do not mark.
#[test]
fn every_exception_is_marked_by_its_trace() {
    let cases = shipped("scheduler.jsonl");
    let case = |name: &str| cases.iter().find(|case| case["name"] == *name).unwrap_or_else(|| panic!("{name}"));
    for (name, step, field, _) in EXCEPTIONS {
        assert!(is_marked(case(name), &Difference { step, field, text: String::new() }), "{name}");
    }
    for name in CORRECTED {
        assert!(read::list(&case(name)["quirks"]).iter().any(|mark| mark == CORRECTED_MARK), "{name}");
    }
    let marked = cases.iter().filter(|case| read::list(&case["quirks"]).iter().any(|mark| mark == CORRECTED_MARK));
    assert_eq!(marked.count(), CORRECTED.len());
}
