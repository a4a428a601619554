//! Between lookup and load, and between load and release: eviction against readers (A7, A8, C1, C2, C6, D6).

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use umbp_client::Outcome;
use umbp_protocol::message::{
    Acquired, Extent, Found, LeaseId, MissReason, Outcome as Done, Reply, Request, Reserved, WireKey,
};

use crate::child::Other;
use crate::common::client::Client as Bare;
use crate::common::daemon::Place;
use crate::rig::{BLOCK_BYTES, Ends, Engine, copied, is_loaded, is_quiet, is_stored, key, summary, with_nvme};

/// Loads of the race below; and, where the machine has run only one of the two threads so far, most of them.
const RACE_LOADS: u64 = 400;
const RACE_LOADS_MAX: u64 = 100 * RACE_LOADS;
/// Blocks that fill 16 MiB four times.
const FLOOD_BLOCKS: u64 = 1024;

/// New blocks, four times what the first tier holds.
fn flood(engine: &mut Engine, from: u64) {
    let numbers: Vec<u64> = (from..from + FLOOD_BLOCKS).collect();
    let outcomes = engine.store(&numbers);
    assert!(outcomes.iter().all(|outcome| is_stored(*outcome)), "{:?}", summary(&outcomes));
}

/// One thread loads X again and again, another evicts X, clears it, and stores it anew.
fn race(place: &Place) {
    let daemon = place.serve();
    let contested: Vec<u64> = (0..8).collect();
    let stop = AtomicBool::new(false);
    let (mut hits, mut misses) = (0, 0);
    std::thread::scope(|scope| {
        let ends = Ends(&stop);
        scope.spawn(|| {
            let mut engine = Engine::new(&daemon.socket);
            for round in 0.. {
                engine.store(&contested);
                let others: Vec<u64> = (0..320).map(|at| 1_000 + round * 320 + at).collect();
                engine.store(&others);
                if round % 4 == 3 {
                    engine.client.clear().expect("cleared");
                }
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut engine = Engine::new(&daemon.socket);
        for load in 0..RACE_LOADS_MAX {
            if load >= RACE_LOADS && hits > 0 && misses > 0 {
                break;
            }
            for outcome in engine.load(&contested) {
                match outcome {
                    Outcome::Loaded { .. } => hits += 1,
                    Outcome::Missed(_) => misses += 1,
                    other => panic!("neither right bytes nor a clean miss: {other:?}"),
                }
            }
        }
        drop(ends);
    });
    assert!(hits > 0 && misses > 0, "the race was none: {hits} hits, {misses} misses");
    let status = daemon.until("all quiet", is_quiet);
    assert_eq!(status["faults"], 0, "{status:#}");
}

#[test]
fn a7_a_load_that_races_with_eviction_is_right_or_a_clean_miss() {
    race(&Place::new("16MiB", ""));
    race(&with_nvme("16MiB", "32MiB", ""));
}

/// A8: held at lookup, then the pool is filled four times over: the load succeeds. Not held, the block may go.
#[test]
fn a8_what_a_lookup_held_is_loaded_whatever_is_stored_in_between() {
    let place = Place::new("16MiB", "[limits]\nhold = \"10s\"\n");
    let daemon = place.serve();
    let mut engine = Engine::new(&daemon.socket);
    let numbers: Vec<u64> = (0..32).collect();
    let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
    engine.store_all(&numbers);
    let found = engine.client.lookup(&keys[..16], 60_000);
    assert!(found.iter().all(|found| *found == Found::Hit { tier: 0, held: true }), "{found:?}");
    flood(&mut engine, 1_000);
    let outcomes = engine.load(&numbers);
    assert!(outcomes[..16].iter().all(|outcome| is_loaded(*outcome)), "{:?}", summary(&outcomes));
    let gone = Outcome::Missed(MissReason::Absent);
    assert!(outcomes[16..].iter().all(|outcome| *outcome == gone), "{:?}", summary(&outcomes));
    daemon.until("the loads have taken the holds", is_quiet);
}

/// C1: a thousand lookups with hold and no load, whose requests end in every way.
#[test]
fn c1_a_thousand_holds_without_a_load_leave_no_pin() {
    let place = Place::new("16MiB", "[limits]\nhold = \"300ms\"\n");
    let daemon = place.serve();
    let mut engine = Engine::new(&daemon.socket);
    let numbers: Vec<u64> = (0..64).collect();
    engine.store_all(&numbers);
    let mut client = Bare::new(&daemon.socket);
    for round in 0..1000u64 {
        let found = client.lookup(&[round % 64, (round + 1) % 64], 60_000);
        assert!(found.iter().any(|found| matches!(found, Found::Hit { .. })), "{found:?}");
        match round % 4 {
            // The request is finished: its holds are given up by name.
            0 => drop(client.call(&Request::Unhold { keys: vec![client.key(round % 64)] })),
            // The engine is gone.
            1 if round % 20 == 1 => {
                client.unmap();
                client = Bare::new(&daemon.socket);
            }
            // Nothing is said.
            _ => {}
        }
    }
    let status = daemon.until("no hold is left", is_quiet);
    assert_eq!(status["faults"], 0);
    // All of the tier takes new data: what was held does not stand in the way.
    flood(&mut engine, 10_000);
    let old = engine.load(&numbers);
    assert!(old.iter().all(|outcome| matches!(outcome, Outcome::Missed(_))), "{:?}", summary(&old));
}

fn acquire(client: &mut Bare, keys: Vec<WireKey>) -> (LeaseId, Vec<Acquired>) {
    match client.call(&Request::Acquire { keys }) {
        Reply::Acquire { lease, items, .. } => (lease, items),
        other => panic!("Acquire was answered with {other:?}"),
    }
}

fn extent(item: &Acquired) -> Extent {
    match item {
        Acquired::Ready { extent, .. } => *extent,
        other => panic!("it is there: {other:?}"),
    }
}

/// C2: the second release of a lease is told so, and another client's pin on the same block still protects it.
#[test]
fn c2_a_double_release_takes_nobody_elses_pin() {
    let place = Place::new("16MiB", "[limits]\nlease = \"60s\"\n");
    let daemon = place.serve();
    let mut engine = Engine::new(&daemon.socket);
    engine.store_all(&(0..8).collect::<Vec<_>>());
    let (mut a, mut b) = (Bare::new(&daemon.socket), Bare::new(&daemon.socket));
    let keys = || (0..2).map(|number| a.key(number)).collect::<Vec<_>>();
    let (keys_a, keys_b) = (keys(), keys());
    let (lease_a, _) = acquire(&mut a, keys_a);
    let (_, items) = acquire(&mut b, keys_b);
    let pinned = extent(&items[0]);
    let mut release = |items: &[(u32, bool)]| match a.call(&Request::Release { lease: lease_a, items: items.to_vec() })
    {
        Reply::Release { items } => items,
        other => panic!("Release was answered with {other:?}"),
    };
    assert_eq!(release(&[(0, true), (0, true)]), [Done::Done, Done::NotLeased]);
    assert_eq!(release(&[(0, true), (7, true)]), [Done::NotLeased, Done::NotLeased]);
    assert_eq!(release(&[(1, true)]), [Done::Done]);
    for _ in 0..3 {
        assert_eq!(release(&[(0, true), (1, true)]), [Done::LeaseExpired, Done::LeaseExpired]);
    }
    flood(&mut engine, 1_000);
    // SAFETY: leased to `b`, inside its mapping.
    let bytes = unsafe { std::slice::from_raw_parts(b.slice(&pinned, BLOCK_BYTES), BLOCK_BYTES as usize) };
    assert!(bytes == Bare::content(0, BLOCK_BYTES), "the pinned block was evicted under its reader");
    let outcomes = engine.load(&[0, 5]);
    assert!(is_loaded(outcomes[0]) && !is_loaded(outcomes[1]), "only what is pinned is still there: {outcomes:?}");
    assert_eq!(daemon.status()["faults"], 0);
}

/// C6: every block of the first tier is pinned, and what lies below still loads, within the promotion's own bytes;
/// beyond them it is a clean "no room". Nothing fails and nothing waits.
#[test]
fn c6_a_first_tier_full_of_pins_does_not_keep_nvme_from_being_read() {
    let place = with_nvme("16MiB", "128MiB", "[limits]\nlease = \"60s\"\n");
    let daemon = place.serve();
    let mut engine = Engine::new(&daemon.socket);
    for start in (0..512).step_by(32) {
        engine.store_all(&(start..start + 32).collect::<Vec<_>>());
        daemon.until("copies below", |status| copied(status, start + 32));
    }
    let at = |tier: u8, engine: &Engine| -> Vec<u64> {
        let keys: Vec<_> = (0..512).map(key).collect();
        let is_there = |found: &Found| matches!(found, Found::Hit { tier: at, .. } if *at == tier);
        (0..512).zip(engine.client.lookup(&keys, 0)).filter(|(_, found)| is_there(found)).map(|(n, _)| n).collect()
    };
    let (above, below) = (at(0, &engine), at(1, &engine));
    let mut reader = Bare::new(&daemon.socket);
    let keys = above.iter().map(|number| reader.key(*number)).collect();
    let (lease, items) = acquire(&mut reader, keys);
    assert!(items.iter().all(|item| matches!(item, Acquired::Ready { .. })));
    // And the room that is still free is being written to, so that only the promotions' bytes are left.
    let (_, reserved) = reader.reserve(&(5_000..5_256).collect::<Vec<_>>(), BLOCK_BYTES);
    assert!(reserved.contains(&Reserved::Refused), "no room is left for stores");
    let outcomes = engine.load(&below[..64]);
    let (loaded, refused) = (outcomes.iter().filter(|o| is_loaded(**o)).count(), Outcome::Missed(MissReason::NoRoom));
    assert!(loaded >= 16, "the promotions' own bytes serve: {:?}", summary(&outcomes));
    assert!(outcomes.iter().all(|o| is_loaded(*o) || *o == refused), "{:?}", summary(&outcomes));
    reader.call(&Request::Release { lease, items: Vec::new() });
    let outcomes = engine.load(&below[64..128]);
    assert!(outcomes.iter().all(|outcome| is_loaded(*outcome)), "{:?}", summary(&outcomes));
}

/// D6: what a process stored outlives it.
#[test]
fn d6_blocks_of_a_process_that_has_exited_hit() {
    let place = Place::new("64MiB", "");
    let daemon = place.serve();
    let mut other = Other::start(&daemon.socket, "stores-once");
    other.await_word("ready");
    other.tell("100");
    assert!(other.await_word("ended").starts_with("24 "), "all are stored");
    assert!(other.end().success());
    let alone = |status: &Value| status["sessions"].as_array().expect("sessions").is_empty() || is_quiet(status);
    daemon.until("its session is over", alone);
    let mut engine = Engine::with(&daemon.socket, 24, 1 << 20, |_| {});
    assert!(engine.load(&(100..124).collect::<Vec<_>>()).iter().all(|outcome| is_loaded(*outcome)));
}
