//! A clean end and a start on the same folder (E3, E6, K4).

use umbp_client::Outcome;
use umbp_protocol::message::Found;

use crate::rig::{
    BLOCK_BYTES, Engine, copied, disk_use, is_loaded, is_stored, key, recovered, summary, with_fault, with_nvme,
};

/// Blocks of the earlier life: many pages of recovery.
const BLOCKS: u64 = 4096;
const SMALL_BYTES: u64 = 4096;

/// E3, E6, K4: SIGTERM, start: at least 99 % of the blocks hit (all of them, in fact), and whoever asks meanwhile is
/// served. What du counts is what status says, within 1 %.
#[test]
fn e3_e6_k4_a_clean_restart_keeps_the_blocks_and_serves_while_it_recovers() {
    let place = with_nvme("16MiB", "64MiB", "");
    let daemon = place.serve();
    let mut engine = Engine::with(&daemon.socket, 256, SMALL_BYTES, |_| {});
    let numbers: Vec<u64> = (0..BLOCKS).collect();
    for part in numbers.chunks(256) {
        engine.store_all(part);
        daemon.until("copies below", |status| copied(status, part[255] + 1));
    }
    drop(engine);
    let status = daemon.status();
    let told = status["tiers"][1]["disk_bytes"].as_u64().expect("bytes");
    let found = disk_use(&place.path().join("nvme"));
    assert!(told.abs_diff(found) * 100 <= found, "status tells {told}, du {found}");
    assert!(daemon.stop().status.success());
    let daemon = place.serve();
    // It has only just begun: what is asked now is answered, with a block, or with a miss that is none later.
    let mut engine = Engine::with(&daemon.socket, 256, SMALL_BYTES, |_| {});
    assert!(engine.store(&[BLOCKS]).into_iter().all(is_stored) && engine.load(&[BLOCKS]).into_iter().all(is_loaded));
    let status = daemon.status();
    eprintln!("after the first store and load: {}", status["tiers"][1]["recovery"]);
    daemon.until("recovery", recovered);
    daemon.until("each has its place", |status| status["tiers"][1]["recovery_ms"].is_u64());
    let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
    let hits = engine.client.lookup(&keys, 0).iter().filter(|found| matches!(found, Found::Hit { .. })).count() as u64;
    assert!(hits * 100 >= BLOCKS * 99, "{hits} of {BLOCKS}");
    let outcomes = engine.load(&numbers);
    let right = |outcome: &&Outcome| matches!(outcome, Outcome::Loaded { tier: 1, .. });
    assert_eq!(outcomes.iter().filter(right).count() as u64, BLOCKS, "{:?}", summary(&outcomes));
}

/// E3: what is stored into a tier that still recovers is there, for as long as it may take.
#[test]
fn e3_a_tier_serves_while_it_recovers() {
    let place = with_fault("recovers-forever");
    let daemon = place.serve();
    let mut engine = Engine::new(&daemon.socket);
    let numbers: Vec<u64> = (0..512).collect();
    for part in numbers.chunks(32) {
        engine.store_all(part);
        daemon.until("copies below", |status| copied(status, part[31] + 1));
    }
    let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
    let found = engine.client.lookup(&keys, 0);
    let below = (0..).zip(&found).filter(|(_, found)| matches!(found, Found::Hit { tier: 1, .. }));
    let below: Vec<u64> = below.map(|(number, _)| number).take(32).collect();
    assert_eq!(below.len(), 32, "the first tier has room for half of them");
    let from_below = |outcome: &Outcome| matches!(outcome, Outcome::Loaded { tier: 1, .. });
    let outcomes = engine.load(&below);
    assert!(outcomes.iter().all(from_below), "{:?}", summary(&outcomes));
    let status = daemon.status();
    let told = status["tiers"][1]["recovery"].as_str().expect("words");
    assert!(told.starts_with("running") && status["tiers"][1]["recovery_ms"].is_null(), "{status:#}");
}

/// E6: less than a segment's worth, and at once the end.
#[test]
fn e6_a_few_blocks_stored_right_before_a_clean_end_are_there() {
    let place = with_nvme("16MiB", "64MiB", "");
    let daemon = place.serve();
    let mut engine = Engine::with(&daemon.socket, 8, BLOCK_BYTES, |_| {});
    engine.store_all(&[1, 2, 3, 4, 5]);
    drop(engine);
    assert!(daemon.stop().status.success());
    let daemon = place.serve();
    daemon.until("recovery", recovered);
    let outcomes = Engine::new(&daemon.socket).load(&[1, 2, 3, 4, 5]);
    assert!(outcomes.iter().all(|outcome| is_loaded(*outcome)), "{:?}", summary(&outcomes));
}
