//! The daemon under load, killed at random points and opened again on the same folder (E4, E6, G2, K1, K2).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use umbp_client::Outcome;
use umbp_protocol::message::Found;

use crate::common::daemon::{Daemon, Place};
use crate::common::{DEADLINE, until};
use crate::rig::{Engine, disk_use, is_loaded, is_quiet, is_settled, key, recovered, summary, with_nvme};

/// Lives of the daemon that end by SIGKILL.
const ROUNDS: u64 = 100;
const CAPACITY_BYTES: u64 = 64 << 20;
/// Blocks of a chain, which is what one store stores.
const CHAIN_BLOCKS: u64 = 16;
/// Block sizes of the two engines; the second is a multiple of no unit. They take the same room, so that nothing has
/// to leave before the tier is full.
const BLOCK_BYTES: [u64; 2] = [64 << 10, 62_013];
/// Calls of both engines in one life, at most.
const CALLS_MAX: u64 = 24;
/// First number of the second engine's blocks.
const SECOND: u64 = 1 << 32;

/// Numbers that a seed decides (splitmix64).
struct Dice(u64);

impl Dice {
    /// Below `bound`.
    fn roll(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % bound
    }
}

/// The seed, told so that a run can be had again: `UMBP_TEST_SEED`.
fn seed() -> u64 {
    let fresh = || std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64;
    let seed = std::env::var("UMBP_TEST_SEED").map_or_else(|_| fresh(), |text| text.parse().expect("a number"));
    eprintln!("UMBP_TEST_SEED={seed}");
    seed
}

/// One engine, and what is known of its blocks.
struct Side {
    engine: Engine,
    first: u64,
    next: u64,
    /// Nowhere at a moment when nothing was under way, and not stored since: may never hit again.
    gone: BTreeSet<u64>,
    clears: u64,
    dice: Dice,
}

impl Side {
    fn new(socket: &Path, at: usize, seed: u64) -> Self {
        let mut engine = Engine::with(socket, CHAIN_BLOCKS, BLOCK_BYTES[at], |_| {});
        engine.chain_blocks = CHAIN_BLOCKS;
        let first = at as u64 * SECOND;
        Self { engine, first, next: first, gone: BTreeSet::new(), clears: 0, dice: Dice(seed) }
    }

    /// All blocks that hit, with the tier; what is gone does not.
    fn hits(&mut self, round: u64) -> Vec<(u64, u8)> {
        let numbers: Vec<u64> = (self.first..self.next).collect();
        let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
        let mut hits = Vec::new();
        for (number, found) in numbers.iter().zip(self.engine.client.lookup(&keys, 0)) {
            match found {
                Found::Hit { tier, .. } => {
                    assert!(!self.gone.contains(number), "round {round}: block {number} had left and is back");
                    hits.push((*number, tier));
                }
                Found::Miss(_) => drop(self.gone.insert(*number)),
            }
        }
        hits
    }

    /// One call: mostly a store of a new chain, or a load of what was stored lately. `begun` is called in its middle.
    fn call(&mut self, begun: impl FnOnce()) {
        match self.dice.roll(32) {
            0 => {
                self.clears += 1;
                begun();
                // The daemon may be dead by now.
                let _ = self.engine.client.clear();
            }
            1..20 => {
                let numbers: Vec<u64> = (self.next..self.next + CHAIN_BLOCKS).collect();
                self.next += CHAIN_BLOCKS;
                let job = self.engine.begin_store(&numbers);
                begun();
                self.engine.client.wait(job, DEADLINE).expect("it ends");
            }
            _ => {
                let lately = (self.next - self.first).min(40 * CHAIN_BLOCKS);
                let any: BTreeSet<u64> = (0..lately.min(CHAIN_BLOCKS)).map(|_| self.dice.roll(lately)).collect();
                let numbers: Vec<u64> = any.into_iter().map(|back| self.next - 1 - back).collect();
                let job = self.engine.begin_load(&numbers);
                begun();
                let outcomes = self.engine.end_load(job, &numbers);
                let returned = numbers.iter().zip(&outcomes).find(|(n, o)| is_loaded(**o) && self.gone.contains(n));
                assert_eq!(returned, None, "it had left and is back");
            }
        }
    }
}

/// What must be there after the kill.
enum Promise {
    /// Killed in the middle of things: these at least.
    AtLeast(BTreeSet<u64>),
    /// Killed when all was settled: just so many, and of these.
    Exactly(u64, BTreeSet<u64>),
}

struct Rig {
    folder: PathBuf,
    place: Place,
    dice: Dice,
    sides: [Side; 2],
}

impl Rig {
    fn check_disk(folder: &Path, when: &str) {
        let bytes = disk_use(folder);
        assert!(bytes <= CAPACITY_BYTES, "{when}: {bytes} bytes of disk for a capacity of {CAPACITY_BYTES}");
    }

    /// Both engines work until a random one of their calls, in whose middle the daemon is killed, or until they have
    /// made as many.
    fn work(&mut self, daemon: &Daemon, kill: bool) {
        let last = 1 + self.dice.roll(CALLS_MAX);
        let (calls, over, folder) = (AtomicU64::new(0), AtomicBool::new(false), &self.folder);
        let pid = Pid::from_raw(daemon.pid() as i32).expect("its pid");
        std::thread::scope(|scope| {
            for side in &mut self.sides {
                let (calls, over) = (&calls, &over);
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        side.call(|| {
                            Self::check_disk(folder, "under load");
                            if calls.fetch_add(1, Ordering::Relaxed) + 1 == last {
                                over.store(true, Ordering::Relaxed);
                                if kill {
                                    kill_process(pid, Signal::KILL).expect("killed");
                                }
                            }
                        });
                    }
                });
            }
        });
    }

    /// What is on NVMe for certain, all being settled; the blocks of which that is not known are left out.
    fn settled(&mut self, daemon: &Daemon, round: u64) -> (Value, u64, BTreeSet<u64>) {
        let status = daemon.until("all copies below", |status| is_settled(status) && is_quiet(status));
        let hits: Vec<(u64, u8)> = self.sides.iter_mut().flat_map(|side| side.hits(round)).collect();
        let resident = status["tiers"][1]["resident_blocks"].as_u64().expect("a count");
        let all = resident == hits.len() as u64;
        let below = hits.iter().filter(|(_, tier)| all || *tier == 1).map(|(number, _)| *number).collect();
        (status, resident, below)
    }

    /// One life, from when it serves to its end by SIGKILL.
    fn live(&mut self, daemon: Daemon, round: u64) -> Promise {
        let promise = match self.dice.roll(4) {
            0 => {
                self.work(&daemon, false);
                let (_, resident, below) = self.settled(&daemon, round);
                daemon.signal(Signal::KILL);
                Promise::Exactly(resident, below)
            }
            1 => {
                // Nothing has to make room: what was there is there.
                let (status, _, below) = self.settled(&daemon, round);
                let room = CAPACITY_BYTES - status["tiers"][1]["used_bytes"].as_u64().expect("bytes");
                let before: Vec<u64> = self.sides.iter().map(|side| side.next).collect();
                let clears: Vec<u64> = self.sides.iter().map(|side| side.clears).collect();
                self.work(&daemon, true);
                let cleared = self.sides.iter().zip(clears).any(|(side, before)| side.clears > before);
                let stored = |(at, side): (usize, &Side)| (side.next - before[at]) * BLOCK_BYTES[0];
                let stored: u64 = self.sides.iter().enumerate().map(stored).sum();
                Promise::AtLeast(if !cleared && stored < room / 2 { below } else { BTreeSet::new() })
            }
            _ => {
                self.work(&daemon, true);
                Promise::AtLeast(BTreeSet::new())
            }
        };
        let ended = daemon.wait();
        assert!(!ended.text.contains("panic"), "round {round}: {ended:?}");
        promise
    }

    /// The next life: all that was promised is there, and everything that is there is right.
    fn reopen(&mut self, round: u64, promise: &Promise) -> Daemon {
        Self::check_disk(&self.folder, "left behind");
        let mut daemon = self.place.serve();
        if self.dice.roll(8) == 0 {
            // Killed again while it recovers.
            daemon.signal(Signal::KILL);
            daemon.wait();
            daemon = self.place.serve();
        }
        for side in &self.sides {
            // It notices the old daemon's end by itself.
            until("it is attached to this life", || {
                side.engine.client.wait_attached(DEADLINE);
                let boot_id = side.engine.client.welcome()?.boot_id;
                (daemon.status()["boot_id"] == format!("{boot_id:016x}")).then_some(())
            });
        }
        daemon.until("recovery", |status| recovered(status) && is_settled(status));
        let mut there = BTreeSet::new();
        for side in &mut self.sides {
            let hits: Vec<u64> = side.hits(round).into_iter().map(|(number, _)| number).collect();
            let outcomes = side.engine.load(&hits);
            let right = |outcome: &Outcome| matches!(outcome, Outcome::Loaded { tier: 1, .. });
            assert!(outcomes.iter().all(right), "round {round}: {:?}", summary(&outcomes));
            there.extend(hits);
        }
        match promise {
            Promise::Exactly(count, known) => {
                assert_eq!(there.len() as u64, *count, "round {round}: blocks that were on NVMe");
                assert!(
                    known.is_subset(&there),
                    "round {round}: {:?} are lost",
                    known.difference(&there).collect::<Vec<_>>()
                );
            }
            Promise::AtLeast(known) => {
                assert!(
                    known.is_subset(&there),
                    "round {round}: {:?} are lost",
                    known.difference(&there).collect::<Vec<_>>()
                );
            }
        }
        Self::check_disk(&self.folder, "opened again");
        daemon
    }
}

/// E4, E6, G2, K1, K2: 100 lives under the load of two engines, each ended by SIGKILL in the middle of a random call, some
/// again during recovery. Nothing completed is lost, nothing read is wrong, what had left stays away, and the disk
/// holds no more than the capacity at any sample, with nothing of earlier lives beside it.
#[test]
fn e4_e6_k2_a_hundred_kills_at_random_points_lose_nothing_completed_and_leave_nothing_behind() {
    let seed = seed();
    let place = with_nvme("16MiB", "64MiB", "");
    let mut daemon = place.serve();
    let mut dice = Dice(seed);
    let [first, second] = [0, 1].map(|at| Side::new(&daemon.socket, at, dice.roll(u64::MAX)));
    let mut rig = Rig { folder: place.path().join("nvme"), place, dice, sides: [first, second] };
    let stranger = rig.folder.join("notes.of.somebody");
    fs::write(&stranger, "not ours").expect("written");
    let (mut checked, mut exact) = (0, 0);
    for round in 0..ROUNDS {
        let promise = rig.live(daemon, round);
        match &promise {
            Promise::Exactly(..) => exact += 1,
            Promise::AtLeast(known) => checked += known.len(),
        }
        daemon = rig.reopen(round, &promise);
    }
    assert!(exact > 5 && checked > 100, "the claims were put to the test: {exact} {checked}");
    let gone: usize = rig.sides.iter().map(|side| side.gone.len()).sum();
    assert!(gone > 100, "blocks had left: {gone}");
    assert_eq!(fs::read_to_string(&stranger).expect("still there"), "not ours");
    assert!(daemon.stop().status.success());
}
