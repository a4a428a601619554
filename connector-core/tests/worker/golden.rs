//! The golden traces of the reference's worker, replayed step by step.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use umbp_connector_core::key::{BlockHash, GroupId, Rank};
use umbp_connector_core::metadata::{ConnectorMetadata, StoreEventId, WorkerMetadata};
use umbp_connector_core::plan::{BlockBatch, BlockId, BlockTransferPlan, ObjectKey, RequestId, RequestPlans};
use umbp_connector_core::worker::{BlockIdentityCodec, OperationStats, Worker, WorkerOptions};

use crate::common::{golden, replay_all};
use crate::script::{Bulk, Call, Cancel, Script};

/// Scenarios in the shipped file.
const SCENARIOS: usize = 150;

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn flag(value: &Value) -> bool {
    value.as_bool().unwrap_or_else(|| panic!("{value} is no flag"))
}

fn texts(value: &Value) -> BTreeSet<String> {
    list(value).iter().map(|item| text(item).to_owned()).collect()
}

fn hash(value: &Value) -> Option<BlockHash> {
    value.as_str().map(|hex| BlockHash::from_hex(hex).expect("hex"))
}

fn plan(value: &Value, request: Option<RequestId>) -> BlockTransferPlan {
    BlockTransferPlan {
        key: ObjectKey::text(text(&value["key"])),
        block_id: BlockId(value["block_id"].as_i64().expect("a block id")),
        group: value["group_id"].as_u64().map(|group| GroupId(group as u16)),
        block_hash: hash(&value["block_hash"]),
        parent: None,
        depth: 0,
        request,
    }
}

/// A scenario's worker, and its table of plans: the same index is the same plan.
struct Replay {
    worker: Worker<Script>,
    plans: Vec<Arc<BlockTransferPlan>>,
}

impl Replay {
    fn new(case: &Value) -> Self {
        let config = &case["config"];
        let (codec, runtime) = (&config["codec"], &config["runtime"]);
        let bulk = |value: &Value| match text(value) {
            "absent" | "declines" => Bulk::Declines,
            "accepts" => Bulk::Accepts,
            other => panic!("{other}"),
        };
        let mut script = Script::new(codec["namespace"].as_str().unwrap_or_default());
        script.bulk_load = bulk(&runtime["bulk_load"]);
        script.bulk_store = bulk(&runtime["bulk_store"]);
        script.block_bytes = number(&runtime["block_bytes"]);
        script.cancel = match text(&runtime["cancel"]) {
            "absent" => Cancel::Absent,
            "cancels" => Cancel::Cancels,
            "completes" => Cancel::Completes,
            other => panic!("{other}"),
        };
        let rank = |name: &str| number(&codec[name]) as u16;
        let codec = (!codec.is_null()).then(|| {
            let (tp, pcp, dcp, pp) = (rank("tp_rank"), rank("pcp_rank"), rank("dcp_rank"), rank("pp_rank"));
            BlockIdentityCodec::new(Rank { tp, pcp, dcp, pp })
        });
        let options = WorkerOptions {
            codec,
            report_failed_requests: flag(&config["report_failed_requests"]),
            enable_kv_cache_events: flag(&config["enable_kv_cache_events"]),
        };
        let row = |value: &Value| Arc::new(plan(value, value["request_id"].as_str().map(RequestId::from)));
        let plans = list(&case["plans"]).iter().map(row).collect();
        Self { worker: Worker::new(script, options), plans }
    }

    fn by_index(&self, indices: &Value) -> Vec<Arc<BlockTransferPlan>> {
        list(indices).iter().map(|index| Arc::clone(&self.plans[number(index) as usize])).collect()
    }

    fn requests(&self, value: &Value) -> Vec<(RequestId, RequestPlans)> {
        let one = |pair: &Value| {
            let (request, plans) = (RequestId::from(text(&pair[0])), &pair[1]);
            let plans = match plans.get("batch") {
                Some(columns) => RequestPlans::Batch(batch(columns)),
                None => RequestPlans::List(self.by_index(&plans["plans"])),
            };
            (request, plans)
        };
        list(value).iter().map(one).collect()
    }

    /// Does one step; what it returns.
    fn step(&mut self, step: &Value) -> Value {
        let job = || number(&step["job"]);
        match text(&step["op"]) {
            "settle" => self.worker.runtime_mut().settle(job(), &texts(&step["failed_keys"])),
            "arm" => self.worker.runtime_mut().arm(job(), texts(&step["failed_keys"])),
            "evict" => {
                let keys = list(&step["keys"]).iter().map(|key| ObjectKey::text(text(key)));
                // As recorded: keys that nobody took before the next `evict` are gone.
                self.worker.runtime_mut().evicted = keys.collect();
            }
            "start_load_kv" => {
                let load_requests = self.requests(&step["load_requests"]);
                let async_load = flag(&step["async_load"]);
                let metadata = ConnectorMetadata { async_load, load_requests, ..ConnectorMetadata::default() };
                self.worker.start_load_kv(&metadata);
            }
            "enqueue_stores" => {
                let store_requests = self.requests(&step["store_requests"]);
                let store_plans = self.by_index(&step["store_plans"]);
                let store_event = step["store_event"].as_u64().map(StoreEventId);
                let rest = ConnectorMetadata::default();
                self.worker.enqueue_stores(&ConnectorMetadata { store_requests, store_plans, store_event, ..rest });
            }
            "handle_preemptions" => {
                let preempted = texts(&step["request_ids"]).iter().map(|request| request.as_str().into()).collect();
                self.worker.handle_preemptions(&ConnectorMetadata { preempted, ..ConnectorMetadata::default() });
            }
            "wait_for_layer_load" => self.worker.wait_for_layer_load(),
            "wait_for_save" => self.worker.wait_for_save(),
            "close" => self.worker.close(),
            other => return self.report(other),
        }
        Value::Null
    }

    /// Takes a report.
    fn report(&mut self, op: &str) -> Value {
        let names = |requests: BTreeSet<RequestId>| requests.iter().map(ToString::to_string).collect::<Vec<_>>().into();
        match op {
            "get_finished" => names(self.worker.get_finished()),
            "get_failed_recving" => names(self.worker.get_failed_recving()),
            "get_block_ids_with_load_errors" => {
                self.worker.get_block_ids_with_load_errors().iter().map(|block| block.0).collect()
            }
            "build_connector_worker_meta" => worker_metadata(&self.worker.build_connector_worker_meta()),
            "get_kv_connector_stats" => self.worker.get_kv_connector_stats().map_or(Value::Null, |stats| {
                let both = [("load", stats.load), ("store", stats.store)];
                both.into_iter().filter_map(|(name, stats)| Some((name.to_owned(), counters(stats?)))).collect()
            }),
            "get_kv_events" => {
                let event = |event: &umbp_connector_core::worker::RemovedBlock| json!({ "removed_group": event.group.0, "removed_hash": event.hash.to_string() });
                self.worker.get_kv_events().iter().map(event).collect()
            }
            other => panic!("unknown op {other}"),
        }
    }
}

fn batch(columns: &Value) -> BlockBatch {
    let request = RequestId::from(text(&columns["request_id"]));
    let row = |(index, key): (usize, &Value)| {
        let cell = |name: &str| columns.get(name).map_or(Value::Null, |column| column[index].clone());
        let (block_id, group, hash) = (cell("block_ids"), cell("group_ids"), cell("block_hashes"));
        plan(&json!({ "key": key, "block_id": block_id, "group_id": group, "block_hash": hash }), None)
    };
    BlockBatch { request, plans: list(&columns["keys"]).iter().enumerate().map(row).collect() }
}

fn counters(stats: OperationStats) -> Value {
    let OperationStats { submitted, completed, failed, num_bytes } = stats;
    json!({ "submitted": submitted, "completed": completed, "failed": failed, "num_bytes": num_bytes })
}

fn worker_metadata(metadata: &WorkerMetadata) -> Value {
    let event = |(event, result): (&StoreEventId, &umbp_connector_core::metadata::StoreEventResult)| {
        let failed: Vec<Value> =
            result.failed_objects.iter().map(|(group, hash)| json!([group.0, hash.to_string()])).collect();
        json!({ "event": event.0, "completed_workers": result.completed_workers, "failed_objects": failed })
    };
    metadata.store_events.iter().map(event).collect()
}

fn call(call: &Call) -> Value {
    match call {
        Call::Begin(name, job, blocks) => json!({ "call": name, "job": job, "blocks": blocks }),
        Call::Job(name, job) => json!({ "call": name, "job": job }),
        Call::Close => json!({ "call": "close" }),
    }
}

/// Replays one scenario; the first difference, in words.
fn replay(case: &Value) -> Result<(), String> {
    let mut replay = Replay::new(case);
    for (index, step) in list(&case["steps"]).iter().enumerate() {
        replay.worker.runtime_mut().calls.clear();
        let returns = replay.step(step);
        let Some(expect) = step.get("expect") else { continue };
        let mut calls: Vec<Value> = replay.worker.runtime().calls.iter().map(call).collect();
        let mut expected = list(&expect["calls"]).to_vec();
        if step["op"] == "handle_preemptions" {
            // The order is free.
            calls.sort_by_key(Value::to_string);
            expected.sort_by_key(Value::to_string);
        }
        let at = |what, found: &Value, wanted: &Value| {
            Err(format!("step {index} ({}): {what}\n    {found}, expected\n    {wanted}", text(&step["op"])))
        };
        if calls != expected {
            return at("calls", &calls.into(), &expected.into());
        }
        if returns != expect["returns"] {
            return at("returns", &returns, &expect["returns"]);
        }
    }
    Ok(())
}

#[test]
fn every_golden_scenario_is_reproduced() {
    replay_all("worker.jsonl", SCENARIOS, replay);
}

/// The replay itself can fail: in each scenario, any expectation that says something is spoiled and found out.
#[test]
fn a_spoiled_line_is_found_out() {
    let mut spoiled = 0;
    for case in golden("worker.jsonl").0 {
        for (index, step) in list(&case["steps"]).iter().enumerate() {
            let Some(expect) = step.get("expect") else { continue };
            let mut other = case.clone();
            let target = &mut other["steps"][index]["expect"];
            if let Some(last) = list(&expect["calls"]).len().checked_sub(1) {
                target["calls"][last]["call"] = "another".into();
            } else if expect["returns"].is_array() {
                target["returns"] = json!(["another"]);
            } else if expect["returns"].is_object() {
                target["returns"] = Value::Null;
            } else {
                continue;
            }
            assert!(replay(&other).is_err(), "{}: step {index} spoiled, not found", case["name"]);
            spoiled += 1;
        }
    }
    assert!(spoiled > 0);
}
