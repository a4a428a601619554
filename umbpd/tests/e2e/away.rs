//! The runtimes of worker and scheduler while the daemon is absent, stopped, killed, or inside the engine: no call waits
//! longer than its time-out, and none fails.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use umbp_client::runtime::{Hold, Notice, Unanswered};
use umbp_connector_core::job::KeyResult;
use umbp_connector_core::runtime::Runtime as _;
use umbpd::StartOptions;
use umbpd::embedded::{Joined, config, join};

use crate::common::daemon::Place;
use crate::common::{DEADLINE, until};
use crate::worker::{TIMEOUT, Worker, at, failed, keys, plans, scheduler};

/// What a call may take longer than its time-out on a machine with other work; less than a second time-out.
const SLACK: Duration = Duration::from_millis(1200);

/// Calls a function that may wait for the daemon, and checks that it comes back in time.
pub(crate) fn in_time<T>(what: &str, call: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let answer = call();
    let took = start.elapsed();
    println!("{what} took {took:?}");
    assert!(took < TIMEOUT + SLACK, "{what} took {took:?}");
    answer
}

/// D4, B7: the daemon is stopped, with everything under way: each call comes back in time with misses and failed
/// blocks, later ones at once; when it goes on, so do they.
#[test]
fn d4_a_stopped_daemon_costs_a_step_no_more_than_the_time_out() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let (mut worker, mut scheduler) = (Worker::new(&daemon.socket), scheduler(&daemon.socket));
    worker.fill(6);
    let (stored, other) = (plans(0..16), plans(16..32));
    worker.store_all(&stored);
    for notice in [worker.runtime.notice(), scheduler.notice()] {
        assert!(matches!(notice, Some(Notice::Attached { .. })), "the first word: {notice:?}");
    }
    assert!(worker.runtime.notice().is_none() && scheduler.notice().is_none(), "once");
    daemon.signal(Signal::STOP);

    // One step of the worker: all jobs together take no longer than one time-out.
    let (load, more) = (worker.begin_load(&stored), worker.begin_load(&stored[..4]));
    let store = worker.begin_store(&other);
    in_time("a step's waits", || {
        for (job, blocks) in [(load, 16), (more, 4)] {
            let ended = worker.runtime.wait(job);
            assert_eq!(failed(&ended).len(), blocks, "{ended:?}");
        }
        let ended = worker.runtime.cancel(store);
        assert!(!ended.blocks.iter().any(|block| block.result == KeyResult::Done), "{ended:?}");
    });
    let under_way = scheduler.submit(&keys(&stored), Hold::Hits);
    assert!(scheduler.take(under_way).is_none(), "asking does not wait");
    let answer = in_time("a lookup", || scheduler.lookup(&keys(&stored), Hold::Hits));
    assert_eq!(answer, Err(Unanswered));
    // What follows is of later steps.
    scheduler.step_planned();
    in_time("the lookup under way", || {
        assert_eq!(until("it ends", || scheduler.take(under_way)), Err(Unanswered));
        scheduler.unhold(&keys(&stored));
        assert!(!scheduler.clear());
    });
    // A call's end is told before its session's.
    let word = until("the scheduler's word", || scheduler.notice());
    assert!(matches!(word, Notice::Away { .. }), "{word:?}");
    let word = until("the worker's word", || worker.runtime.notice());
    assert!(matches!(word, Notice::Away { .. }), "{word:?}");
    assert!(worker.runtime.notice().is_none(), "once for each time");
    let begun = Instant::now();
    for _ in 0..100 {
        assert_eq!(scheduler.lookup(&keys(&stored), Hold::Hits), Err(Unanswered));
        let load = worker.begin_load(&stored);
        assert_eq!(failed(&worker.runtime.wait(load)).len(), 16);
    }
    assert!(begun.elapsed() < SLACK, "while it is away nothing waits: {:?}", begun.elapsed());

    daemon.signal(Signal::CONT);
    assert!(worker.runtime.client().wait_attached(DEADLINE) && scheduler.client().wait_attached(DEADLINE));
    assert!(matches!(worker.runtime.notice(), Some(Notice::Attached { .. })));
    until("hits again", || (scheduler.lookup(&keys(&stored), Hold::Hits) == Ok(vec![true; 16])).then_some(()));
    let expected: Vec<Vec<u8>> = stored.iter().map(|plan| worker.bytes(plan)).collect();
    worker.memory.iter_mut().for_each(|memory| memory.fill(0));
    assert!(worker.loads_all(&stored));
    assert!(stored.iter().zip(&expected).all(|(plan, bytes)| worker.bytes(plan) == *bytes));
}

/// D4: requests that the stopped daemon does not even read: the first that finds no room in the socket waits once, and
/// ends the session for all.
#[test]
fn d4_a_daemon_that_does_not_read_costs_a_step_no_more_than_the_time_out() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let (mut worker, mut scheduler) = (Worker::new(&daemon.socket), scheduler(&daemon.socket));
    // Keys of more bytes than a socket holds.
    let many: Vec<_> = (0..7000).map(|number| at(0, number, 1)).collect();
    daemon.signal(Signal::STOP);
    in_time("a step of the worker", || {
        let jobs: Vec<_> = (0..4).map(|_| worker.begin_load(&many)).collect();
        for job in jobs {
            assert_eq!(failed(&worker.runtime.wait(job)).len(), many.len());
        }
    });
    in_time("a step of the scheduler", || {
        let under_way: Vec<_> = (0..4).map(|_| scheduler.submit(&keys(&many), Hold::Hits)).collect();
        assert_eq!(scheduler.lookup(&keys(&many), Hold::Hits), Err(Unanswered));
        under_way.into_iter().for_each(|lookup| scheduler.cancel(lookup));
    });
    daemon.signal(Signal::CONT);
    assert!(worker.runtime.client().wait_attached(DEADLINE) && scheduler.client().wait_attached(DEADLINE));
}

/// D4: kill -9 between two steps, and a new daemon: misses, then hits, without a restart of the engine.
#[test]
fn d4_a_daemon_that_is_killed_and_started_anew_is_misses_then_hits() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let (mut worker, mut scheduler) = (Worker::new(&daemon.socket), scheduler(&daemon.socket));
    worker.fill(7);
    let stored = plans(0..16);
    worker.store_all(&stored);
    daemon.signal(Signal::KILL);
    daemon.wait();
    assert_eq!(failed(&worker.load(&stored)).len(), 16);
    assert_eq!(scheduler.lookup(&keys(&stored), Hold::Hits), Err(Unanswered));

    let _daemon = place.serve();
    assert!(worker.runtime.client().wait_attached(DEADLINE) && scheduler.client().wait_attached(DEADLINE));
    assert_eq!(scheduler.lookup(&keys(&stored), Hold::Hits), Ok(vec![false; 16]));
    assert_eq!(failed(&worker.load(&stored)).len(), 16);
    worker.store_all(&stored);
    assert_eq!(scheduler.lookup(&keys(&stored), Hold::Hits), Ok(vec![true; 16]));
    assert!(worker.loads_all(&stored));
}

#[test]
fn without_a_daemon_at_start_a_worker_warns_once_and_attaches_when_there_is_one() {
    let place = Place::new("16MiB", "");
    let (mut worker, mut scheduler) = (Worker::new(&place.socket()), scheduler(&place.socket()));
    worker.fill(8);
    let stored = plans(0..4);
    for notice in [worker.runtime.notice(), scheduler.notice()] {
        let text = notice.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(matches!(notice, Some(Notice::Away { .. })) && text.contains("start umbpd"), "{text}");
    }
    assert_eq!(failed(&worker.load(&stored)).len(), 4);
    assert_eq!(failed(&worker.store(&stored)).len(), 4);
    assert_eq!(scheduler.lookup(&keys(&stored), Hold::Hits), Err(Unanswered));
    assert!(worker.runtime.notice().is_none() && scheduler.notice().is_none(), "once");

    let _daemon = place.serve();
    assert!(worker.runtime.client().wait_attached(DEADLINE) && scheduler.client().wait_attached(DEADLINE));
    assert!(matches!(worker.runtime.notice(), Some(Notice::Attached { .. })));
    worker.store_all(&stored);
    assert_eq!(scheduler.lookup(&keys(&stored), Hold::Hits), Ok(vec![true; 4]));
}

#[test]
fn an_engine_runs_on_a_daemon_inside_itself() {
    let place = Place::new("16MiB", "");
    let deployment = config(Some(place.config()), Some(&place.socket())).expect("a config");
    let Joined::Host(host) = join(deployment, StartOptions::new("test")).expect("joined") else { panic!("a host") };
    let (mut worker, mut scheduler) = (Worker::new(host.socket()), scheduler(host.socket()));
    worker.fill(11);
    let stored = plans(0..16);
    let expected: Vec<Vec<u8>> = stored.iter().map(|plan| worker.bytes(plan)).collect();
    worker.store_all(&stored);
    worker.memory.iter_mut().for_each(|memory| memory.fill(0));
    assert_eq!(scheduler.lookup(&keys(&stored), Hold::Hits), Ok(vec![true; 16]));
    assert!(worker.loads_all(&stored));
    assert!(stored.iter().zip(&expected).all(|(plan, bytes)| worker.bytes(plan) == *bytes));
    assert!(host.stop().is_some_and(|ended| ended.drained));
    assert_eq!(failed(&worker.load(&stored)).len(), 16, "without its daemon all is a miss");
    assert_eq!(scheduler.lookup(&keys(&stored), Hold::Hits), Err(Unanswered));
}
