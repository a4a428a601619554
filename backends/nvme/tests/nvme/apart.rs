//! One failure is one operation's, and O_DIRECT that fails after its probe is left for the page cache.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use umbp_backend_nvme::port::Direction;
use umbp_plugin_api::backend::Level;
use umbp_plugin_api::types::{Operation, code};
use umbp_plugin_api::{Completion, Status, Submitted};

use crate::common::{MIB, Stored, Tier, config, folder, payload};
use crate::faulty::{Faults, Faulty};

const CAPACITY: u64 = 32 * MIB;
const OPERATIONS: u64 = 1000;
/// At one time: as many as the slots hold, each with memory of its own.
const TOGETHER: u64 = 50;
const LENGTH: u64 = 5000;

fn open(path: &Path, more: &str) -> (Tier, Arc<Faults>) {
    let (medium, faults) = Faulty::new();
    let tier = Tier::open_with(&config(path, CAPACITY, more), medium).unwrap();
    tier.introduce();
    tier.recover();
    (tier, faults)
}

/// Threads of this process that are the backend's, where each test has a process of its own.
fn workers() -> Option<usize> {
    std::env::var_os("NEXTEST")?;
    let names = std::fs::read_dir("/proc/self/task").ok()?;
    let names = names.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    Some(names.filter(|name| name.starts_with("nvme-")).count())
}

/// Runs operations together, each with memory of its own; answers what they came to, in their order.
fn together(tier: &Tier, operations: impl Iterator<Item = Operation>) -> Vec<Completion> {
    let operations: Vec<Operation> =
        (0..).zip(operations).map(|(at, o)| Operation { offset: at * 8192, ..o }).collect();
    operations.iter().for_each(|operation| assert_eq!(tier.submit(*operation), Submitted::ACCEPTED));
    operations.iter().map(|operation| tier.told.wait(operation.id)).collect()
}

/// Stores a thousand blocks and loads what was stored, with `plan` in the middle of each; answers the blocks, and how
/// the stores and the loads failed that did.
fn thousand(tier: &Tier, plan: impl Fn(Direction)) -> (Vec<Stored>, Vec<Status>, Vec<Status>) {
    let (mut blocks, mut stores, mut loads) = (Vec::new(), Vec::new(), Vec::new());
    for first in (0..OPERATIONS).step_by(TOGETHER as usize) {
        if first == OPERATIONS / 2 {
            plan(Direction::Store);
        }
        (0..TOGETHER).for_each(|at| tier.memory.write(at * 8192, &payload(first + at, LENGTH)));
        let puts = together(tier, (first..first + TOGETHER).map(|number| tier.operation(code::PUT, number, LENGTH)));
        for (number, Completion { status, location, .. }) in (first..).zip(puts) {
            match status {
                Status::OK => blocks.push(Stored { number, length: LENGTH, location }),
                failed => stores.push(failed),
            }
        }
    }
    for (index, some) in blocks.chunks(TOGETHER as usize).enumerate() {
        if index == 10 {
            plan(Direction::Load);
        }
        let load =
            |block: &Stored| Operation { location: block.location, ..tier.operation(code::GET, block.number, LENGTH) };
        let done = together(tier, some.iter().map(load));
        loads.extend(done.iter().map(|done| done.status).filter(|status| *status != Status::OK));
        for (at, (block, done)) in (0..).zip(some.iter().zip(done)) {
            let same = || tier.memory.read(at * 8192, LENGTH) == payload(block.number, LENGTH);
            assert!(done.status != Status::OK || same(), "{block:?}");
        }
    }
    assert!(blocks.iter().all(|block| tier.get(block) == Ok(())), "what was stored is there");
    (blocks, stores, loads)
}

#[test]
fn d5_an_error_or_a_panic_in_one_of_a_thousand_transfers_fails_that_one_alone() {
    for (more, errno) in [("", libc::EIO), ("", 0), ("io = \"threads\"", libc::EIO), ("io = \"threads\"", 0)] {
        let place = folder();
        let (tier, faults) = open(place.path(), more);
        let before = workers();
        let plan = |direction| *faults.fail.lock().unwrap() = Some((direction, errno, 1));
        let (blocks, stores, loads) = thousand(&tier, plan);
        assert_eq!((blocks.len(), &*stores, &*loads), (999, &[Status::IO][..], &[Status::IO][..]), "{more} {errno}");
        // A thread may not have had its name yet when they were counted first.
        assert!(workers() >= before, "{more} {errno}");
        assert_eq!(tier.told.counted("panics"), if errno == 0 { 2 } else { 0 }, "{more}");
    }
}

#[test]
fn d5_a_panic_while_the_data_file_grows_or_a_record_is_written_ends_no_thread() {
    let place = folder();
    let (tier, faults) = open(place.path(), "");
    let before = workers();
    faults.extend.store(-1, SeqCst);
    assert_eq!(tier.put(1, LENGTH), Err(Status::FAILED));
    faults.extend.store(0, SeqCst);
    *faults.append.lock().unwrap_or_else(|e| e.into_inner()) = (0, 1);
    assert_eq!(tier.put(2, LENGTH), Err(Status::FAILED));
    let block = tier.put(3, LENGTH).unwrap();
    assert_eq!((tier.get(&block), tier.told.counted("panics")), (Ok(()), 2));
    assert!(workers() >= before);
}

#[test]
fn f1_where_o_direct_fails_after_its_probe_the_page_cache_serves_with_one_warning_and_no_error() {
    for more in ["", "io = \"threads\""] {
        let place = folder();
        let (tier, faults) = open(place.path(), more);
        assert!(tier.opened.report.contains("O_DIRECT"), "{}", tier.opened.report);
        // In the middle of a load's fifty, so that many pieces meet it at once.
        let plan = |_| faults.undirect.store(true, SeqCst);
        let (blocks, stores, loads) = thousand(&tier, plan);
        assert_eq!((blocks.len(), stores.len() + loads.len()), (1000, 0), "{more}");
        // Long ones, bounced ones, and lengths that are no whole units.
        for (number, length, offset) in [(2000, 1_124_352, 0), (2001, 640_256, 13), (2002, 61, 4096)] {
            let block = tier.put_at(number, length, offset).unwrap();
            assert_eq!((tier.get_at(&block, 8 * MIB + 7), tier.get(&block)), (Ok(()), Ok(())));
        }
        assert_eq!((tier.told.counted("fallback.direct"), tier.told.counted("io_errors")), (1, 0));
        let log = tier.told.log.lock().unwrap().clone();
        let warned = log.iter().filter(|(level, text)| *level <= Level::Warn && text.contains("O_DIRECT")).count();
        assert_eq!(warned, 1, "{log:?}");
        tier.shutdown();
        let (tier, found) = Tier::recovered(place.path(), CAPACITY, "");
        assert_eq!(found.len(), 1003);
        assert!(found.values().all(|block| tier.get(block) == Ok(())));
    }
}

#[test]
fn f9_after_o_direct_was_left_a_deadline_holds_as_before() {
    let place = folder();
    let (tier, faults) = open(place.path(), "");
    let block = tier.put(1, LENGTH).unwrap();
    faults.undirect.store(true, SeqCst);
    assert_eq!(tier.get(&block), Ok(()));
    faults.hang.store(1, SeqCst);
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let deadline_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64 + 50_000_000;
    let began = Instant::now();
    let load = Operation { location: block.location, deadline_ns, ..tier.operation(code::GET, 1, LENGTH) };
    assert_eq!(tier.run(load).status, Status::TIMED_OUT);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!((tier.get(&block), tier.told.counted("fallback.direct")), (Ok(()), 1));
}

#[test]
fn f1_an_einval_that_the_page_cache_gives_too_is_an_error_of_its_operation() {
    let place = folder();
    let (tier, faults) = open(place.path(), "");
    let block = tier.put(1, LENGTH).unwrap();
    *faults.fail.lock().unwrap() = Some((Direction::Load, libc::EINVAL, 2));
    assert_eq!((tier.get(&block), tier.get(&block)), (Err(Status::IO), Ok(())));
}
