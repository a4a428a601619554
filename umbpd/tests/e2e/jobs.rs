//! What a job tells of each block, on the real daemon (B1, K10, K13, K14), and a stop in the middle of jobs.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use umbp_client::{FailCause, JobId, LoadBlock, Outcome, RegionId, Run, StoreBlock};
use umbp_protocol::message::{MissReason, Reserved};

use crate::common::DEADLINE;
use crate::common::client::Client as Bare;
use crate::common::daemon::Place;
use crate::rig::{BLOCK_BYTES, Ends, Engine, is_loaded, is_quiet, is_stored, key, recovered, summary, with_nvme};

/// Stores that are cancelled.
const CANCELS: u64 = 200;

/// B1: the engine takes its memory back in the middle of a store and writes another block there. Whatever is found
/// under the stored keys afterwards has the old bytes; wrong ones would panic in the load.
#[test]
fn b1_memory_that_is_taken_back_from_a_store_never_shows_under_its_keys() {
    let place = Place::new("32MiB", "");
    let daemon = place.serve();
    let mut engine = Engine::with(&daemon.socket, 16, 1 << 20, |options| options.copy_threads = 1);
    let mut reader = Engine::with(&daemon.socket, 16, 1 << 20, |_| {});
    let (mut stored, mut cancelled) = (0, 0);
    for round in 0..CANCELS {
        let numbers: Vec<u64> = (0..16).map(|at| round * 16 + at).collect();
        let job = engine.begin_store(&numbers);
        // From at once to so late that some are done.
        for _ in 0..round * 40 {
            std::hint::spin_loop();
        }
        engine.client.cancel(job);
        let outcomes = engine.client.wait(job, DEADLINE).expect("it ends").outcomes;
        for slot in 0..16 {
            engine.fill(slot, 1_000_000 + round);
        }
        stored += outcomes.iter().filter(|outcome| is_stored(**outcome)).count();
        cancelled += outcomes.iter().filter(|outcome| **outcome == Outcome::Cancelled).count();
        for (outcome, loaded) in outcomes.iter().zip(reader.load(&numbers)) {
            assert!(!is_loaded(loaded) || is_stored(*outcome), "round {round}: {outcome:?}, and then {loaded:?}");
        }
    }
    assert!(cancelled > 0, "{stored} stored, {cancelled} cancelled");
    daemon.until("all quiet", is_quiet);
}

/// B1, B2: a load of the very blocks whose store is in flight, on the same memory of another engine: a miss or the
/// right bytes, no error and no wait.
#[test]
fn b2_a_load_beside_the_store_of_the_same_blocks_is_a_miss_or_right() {
    let place = Place::new("64MiB", "");
    let daemon = place.serve();
    let mut writer = Engine::new(&daemon.socket);
    let mut reader = Engine::new(&daemon.socket);
    for round in 0..100 {
        let numbers: Vec<u64> = (0..64).map(|at| round * 64 + at).collect();
        let job = writer.begin_store(&numbers);
        for outcome in reader.load(&numbers) {
            assert!(is_loaded(outcome) || matches!(outcome, Outcome::Missed(_)), "{outcome:?}");
        }
        let outcomes = writer.client.wait(job, DEADLINE).expect("it ends").outcomes;
        assert!(outcomes.iter().all(|outcome| is_stored(*outcome)), "{:?}", summary(&outcomes));
    }
}

fn wait(engine: &Engine, job: JobId) -> Vec<Outcome> {
    engine.client.wait(job, DEADLINE).expect("it ends").outcomes
}

/// One batch with a block of every kind: each has its own answer, and the good ones are served.
#[test]
fn k10_k13_k14_one_batch_with_every_kind_of_block_answers_each_by_itself() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let mut engine = Engine::new(&daemon.socket);
    engine.store_all(&[1, 2]);
    let mut writer = Bare::new(&daemon.socket);
    let (_, reserved) = writer.reserve(&[3], BLOCK_BYTES);
    assert!(matches!(reserved[0], Reserved::Extent(_)));
    for slot in 0..6 {
        engine.fill(slot, 10 + slot as u64);
    }
    let half = |slot: usize| engine.runs(slot)[..1].to_vec();
    let nowhere = vec![Run { region: RegionId(u64::MAX), offset: 0, length: BLOCK_BYTES }];
    let beyond = vec![Run { offset: u64::MAX - 10, ..engine.runs(0)[0] }];
    let large =
        (0..2 << 20).step_by(1 << 20).map(|_| Run { offset: 0, length: 1 << 20, ..engine.runs(0)[0] }).collect();
    let store = |number, runs| StoreBlock { key: key(number), parent: None, depth: 0, runs };
    let batch = [
        (store(10, engine.runs(0)), Outcome::Stored { bytes: BLOCK_BYTES }),
        (store(1, engine.runs(1)), Outcome::Present),
        (store(2, half(2)), Outcome::Failed(FailCause::LengthDiffers)),
        (store(3, engine.runs(3)), Outcome::BeingWritten),
        (store(20, nowhere.clone()), Outcome::Failed(FailCause::BadRuns)),
        (store(21, beyond), Outcome::Failed(FailCause::BadRuns)),
        (store(22, Vec::new()), Outcome::Failed(FailCause::BadRuns)),
        (store(23, large), Outcome::Failed(FailCause::Invalid)),
        (store(14, engine.runs(4)), Outcome::Stored { bytes: BLOCK_BYTES }),
    ];
    let (blocks, expected): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
    let job = engine.client.store(&blocks).expect("a job");
    assert_eq!(wait(&engine, job), expected);
    let load = |number, runs| LoadBlock { key: key(number), runs };
    let batch = [
        (load(10, engine.runs(0)), Outcome::Loaded { tier: 0, bytes: BLOCK_BYTES }),
        (load(99, engine.runs(1)), Outcome::Missed(MissReason::Absent)),
        (load(3, engine.runs(2)), Outcome::Missed(MissReason::Writing)),
        (load(1, half(3)), Outcome::Failed(FailCause::LengthDiffers)),
        (load(1, nowhere), Outcome::Failed(FailCause::BadRuns)),
        (load(14, engine.runs(5)), Outcome::Loaded { tier: 0, bytes: BLOCK_BYTES }),
    ];
    let (blocks, expected): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
    let job = engine.client.load(&blocks).expect("a job");
    assert_eq!(wait(&engine, job), expected);
    // K13: the old copies are as they were.
    assert!(engine.load(&[1, 2, 10, 14]).iter().all(|outcome| is_loaded(*outcome)));
}

/// Stores and loads without a pause, whatever the daemon does; counts rounds in which blocks were loaded.
fn work(socket: &Path, base: u64, stop: &AtomicBool, rounds: &AtomicU64) {
    let mut engine = Engine::new(socket);
    for round in 0.. {
        let numbers: Vec<u64> = (0..64).map(|at| base + round % 64 * 64 + at).collect();
        engine.store(&numbers);
        let loaded = engine.load(&numbers).iter().any(|outcome| is_loaded(*outcome));
        rounds.fetch_add(u64::from(loaded), Ordering::Relaxed);
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
}

/// SIGTERM while clients store and load: exit 0 within the deadline (drain = 2s), and later lives have right bytes.
#[test]
fn sigterm_in_the_middle_of_jobs_ends_in_time_and_leaves_only_right_bytes() {
    let place = with_nvme("32MiB", "128MiB", "");
    let first = place.serve();
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let daemon = std::thread::scope(|scope| {
        let ends = Ends(&stop);
        let mut daemon = first;
        for worker in 0..2 {
            let (stop, rounds, socket) = (&stop, &rounds, place.socket());
            scope.spawn(move || work(&socket, worker * 1_000_000, stop, rounds));
        }
        for life in 0..4 {
            let before = rounds.load(Ordering::Relaxed);
            daemon.until("they work", |_| rounds.load(Ordering::Relaxed) > before + 4);
            let start = Instant::now();
            let ended = daemon.stop();
            assert!(ended.status.success(), "life {life}: {ended:?}");
            assert!(start.elapsed() < Duration::from_secs(3), "life {life}: took {:?}", start.elapsed());
            daemon = place.serve();
        }
        drop(ends);
        daemon
    });
    daemon.until("recovery", recovered);
    let mut engine = Engine::new(&daemon.socket);
    let outcomes = engine.load(&(0..4096).chain(1_000_000..1_004_096).collect::<Vec<_>>());
    let known = |outcome: &Outcome| is_loaded(*outcome) || matches!(outcome, Outcome::Missed(_));
    assert!(outcomes.iter().all(known), "{:?}", summary(&outcomes));
    assert!(outcomes.iter().any(|outcome| is_loaded(*outcome)), "what was copied below is there");
}

/// The sample that `examples/` shows works as its first lines say.
#[test]
fn the_sample_of_the_engine_side_brings_every_byte_back() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.current_dir(crate::common::workspace()).args(["run", "--quiet", "--offline", "--package", "umbp-client"]);
    let output = cargo.args(["--example", "store_and_load", "--"]).arg(&daemon.socket).output().expect("cargo runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.ends_with("every byte came back\n"), "{said}");
}
