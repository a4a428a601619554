//! What connector-core runs on, against the real daemon: workers and schedulers are sessions of their own.

use std::time::Duration;

use umbp_client::runtime::{Hold, MemoryError, SchedulerRuntime, Unanswered, WorkerRuntime};
use umbp_connector_core::job::KeyResult;
use umbp_connector_core::key::GroupId;
use umbp_connector_core::plan::{BlockId, BlockTransferPlan, ObjectKey, PlanRuns};
use umbp_connector_core::runtime::{JobId, Runtime as _};

use crate::common::daemon::{Daemon, Place};
use crate::common::until;
use crate::rig::{Engine, is_quiet};
use crate::worker::{
    BLOCKS, LAYERS, Worker, at, failed, good, key, keys, layout_over, options, plan, plans, scheduler,
};

#[test]
fn blocks_come_back_byte_for_byte_and_nothing_beside_them_is_touched() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let mut worker = Worker::new(&daemon.socket);
    worker.fill(1);
    let stored = plans(0..u64::from(BLOCKS));
    let expected: Vec<Vec<u8>> = stored.iter().map(|plan| worker.bytes(plan)).collect();
    worker.store_all(&stored);
    assert!(worker.store(&stored[..2]).blocks.iter().all(|block| block.result == KeyResult::Present));
    assert_eq!(scheduler(&daemon.socket).lookup(&keys(&stored), Hold::Nothing), Ok(vec![true; stored.len()]));

    // Each comes back to another of the engine's blocks.
    worker.memory.iter_mut().for_each(|memory| memory.fill(0xee));
    let moved: Vec<BlockTransferPlan> = stored
        .iter()
        .map(|plan| BlockTransferPlan { block_id: BlockId(i64::from(BLOCKS) - 1 - plan.block_id.0), ..plan.clone() })
        .collect();
    let ended = worker.load(&moved);
    assert!(ended.blocks.iter().all(|block| block.result == KeyResult::Done), "{ended:?}");
    let bytes: u64 = ended.blocks.iter().map(|block| block.bytes).sum();
    assert_eq!(bytes, expected.iter().map(|bytes| bytes.len() as u64).sum::<u64>());
    let mut touched: Vec<Vec<bool>> = worker.memory.iter().map(|memory| vec![false; memory.len()]).collect();
    for (plan, expected) in moved.iter().zip(&expected) {
        assert!(worker.bytes(plan) == *expected, "wrong bytes in block {}", plan.block_id.0);
        for (place, range) in Worker::parts(plan.group.expect("a group").0, plan.block_id.0) {
            touched[place][range].fill(true);
        }
    }
    for (memory, touched) in worker.memory.iter().zip(&touched) {
        assert!(memory.iter().zip(touched).all(|(byte, touched)| *touched || *byte == 0xee), "a gap was written");
    }
}

/// A3: of a load, exactly the blocks that are not there fail, also where one key goes to two blocks; A5: nothing that
/// failed is counted as loaded.
#[test]
fn a3_the_failed_blocks_of_a_load_are_exactly_those_that_are_gone() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let mut worker = Worker::new(&daemon.socket);
    worker.fill(2);
    let stored = plans(0..8);
    worker.store_all(&stored);
    let mut wanted = stored.clone();
    wanted[3].key = key(1, 1000).into();
    wanted[5].key = key(1, 1001).into();
    // The same block of the engine, asked for twice: by a key that is there and by one that is gone.
    wanted.push(at(0, 0, 9));
    wanted.push(BlockTransferPlan { key: key(0, 1002).into(), ..at(0, 2, 10) });
    // A name that is no key of this namespace; and a key in text form that is.
    wanted
        .push(BlockTransferPlan { key: ObjectKey::text("umbp:vllm:v1:other:tp1:pcp0:dcp0:pp0:g0:00"), ..at(0, 4, 4) });
    wanted.push(BlockTransferPlan { key: ObjectKey::text(&wanted[4].key.to_text("test")), ..at(0, 4, 11) });
    // Numbers and groups that the engine does not have.
    wanted.push(at(0, 4, i64::from(BLOCKS)));
    wanted.push(at(0, 4, -1));
    wanted.push(BlockTransferPlan { group: Some(GroupId(7)), ..plan(0, 4) });
    let before = worker.runtime.client().counter(umbp_client::Counter::BlocksLoaded);
    let ended = worker.load(&wanted);
    assert_eq!(failed(&ended), [3, 5, 9, 10, 12, 13, 14], "{ended:?}");
    assert!(ended.error.as_deref().is_some_and(|error| error.starts_with("7 of 15 blocks failed")), "{ended:?}");
    let loaded = worker.runtime.client().counter(umbp_client::Counter::BlocksLoaded) - before;
    assert_eq!(loaded, 8);
    daemon.until("all leases are given back", is_quiet);
}

/// A store that finds no room is no failure: the engine keeps its block, and nothing but the copy is missing.
#[test]
fn a_store_that_is_refused_for_lack_of_room_is_no_failure() {
    let place = Place::new("1MiB", "");
    let daemon = place.serve();
    let mut worker = Worker::new(&daemon.socket);
    worker.fill(3);
    let chain: Vec<BlockTransferPlan> = (0..u64::from(BLOCKS)).map(|number| plan(0, number)).collect();
    let ended = worker.store(&chain);
    let stored = good(&ended).len();
    assert!((1..chain.len()).contains(&stored), "{ended:?}");
    assert!(ended.blocks[stored..].iter().all(|block| block.result == KeyResult::Refused), "{ended:?}");
    assert!(failed(&ended).is_empty());
}

/// A8: held by the scheduler's session at lookup, then the pool is filled four times over: the worker's load succeeds,
/// and takes the holds over.
#[test]
fn a8_a_workers_load_adopts_its_schedulers_holds() {
    let place = Place::new("16MiB", "[limits]\nhold = \"10s\"\n");
    let daemon = place.serve();
    let (mut worker, mut flood) = (Worker::new(&daemon.socket), Engine::new(&daemon.socket));
    worker.fill(4);
    let (held, other) = (plans(0..16), plans(16..32));
    worker.store_all(&held);
    worker.store_all(&other);
    let mut options = options(&daemon.socket);
    options.hold = Duration::from_secs(10);
    let mut scheduler = SchedulerRuntime::start(&options).expect("started");
    assert_eq!(scheduler.lookup(&keys(&held), Hold::Hits), Ok(vec![true; 16]));
    assert_eq!(scheduler.lookup(&keys(&other), Hold::Nothing), Ok(vec![true; 16]));
    assert_eq!(daemon.status()["holds"]["now"], 16);
    flood.store_all(&(10_000..11_024).collect::<Vec<_>>());
    assert_eq!(failed(&worker.load(&other)).len(), 16, "what nobody held is gone");
    assert!(worker.loads_all(&held));
    daemon.until("the load has taken the holds", is_quiet);
}

fn holds(daemon: &Daemon) -> u64 {
    daemon.status()["holds"]["now"].as_u64().expect("a number")
}

/// C1: lookups under way are taken or given up, and what they held goes with the last who wants it.
#[test]
fn c1_a_lookup_that_is_cancelled_or_unwanted_leaves_no_hold() {
    let place = Place::new("16MiB", "[limits]\nhold = \"10s\"\n");
    let daemon = place.serve();
    let mut worker = Worker::new(&daemon.socket);
    worker.fill(5);
    let stored = plans(0..8);
    worker.store_all(&stored);
    let mut options = options(&daemon.socket);
    options.hold = Duration::from_secs(10);
    let mut scheduler = SchedulerRuntime::start(&options).expect("started");
    let mut wanted = keys(&stored);
    wanted.push(key(0, 99));

    let lookup = scheduler.submit(&wanted, Hold::Hits);
    let answer = until("an answer", || scheduler.take(lookup)).expect("answered");
    assert_eq!(answer, [true, true, true, true, true, true, true, true, false]);
    assert_eq!(scheduler.take(lookup), Some(Err(Unanswered)), "an answer is taken once");
    assert_eq!(holds(&daemon), 8);
    // Another request wants two of them too, and gives up before its answer is taken.
    let second = scheduler.submit(&wanted[..2], Hold::Hits);
    scheduler.cancel(second);
    assert_eq!(scheduler.take(second), Some(Err(Unanswered)));
    assert_eq!(scheduler.lookup(&wanted[..1], Hold::Hits), Ok(vec![true]));
    assert_eq!(holds(&daemon), 8, "the first request still wants them");
    scheduler.unhold(&wanted);
    assert_eq!(scheduler.lookup(&wanted[..1], Hold::Nothing), Ok(vec![true]));
    assert_eq!(holds(&daemon), 1, "one is wanted by another request");
    scheduler.unhold(&wanted[..1]);
    let third = scheduler.submit(&wanted, Hold::Hits);
    scheduler.cancel(third);
    assert_eq!(scheduler.lookup(&wanted[..1], Hold::Nothing), Ok(vec![true]));
    daemon.until("no hold is left", is_quiet);
}

/// B1: a store is under way, its request is preempted, and the engine overwrites the blocks: what is stored then is the
/// old content, or nothing.
#[test]
fn b1_a_store_that_is_cancelled_never_stores_what_came_after() {
    let place = Place::new("64MiB", "");
    let daemon = place.serve();
    let (mut worker, mut reader) = (Worker::new(&daemon.socket), Worker::new(&daemon.socket));
    let mut kept = 0;
    for round in 0..30 {
        worker.fill(round);
        let numbers = (0..u64::from(BLOCKS)).map(|at| 1000 * (round + 1) + at);
        let stored: Vec<BlockTransferPlan> =
            numbers.enumerate().map(|(block, number)| at((block % 2) as u16, number, block as i64)).collect();
        let old: Vec<Vec<u8>> = stored.iter().map(|plan| worker.bytes(plan)).collect();
        let job = worker.begin_store(&stored);
        let ended = worker.runtime.cancel(job);
        // From here on the memory is the engine's own again.
        worker.memory.iter_mut().for_each(|memory| memory.fill(0xaa));
        let found = good(&reader.load(&stored));
        for place in &found {
            assert!(reader.bytes(&stored[*place]) == old[*place], "new bytes under an old hash");
        }
        kept += found.len();
        assert!(good(&ended).iter().all(|told| found.contains(told)), "told as stored, and not there: {ended:?}");
    }
    println!("{kept} blocks were stored before their store was cancelled");
    daemon.until("all leases are given back", is_quiet);
}

/// B2: a request whose store is under way is admitted anew, and loads what it stores.
#[test]
fn b2_a_load_beside_the_store_of_the_same_blocks_is_right_or_a_miss() {
    let place = Place::new("64MiB", "");
    let daemon = place.serve();
    let (mut writer, mut reader) = (Worker::new(&daemon.socket), Worker::new(&daemon.socket));
    for round in 0..20 {
        writer.fill(round);
        let plans: Vec<BlockTransferPlan> =
            (0..32).map(|block| at(0, 1000 * (round + 1) + block, block as i64)).collect();
        let store = writer.begin_store(&plans);
        let load = reader.begin_load(&plans);
        let (loaded, stored) = (reader.runtime.wait(load), writer.runtime.wait(store));
        assert_eq!(good(&stored).len(), plans.len(), "{stored:?}");
        for (plan, block) in plans.iter().zip(&loaded.blocks) {
            match block.result {
                KeyResult::Done => assert!(reader.bytes(plan) == writer.bytes(plan), "wrong bytes"),
                other => assert_eq!(other, KeyResult::Missed),
            }
        }
    }
    daemon.until("all leases are given back", is_quiet);
}

/// Parent and depth of the plans keep eviction tail-first: what is left of a chain is its head.
#[test]
fn c10_of_a_chain_that_does_not_fit_its_head_is_left() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let (mut worker, mut flood) = (Worker::new(&daemon.socket), Engine::new(&daemon.socket));
    worker.fill(9);
    let chain: Vec<BlockTransferPlan> = (0..u64::from(BLOCKS)).map(|number| plan(0, number)).collect();
    // As an engine does: step by step, and with its own prefix caching only the tail is asked for again.
    chain.chunks(16).for_each(|step| worker.store_all(step));
    assert!(worker.loads_all(&chain[BLOCKS as usize - 8..]));
    let mut scheduler = scheduler(&daemon.socket);
    let mut next = 1_000_000;
    let left = until("a part of the chain is evicted", || {
        next += 16;
        flood.store_all(&(next..next + 16).collect::<Vec<_>>());
        let found = scheduler.lookup(&keys(&chain), Hold::Nothing).expect("answered");
        (found.contains(&false)).then_some(found)
    });
    let head = left.iter().take_while(|found| **found).count();
    assert!(head > 0 && left[head..].iter().all(|found| !found), "a hole in the chain: {left:?}");
}

#[test]
fn published_blocks_that_are_gone_are_told_once() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let (mut worker, mut scheduler) = (Worker::new(&daemon.socket), scheduler(&daemon.socket));
    worker.fill(10);
    let stored = plans(0..8);
    worker.store_all(&stored);
    worker.runtime.publish(JobId(1), &stored[..6]);
    assert_eq!(worker.runtime.take_evicted_keys(), []);
    assert!(scheduler.clear());
    let mut gone = Vec::new();
    until("their end is told", || {
        gone.extend(worker.runtime.take_evicted_keys());
        (gone.len() >= 6).then_some(())
    });
    gone.sort_unstable();
    let mut expected: Vec<ObjectKey> = keys(&stored[..6]).into_iter().map(ObjectKey::Block).collect();
    expected.sort_unstable();
    assert_eq!(gone, expected);
    assert_eq!(worker.runtime.take_evicted_keys(), []);
}

#[test]
fn memory_that_does_not_hold_all_blocks_is_refused() {
    let place = Place::new("16MiB", "");
    let mut memory: Vec<Box<[u8]>> =
        LAYERS.iter().map(|(_, _, stride, _, _)| vec![0; (8 * stride) as usize].into_boxed_slice()).collect();
    let mut runtime = WorkerRuntime::start(&options(&place.socket())).expect("started");
    let (layout, ranges) = layout_over(&mut memory);
    // SAFETY: the memory outlives the runtime, which is dropped first, and no job is begun.
    let refused = unsafe { runtime.register(layout.clone(), 9, &ranges) };
    assert!(matches!(refused, Err(MemoryError::Outside { block: 8, group: 0 })), "{refused:?}");
    let twice = [ranges[0], ranges[0]];
    // SAFETY: as above.
    let refused = unsafe { runtime.register(layout.clone(), 8, &twice) };
    assert!(matches!(refused, Err(MemoryError::Overlap { .. })), "{refused:?}");
    let plans = plans(0..1);
    assert!(runtime.load_blocks(&plans).is_none(), "without memory it declines");
    let job = runtime.load(&plans, &PlanRuns::of(&plans, Some(&layout)));
    assert_eq!(failed(&runtime.wait(job)), [0]);
    // SAFETY: as above.
    unsafe { runtime.register(layout.clone(), 8, &ranges) }.expect("all blocks are inside");
    // SAFETY: as above.
    let refused = unsafe { runtime.register(layout, 8, &ranges) };
    assert!(matches!(refused, Err(MemoryError::Twice)), "{refused:?}");
    drop(runtime);
}
