//! Runs a target: seeds, mutations, and what counts as a finding.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashSet;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::mutate::{Random, mutate};
use crate::targets::Target;

/// A single allocation beyond this is a finding: no input is longer than 64 KiB.
const ALLOCATION_BYTES_MAX: usize = 64 << 20;
/// A call that takes longer is a finding.
const CALL_SECONDS_MAX: u64 = 10;
/// Most inputs that join the corpus of a run.
const CORPUS_MAX: usize = 4096;
/// Calls between two looks at the clock.
const CALLS_PER_LOOK: u64 = 64;

/// The system's allocator, and the largest allocation since it was last asked for.
pub(crate) struct Measured;

thread_local! {
    /// Of this thread alone, so that tests side by side do not see each other's. No destructor: usable at any time.
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is handed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Measured {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller keeps this function's contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps this function's contract, which is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// A seed for a run that was given none.
pub(crate) fn fresh_seed() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Feeds one input; the outcome's signature, or what is wrong.
pub(crate) fn run_one(target: &Target, input: &[u8]) -> Result<u64, String> {
    LARGEST.set(0);
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let largest = LARGEST.get();
    match outcome {
        Err(_) => Err("it panics (see above)".to_owned()),
        Ok(_) if largest > ALLOCATION_BYTES_MAX => Err(format!("it allocates {largest} bytes at once")),
        Ok(signature) => Ok(signature),
    }
}

/// Feeds the corpus, then mutations of it, for some time.
pub(crate) fn run(target: &Target, seed: u64, time: Duration) -> Result<(), String> {
    let mut corpus = load_corpus(target)?;
    println!("fuzz {}: seed {seed}, {} inputs in the corpus, {} s", target.name, corpus.len(), time.as_secs());
    let watchdog = Watchdog::start(target.name);
    let (mut random, mut seen) = (Random::new(seed), HashSet::new());
    for input in corpus.clone() {
        seen.insert(fed(target, &input, &watchdog, seed)?);
    }
    let (deadline, mut calls) = (Instant::now() + time, 0_u64);
    while !calls.is_multiple_of(CALLS_PER_LOOK) || Instant::now() < deadline {
        calls += 1;
        let mut input = corpus[random.below(corpus.len())].clone();
        let other = random.below(corpus.len());
        mutate(&mut input, &corpus[other], &mut random);
        (target.repair)(&mut input, random.next());
        let is_new = seen.insert(fed(target, &input, &watchdog, seed)?);
        if is_new && corpus.len() < CORPUS_MAX {
            corpus.push(input);
        }
    }
    println!("fuzz {}: {calls} inputs, {} different outcomes, no finding", target.name, seen.len());
    Ok(())
}

fn fed(target: &Target, input: &[u8], watchdog: &Watchdog, seed: u64) -> Result<u64, String> {
    watchdog.begin(input);
    let outcome = run_one(target, input);
    watchdog.end();
    outcome.map_err(|finding| format!("{} with seed {seed}: {finding}; {}", target.name, save(target.name, input)))
}

/// Keeps a finding's input for a later run of it alone.
fn save(target: &str, input: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    input.hash(&mut hasher);
    let name = format!("fuzz-finding-{target}-{:016x}.bin", hasher.finish());
    let path = std::env::temp_dir().join(name);
    match std::fs::write(&path, input) {
        Ok(()) => format!("run it again: umbp-fuzz --target {target} --input {}", path.display()),
        Err(e) => format!("its input could not be saved to {}: {e}", path.display()),
    }
}

fn corpus_folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

/// The inputs in the tree, in order of their names.
pub(crate) fn load_corpus(target: &Target) -> Result<Vec<Vec<u8>>, String> {
    let folder = corpus_folder(target);
    let failed = |e: std::io::Error| format!("read corpus {}: {e}", folder.display());
    let mut paths: Vec<_> = std::fs::read_dir(&folder).map_err(failed)?.flatten().map(|e| e.path()).collect();
    paths.sort();
    let inputs: Result<Vec<_>, _> = paths.iter().map(std::fs::read).collect();
    match inputs.map_err(failed)? {
        empty if empty.is_empty() => Err(format!("corpus {} is empty", folder.display())),
        inputs => Ok(inputs),
    }
}

/// Writes what the encoders make, one file for each.
pub(crate) fn write_corpus(target: &Target) -> Result<(), String> {
    let folder = corpus_folder(target);
    std::fs::create_dir_all(&folder).map_err(|e| format!("create {}: {e}", folder.display()))?;
    for (name, bytes) in (target.seeds)() {
        let path = folder.join(format!("{name}.bin"));
        std::fs::write(&path, bytes).map_err(|e| format!("write {}: {e}", path.display()))?;
    }
    Ok(())
}

/// Ends the process when one call does not return: a hang is a finding too.
struct Watchdog {
    input: Arc<Mutex<Vec<u8>>>,
    calls: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Watchdog {
    fn start(target: &'static str) -> Self {
        let dog = Self { input: Arc::default(), calls: Arc::default(), is_over: Arc::default() };
        let (input, calls, is_over) = (dog.input.clone(), dog.calls.clone(), dog.is_over.clone());
        std::thread::spawn(move || {
            let mut last = (0, Instant::now());
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(500));
                let now = calls.load(Ordering::Relaxed);
                // Odd: a call is under way.
                if now.is_multiple_of(2) || now != last.0 {
                    last = (now, Instant::now());
                } else if last.1.elapsed() > Duration::from_secs(CALL_SECONDS_MAX) {
                    let input = input.lock().unwrap_or_else(PoisonError::into_inner);
                    eprintln!("fuzz: {target} does not return; {}", save(target, &input));
                    std::process::exit(1);
                }
            }
        });
        dog
    }

    fn begin(&self, input: &[u8]) {
        let mut kept = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clear();
        kept.extend_from_slice(input);
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    fn end(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(run: fn(&[u8]) -> u64) -> Target {
        Target { name: "test", run, repair: |_, _| (), seeds: Vec::new }
    }

    #[test]
    fn a_panic_and_an_allocation_out_of_proportion_are_findings() {
        let check = |run: fn(&[u8]) -> u64, part: Option<&str>| match (run_one(&target(run), &[1]), part) {
            (Err(finding), Some(part)) => assert!(finding.contains(part), "{finding}"),
            (outcome, part) => assert_eq!(outcome.is_err(), part.is_some()),
        };
        check(|input| u64::from(input[0]), None);
        check(|input| u64::from(input[usize::from(input[0])]), Some("panics"));
        check(|_| Vec::<u8>::with_capacity(ALLOCATION_BYTES_MAX + 1).capacity() as u64, Some("allocates"));
    }

    #[test]
    fn every_seed_in_the_tree_is_handled_and_is_what_the_encoders_make_now() {
        for target in crate::targets::all() {
            for input in load_corpus(&target).unwrap() {
                run_one(&target, &input).unwrap();
            }
            for (name, bytes) in (target.seeds)() {
                let path = corpus_folder(&target).join(format!("{name}.bin"));
                let kept = std::fs::read(&path).unwrap_or_default();
                assert_eq!(kept, bytes, "{}: run umbp-fuzz --write-corpus", path.display());
            }
        }
    }
}
