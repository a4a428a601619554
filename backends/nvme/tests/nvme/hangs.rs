//! Pieces that hang, come back late, twice, in another order, or were never sent.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use umbp_backend_nvme::port::{Direction, Done};
use umbp_plugin_api::types::{Operation, code};
use umbp_plugin_api::{Backend, Status, Submitted};

use crate::common::{MIB, Stored, Tier, config, folder, payload};
use crate::faulty::{Faults, Faulty};

const CAPACITY: u64 = 32 * MIB;
const LENGTH: u64 = 20_000;
/// Long past on CLOCK_MONOTONIC.
const PASSED_NS: u64 = 1;

fn open(path: &Path, more: &str) -> (Tier, Arc<Faults>) {
    let (medium, faults) = Faulty::new();
    let tier = Tier::open_with(&config(path, CAPACITY, more), medium).unwrap();
    tier.introduce();
    tier.recover();
    (tier, faults)
}

/// Submits; its first piece hangs, and the operation's deadline has passed.
fn hung(tier: &Tier, faults: &Faults, operation: Operation) -> Operation {
    faults.seen.lock().unwrap().clear();
    faults.hang.store(1, SeqCst);
    // Long enough for its piece to be sent before anybody looks at it.
    let now = now_ns();
    let operation = Operation { deadline_ns: now + 300_000_000, ..operation };
    assert_eq!(tier.submit(operation), Submitted::ACCEPTED);
    faults.await_seen(1);
    operation
}

fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct is ours.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) }, 0);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn load(tier: &Tier, block: &Stored, offset: u64) -> Operation {
    Operation { location: block.location, offset, ..tier.operation(code::GET, block.number, block.length) }
}

#[test]
fn a_hanging_piece_is_cancelled_at_the_deadline_and_the_operation_times_out() {
    // F9: in both directions; what else there is goes on meanwhile, and afterwards.
    for more in ["", "io = \"threads\"", "direct = \"off\""] {
        let place = folder();
        let (tier, faults) = open(place.path(), more);
        let block = tier.put(1, LENGTH).unwrap();
        for operation in [load(&tier, &block, MIB), tier.operation(code::PUT, 2, LENGTH)] {
            let operation = hung(&tier, &faults, operation);
            let other = tier.put_at(10 + operation.id, LENGTH, 2 * MIB).unwrap();
            assert_eq!(tier.get(&other), Ok(()), "served beside what hangs");
            let done = tier.told.wait(operation.id);
            assert_eq!((done.status, tier.get(&block)), (Status::TIMED_OUT, Ok(())), "{more}");
        }
        assert_eq!(faults.cancelled.lock().unwrap().len(), 2);
        assert_eq!(tier.nvme.stats().blocks, 3, "a put is whole or absent");
    }
}

#[test]
fn a_cancelled_operation_takes_back_its_pieces() {
    let place = folder();
    let (tier, faults) = open(place.path(), "");
    let operation = Operation { deadline_ns: 0, ..tier.operation(code::PUT, 2, LENGTH) };
    faults.hang.store(1, SeqCst);
    faults.seen.lock().unwrap().clear();
    assert_eq!(tier.submit(operation), Submitted::ACCEPTED);
    faults.await_seen(1);
    tier.nvme.cancel(&[operation.id]);
    assert_eq!(tier.told.wait(operation.id).status, Status::CANCELLED);
    let block = tier.put(2, LENGTH).unwrap();
    assert_eq!(tier.get(&block), Ok(()));
}

#[test]
fn a_piece_that_cannot_be_cancelled_keeps_the_hosts_memory_until_it_ends() {
    // F9, P6: the host may have its buffer again only when the kernel has let go of it.
    let place = folder();
    let (tier, faults) = open(place.path(), "");
    let block = tier.put(1, LENGTH).unwrap();
    faults.deaf.store(true, SeqCst);
    for operation in [load(&tier, &block, MIB), tier.operation(code::PUT, 2, LENGTH)] {
        faults.cancelled.lock().unwrap().clear();
        let operation = hung(&tier, &faults, operation);
        faults.await_cancelled(1);
        let other = tier.put_at(10 + operation.id, LENGTH, 2 * MIB).unwrap();
        assert_eq!(tier.get(&other), Ok(()));
        assert!(!tier.told.completions.lock().unwrap().contains_key(&operation.id), "its buffer is still in use");
        faults.thaw.store(true, SeqCst);
        assert_eq!(tier.told.wait(operation.id).status, Status::TIMED_OUT);
    }
    assert_eq!((tier.get(&block), tier.nvme.stats().blocks), (Ok(()), 3));
}

#[test]
fn a_late_completion_after_its_operation_has_ended_harms_nobody() {
    // F9: memory of its own is no reason to wait. The units of a late write stay taken until it has landed.
    let place = folder();
    let (tier, faults) = open(place.path(), "");
    let block = tier.put(1, LENGTH).unwrap();
    faults.deaf.store(true, SeqCst);
    let before = tier.told.counted("bounce");
    let unaligned = MIB + 8;
    let get = hung(&tier, &faults, load(&tier, &block, unaligned));
    assert_eq!(tier.told.counted("bounce"), before + 1, "O_DIRECT cannot take the buffer");
    assert_eq!(tier.told.wait(get.id).status, Status::TIMED_OUT);
    tier.memory.write(unaligned, &payload(77, LENGTH));
    let put = hung(&tier, &faults, Operation { offset: 3 * MIB + 8, ..tier.operation(code::PUT, 2, LENGTH) });
    assert_eq!(tier.told.wait(put.id).status, Status::TIMED_OUT);
    // Host memory is the host's again, and whatever is stored now lies elsewhere.
    tier.memory.write(3 * MIB + 8, &[0xdd; LENGTH as usize]);
    let others: Vec<Stored> = (10..40).map(|number| tier.put(number, LENGTH).unwrap()).collect();
    assert_eq!(tier.told.counted("late_completions"), 0);
    faults.thaw.store(true, SeqCst);
    tier.told.await_counted("late_completions", 2);
    assert!(tier.memory.read(unaligned, LENGTH) == payload(77, LENGTH), "nothing is written late");
    assert!(others.iter().chain([&block]).all(|block| tier.get(block) == Ok(())));
    let free = tier.put(2, LENGTH).unwrap();
    assert_eq!(tier.get(&free), Ok(()));
    assert_eq!(tier.told.counted("stray_completions"), 0, "late, not strange");
    tier.shutdown();
    let (tier, found) = Tier::recovered(place.path(), CAPACITY, "");
    assert_eq!(found.len(), 32);
    assert!(found.values().all(|block| tier.get(block) == Ok(())));
}

#[test]
fn completions_in_any_order_give_right_bytes() {
    for seed in 1..=8 {
        let place = folder();
        let (tier, faults) = open(place.path(), "");
        faults.shuffle.store(seed * 0x9e37_79b9, SeqCst);
        let length = 600_000;
        let puts: Vec<Operation> = (0..12)
            .map(|number| {
                tier.memory.write(number * MIB, &payload(number, length));
                Operation { offset: number * MIB, ..tier.operation(code::PUT, number, length) }
            })
            .collect();
        assert!(puts.iter().all(|put| tier.submit(*put) == Submitted::ACCEPTED));
        let stored = |(number, put): (u64, &Operation)| {
            let done = tier.told.wait(put.id);
            assert_eq!(done.status, Status::OK, "seed {seed}");
            Stored { number, length, location: done.location }
        };
        let blocks: Vec<Stored> = (0..).zip(&puts).map(stored).collect();
        tier.memory.write(0, &vec![0; 12 << 20]);
        let gets: Vec<Operation> = blocks.iter().map(|block| load(&tier, block, block.number * MIB)).collect();
        assert!(gets.iter().all(|get| tier.submit(*get) == Submitted::ACCEPTED));
        for (block, get) in blocks.iter().zip(&gets) {
            assert_eq!(tier.told.wait(get.id).status, Status::OK, "seed {seed}");
            assert!(tier.memory.read(get.offset, length) == payload(block.number, length), "seed {seed}");
        }
        assert_eq!(tier.told.counted("stray_completions"), 0);
    }
}

#[test]
fn stale_doubled_and_made_up_tokens_are_counted_and_believed_by_nobody() {
    // E8: a completion belongs to the one piece whose token it has, or to none.
    let place = folder();
    let (tier, faults) = open(place.path(), "depth = 4");
    // The probe's were not the driver's.
    faults.tokens.lock().unwrap().clear();
    let blocks: Vec<Stored> = (0..20).map(|number| tier.put(number, LENGTH).unwrap()).collect();
    let stale = faults.tokens.lock().unwrap().clone();
    // Slots that there are not, and a generation that is never reached.
    let made_up = [4, 99, u64::MAX - 7, 1 << 63, 5 << 32 | 1000];
    let forged: Vec<u64> = stale.iter().copied().chain(made_up).collect();
    faults.hold.store(true, SeqCst);
    faults.seen.lock().unwrap().clear();
    let gets: Vec<Operation> = blocks[..4].iter().map(|block| load(&tier, block, block.number * MIB)).collect();
    assert!(gets.iter().all(|get| tier.submit(*get) == Submitted::ACCEPTED));
    faults.await_seen(4);
    let full = |&token: &u64| Done { token, result: LENGTH.next_multiple_of(4096) as i32 };
    *faults.forged.lock().unwrap() = forged.iter().map(full).collect();
    tier.told.await_counted("stray_completions", forged.len() as u64);
    let told = tier.told.completions.lock().unwrap();
    assert!(gets.iter().all(|get| !told.contains_key(&get.id)), "no forged completion ends a load");
    drop(told);
    faults.hold.store(false, SeqCst);
    for (block, get) in blocks.iter().zip(&gets) {
        assert_eq!(tier.told.wait(get.id).status, Status::OK);
        assert!(tier.memory.read(get.offset, LENGTH) == payload(block.number, LENGTH));
    }
    assert!(blocks.iter().all(|block| tier.get(block) == Ok(())));
    assert_eq!(tier.told.counted("stray_completions"), forged.len() as u64);
}

#[test]
fn loads_go_before_stores_which_do_not_starve_and_the_depth_is_kept() {
    // F9: the order and the depth at the port, with everything queued before the first piece ends.
    const DEPTH: usize = 4;
    let place = folder();
    let (tier, faults) = open(place.path(), "depth = 4");
    let block = tier.put(0, LENGTH).unwrap();
    faults.hold.store(true, SeqCst);
    faults.seen.lock().unwrap().clear();
    let first: Vec<Operation> = (1..=4).map(|number| tier.operation(code::PUT, number, LENGTH)).collect();
    assert!(first.iter().all(|put| tier.submit(*put) == Submitted::ACCEPTED));
    faults.await_seen(DEPTH);
    let stores: Vec<Operation> = (5..=10).map(|number| tier.operation(code::PUT, number, LENGTH)).collect();
    let loads: Vec<Operation> = (0..40).map(|at| load(&tier, &block, MIB + at * 32_768)).collect();
    let late = Operation { deadline_ns: PASSED_NS, ..tier.operation(code::PUT, 11, LENGTH) };
    for operation in stores.iter().chain(&loads).chain([&late]) {
        assert_eq!(tier.submit(*operation), Submitted::ACCEPTED);
    }
    // It is queued last: once it has ended, the driver has seen them all.
    assert_eq!(tier.told.wait(late.id).status, Status::TIMED_OUT);
    faults.seen.lock().unwrap().clear();
    faults.hold.store(false, SeqCst);
    for operation in first.iter().chain(&loads) {
        tier.told.wait(operation.id);
    }
    assert!(stores.iter().all(|put| put.length == LENGTH && tier.told.wait(put.id).id == put.id));
    let mut expected = Vec::new();
    for loads in [16, 16, 8] {
        expected.extend(vec![Direction::Load; loads]);
        expected.push(Direction::Store);
    }
    expected.extend([Direction::Store; 3]);
    assert_eq!(*faults.seen.lock().unwrap(), expected);
    assert_eq!(faults.out.1.load(SeqCst), DEPTH, "so many pieces are out at most");
}

#[test]
fn a_doubled_completion_of_a_part_never_passes_for_the_rest() {
    // E8: the rest of a short piece has a token of its own, in both directions and by every way.
    for more in ["", "io = \"threads\"", "direct = \"off\""] {
        let place = folder();
        let (tier, faults) = open(place.path(), more);
        faults.repeat.store(true, SeqCst);
        // Half of the block, so that the first part's result would end the second.
        faults.shorten.store(8192, SeqCst);
        for number in 0..10 {
            let block = tier.put(number, 16_384).unwrap();
            assert_eq!(tier.get(&block), Ok(()), "{more}");
        }
        assert_eq!(tier.told.counted("short_transfers"), 20, "{more}");
        // The last one's double comes after its block.
        tier.told.await_counted("stray_completions", 40);
        assert_eq!(tier.told.counted("stray_completions"), 40, "{more}");
    }
}
