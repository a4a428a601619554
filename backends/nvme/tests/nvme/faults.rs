//! What the medium does wrong, and whom it concerns.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use umbp_backend_nvme::port::Direction;
use umbp_plugin_api::backend::Level;
use umbp_plugin_api::types::{Operation, code};
use umbp_plugin_api::{Backend, OpenError, Status, Submitted};

use crate::common::{MIB, Stored, Tier, config, folder, payload};
use crate::faulty::{Faults, Faulty};

const CAPACITY: u64 = 32 * MIB;

fn open(path: &Path, more: &str) -> (Tier, Arc<Faults>) {
    let (medium, faults) = Faulty::new();
    let tier = Tier::open_with(&config(path, CAPACITY, more), medium).unwrap();
    tier.introduce();
    tier.recover();
    (tier, faults)
}

#[test]
fn without_io_uring_threads_serve_and_the_cause_is_named_once() {
    // F4
    for (errno, cause) in [(libc::EPERM, "sandbox"), (libc::ENOSYS, "missing"), (libc::ENOMEM, "RLIMIT_MEMLOCK")] {
        let (place, (medium, faults)) = (folder(), Faulty::new());
        faults.ring.store(errno, SeqCst);
        let tier = Tier::open_with(&config(place.path(), CAPACITY, ""), medium.clone()).unwrap();
        tier.introduce();
        tier.recover();
        let block = tier.put(1, 1_124_352).unwrap();
        assert_eq!(tier.get(&block), Ok(()));
        assert!(tier.opened.report.contains("threads") && tier.opened.report.contains(cause), "{}", tier.opened.report);
        assert_eq!(tier.told.counted("fallback.io_uring"), 1);
        let log = tier.told.log.lock().unwrap();
        assert_eq!(log.iter().filter(|(level, text)| *level == Level::Warn && text.contains(cause)).count(), 1);
        drop(log);
        drop(tier);
        let forced = Tier::open_with(&config(place.path(), CAPACITY, "io = \"io_uring\""), medium);
        assert!(matches!(forced, Err(OpenError::Environment(_))));
    }
}

/// Makes io_uring_setup(2) fail with `errno` for this thread and those that it starts.
fn forbid_io_uring(errno: i32) {
    let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        // The call's number is the first word of what a filter looks at.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program lives until the call has returned, and its filter has as many statements as it says.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) }, 0);
}

#[test]
fn under_a_sandbox_that_forbids_io_uring_threads_serve() {
    // F4, with a real seccomp filter.
    for (errno, cause) in [(libc::EPERM, "refused"), (libc::ENOSYS, "missing")] {
        let sandboxed = move || {
            forbid_io_uring(errno);
            let place = folder();
            let tier = Tier::fresh(place.path(), CAPACITY, "");
            assert!(tier.opened.report.contains(cause), "{}", tier.opened.report);
            assert_eq!(tier.told.counted("fallback.io_uring"), 1);
            let block = tier.put(1, 1_124_352).unwrap();
            assert_eq!(tier.get(&block), Ok(()));
        };
        std::thread::spawn(sandboxed).join().unwrap();
    }
}

#[test]
fn where_o_direct_fails_its_probe_the_page_cache_serves() {
    // F1, F3: the open succeeds, the transfer does not.
    for direction in [Direction::Store, Direction::Load] {
        let (place, (medium, faults)) = (folder(), Faulty::new());
        *faults.fail.lock().unwrap() = Some((direction, libc::EINVAL, 1));
        let tier = Tier::open_with(&config(place.path(), CAPACITY, ""), medium).unwrap();
        tier.introduce();
        tier.recover();
        assert!(tier.opened.report.contains("page cache, since"), "{}", tier.opened.report);
        assert_eq!(tier.told.counted("fallback.direct"), 1);
        let block = tier.put(1, 640_256).unwrap();
        assert_eq!(tier.get(&block), Ok(()));
        assert!(!place.path().join("probe.tmp").exists());
    }
}

#[test]
fn memory_that_cannot_be_registered_is_used_without() {
    // F8
    let (place, (medium, faults)) = (folder(), Faulty::new());
    faults.register.store(libc::ENOMEM, SeqCst);
    let tier = Tier::open_with(&config(place.path(), CAPACITY, ""), medium).unwrap();
    tier.introduce();
    tier.recover();
    let block = tier.put(1, 640_256).unwrap();
    assert_eq!(tier.get(&block), Ok(()));
    assert_eq!(tier.told.counted("fallback.registered_buffers"), 1);
    let log = tier.told.log.lock().unwrap();
    assert!(log.iter().any(|(_, text)| text.contains("RLIMIT_MEMLOCK")), "{log:?}");
}

#[test]
fn short_transfers_are_continued_never_taken_as_done() {
    for (more, most) in [("", 8192), ("", 8704), ("direct = \"off\"", 7777), ("io = \"threads\"", 4096)] {
        let place = folder();
        let (tier, faults) = open(place.path(), more);
        faults.shorten.store(most, SeqCst);
        let block = tier.put(1, 640_256).unwrap();
        assert_eq!(tier.get(&block), Ok(()), "{more} {most}");
        assert!(tier.told.counted("short_transfers") > 50);
        faults.shorten.store(0, SeqCst);
        assert_eq!(tier.get(&block), Ok(()), "{more} {most}");
    }
}

#[test]
fn a_transfer_that_never_gets_on_fails_in_the_end() {
    let place = folder();
    let (tier, faults) = open(place.path(), "");
    let block = tier.put(1, 8192).unwrap();
    // Less than a unit: with O_DIRECT there is no place to go on from.
    faults.shorten.store(512, SeqCst);
    assert!(tier.get(&block).is_err() && tier.put(2, 8192).is_err());
    *faults.fail.lock().unwrap() = Some((Direction::Load, libc::EAGAIN, u32::MAX));
    assert_eq!(tier.get(&block), Err(Status::IO));
    faults.shorten.store(0, SeqCst);
    *faults.fail.lock().unwrap() = None;
    assert_eq!(tier.get(&block), Ok(()));
}

#[test]
fn a_passing_i_o_error_is_told_as_such_and_deletes_nothing() {
    // A6, D5
    let place = folder();
    let (tier, faults) = open(place.path(), "");
    let blocks: Vec<Stored> = (0..4).map(|number| tier.put(number, 600_000).unwrap()).collect();
    for errno in [libc::EIO, libc::EACCES, libc::ENXIO] {
        *faults.fail.lock().unwrap() = Some((Direction::Load, errno, 1));
        let ask = tier.operation(code::GET, 0, 600_000);
        let done = tier.run(Operation { location: blocks[0].location, ..ask });
        assert_eq!((done.status, done.errno), (Status::IO, errno));
        assert!(blocks.iter().all(|block| tier.get(block) == Ok(())));
    }
    *faults.fail.lock().unwrap() = Some((Direction::Store, libc::EIO, 1));
    assert_eq!(tier.put(9, 600_000), Err(Status::IO));
    assert_eq!(tier.nvme.stats().blocks, 4, "a put is whole or absent");
    tier.shutdown();
    let (tier, found) = Tier::recovered(place.path(), CAPACITY, "");
    assert_eq!(found.len(), 4);
    assert!(found.values().all(|block| tier.get(block) == Ok(())));
}

#[test]
fn a_full_file_system_is_no_space_wherever_it_shows() {
    let place = folder();
    let (tier, faults) = open(place.path(), "");
    let set_fail = |errno, count| *faults.fail.lock().unwrap() = Some((Direction::Store, errno, count));
    faults.extend.store(libc::ENOSPC, SeqCst);
    assert_eq!(tier.put(1, 100_000), Err(Status::NO_SPACE));
    faults.extend.store(0, SeqCst);
    for errno in [libc::ENOSPC, libc::EDQUOT, libc::EFBIG] {
        set_fail(errno, 1);
        assert_eq!(tier.put(1, 100_000), Err(Status::NO_SPACE));
    }
    *faults.append.lock().unwrap() = (libc::ENOSPC, 1);
    assert_eq!(tier.put(1, 100_000), Err(Status::NO_SPACE));
    let block = tier.put(1, 100_000).unwrap();
    // What is not for want of room leaves the block as it was.
    *faults.append.lock().unwrap() = (libc::EIO, 1);
    assert_eq!(tier.delete(&block), Status::IO);
    assert_eq!((tier.get(&block), tier.nvme.stats().blocks), (Ok(()), 1));
    // K3: the deleted block's own room is given back for its record. Should there be none even so, its payload is gone.
    *faults.append.lock().unwrap() = (libc::ENOSPC, 1);
    assert_eq!((tier.delete(&block), tier.nvme.stats().blocks), (Status::OK, 0));
    let block = tier.put(1, 100_000).unwrap();
    *faults.append.lock().unwrap() = (libc::ENOSPC, u32::MAX);
    assert_eq!((tier.delete(&block), tier.get(&block)), (Status::NO_SPACE, Err(Status::CORRUPT)));
    *faults.append.lock().unwrap() = (0, 0);
    assert_eq!(tier.delete(&block), Status::OK);
    let block = tier.put(1, 100_000).unwrap();
    // K3: with something to give back to the file system, a second try follows.
    let other = tier.put(2, 100_000).unwrap();
    assert_eq!(tier.delete(&other), Status::OK);
    *faults.append.lock().unwrap() = (libc::ENOSPC, 1);
    assert_eq!((tier.delete(&block), tier.nvme.stats().blocks), (Status::OK, 0));
    let block = tier.put(1, 100_000).unwrap();
    assert_eq!(tier.get(&block), Ok(()));
    // Nothing of the refused ones leaked: all of the tier can still be filled.
    let mut stored = 1;
    while tier.put(1 + stored, 1_000_000).is_ok() {
        stored += 1;
    }
    assert!(stored > 30, "{stored}");
    let killed = crate::common::copy_of(place.path());
    let (_, found) = Tier::recovered(killed.path(), CAPACITY, "");
    assert_eq!(found.len() as u64, stored);
}

#[test]
fn a_panic_on_a_thread_fails_its_operations_and_no_other() {
    // D5
    let place = folder();
    let (tier, faults) = open(place.path(), "");
    let block = tier.put(1, 5000).unwrap();
    *faults.append.lock().unwrap_or_else(|e| e.into_inner()) = (0, 1);
    assert_eq!(tier.put(2, 5000), Err(Status::FAILED));
    *faults.append.lock().unwrap_or_else(|e| e.into_inner()) = (0, 1);
    assert_eq!(tier.delete(&block), Status::FAILED);
    assert_eq!(tier.get(&block), Ok(()));
    let other = tier.put(3, 5000).unwrap();
    assert_eq!(tier.told.counted("panics"), 2, "counted on the thread, which has gone on since");
    assert_eq!((tier.delete(&block), tier.get(&other)), (Status::OK, Ok(())));
    let killed = crate::common::copy_of(place.path());
    let (_, found) = Tier::recovered(killed.path(), CAPACITY, "");
    assert_eq!(found.keys().collect::<Vec<_>>(), [&3]);
}

#[test]
fn a_panic_of_the_driver_fails_everything_and_hangs_nothing() {
    let place = folder();
    let (tier, faults) = open(place.path(), "");
    faults.hold.store(true, SeqCst);
    let puts: Vec<Operation> = (0..5).map(|number| tier.operation(code::PUT, number, 5000)).collect();
    assert!(puts.iter().all(|put| tier.submit(*put) == Submitted::ACCEPTED));
    faults.panic.store(true, SeqCst);
    for put in &puts {
        assert_eq!(tier.told.wait(put.id).status, Status::PANICKED);
    }
    assert_eq!(tier.put(9, 5000), Err(Status::FAILED));
    tier.nvme.flush();
    tier.shutdown();
}

#[test]
fn a_completion_that_comes_twice_is_counted_and_changes_nothing() {
    let place = folder();
    let (tier, faults) = open(place.path(), "");
    faults.repeat.store(true, SeqCst);
    let blocks: Vec<Stored> = (0..10).map(|number| tier.put(number, 600_000).unwrap()).collect();
    assert!(blocks.iter().all(|block| tier.get(block) == Ok(())));
    tier.told.await_counted("stray_completions", 60);
    assert_eq!(tier.told.counted("stray_completions"), 60);
}

#[test]
fn what_is_queued_can_be_cancelled_or_time_out_and_more_than_the_slots_is_busy() {
    let place = folder();
    let (tier, faults) = open(place.path(), "depth = 1");
    let block = tier.put(0, 5000).unwrap();
    faults.hold.store(true, SeqCst);
    faults.seen.lock().unwrap().clear();
    let first = tier.operation(code::PUT, 1, 5000);
    assert_eq!(tier.submit(first), Submitted::ACCEPTED);
    // The one piece in flight is held; everything else is queued.
    faults.await_seen(1);
    let late = Operation { deadline_ns: 1, ..tier.operation(code::PUT, 2, 5000) };
    let load = Operation { location: block.location, offset: MIB, ..tier.operation(code::GET, 0, 5000) };
    let queued: Vec<Operation> = (3..64).map(|number| tier.operation(code::PUT, number, 5000)).collect();
    for operation in queued.iter().chain([&late, &load]) {
        assert_eq!(tier.submit(*operation), Submitted::ACCEPTED);
    }
    assert_eq!(tier.submit(tier.operation(code::PUT, 99, 5000)), Submitted::BUSY);
    assert_eq!(tier.told.wait(late.id).status, Status::TIMED_OUT);
    let ids: Vec<u64> = queued[1..].iter().map(|operation| operation.id).chain([u64::MAX]).collect();
    tier.nvme.cancel(&ids);
    assert!(queued[1..].iter().all(|put| tier.told.wait(put.id).status == Status::CANCELLED));
    faults.seen.lock().unwrap().clear();
    tier.memory.write(0, &payload(1, 5000));
    faults.hold.store(false, SeqCst);
    for id in [first.id, load.id, queued[0].id] {
        assert_eq!(tier.told.wait(id).status, Status::OK);
    }
    assert_eq!(*faults.seen.lock().unwrap(), [Direction::Load, Direction::Store], "the load goes before the store");
}

#[test]
fn shutdown_with_work_in_flight_completes_it_all() {
    // P5, P10. Held pieces are let go only while shutdown waits for them.
    let place = folder();
    let (tier, faults) = open(place.path(), "depth = 2");
    faults.hold.store(true, SeqCst);
    let puts: Vec<Operation> = (0..20).map(|number| tier.operation(code::PUT, number, 5000)).collect();
    assert!(puts.iter().all(|put| tier.submit(*put) == Submitted::ACCEPTED));
    let told = tier.told.clone();
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| tier.nvme.shutdown(Duration::from_secs(2)));
        // Past three quarters of the deadline, what is queued is cancelled.
        for put in &puts[2..] {
            assert_eq!(told.wait(put.id).status, Status::CANCELLED);
        }
        faults.hold.store(false, SeqCst);
        ending.join().unwrap();
    });
    assert!(puts[..2].iter().all(|put| told.completions.lock().unwrap().contains_key(&put.id)));
    assert_eq!(tier.submit(puts[0]), Submitted::rejected(Status::CANCELLED));
}

#[test]
fn what_cannot_be_made_durable_is_said() {
    let place = folder();
    let (tier, faults) = open(place.path(), "sync_window = \"1h\"");
    tier.put(1, 5000).unwrap();
    faults.sync.store(libc::EIO, SeqCst);
    assert_eq!((tier.nvme.flush(), tier.told.counted("sync_errors")), (Status::IO, 1));
    faults.sync.store(0, SeqCst);
    assert_eq!(tier.nvme.flush(), Status::OK);
}

#[test]
fn snapshots_that_fail_again_and_again_begin_no_journal_each() {
    let place = folder();
    let (tier, faults) = open(place.path(), "sync_window = \"10ms\"");
    faults.sync.store(libc::EIO, SeqCst);
    let mut number = 0;
    while tier.told.counted("snapshot_errors") < 5 {
        number += 1;
        let block = tier.put(number, 61).unwrap();
        assert_eq!(tier.delete(&block), Status::OK);
    }
    let journals = || {
        let names = std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().starts_with("journal.")).count()
    };
    assert_eq!(journals(), 2);
    faults.sync.store(0, SeqCst);
    let block = tier.put(0, 61).unwrap();
    tier.shutdown();
    let (tier, found) = Tier::recovered(place.path(), CAPACITY, "");
    assert_eq!(found.keys().collect::<Vec<_>>(), [&0]);
    assert_eq!(tier.get(&found[&block.number]), Ok(()));
}
