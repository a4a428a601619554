//! The daemon dies or stops, and comes again on the same paths: its clients live, fail at once, and find it again.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use umbp_client::{Counter, Outcome};
use umbp_protocol::message::{Found, MissReason};

use crate::child::{Other, hear, say};
use crate::common::{DEADLINE, until};
use crate::rig::{Engine, copied, is_loaded, is_quiet, key, recovered, summary, with_nvme};

/// A call that takes longer waits for a dead daemon.
const AT_ONCE: Duration = Duration::from_secs(1);

/// kill -9 and restart on the same NVMe path.
#[test]
fn between_two_lives_of_the_daemon_all_is_a_miss_at_once_and_then_nvme_hits() {
    let place = with_nvme("16MiB", "128MiB", "");
    let mut daemon = place.serve();
    let mut engine = Engine::new(&daemon.socket);
    let numbers: Vec<u64> = (0..96).collect();
    let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
    engine.store_all(&numbers);
    daemon.until("copies below", |status| copied(status, 96));
    for life in 2..=3 {
        daemon.signal(Signal::KILL);
        daemon.wait();
        until("the client notices", || {
            let gone = Found::Miss(MissReason::TierDown);
            engine.client.lookup(&keys, 0).iter().all(|found| *found == gone).then_some(())
        });
        for _ in 0..20 {
            let start = Instant::now();
            let (stored, loaded) = (engine.store(&numbers), engine.load(&numbers));
            assert!(start.elapsed() < AT_ONCE, "nobody waits for a dead daemon: {:?}", start.elapsed());
            let failed = |outcome: &Outcome| matches!(outcome, Outcome::Failed(_));
            assert!(stored.iter().chain(&loaded).all(failed), "{:?} {:?}", summary(&stored), summary(&loaded));
        }
        daemon = place.serve();
        assert!(engine.client.wait_attached(DEADLINE), "it attaches by itself");
        assert_eq!(engine.client.counter(Counter::Attached), life);
        daemon.until("recovery", recovered);
        let outcomes = engine.load(&numbers);
        let from_nvme = |outcome: &Outcome| matches!(outcome, Outcome::Loaded { tier: 1, .. });
        assert!(outcomes.iter().all(from_nvme), "life {life}: {:?}", summary(&outcomes));
    }
    daemon.until("all quiet", is_quiet);
}

/// The child: stores and loads for ever, whatever the daemon does, and says of each round how many blocks it loaded.
pub(crate) fn loads_on(socket: &Path) {
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while hear().is_some() {}
            enough.store(true, Ordering::Relaxed);
        });
        let mut engine = Engine::with(socket, 24, 1 << 20, |_| {});
        let numbers: Vec<u64> = (0..24).collect();
        while !enough.load(Ordering::Relaxed) {
            engine.store(&numbers);
            let start = Instant::now();
            let job = engine.begin_load(&numbers);
            say("copying");
            let outcomes = engine.end_load(job, &numbers);
            assert!(start.elapsed() < DEADLINE, "it ended by itself");
            say(&format!("loaded {}", outcomes.iter().filter(|outcome| is_loaded(**outcome)).count()));
        }
    });
}

/// D3: the daemon stops, cleanly or not, while a client copies out of its memory: an error, and no SIGBUS.
#[test]
fn d3_a_client_that_copies_while_the_daemon_stops_gets_errors_and_lives() {
    let place = crate::common::daemon::Place::new("64MiB", "");
    let mut daemon = place.serve();
    let other = Other::start(&daemon.socket, "loads-on");
    for life in 0..6 {
        until("it loads", || (other.await_word("loaded") == "24").then_some(()));
        other.await_word("copying");
        if life % 2 == 0 {
            assert!(daemon.stop().status.success());
        } else {
            daemon.signal(Signal::KILL);
            daemon.wait();
        }
        until("nothing is loaded", || (other.await_word("loaded") == "0").then_some(()));
        daemon = place.serve();
    }
    until("it loads", || (other.await_word("loaded") == "24").then_some(()));
    assert!(other.end().success(), "no signal and no panic ended it");
}
