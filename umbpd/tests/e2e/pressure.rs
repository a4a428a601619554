//! More than the tiers can take: a lower tier that is stuck, bursts beyond the first tier, a second tier that is full
//! (C7, C8, G3, G4, G5, K3).

use std::collections::BTreeMap;

use umbp_client::Outcome;
use umbp_protocol::message::Found;

use crate::common::daemon::Daemon;
use crate::rig::{BLOCK_BYTES, Engine, figures, is_loaded, is_settled, is_stored, key, summary, with_fault, with_nvme};

const DRAM_BYTES: u64 = 16 << 20;
const ROUNDS: u64 = 60;

/// Stores more than the second tier takes: what waits for it is bounded, the rest is given up and counted, stores and
/// loads of the first tier go on, and memory does not grow.
fn store_beyond_what_goes_down(daemon: &Daemon, engine: &mut Engine) {
    let (mut memory, mut dropped) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let numbers: Vec<u64> = (round * 32..round * 32 + 32).collect();
        engine.store_all(&numbers);
        let outcomes = engine.load(&numbers);
        let from_dram = |outcome: &Outcome| matches!(outcome, Outcome::Loaded { tier: 0, .. });
        assert!(outcomes.iter().all(from_dram), "round {round}: {:?}", summary(&outcomes));
        let status = daemon.status();
        let low = &status["tiers"][1];
        assert!(low["queued_bytes"].as_u64() <= Some(4 << 20), "{low:#}");
        dropped.push(low["dropped"].as_u64().expect("a count"));
        memory.push(figures(&status).1);
    }
    let half = ROUNDS as usize / 2;
    assert!(dropped[half] > 0 && dropped.last() > Some(&dropped[half]), "it goes on: {dropped:?}");
    let most = |memory: &[u64]| memory.iter().copied().max().unwrap_or(0);
    assert!(most(&memory[half..]) <= most(&memory[..half]) + (4 << 20), "{memory:?}");
}

/// G4: a lower tier whose puts never end.
#[test]
fn g4_a_stuck_tier_below_costs_a_bounded_queue_and_nothing_else() {
    let place = with_fault("puts-stall");
    let daemon = place.serve();
    let mut engine = Engine::new(&daemon.socket);
    store_beyond_what_goes_down(&daemon, &mut engine);
    assert_eq!(daemon.status()["tiers"][1]["stored"], 0);
}

/// G3: a lower tier that carries out one put of 32. Loads from it do not wait behind the puts: all come while not one
/// of those ends.
#[test]
fn g3_a_slow_tier_below_costs_a_bounded_queue_and_its_loads_go_first() {
    let place = with_fault("puts-trickle");
    let daemon = place.serve();
    let mut engine = Engine::new(&daemon.socket);
    store_beyond_what_goes_down(&daemon, &mut engine);
    let before = daemon.status();
    assert!(before["tiers"][1]["queued_bytes"].as_u64() > Some(0), "puts wait: {before:#}");
    let keys: Vec<_> = (0..ROUNDS * 32).map(key).collect();
    let found = engine.client.lookup(&keys, 0);
    let below = (0..).zip(&found).filter(|(_, found)| matches!(found, Found::Hit { tier: 1, .. }));
    let below: Vec<u64> = below.map(|(number, _)| number).collect();
    assert!(below.len() > 16, "the tier has some: {}", below.len());
    let outcomes = engine.load(&below);
    let from_below = |outcome: &Outcome| matches!(outcome, Outcome::Loaded { tier: 1, .. });
    assert!(outcomes.iter().all(from_below), "{:?}", summary(&outcomes));
    let after = daemon.status();
    let stored = |status: &serde_json::Value| status["tiers"][1]["stored"].as_u64().expect("a count");
    // One may end at each of the two questions.
    assert!(stored(&after) <= stored(&before) + 2, "{before:#}\n{after:#}");
}

/// Lines of warnings and errors, without their time, by second and text.
fn lines_by_second(text: &str) -> BTreeMap<(String, String), usize> {
    let mut counts = BTreeMap::new();
    for line in text.lines().filter(|line| line.contains(" WARN ") || line.contains(" ERROR ")) {
        let (time, words) = line.split_once("Z ").unwrap_or(("", line));
        let second = time.split('.').next().unwrap_or_default().to_owned();
        // Of a kind: numbers apart.
        let kind = words.chars().filter(|c| !c.is_ascii_digit()).collect();
        *counts.entry((second, kind)).or_default() += 1;
    }
    counts
}

/// G5, C7, C8, K3: ten times the first tier in one go, over a second tier of four times its size. Every store
/// succeeds to the end, the log stays quiet, the second tier takes the newest for the oldest, and what a lookup calls
/// a hit is there.
#[test]
fn c7_c8_g5_k3_a_burst_of_ten_times_the_first_tier_is_no_error_and_no_flood_of_lines() {
    let place = with_nvme("16MiB", "64MiB", "");
    let daemon = place.serve();
    let mut engine = Engine::with(&daemon.socket, 64, BLOCK_BYTES, |_| {});
    let blocks = 10 * DRAM_BYTES / BLOCK_BYTES;
    for start in (0..blocks).step_by(64) {
        let outcomes = engine.store(&(start..start + 64).collect::<Vec<_>>());
        assert!(outcomes.iter().all(|outcome| is_stored(*outcome)), "from {start}: {:?}", summary(&outcomes));
    }
    let status = daemon.until("settled", is_settled);
    let nvme = &status["tiers"][1];
    assert_eq!(nvme["errors"].to_string(), "{}", "{status:#}");
    // C8: by now many have left the second tier before they left the first, and the other way round.
    for start in (0..blocks).step_by(64) {
        let numbers: Vec<u64> = (start..start + 64).collect();
        let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
        let found = engine.client.lookup(&keys, 10_000);
        let hits: Vec<u64> =
            numbers.iter().zip(found).filter(|(_, f)| matches!(f, Found::Hit { .. })).map(|(n, _)| *n).collect();
        let outcomes = engine.load(&hits);
        assert!(outcomes.iter().all(|outcome| is_loaded(*outcome)), "from {start}: {:?}", summary(&outcomes));
    }
    // K3: once there is time for copies, a full tier takes what is new.
    for start in (blocks..2 * blocks).step_by(64) {
        engine.store_all(&(start..start + 64).collect::<Vec<_>>());
        daemon.until("settled", is_settled);
    }
    let status = daemon.status();
    let nvme = &status["tiers"][1];
    assert!(nvme["evicted"].as_u64() > Some(blocks / 4), "{status:#}");
    let keys: Vec<_> = (2 * blocks - 512..2 * blocks).map(key).collect();
    let newest = engine.client.lookup(&keys, 0);
    assert!(newest.iter().all(|found| matches!(found, Found::Hit { .. })), "the newest are there");
    drop(engine);
    let ended = daemon.stop();
    let counts = lines_by_second(&ended.text);
    assert!(ended.status.success() && counts.values().all(|count| *count <= 1), "{counts:#?}");
}
