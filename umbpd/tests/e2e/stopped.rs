//! Clients that stop past their lease in the middle of a copy, and go on when others want the room: late writers are
//! fenced by quarantine, late readers by their deadline and the generation (B8).

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use serde_json::Value;
use umbp_client::Outcome;
use umbp_protocol::message::{Reply, Request, Reserved};

use crate::child::{Other, hear, say};
use crate::common::DEADLINE;
use crate::common::client::Client as Bare;
use crate::common::daemon::{Daemon, Place};
use crate::rig::{Engine, is_quiet, is_stored, summary};

/// Long enough to copy that a signal arrives in the middle.
const LONG_BLOCK: u64 = 1 << 20;
const JOB_BLOCKS: u64 = 24;
const SHORT_LEASE: &str = "[limits]\nlease = \"300ms\"\nhold = \"100ms\"\n";

fn job_numbers(base: u64) -> Vec<u64> {
    (base..base + JOB_BLOCKS).collect()
}

fn engine(socket: &Path) -> Engine {
    Engine::with(socket, JOB_BLOCKS, LONG_BLOCK, |options| {
        options.copy_threads = 1;
        // However long it is stopped, it is the lease that ends its job.
        options.call_timeout = 4 * DEADLINE;
        options.job_timeout = 4 * DEADLINE;
    })
}

/// The child: one store of blocks from the number that it hears.
pub(crate) fn stores_once(socket: &Path) {
    let mut engine = engine(socket);
    say("ready");
    while let Some(base) = hear() {
        let numbers = job_numbers(base.parse().expect("a number"));
        let job = engine.begin_store(&numbers);
        say("copying");
        let outcomes = engine.client.wait(job, DEADLINE).expect("it ends").outcomes;
        say(&format!("ended {} {}", outcomes.iter().filter(|o| is_stored(**o)).count(), show(&outcomes)));
    }
}

/// The child: one load of blocks from the number that it hears. Wrong bytes under "loaded" end it in a panic.
pub(crate) fn loads_once(socket: &Path) {
    let mut engine = engine(socket);
    say("ready");
    while let Some(base) = hear() {
        let numbers = job_numbers(base.parse().expect("a number"));
        let job = engine.begin_load(&numbers);
        say("copying");
        let outcomes = engine.end_load(job, &numbers);
        let failed = outcomes.iter().filter(|o| matches!(o, Outcome::Failed(_))).count();
        say(&format!("ended {failed} {}", show(&outcomes)));
    }
}

fn show(outcomes: &[Outcome]) -> String {
    format!("{:?}", summary(outcomes))
}

/// The child: a client without any fence. It writes over its leased extents again and again, whatever the time, until
/// it hears a word; then it acknowledges.
pub(crate) fn writes_late(socket: &Path) {
    let mut client = Bare::new(socket);
    let (lease, items) = client.reserve(&(0..4).collect::<Vec<_>>(), LONG_BLOCK);
    let target = |item: &Reserved| match item {
        Reserved::Extent(extent) => client.slice(extent, LONG_BLOCK),
        other => panic!("no room: {other:?}"),
    };
    let targets: Vec<*mut u8> = items.iter().map(target).collect();
    let enough = AtomicBool::new(false);
    say("copying");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            hear();
            enough.store(true, Ordering::Relaxed);
        });
        for pass in 0.. {
            for target in &targets {
                // SAFETY: inside the child's own mapping of the segment. That the lease is over is the point.
                unsafe { std::ptr::write_bytes(*target, (pass % 251) as u8, LONG_BLOCK as usize) };
            }
            say("pass");
            if enough.load(Ordering::Relaxed) {
                break;
            }
        }
    });
    assert_eq!(client.call(&Request::Abort { lease, items: Vec::new() }), Reply::Abort { count: 4 });
    say("acknowledged");
    while hear().is_some() {}
}

fn quarantined(status: &Value) -> u64 {
    status["tiers"][0]["quarantined_bytes"].as_u64().expect("bytes")
}

/// Sends the child to work until it is stopped in the middle, which shows when its lease runs out rather than being
/// given back. Answers where its blocks begin.
fn stop_past_its_lease(daemon: &Daemon, other: &mut Other, kind: &str, bases: impl Iterator<Item = u64>) -> u64 {
    let expired = |status: &Value| status["leases"]["expired"].as_u64().expect("a count");
    for base in bases {
        let before = expired(&daemon.status());
        other.tell(&base.to_string());
        other.await_word("copying");
        other.signal(Signal::STOP);
        let status = daemon.until("its lease ends", |status| status["leases"][kind] == 0);
        if expired(&status) > before {
            return base;
        }
        other.signal(Signal::CONT);
        other.await_word("ended");
    }
    panic!("the child could not be stopped in the middle");
}

/// Stores so much that every byte of the pool that may be used again is, and reads back what it can.
fn want_all_room(engine: &mut Engine, from: u64) {
    for part in 0..4 {
        let numbers = job_numbers(from + part * JOB_BLOCKS);
        let outcomes = engine.store(&numbers);
        assert!(outcomes.iter().any(|o| is_stored(*o)), "{:?}", summary(&outcomes));
        // Compared byte for byte in there.
        engine.load(&numbers);
    }
}

#[test]
fn a_store_stopped_past_its_lease_writes_into_nobody_elses_block() {
    let place = Place::new("64MiB", SHORT_LEASE);
    let daemon = place.serve();
    let mut other = Other::start(&daemon.socket, "stores-once");
    other.await_word("ready");
    let bases = (0..200).map(|round| 1_000 + round * 100);
    let base = stop_past_its_lease(&daemon, &mut other, "write", bases);
    let status = daemon.status();
    assert!(quarantined(&status) > 0 && quarantined(&status) <= JOB_BLOCKS * LONG_BLOCK, "{status:#}");
    let mut engine = engine(&daemon.socket);
    want_all_room(&mut engine, 1_000_000);
    // Its keys too are free for others.
    let own = job_numbers(base);
    let stored = engine.store(&own);
    assert!(quarantined(&daemon.status()) > 0, "while it is stopped its extents wait");
    other.signal(Signal::CONT);
    let ended = other.await_word("ended");
    assert!(ended.starts_with("0 ") && ended.contains("LeaseExpired"), "nothing of it is committed: {ended}");
    daemon.until("it has acknowledged", is_quiet);
    assert!(stored.iter().any(|o| is_stored(*o)), "{:?}", summary(&stored));
    engine.load(&own);
    want_all_room(&mut engine, 2_000_000);
    assert!(other.end().success());
}

/// A client without any fence of its own: what it writes past its lease lands in quarantine and nowhere else.
#[test]
fn a_late_writer_that_goes_on_writing_reaches_no_block_until_it_has_acknowledged() {
    let place = Place::new("64MiB", SHORT_LEASE);
    let daemon = place.serve();
    let mut other = Other::start(&daemon.socket, "writes-late");
    other.await_word("copying");
    other.signal(Signal::STOP);
    daemon.until("quarantine", |status| quarantined(status) == 4 * LONG_BLOCK);
    let mut engine = engine(&daemon.socket);
    want_all_room(&mut engine, 1_000_000);
    other.signal(Signal::CONT);
    for round in 0..4 {
        other.await_word("pass");
        want_all_room(&mut engine, 2_000_000 + round * 10_000);
    }
    assert_eq!(quarantined(&daemon.status()), 4 * LONG_BLOCK, "its process lives and has not acknowledged");
    other.tell("enough");
    other.await_word("acknowledged");
    daemon.until("it has acknowledged", is_quiet);
    want_all_room(&mut engine, 3_000_000);
    assert!(other.end().success());
}

/// B8: past its deadline a reader fails, and what it would have read under the key is never another block's bytes.
#[test]
fn b8_a_load_stopped_past_its_lease_fails_and_never_delivers_another_blocks_bytes() {
    let place = Place::new("64MiB", SHORT_LEASE);
    let daemon = place.serve();
    let mut other = Other::start(&daemon.socket, "loads-once");
    other.await_word("ready");
    let mut engine = engine(&daemon.socket);
    // It may be stopped right behind its last piece: then all is loaded, in time and right, and it is tried again.
    for round in 1..=20 {
        let base = round * 1_000;
        engine.store_all(&job_numbers(base));
        stop_past_its_lease(&daemon, &mut other, "read", std::iter::repeat_n(base, 200));
        want_all_room(&mut engine, round * 1_000_000);
        other.signal(Signal::CONT);
        let ended = other.await_word("ended");
        if !ended.starts_with("0 ") {
            assert!(ended.contains("LeaseExpired") || ended.contains("GenerationChanged"), "{ended}");
            daemon.until("all quiet", is_quiet);
            assert!(other.end().success(), "every block that it called loaded was right");
            return;
        }
    }
    panic!("the child was never stopped before its last piece");
}
