//! Stores that wait for room which is under way: a hole that is punched, or the rest of recovery.

use std::fs::File;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use umbp_backend_nvme::port::{Disk, Medium};
use umbp_plugin_api::backend::Recovery;
use umbp_plugin_api::types::{Operation, code};
use umbp_plugin_api::{Backend, Status, Submitted};

use crate::common::{MIB, NAMESPACE, Stored, Tier, config, copy_of, disk_bytes, folder, payload};

const KIB: u64 = 1 << 10;
const CAPACITY: u64 = 8 * MIB;
/// Longer than any hole between blocks of 64 KiB.
const LONG: u64 = 68 * KIB;
const DEADLINE: Duration = Duration::from_secs(30);
/// Beyond every deadline here: who waits so long waits until something else happens.
const FOR_EVER: Duration = Duration::from_secs(3600);
/// For those who are to wait in vain.
const SOON: Duration = Duration::from_millis(50);

#[derive(Default)]
struct GateState {
    held: bool,
    came: u64,
    errno: i32,
    /// So many appends find the file system full.
    no_space: u32,
}

/// Punches wait while it is held. Stores wait for room as long as it says.
#[derive(Clone)]
struct Gate(Arc<(Mutex<GateState>, Condvar)>, Duration);

impl Gate {
    fn new(room_wait: Duration) -> Self {
        Self(Arc::default(), room_wait)
    }

    fn set(&self, change: impl FnOnce(&mut GateState)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }

    fn await_punch(&self) {
        let state = self.0.0.lock().unwrap();
        let (state, _) = self.0.1.wait_timeout_while(state, DEADLINE, |state| state.came == 0).unwrap();
        assert!(state.came > 0, "nothing is punched");
    }
}

impl Medium for Gate {
    fn punch(&self, file: &File, offset: u64, length: u64) -> io::Result<()> {
        self.set(|state| state.came += 1);
        let state = self.0.0.lock().unwrap();
        let (state, _) = self.0.1.wait_timeout_while(state, DEADLINE, |state| state.held).unwrap();
        match state.errno {
            0 => Disk.punch(file, offset, length),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    fn append(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.0.0.lock().unwrap();
        if state.no_space > 0 {
            state.no_space -= 1;
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        Disk.append(file, bytes, offset)
    }

    fn room_wait(&self) -> Duration {
        self.1
    }
}

/// A full tier with holes of 64 KiB in it, whose next punch is held up.
fn full(place: &std::path::Path, holes: u64) -> (Tier, Gate, Vec<Stored>) {
    full_with(place, holes, FOR_EVER)
}

fn full_with(place: &std::path::Path, holes: u64, room_wait: Duration) -> (Tier, Gate, Vec<Stored>) {
    let gate = Gate::new(room_wait);
    let tier = Tier::open_with(&config(place, CAPACITY, ""), Arc::new(gate.clone())).unwrap();
    tier.introduce();
    tier.recover();
    let mut kept: Vec<Stored> = (0..).map_while(|number| tier.put(number, 64 * KIB).ok()).collect();
    gate.set(|state| state.held = true);
    let gone: Vec<Stored> = (0..holes).map(|at| kept.remove(at as usize)).collect();
    gone.iter().for_each(|block| assert_eq!(tier.delete(block), Status::OK));
    tier.told.counts.lock().unwrap().remove("no_space");
    (tier, gate, kept)
}

/// Submits a store with memory of its own; answers its id.
fn store(tier: &Tier, number: u64, length: u64, deadline_ns: u64) -> u64 {
    let offset = (number % 64) * 128 * KIB;
    tier.memory.write(offset, &payload(number, length));
    let operation = Operation { offset, deadline_ns, ..tier.operation(code::PUT, number, length) };
    assert_eq!(tier.submit(operation), Submitted::ACCEPTED);
    operation.id
}

fn is_open(tier: &Tier, id: u64) -> bool {
    !tier.told.completions.lock().unwrap().contains_key(&id)
}

#[test]
fn k3_a_store_that_meets_a_punch_waits_for_it_and_is_served_in_its_turn() {
    // K3, C8: what a punch makes room for is not refused meanwhile.
    let place = folder();
    let (tier, gate, kept) = full(place.path(), 4);
    let ids: Vec<u64> = [(1000, LONG), (1001, LONG), (1002, 4 * KIB)].map(|(n, l)| store(&tier, n, l, 0)).into();
    gate.await_punch();
    tier.told.await_counted("awaited_room", 3);
    assert!(ids.iter().all(|id| is_open(&tier, *id)), "a short one overtakes nobody");
    assert!(kept.iter().all(|block| tier.get(block) == Ok(())), "loads go on");
    gate.set(|state| state.held = false);
    for id in ids {
        assert_eq!(tier.told.wait(id).status, Status::OK);
    }
    assert_eq!(tier.told.counted("no_space"), 0);
    assert!(disk_bytes(place.path()) <= CAPACITY);
    let (again, found) = Tier::recovered(copy_of(place.path()).path(), CAPACITY, "");
    assert_eq!(found.len(), kept.len() + 3);
    assert!(found.values().all(|block| again.get(block) == Ok(())));
}

#[test]
fn what_no_punch_makes_room_for_is_refused_at_once() {
    let place = folder();
    let (tier, gate, _) = full(place.path(), 2);
    let waits = store(&tier, 1000, LONG, 0);
    gate.await_punch();
    assert_eq!(tier.put(1001, 512 * KIB), Err(Status::NO_SPACE), "more than is free");
    assert!(is_open(&tier, waits));
    gate.set(|state| state.held = false);
    assert_eq!(tier.told.wait(waits).status, Status::OK);
}

#[test]
fn a_store_that_waits_ends_at_its_deadline_when_it_is_cancelled_and_at_shutdown() {
    // F9, P10: a punch that hangs holds up no operation beyond its time.
    let place = folder();
    let (tier, gate, _) = full(place.path(), 4);
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let soon = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64 + 100_000_000;
    let (late, cancelled, last) =
        (store(&tier, 1000, LONG, soon), store(&tier, 1001, LONG, 0), store(&tier, 1002, LONG, 0));
    gate.await_punch();
    assert_eq!(tier.told.wait(late).status, Status::TIMED_OUT);
    tier.nvme.cancel(&[cancelled]);
    assert_eq!(tier.told.wait(cancelled).status, Status::CANCELLED);
    assert!(is_open(&tier, last));
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| tier.nvme.shutdown(Duration::from_secs(1)));
        assert_eq!(tier.told.wait(last).status, Status::CANCELLED);
        gate.set(|state| state.held = false);
        ending.join().unwrap();
    });
}

/// K3: nobody waits for ever for room that does not come.
#[test]
fn a_punch_that_fails_or_never_ends_refuses_who_waits_for_it() {
    // Who waits for ever is refused by the failure alone, and where nothing fails, by the end of the wait alone.
    for (errno, room_wait) in [(libc::EIO, FOR_EVER), (0, SOON)] {
        let place = folder();
        let (tier, gate, kept) = full_with(place.path(), 4, room_wait);
        let waits = store(&tier, 1000, LONG, 0);
        gate.await_punch();
        if errno != 0 {
            gate.set(|state| (state.errno, state.held) = (errno, false));
        }
        assert_eq!(tier.told.wait(waits).status, Status::NO_SPACE);
        assert_eq!(tier.told.counted("punch_errors") > 0, errno != 0);
        gate.set(|state| *state = GateState::default());
        assert!(kept.iter().all(|block| tier.get(block) == Ok(())));
        // Room that is there by now is given, however short the wait: until then stores are refused.
        let mut number = 1000;
        let served = || {
            number += 1;
            tier.told.wait(store(&tier, number, LONG, 0)).status
        };
        assert!(std::iter::repeat_with(served).take(10_000).any(|status| status == Status::OK));
    }
}

#[test]
fn k3_while_room_is_made_for_records_the_figures_are_told_and_loads_go_on() {
    // K3: on a full file system the way out takes its time, and nobody waits for it at the journal.
    let place = folder();
    let (tier, gate, mut kept) = full(place.path(), 4);
    gate.set(|state| state.no_space = 1);
    let gone = kept.pop().unwrap();
    let delete = Operation { location: gone.location, ..tier.operation(code::DELETE, gone.number, gone.length) };
    assert_eq!(tier.submit(delete), Submitted::ACCEPTED);
    gate.await_punch();
    std::thread::scope(|scope| {
        let (told, figures) = std::sync::mpsc::channel();
        let nvme = &tier.nvme;
        scope.spawn(move || told.send(nvme.stats()));
        let figures = figures.recv_timeout(DEADLINE / 2);
        assert!(is_open(&tier, delete.id), "the punch is held");
        let loaded = kept.iter().all(|block| tier.get(block) == Ok(()));
        gate.set(|state| state.held = false);
        assert!(loaded && figures.is_ok_and(|stats| stats.medium_bytes <= CAPACITY));
    });
    assert_eq!(tier.told.wait(delete.id).status, Status::OK);
    let (_, found) = Tier::recovered(copy_of(place.path()).path(), CAPACITY, "");
    assert_eq!(found.len(), kept.len());
}

#[test]
fn e4_during_recovery_a_store_waits_for_strangers_that_are_still_to_be_read() {
    // E4: nobody's blocks make room before the host has to give up one of its own.
    const OTHER: u32 = 9;
    let place = folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "");
    assert_eq!(tier.nvme.namespace_put(OTHER, &[9; 32], b"other"), Status::OK);
    for number in 0..60 {
        let operation = tier.operation(code::PUT, number, 64 * KIB);
        assert_eq!(tier.run(Operation { namespace_id: OTHER, ..operation }).status, Status::OK);
    }
    let own: Vec<Stored> = (100..).map_while(|number| tier.put(number, 64 * KIB).ok()).collect();
    tier.shutdown();
    let patient = Arc::new(Gate::new(FOR_EVER));
    let tier = Tier::open_with(&config(place.path(), CAPACITY, ""), patient).unwrap();
    tier.introduce();
    // The newest are read first, and they are the tier's own.
    let mut page = Vec::new();
    assert_eq!(tier.nvme.recover(0, 7, &mut page).unwrap(), Recovery::More(1));
    let waits: Vec<u64> = (0..20).map(|number| store(&tier, 1000 + number, 64 * KIB, 0)).collect();
    tier.told.await_counted("awaited_room", 1);
    let (mut cursor, mut blocks) = (1, page);
    while let Recovery::More(next) = tier.nvme.recover(cursor, 7, &mut blocks).unwrap() {
        cursor = next;
    }
    assert!(waits.iter().all(|id| tier.told.wait(*id).status == Status::OK));
    assert!(blocks.len() == own.len() && blocks.iter().all(|block| block.namespace_id == NAMESPACE));
    assert_eq!(tier.told.counted("no_space"), 0);
    assert!(disk_bytes(place.path()) <= CAPACITY);
}
