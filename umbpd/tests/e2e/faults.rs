//! The disk lies, is cut, or loses files while the daemon runs: each fault costs exactly its blocks (A3, A5, A6).

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use serde_json::Value;
use umbp_client::{Counter, FailCause, Outcome};
use umbp_protocol::message::{Acquired, Found, MissReason, Reply, Request};

use crate::common::client::Client as Bare;
use crate::common::daemon::{Daemon, Place};
use crate::common::fixture;
use crate::rig::{
    BLOCK_BYTES, Engine, copied, is_loaded, is_quiet, is_stored, key, recovered, summary, threads, with_nvme,
};

/// Blocks that each test stores: twice what the first tier holds.
const BLOCKS: u64 = 512;

/// A daemon whose second tier holds all blocks, and those of them that it alone holds.
struct Deep {
    place: Place,
    daemon: Daemon,
    engine: Engine,
    below: Vec<u64>,
}

impl Deep {
    fn new() -> Self {
        let place = with_nvme("16MiB", "128MiB", "");
        let daemon = place.serve();
        let mut engine = Engine::new(&daemon.socket);
        store_below(&daemon, &mut engine, 0, BLOCKS);
        let below = only_below(&engine);
        assert!(below.len() > 64, "more than a job's blocks are on NVMe alone: {}", below.len());
        Self { place, daemon, engine, below }
    }

    fn data(&self) -> PathBuf {
        self.place.path().join("nvme/data")
    }

    /// Where in the data file each of these blocks lies.
    fn places(&self, numbers: &[u64]) -> Vec<u64> {
        let data = fs::read(self.data()).expect("the data file");
        let place = |number: &u64| {
            let content = Bare::content(*number, BLOCK_BYTES);
            let mut starts = (0..data.len()).step_by(4096).filter(|at| data[*at..].starts_with(&content));
            starts.next().unwrap_or_else(|| panic!("block {number} lies in the file")) as u64
        };
        numbers.iter().map(place).collect()
    }
}

/// Stores blocks in such steps that each gets its copy below.
fn store_below(daemon: &Daemon, engine: &mut Engine, from: u64, to: u64) {
    for start in (from..to).step_by(32) {
        engine.store_all(&(start..start + 32).collect::<Vec<_>>());
        daemon.until("copies below", |status| copied(status, start + 32));
    }
}

fn only_below(engine: &Engine) -> Vec<u64> {
    let keys: Vec<_> = (0..BLOCKS).map(key).collect();
    let found = engine.client.lookup(&keys, 0);
    (0..BLOCKS).zip(found).filter(|(_, found)| matches!(found, Found::Hit { tier: 1, .. })).map(|(n, _)| n).collect()
}

/// Loads blocks; exactly the bad ones are misses, all others come from NVMe, byte for byte.
fn check_batch(engine: &mut Engine, numbers: &[u64], is_bad: impl Fn(u64) -> bool) {
    for (number, outcome) in numbers.iter().zip(engine.load(numbers)) {
        let expected = match is_bad(*number) {
            true => Outcome::Missed(MissReason::Corrupt),
            false => Outcome::Loaded { tier: 1, bytes: BLOCK_BYTES },
        };
        assert_eq!(outcome, expected, "block {number}");
    }
}

fn errors(status: &Value) -> u64 {
    let errors = status["tiers"][1]["errors"].as_object().expect("errors");
    errors.values().map(|count| count.as_u64().expect("a count")).sum()
}

/// A bit of every third block's bytes on disk is flipped: those are misses, counted one by one, and heal by being
/// stored again (A3, A5, E5).
#[test]
fn a3_a5_a_flipped_bit_on_disk_is_a_miss_of_that_block_alone_and_is_counted() {
    let mut deep = Deep::new();
    let batch = deep.below[..48].to_vec();
    let bad: Vec<u64> = batch.iter().copied().step_by(3).collect();
    let file = OpenOptions::new().write(true).open(deep.data()).expect("the data file");
    for (number, place) in bad.iter().zip(deep.places(&bad)) {
        let at = number * 977 % BLOCK_BYTES;
        let byte = Bare::content(*number, BLOCK_BYTES)[at as usize];
        file.write_all_at(&[byte ^ 0x10], place + at).expect("written");
    }
    file.sync_all().expect("synced");
    let before = deep.daemon.status();
    check_batch(&mut deep.engine, &batch, |number| bad.contains(&number));
    let after = deep.daemon.status();
    let grown = |name: &str| after[name].as_u64().expect("a count") - before[name].as_u64().expect("a count");
    assert_eq!(errors(&after) - errors(&before), bad.len() as u64, "{after:#}");
    assert_eq!((grown("promotions_failed"), grown("acquired")), (bad.len() as u64, 32), "{after:#}");
    assert_eq!(deep.engine.client.counter(Counter::BlocksLoaded), 32, "a failed load is no hit");
    // Once lost it is a plain miss, at no further cost; stored again it is whole.
    let keys: Vec<_> = bad.iter().map(|number| key(*number)).collect();
    assert!(deep.engine.client.lookup(&keys, 0).iter().all(|found| matches!(found, Found::Miss(_))));
    deep.engine.store_all(&bad);
    assert!(deep.engine.load(&batch).iter().all(|outcome| is_loaded(*outcome)));
    assert_eq!(errors(&deep.daemon.status()), errors(&after), "no further errors");
    let ended = deep.daemon.stop();
    let told: Vec<&str> = ended.text.lines().filter(|line| line.contains("corrupt")).collect();
    assert!(matches!(told[..], [line] if line.contains("WARN") && line.contains("tier nvme")), "{told:#?}");
}

/// J4: of what a lookup hit, some is loaded, some fails, and some is not needed; what the daemon counts says how much.
#[test]
fn j4_what_hit_was_loaded_failed_or_not_needed() {
    const ASKED: usize = 60;
    const NEEDED: usize = 48;
    const BAD: usize = 16;
    let mut deep = Deep::new();
    let asked = deep.below[..ASKED].to_vec();
    let bad = asked[..BAD].to_vec();
    let file = OpenOptions::new().write(true).open(deep.data()).expect("the data file");
    for (number, place) in bad.iter().zip(deep.places(&bad)) {
        let byte = Bare::content(*number, BLOCK_BYTES)[0];
        file.write_all_at(&[byte ^ 1], place).expect("written");
    }
    file.sync_all().expect("synced");
    let before = deep.daemon.status();
    let keys: Vec<_> = asked.iter().map(|number| key(*number)).collect();
    let found = deep.engine.client.lookup(&keys, 0);
    assert!(found.iter().all(|found| matches!(found, Found::Hit { tier: 1, .. })), "nobody knows yet: {found:?}");
    check_batch(&mut deep.engine, &asked[..NEEDED], |number| bad.contains(&number));
    let after = deep.daemon.status();
    let sum = |status: &Value, at: &str| match status.pointer(at).expect("it is counted") {
        Value::Object(counts) => counts.values().filter_map(Value::as_u64).sum(),
        count => count.as_u64().expect("a count"),
    };
    let grown = |at: &str| (sum(&after, at) - sum(&before, at)) as usize;
    assert_eq!((grown("/asked"), grown("/tiers/1/hits")), (ASKED, ASKED));
    assert_eq!((grown("/acquired"), grown("/load_misses")), (NEEDED - BAD, BAD));
    assert_eq!((grown("/tiers/0/loaded"), grown("/tiers/1/loaded")), (0, NEEDED - BAD));
    assert_eq!(grown("/tiers/1/hits"), grown("/acquired") + grown("/load_misses") + (ASKED - NEEDED));
}

/// The data file is cut to nothing, to one byte, and to one byte less than a block needs, while the daemon runs.
#[test]
fn a6_a_cut_data_file_costs_just_the_blocks_that_were_cut_and_no_thread() {
    for cut in ["nothing", "one byte", "a byte short of a block"] {
        let mut deep = Deep::new();
        let batch = deep.below[..60].to_vec();
        let places = deep.places(&batch);
        let mut sorted = places.clone();
        sorted.sort_unstable();
        let length = match cut {
            "nothing" => 0,
            "one byte" => 1,
            _ => sorted[30] + BLOCK_BYTES - 1,
        };
        let before = threads(deep.daemon.pid());
        OpenOptions::new().write(true).open(deep.data()).expect("the file").set_len(length).expect("cut");
        let is_cut = |number: u64| {
            let at = batch.iter().position(|known| *known == number).expect("in the batch");
            places[at] + BLOCK_BYTES > length
        };
        check_batch(&mut deep.engine, &batch, is_cut);
        assert_eq!(threads(deep.daemon.pid()), before, "cut to {cut}");
        let status = deep.daemon.status();
        assert_eq!(status["tiers"][1]["state"], "running", "{status:#}");
        // What was cut is stored again, and all of it is there, be it in DRAM or below.
        let lost: Vec<u64> = batch.iter().copied().filter(|number| is_cut(*number)).collect();
        deep.engine.store_all(&lost);
        assert!(deep.engine.load(&batch).iter().all(|outcome| is_loaded(*outcome)), "cut to {cut}");
        deep.daemon.until("all quiet", is_quiet);
    }
}

/// The data file is removed under the daemon: what it has open serves on; the next life has nothing, and starts.
#[test]
fn a6_a_removed_data_file_serves_on_and_is_empty_in_the_next_life() {
    let mut deep = Deep::new();
    let batch = deep.below[..60].to_vec();
    fs::remove_file(deep.data()).expect("removed");
    check_batch(&mut deep.engine, &batch, |_| false);
    assert!(deep.daemon.stop().status.success());
    let daemon = deep.place.serve();
    daemon.until("recovery", recovered);
    let mut engine = Engine::new(&daemon.socket);
    let outcomes = engine.load(&(0..BLOCKS).collect::<Vec<_>>());
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Missed(_))), "{:?}", summary(&outcomes));
    engine.store_all(&batch);
    engine.load(&batch);
}

/// A5, copy stage: a plugin that answers other bytes than were put. The client finds it; each is one load error, and
/// no block of that tier is ever called loaded.
#[test]
fn a5_a_tier_that_answers_wrong_bytes_is_found_out_block_by_block() {
    let tier = format!(
        "[[tier]]\nname = \"low\"\nbackend = \"{}\"\ncapacity = \"64MiB\"\n[tier.options]\nbehaviour = \"get-lies\"\n",
        fixture().display()
    );
    let place = Place::new("16MiB", &tier);
    let daemon = place.serve();
    let mut engine = Engine::new(&daemon.socket);
    store_below(&daemon, &mut engine, 0, BLOCKS);
    let below = only_below(&engine);
    let batch = &below[..16];
    for pass in 1..=2u64 {
        let outcomes = engine.load(batch);
        let wrong = Outcome::Failed(FailCause::ChecksumMismatch);
        assert!(outcomes.iter().all(|outcome| *outcome == wrong), "{:?}", summary(&outcomes));
        let status = daemon.until("the client has told", is_quiet);
        assert_eq!(status["bad_loads"], 16 * pass, "{status:#}");
        assert_eq!(engine.client.counter(Counter::LoadErrors), 16 * pass);
        assert_eq!(engine.client.counter(Counter::BlocksLoaded), 0);
    }
}

/// A5, DRAM: a process of the tenant scribbles over a block in the pool; with `verify_dram` its load fails, that
/// block's alone, and the copy is dropped.
#[test]
fn a5_a_scribble_in_dram_is_found_where_config_says_so() {
    let place = Place::new("16MiB", "[policy]\nverify_dram = true\n");
    let daemon = place.serve();
    let mut engine = Engine::new(&daemon.socket);
    let numbers: Vec<u64> = (0..32).collect();
    engine.store_all(&numbers);
    let mut vandal = Bare::new(&daemon.socket);
    let keys = vec![vandal.key(7)];
    let Reply::Acquire { lease, items, .. } = vandal.call(&Request::Acquire { keys }) else { panic!("an answer") };
    let Acquired::Ready { extent, .. } = items[0] else { panic!("it is there") };
    // SAFETY: inside the vandal's mapping; nobody reads the block now.
    unsafe { *vandal.slice(&extent, BLOCK_BYTES).add(5000) ^= 1 };
    vandal.call(&Request::Release { lease, items: Vec::new() });
    let expected = |number: usize| match number {
        7 => Outcome::Failed(FailCause::ChecksumMismatch),
        _ => Outcome::Loaded { tier: 0, bytes: BLOCK_BYTES },
    };
    let outcomes = engine.load(&numbers);
    assert!(outcomes.iter().enumerate().all(|(at, outcome)| *outcome == expected(at)), "{:?}", summary(&outcomes));
    daemon.until("the client has told", |status| is_quiet(status) && status["bad_loads"] == 1);
    assert!(matches!(engine.load(&[7])[..], [Outcome::Missed(_)]), "the copy is gone");
    assert!(engine.store(&[7]).iter().all(|outcome| is_stored(*outcome)) && engine.load(&[7]).len() == 1);
}
