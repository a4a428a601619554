//! The whole path: connector-core's worker, its runtime, the real daemon. The steps are those of an engine.

use std::collections::BTreeSet;
use std::path::Path;

use rustix::process::Signal;
use umbp_client::runtime::{Hold, WorkerRuntime};
use umbp_connector_core::key::{LocalKey, Rank};
use umbp_connector_core::metadata::{ConnectorMetadata, StoreEventId, StoreEventResult};
use umbp_connector_core::plan::{BlockBatch, BlockId, BlockTransferPlan, ObjectKey, RequestId, RequestPlans};
use umbp_connector_core::topology::RankTopology;
use umbp_connector_core::worker::{BlockIdentityCodec, Worker, WorkerOptions};

use crate::away::in_time;
use crate::common::daemon::Place;
use crate::common::{DEADLINE, until};
use crate::rig::is_quiet;
use crate::worker::{self, at, bytes, fill, scheduler};

const NONE: [i64; 0] = [];
const RANK: Rank = Rank { tp: 3, pcp: 0, dcp: 0, pp: 1 };

/// A worker of an engine.
struct Side {
    // Before the memory: the runtime's threads are gone when that is freed.
    core: Worker<WorkerRuntime>,
    memory: Vec<Box<[u8]>>,
    events: u64,
}

impl Side {
    fn new(socket: &Path, rank: Rank) -> Self {
        let codec = BlockIdentityCodec::new(rank);
        let worker::Worker { runtime, memory } = worker::Worker::new(socket);
        let options = WorkerOptions { codec: Some(codec), report_failed_requests: false, enable_kv_cache_events: true };
        Self { core: Worker::new(runtime, options), memory, events: 0 }
    }

    /// The step in which these are stored; answers the event's end.
    fn store(&mut self, request: &str, plans: &[BlockTransferPlan]) -> StoreEventResult {
        self.events += 1;
        let event = StoreEventId(self.events);
        let step = ConnectorMetadata {
            store_requests: vec![of(request, plans)],
            store_event: Some(event),
            ..ConnectorMetadata::default()
        };
        self.core.handle_preemptions(&step);
        self.core.start_load_kv(&step);
        self.core.enqueue_stores(&step);
        self.core.wait_for_save();
        until("the store's event", || {
            self.core.get_finished();
            self.core.build_connector_worker_meta().store_events.remove(&event)
        })
    }

    fn store_all(&mut self, request: &str, plans: &[BlockTransferPlan]) {
        let ended = self.store(request, plans);
        assert_eq!(ended, StoreEventResult { completed_workers: 1, failed_objects: BTreeSet::new() });
    }

    /// Loads within the step; answers the blocks that failed.
    fn load_now(&mut self, request: &str, plans: &[BlockTransferPlan]) -> Vec<i64> {
        self.load(request, plans, false)
    }

    fn load(&mut self, request: &str, plans: &[BlockTransferPlan], async_load: bool) -> Vec<i64> {
        let load_requests = vec![of(request, plans)];
        let step = ConnectorMetadata { async_load, load_requests, ..ConnectorMetadata::default() };
        self.core.start_load_kv(&step);
        self.core.wait_for_layer_load();
        if async_load {
            let finished =
                until("the request's load", || Some(self.core.get_finished()).filter(|finished| !finished.is_empty()));
            assert_eq!(finished, BTreeSet::from([RequestId::from(request)]));
        }
        assert_eq!(self.core.open_jobs(), 0);
        self.core.get_block_ids_with_load_errors().into_iter().map(|block| block.0).collect()
    }

    fn clear_memory(&mut self) {
        self.memory.iter_mut().for_each(|memory| memory.fill(0));
    }
}

/// Blocks of a chain of both groups, with the keys of rank 0, as a scheduler names them.
fn chain(numbers: std::ops::Range<u64>) -> Vec<BlockTransferPlan> {
    let plan = |number: u64| {
        let plan = at((number % 2) as u16, number, number as i64);
        let ObjectKey::Block(key) = plan.key else { panic!("a key") };
        let key = LocalKey { rank: Rank::default(), ..key };
        BlockTransferPlan { key: key.into(), block_hash: Some(key.hash), ..plan }
    };
    numbers.map(plan).collect()
}

fn keys_of(plans: &[BlockTransferPlan], rank: Rank) -> Vec<LocalKey> {
    worker::keys(plans).into_iter().map(|key| LocalKey { rank, ..key }).collect()
}

fn of(request: &str, plans: &[BlockTransferPlan]) -> (RequestId, RequestPlans) {
    let request = RequestId::from(request);
    (request.clone(), RequestPlans::Batch(BlockBatch { request, plans: plans.to_vec() }))
}

/// Stored by steps, held by the scheduler, loaded within a step and beside it, to other blocks of the engine.
#[test]
fn what_a_worker_stores_comes_back_byte_for_byte_under_its_own_rank() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let mut side = Side::new(&daemon.socket, RANK);
    fill(&mut side.memory, 1);
    let stored = chain(0..24);
    let expected: Vec<_> = stored.iter().map(|plan| bytes(&side.memory, plan)).collect();
    stored.chunks(8).for_each(|step| side.store_all("r1", step));
    let mut scheduler = scheduler(&daemon.socket);
    assert_eq!(scheduler.lookup(&keys_of(&stored, RANK), Hold::Hits), Ok(vec![true; 24]));
    assert_eq!(scheduler.lookup(&keys_of(&stored, Rank::default()), Hold::Hits), Ok(vec![false; 24]));
    for async_load in [false, true] {
        side.clear_memory();
        let moved: Vec<_> = stored
            .iter()
            .map(|plan| BlockTransferPlan { block_id: BlockId(plan.block_id.0 + 30), ..plan.clone() })
            .collect();
        assert_eq!(side.load("r2", &moved, async_load), NONE);
        for (plan, expected) in moved.iter().zip(&expected) {
            assert!(bytes(&side.memory, plan) == *expected, "wrong bytes in block {}", plan.block_id.0);
        }
    }
    let stats = side.core.get_kv_connector_stats().expect("something happened");
    let (load, store) = (stats.load.expect("loads"), stats.store.expect("stores"));
    let sum: u64 = expected.iter().map(|bytes| bytes.len() as u64).sum();
    assert_eq!((load.completed, load.failed, load.num_bytes), (48, 0, 2 * sum));
    assert_eq!((store.completed, store.failed, store.num_bytes), (24, 0, sum));
    side.core.close();
    daemon.until("all leases and holds are given back", is_quiet);
}

/// A3, C5: one rank lacks a block; a lookup says so for that rank alone, and its load names exactly that block.
#[test]
fn a3_c5_a_block_that_one_rank_lacks_is_its_failure_alone() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let ranks: Vec<Rank> = (0..4).map(|tp| Rank { tp, ..Rank::default() }).collect();
    let mut sides: Vec<Side> = ranks.iter().map(|rank| Side::new(&daemon.socket, *rank)).collect();
    let wanted = chain(0..10);
    for (at, side) in sides.iter_mut().enumerate() {
        fill(&mut side.memory, at as u64);
        let kept = wanted.iter().filter(|plan| at != 2 || plan.block_id.0 != 5);
        side.store_all("r1", &kept.cloned().collect::<Vec<_>>());
    }
    let mut scheduler = scheduler(&daemon.socket);
    for (at, rank) in ranks.iter().enumerate() {
        let found = scheduler.lookup(&keys_of(&wanted, *rank), Hold::Hits).expect("answered");
        assert!(found.iter().enumerate().all(|(block, found)| *found == (at != 2 || block != 5)), "{found:?}");
    }
    for (at, side) in sides.iter_mut().enumerate() {
        let expected: Vec<i64> = if at == 2 { vec![5] } else { Vec::new() };
        assert_eq!(side.load_now("r2", &wanted), expected, "rank {at}");
    }
}

/// I5: ranks that hold equal bytes store a block once, also when they store at the same time, and each can load it.
#[test]
fn i5_ranks_with_equal_bytes_store_a_block_once() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let one = Rank::default();
    let ranks = RankTopology::new(8, 1, 1, 1).expect("sizes").with_replicas(8);
    assert_eq!(ranks.key_ranks(), [one], "the scheduler asks for one");
    let shared = |index| ranks.key_rank(index).expect("a worker");
    let mut sides: Vec<Side> = (0..8).map(|index| Side::new(&daemon.socket, shared(index))).collect();
    let stored = chain(0..32);
    std::thread::scope(|scope| {
        for side in &mut sides {
            scope.spawn(|| {
                fill(&mut side.memory, 5);
                side.store_all("r1", &stored);
            });
        }
    });
    let status = daemon.status();
    assert_eq!(status["tiers"][0]["resident_blocks"], 32, "{status:#}");
    for side in &mut sides {
        let expected: Vec<_> = stored.iter().map(|plan| bytes(&side.memory, plan)).collect();
        side.clear_memory();
        assert_eq!(side.load_now("r2", &stored), NONE);
        assert!(stored.iter().zip(&expected).all(|(plan, expected)| bytes(&side.memory, plan) == *expected));
    }
}

/// D4, B7: the daemon hangs in the middle of a step, with loads, stores and a preemption under way: the step ends in
/// time, its failures are exactly its blocks, and each later step costs nothing until the daemon goes on.
#[test]
fn d4_a_step_beside_a_stopped_daemon_ends_in_time_with_failed_blocks() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let mut side = Side::new(&daemon.socket, RANK);
    fill(&mut side.memory, 2);
    let (stored, other) = (chain(0..16), chain(16..32));
    side.store_all("r1", &stored);
    daemon.signal(Signal::STOP);
    in_time("a step", || {
        let step = ConnectorMetadata {
            load_requests: vec![of("r2", &stored[..8]), of("r3", &stored[8..])],
            store_requests: vec![of("r1", &other)],
            store_event: Some(StoreEventId(100)),
            ..ConnectorMetadata::default()
        };
        side.core.start_load_kv(&step);
        side.core.enqueue_stores(&step);
        side.core.wait_for_save();
        let preempted = BTreeSet::from([RequestId::from("r1")]);
        side.core.handle_preemptions(&ConnectorMetadata { preempted, ..ConnectorMetadata::default() });
        side.core.get_finished();
    });
    let failed: Vec<i64> = side.core.get_block_ids_with_load_errors().into_iter().map(|block| block.0).collect();
    assert_eq!(failed, (0..16).collect::<Vec<_>>());
    let event = side.core.build_connector_worker_meta().store_events.remove(&StoreEventId(100)).expect("it has ended");
    assert_eq!(event.failed_objects.len(), 16, "{event:?}");
    assert_eq!(side.core.open_jobs(), 0);
    in_time("a hundred steps", || {
        for _ in 0..100 {
            assert_eq!(side.load_now("r2", &stored).len(), 16);
        }
    });
    daemon.signal(Signal::CONT);
    assert!(side.core.runtime().client().wait_attached(DEADLINE));
    until("hits again", || side.load_now("r2", &stored).is_empty().then_some(()));
    // What the step wanted to store, and was told had failed, is stored by a later one.
    side.store_all("r1", &other);
}

/// D4: no daemon at the start, then one, then kill -9 in the middle of asynchronous loads, then another: failed blocks
/// and misses, then hits, in one life of the engine.
#[test]
fn d4_a_worker_outlives_its_daemons() {
    let place = Place::new("16MiB", "");
    let mut side = Side::new(&place.socket(), RANK);
    fill(&mut side.memory, 3);
    let stored = chain(0..16);
    assert_eq!(side.load_now("r0", &stored).len(), 16);
    assert_eq!(side.store("r0", &stored).failed_objects.len(), 16);
    for life in 0..3 {
        let daemon = place.serve();
        assert!(side.core.runtime().client().wait_attached(DEADLINE));
        assert_eq!(side.load("miss", &stored, true).len(), 16, "life {life}");
        side.store_all("r1", &stored);
        assert_eq!(side.load("hit", &stored, true), NONE, "life {life}");
        let (async_load, load_requests) = (true, vec![of("r2", &stored)]);
        side.core.start_load_kv(&ConnectorMetadata { async_load, load_requests, ..ConnectorMetadata::default() });
        daemon.signal(Signal::KILL);
        daemon.wait();
        until("the load ends", || side.core.get_finished().contains(&RequestId::from("r2")).then_some(()));
        let failed = side.core.get_block_ids_with_load_errors().len();
        assert!(failed <= 16, "each block once");
        // Not before its session's end is seen, or the next life could be taken for this one.
        until("it is away", || side.core.runtime().client().detached());
    }
    side.core.close();
    assert_eq!(side.core.open_jobs(), 0);
    assert_eq!(side.load_now("r3", &stored).len(), 16, "after close everything fails at once");
}
