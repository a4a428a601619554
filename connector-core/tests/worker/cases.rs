//! Single claims, most of them the acceptance of a public report.

use std::collections::BTreeSet;
use std::sync::Arc;

use umbp_connector_core::job::KeyResult;
use umbp_connector_core::key::{BlockHash, GroupId, LocalKey, Rank};
use umbp_connector_core::layout::{Layout, Region, Registered};
use umbp_connector_core::metadata::{ConnectorMetadata, StoreEventId, WorkerMetadata};
use umbp_connector_core::plan::{BlockBatch, BlockId, BlockTransferPlan, ObjectKey, PlanRuns, RequestId, RequestPlans};
use umbp_connector_core::runtime::{JobId, Runtime, TransferJobState};
use umbp_connector_core::topology::RankTopology;
use umbp_connector_core::worker::{BlockIdentityCodec, Worker, WorkerOptions};

use crate::script::{Call, Cancel, Script};

const GROUP: GroupId = GroupId(0);

fn hash(number: u8) -> BlockHash {
    BlockHash::new(&[number; 32]).expect("32 bytes")
}

/// Block `block` of the pool holds the object whose hash is made of `number`.
fn plan(number: u8, block: i64, request: &str) -> BlockTransferPlan {
    let key = LocalKey { hash: hash(number), group: GROUP, rank: Rank::default() };
    let plan = BlockTransferPlan::load(key.into(), BlockId(block), GROUP, &request.into());
    BlockTransferPlan { block_hash: Some(key.hash), ..plan }
}

fn batch(request: &str, plans: Vec<BlockTransferPlan>) -> (RequestId, RequestPlans) {
    (request.into(), RequestPlans::Batch(BlockBatch { request: request.into(), plans }))
}

fn loads(async_load: bool, load_requests: Vec<(RequestId, RequestPlans)>) -> ConnectorMetadata {
    ConnectorMetadata { async_load, load_requests, ..ConnectorMetadata::default() }
}

fn stores(event: u64, store_requests: Vec<(RequestId, RequestPlans)>) -> ConnectorMetadata {
    let store_event = Some(StoreEventId(event));
    ConnectorMetadata { store_requests, store_event, ..ConnectorMetadata::default() }
}

fn preempted(request: &str) -> ConnectorMetadata {
    ConnectorMetadata { preempted: BTreeSet::from([request.into()]), ..ConnectorMetadata::default() }
}

fn worker(report_failed_requests: bool) -> Worker<Script> {
    let options = WorkerOptions { report_failed_requests, enable_kv_cache_events: true, ..WorkerOptions::default() };
    Worker::new(Script::new("n"), options)
}

fn names(requests: BTreeSet<RequestId>) -> Vec<String> {
    requests.iter().map(ToString::to_string).collect()
}

fn blocks(ids: BTreeSet<BlockId>) -> Vec<i64> {
    ids.iter().map(|id| id.0).collect()
}

fn results(bad: usize, of: usize, result: KeyResult) -> Vec<KeyResult> {
    (0..of).map(|index| if index == bad { result } else { KeyResult::Done }).collect()
}

/// A1: block 3 of 8 is gone; the others are loaded, the worker goes on, and the next request works.
#[test]
fn a_missing_block_fails_alone() {
    for result in [KeyResult::Missed, KeyResult::Corrupt, KeyResult::Late, KeyResult::Disconnected, KeyResult::Invalid]
    {
        let mut worker = worker(false);
        worker.start_load_kv(&loads(true, vec![batch("r", (0..8).map(|n| plan(n, 10 + i64::from(n), "r")).collect())]));
        worker.runtime_mut().settle_as(0, &results(3, 8, result));
        assert_eq!(names(worker.get_finished()), ["r"]);
        assert_eq!(blocks(worker.get_block_ids_with_load_errors()), [13], "{result:?}");
        let stats = worker.get_kv_connector_stats().and_then(|stats| stats.load).expect("a load");
        assert_eq!((stats.submitted, stats.completed, stats.failed, stats.num_bytes), (8, 7, 1, 7 * 4096));
        worker.start_load_kv(&loads(false, vec![batch("s", vec![plan(9, 20, "s")])]));
        assert!(worker.get_block_ids_with_load_errors().is_empty());
    }
}

/// A2: every promised block fails, in a synchronous load: all are named before the step's forward pass.
#[test]
fn a_synchronous_load_that_fails_names_all_its_blocks_at_once() {
    let mut worker = worker(false);
    worker.runtime_mut().unsettled = |_| KeyResult::Disconnected;
    worker.start_load_kv(&loads(false, vec![batch("r", (0..4).map(|n| plan(n, i64::from(n), "r")).collect())]));
    assert_eq!(worker.open_jobs(), 0);
    assert_eq!(blocks(worker.get_block_ids_with_load_errors()), [0, 1, 2, 3]);
    assert!(worker.get_finished().is_empty(), "a synchronous load is not reported");
}

/// A3: two requests load different objects to the same block, or the same object to different blocks: only the
/// failed place is named.
#[test]
fn failed_blocks_are_named_by_place_and_not_by_key() {
    let mut worker = worker(false);
    let first = batch("r", vec![plan(1, 7, "r"), plan(2, 8, "r")]);
    let second = batch("s", vec![plan(1, 9, "s"), plan(1, 10, "s"), plan(3, 7, "s")]);
    worker.start_load_kv(&loads(true, vec![first, second]));
    worker.runtime_mut().settle_as(0, &[KeyResult::Done, KeyResult::Done]);
    worker.runtime_mut().settle_as(1, &[KeyResult::Missed, KeyResult::Done, KeyResult::Missed]);
    assert_eq!(names(worker.get_finished()), ["r", "s"]);
    assert_eq!(blocks(worker.get_block_ids_with_load_errors()), [7, 9]);
}

/// A3: a runtime that answers for fewer blocks than it was given has failed the others.
#[test]
fn a_block_without_an_answer_has_failed() {
    struct Short;
    impl Runtime for Short {
        fn load(&mut self, _: &[BlockTransferPlan], _: &PlanRuns) -> JobId {
            JobId(0)
        }
        fn store(&mut self, _: &[BlockTransferPlan], _: &PlanRuns) -> JobId {
            JobId(0)
        }
        fn poll(&mut self, job: JobId) -> Option<TransferJobState> {
            Some(self.wait(job))
        }
        fn wait(&mut self, _: JobId) -> TransferJobState {
            TransferJobState::all(1, KeyResult::Done, 1)
        }
        fn publish(&mut self, _: JobId, _: &[BlockTransferPlan]) {
            panic!("a store is published in doubt");
        }
        fn close(&mut self) {}
    }
    let mut worker = Worker::new(Short, WorkerOptions::default());
    worker.start_load_kv(&loads(false, vec![batch("r", vec![plan(1, 1, "r"), plan(2, 2, "r")])]));
    assert_eq!(blocks(worker.get_block_ids_with_load_errors()), [2]);
    worker.enqueue_stores(&stores(0, vec![batch("r", vec![plan(1, 1, "r"), plan(2, 2, "r")])]));
    worker.wait_for_save();
    assert_eq!(worker.build_connector_worker_meta().store_events[&StoreEventId(0)].failed_objects.len(), 2);
}

/// B1: once a preemption is handled, no job touches the request's blocks, and what was not stored is not published.
#[test]
fn a_preempted_store_ends_before_its_blocks_are_used_again() {
    for (cancel, published) in [(Cancel::Cancels, false), (Cancel::Completes, true), (Cancel::Absent, true)] {
        let mut worker = worker(false);
        worker.runtime_mut().cancel = cancel;
        let other = batch("other", vec![plan(2, 2, "other")]);
        worker.enqueue_stores(&stores(4, vec![batch("r", vec![plan(1, 1, "r")]), other]));
        worker.wait_for_save();
        worker.handle_preemptions(&preempted("r"));
        assert!(worker.runtime().job(0).1.is_some(), "{cancel:?}: the store still runs");
        assert!(worker.runtime().job(1).1.is_none(), "{cancel:?}: a store of another request ended too");
        worker.runtime_mut().settle_as(1, &[KeyResult::Done]);
        worker.wait_for_save();
        let failed = if published { vec![] } else { vec![(GROUP, hash(1))] };
        let events = worker.build_connector_worker_meta().store_events;
        assert_eq!(events[&StoreEventId(4)].failed_objects.iter().copied().collect::<Vec<_>>(), failed, "{cancel:?}");
        let publish = worker.runtime().calls.contains(&Call::Job("publish", 0));
        assert_eq!(publish, published, "{cancel:?}");
    }
}

/// B2: a request is admitted again while its old store runs: its load is a job beside it.
#[test]
fn a_load_begins_beside_the_same_requests_store() {
    let mut worker = worker(false);
    worker.enqueue_stores(&stores(0, vec![batch("r", vec![plan(1, 1, "r")])]));
    worker.wait_for_save();
    worker.start_load_kv(&loads(true, vec![batch("r", vec![plan(1, 5, "r")])]));
    assert_eq!(worker.open_jobs(), 2);
    worker.runtime_mut().settle_as(1, &[KeyResult::Missed]);
    assert_eq!(names(worker.get_finished()), ["r"]);
    assert_eq!(blocks(worker.get_block_ids_with_load_errors()), [5]);
    assert_eq!(worker.open_jobs(), 1, "the store goes on");
}

/// B3: a request that goes away in any state leaves nothing open.
#[test]
fn a_request_may_go_in_any_state() {
    type Begin = fn(&mut Worker<Script>);
    let load: Begin = |worker| worker.start_load_kv(&loads(true, vec![batch("r", vec![plan(1, 1, "r")])]));
    let enqueue: Begin = |worker| worker.enqueue_stores(&stores(0, vec![batch("r", vec![plan(1, 1, "r")])]));
    let states: [(&str, &[Begin]); 6] = [
        ("unknown", &[]),
        ("loading", &[load]),
        ("loaded", &[load, |worker| worker.runtime_mut().settle_as(0, &[KeyResult::Done])]),
        ("enqueued", &[enqueue]),
        ("storing", &[enqueue, Worker::wait_for_save]),
        ("stored", &[enqueue, |worker| worker.runtime_mut().settle_as(0, &[KeyResult::Done]), Worker::wait_for_save]),
    ];
    for (state, steps) in states {
        let mut worker = worker(false);
        steps.iter().for_each(|step| step(&mut worker));
        worker.handle_preemptions(&preempted("r"));
        worker.wait_for_save();
        assert_eq!(worker.open_jobs(), 0, "{state}");
        assert!(worker.get_finished().is_empty(), "{state}: nobody waits for it any more");
        assert!(worker.get_block_ids_with_load_errors().is_empty(), "{state}");
    }
}

/// B4: a finished load is reported once, whatever is asked afterwards; a request that loads and stores is reported for
/// its load alone.
#[test]
fn a_request_is_reported_once() {
    let mut worker = worker(true);
    worker.enqueue_stores(&stores(0, vec![batch("r", vec![plan(2, 2, "r")])]));
    worker.start_load_kv(&loads(true, vec![batch("r", vec![plan(1, 1, "r")])]));
    worker.wait_for_save();
    worker.runtime_mut().settle_as(1, &[KeyResult::Missed]);
    assert_eq!(names(worker.get_finished()), ["r"]);
    assert_eq!(names(worker.get_failed_recving()), ["r"]);
    worker.runtime_mut().settle_as(0, &[KeyResult::Done]);
    worker.handle_preemptions(&preempted("r"));
    worker.close();
    worker.close();
    assert!(worker.get_finished().is_empty());
    assert!(worker.get_failed_recving().is_empty());
    assert_eq!(worker.runtime().calls.iter().filter(|call| **call == Call::Close).count(), 1);
}

/// B6, B7: a job that does not end is waited for by nobody but who must, and ends with its runtime's limit.
#[test]
fn a_stalled_job_stalls_nothing_else_and_ends_at_the_limit() {
    let mut worker = worker(false);
    worker.runtime_mut().unsettled = |_| KeyResult::Late;
    worker.start_load_kv(&loads(true, vec![batch("r", vec![plan(1, 1, "r")]), batch("s", vec![plan(2, 2, "s")])]));
    worker.enqueue_stores(&stores(0, vec![batch("r", vec![plan(3, 3, "r")])]));
    worker.enqueue_stores(&stores(1, vec![batch("s", vec![plan(4, 4, "s")])]));
    worker.wait_for_save();
    worker.wait_for_layer_load();
    worker.runtime_mut().settle_as(1, &[KeyResult::Done]);
    worker.runtime_mut().settle_as(3, &[KeyResult::Done]);
    assert_eq!(names(worker.get_finished()), ["s"]);
    assert_eq!(worker.build_connector_worker_meta().store_events.into_keys().collect::<Vec<_>>(), [StoreEventId(1)]);
    assert!(!worker.runtime().calls.iter().any(|call| matches!(call, Call::Job("wait", _))));
    worker.close();
    assert_eq!((worker.open_jobs(), names(worker.get_finished())), (0, vec!["r".to_owned()]));
    assert_eq!(blocks(worker.get_block_ids_with_load_errors()), [1]);
    let events = worker.build_connector_worker_meta().store_events;
    assert_eq!(events[&StoreEventId(0)].failed_objects, BTreeSet::from([(GROUP, hash(3))]));
}

/// A request that is loaded again before its first load has ended is finished when both are.
#[test]
fn a_second_load_of_a_request_joins_the_first() {
    let mut worker = worker(true);
    worker.start_load_kv(&loads(true, vec![batch("r", vec![plan(1, 1, "r")])]));
    worker.start_load_kv(&loads(true, vec![batch("r", vec![plan(2, 2, "r")])]));
    worker.runtime_mut().settle_as(1, &[KeyResult::Missed]);
    assert!(worker.get_finished().is_empty());
    assert!(worker.get_failed_recving().is_empty(), "its first load is open");
    worker.runtime_mut().settle_as(0, &[KeyResult::Done]);
    assert_eq!(
        (names(worker.get_finished()), names(worker.get_failed_recving())),
        (vec!["r".into()], vec!["r".into()])
    );
}

/// H2, H4: keys carry the whole hash, in which the engine puts adapters and images; those of two blocks differ wherever
/// their hashes do.
#[test]
fn a_localized_key_keeps_every_byte_of_the_hash() {
    let rank = Rank { tp: 3, pcp: 1, dcp: 1, pp: 2 };
    for at in 0..32 {
        let mut bytes = [7; 32];
        bytes[at] = 8;
        let hash = BlockHash::new(&bytes).expect("32 bytes");
        let key = ObjectKey::text(&format!("umbp:vllm:v1:other:tp0:pcp0:dcp0:pp0:g9:{hash}"));
        assert_eq!(key.object(), Some((GroupId(9), hash)));
        assert_eq!(key.localized(GROUP, rank), ObjectKey::Block(LocalKey { hash, group: GROUP, rank }));
    }
    let unknown = ["no-colon", "x:g1:nothex", "x:g1:abc", "x:g1:", ""];
    for text in unknown.map(ObjectKey::text) {
        assert_eq!((text.localized(GROUP, rank), text.object()), (text.clone(), None));
    }
}

/// I5: eight ranks that hold the same latent store and load one object per block.
#[test]
fn ranks_with_equal_bytes_share_their_keys() {
    let topology = RankTopology::new(8, 1, 1, 1).expect("sizes").with_replicas(8);
    let mut stored = BTreeSet::new();
    for index in 0..topology.workers() {
        let codec = BlockIdentityCodec::new(topology.key_rank(index).expect("a worker"));
        let options = WorkerOptions { codec: Some(codec), ..WorkerOptions::default() };
        let mut worker = Worker::new(Script::new("n"), options);
        let own = BlockTransferPlan { group: Some(GroupId(1)), ..plan(9, 1, "r") };
        worker.enqueue_stores(&stores(0, vec![batch("r", vec![plan(1, 1, "r"), own])]));
        stored.extend(worker.runtime().job(0).0.iter().map(|plan| plan.key.clone()));
    }
    assert_eq!(stored.len(), 2, "one object of each group");
}

/// I4: with several groups a failure in any of them is the request's.
#[test]
fn with_several_groups_a_failed_load_names_its_request() {
    let mut worker = worker(true);
    let state = BlockTransferPlan { group: Some(GroupId(1)), ..plan(2, 2, "r") };
    worker
        .start_load_kv(&loads(true, vec![batch("r", vec![plan(1, 1, "r"), state]), batch("s", vec![plan(3, 3, "s")])]));
    worker.runtime_mut().settle_as(0, &[KeyResult::Done, KeyResult::Corrupt]);
    worker.runtime_mut().settle_as(1, &[KeyResult::Done]);
    assert_eq!(names(worker.get_finished()), ["r", "s"]);
    assert_eq!(names(worker.get_failed_recving()), ["r"]);
    assert!(worker.get_block_ids_with_load_errors().is_empty(), "a null block of a window cannot be recomputed");
}

/// A single plan joins its request's list, is not stored twice, and stands alone beside a batch.
#[test]
fn single_plans_are_stored_once() {
    let shared = Arc::new(plan(1, 1, "listed"));
    let listed = ("listed".into(), RequestPlans::List(vec![Arc::clone(&shared)]));
    let mut metadata = stores(0, vec![listed, batch("batched", vec![plan(2, 2, "batched")])]);
    let single = |number, block, request| Arc::new(plan(number, block, request));
    let nobody = Arc::new(BlockTransferPlan { request: None, ..plan(6, 6, "") });
    let twin = Arc::new((*shared).clone());
    let listed = single(3, 3, "listed");
    metadata.store_plans = vec![shared, listed, single(4, 4, "batched"), single(5, 5, ""), nobody, twin];
    let mut worker = worker(false);
    worker.enqueue_stores(&metadata);
    let job = |job| worker.runtime().job(job).0.iter().map(|plan| plan.block_id.0).collect::<Vec<_>>();
    assert_eq!(
        (0..worker.runtime().jobs()).map(job).collect::<Vec<_>>(),
        [vec![1, 3, 1], vec![2], vec![4], vec![5, 6]]
    );
}

/// A step that was never sealed keeps its event: the scheduler holds its blocks until it hears of it.
#[test]
fn no_store_event_is_lost() {
    let mut worker = worker(false);
    worker.enqueue_stores(&stores(0, vec![]));
    worker.enqueue_stores(&stores(1, vec![]));
    worker.wait_for_save();
    assert_eq!(worker.build_connector_worker_meta().store_events.len(), 2);
}

#[test]
fn after_close_a_load_fails_and_a_store_stores_nothing() {
    let mut worker = worker(false);
    worker.close();
    worker.start_load_kv(&loads(true, vec![batch("r", vec![plan(1, 1, "r")])]));
    worker.enqueue_stores(&stores(0, vec![batch("r", vec![plan(2, 2, "r")])]));
    worker.wait_for_save();
    assert_eq!(worker.runtime().jobs(), 0);
    assert_eq!(names(worker.get_finished()), ["r"]);
    assert_eq!(blocks(worker.get_block_ids_with_load_errors()), [1]);
    let events = worker.build_connector_worker_meta().store_events;
    assert_eq!(events[&StoreEventId(0)].failed_objects, BTreeSet::from([(GROUP, hash(2))]));
    assert!(worker.get_kv_events().is_empty());
}

/// The plain form carries the runs of each block; a block that has none fails alone, in the runtime.
#[test]
fn runs_follow_from_the_layout() {
    let region = Region { layer: "l".into(), group: GROUP, block_stride: 64, block_bytes: 64, object_offset: 0 };
    let layout = Layout::register(&[region], |_| Some(Registered { base: 4096, block_stride: 32 })).expect("a layout");
    let plans = [
        plan(1, 2, "r"),
        plan(2, -1, "r"),
        BlockTransferPlan { group: Some(GroupId(5)), ..plan(3, 0, "r") },
        plan(4, 0, "r"),
    ];
    let runs = PlanRuns::of(&plans, Some(&layout));
    let addresses = |index| runs.plan(index).iter().map(|run| run.address).collect::<Vec<_>>();
    let all: Vec<Vec<u64>> = (0..5).map(addresses).collect();
    assert_eq!(all, [vec![4096 + 128, 4096 + 160], vec![], vec![], vec![4096, 4096 + 32], vec![]]);
    assert!(PlanRuns::of(&plans, None).plan(0).is_empty());
}

#[test]
fn reports_of_workers_add_up() {
    let report = |event, failed: &[u8]| {
        let failed_objects = failed.iter().map(|number| (GROUP, hash(*number))).collect();
        let result = umbp_connector_core::metadata::StoreEventResult { completed_workers: 1, failed_objects };
        WorkerMetadata { store_events: [(StoreEventId(event), result)].into() }
    };
    let mut sum = report(1, &[1]);
    sum.aggregate(report(1, &[1, 2]));
    sum.aggregate(report(2, &[]));
    assert_eq!(sum.store_events[&StoreEventId(1)].completed_workers, 2);
    assert_eq!(sum.store_events[&StoreEventId(1)].failed_objects.len(), 2);
    assert_eq!(sum.store_events[&StoreEventId(2)].completed_workers, 1);
}
