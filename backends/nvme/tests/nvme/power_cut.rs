//! Power cuts at random points of random histories.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use umbp_plugin_api::types::{Operation, code};
use umbp_plugin_api::{Backend, Status};

use crate::common::{MIB, Stored, Tier, config, quick_folder};
use crate::faulty::dice;
use crate::power::Power;

/// Small, so that units are reused and snapshots written within a history.
const CAPACITY: u64 = 2 * MIB;
const SEEDS: u64 = 200;
/// Lives of one history; each but the last ends with a power cut.
const LIVES: u64 = 3;
const STEPS: u64 = 120;

/// What one history knows.
#[derive(Default)]
struct Model {
    next: u64,
    /// Completed and not deleted.
    living: BTreeMap<u64, Stored>,
    /// Completed before the last flush, and not deleted since: must be there.
    kept: BTreeSet<u64>,
    /// Deleted before the last flush: must be away.
    away: BTreeSet<u64>,
    /// Deleted since.
    deleted: BTreeSet<u64>,
}

impl Model {
    fn flushed(&mut self) {
        self.kept = self.living.keys().copied().collect();
        self.away.append(&mut self.deleted);
    }

    fn pick(&self, state: &mut u64) -> Option<Stored> {
        let at = dice(state) as usize % self.living.len().max(1);
        self.living.values().nth(at).cloned()
    }

    fn delete(&mut self, tier: &Tier, block: &Stored) {
        assert_eq!(tier.delete(block), Status::OK);
        self.living.remove(&block.number);
        self.kept.remove(&block.number);
        self.deleted.insert(block.number);
    }

    fn put(&mut self, tier: &Tier, state: &mut u64) {
        let (number, length) = (self.next, 1 + dice(state) % [5000, 40_000][dice(state) as usize % 2]);
        self.next += 1;
        loop {
            match tier.put(number, length) {
                Ok(block) => {
                    self.living.insert(number, block);
                    return;
                }
                Err(status) => assert_eq!(status, Status::NO_SPACE),
            }
            let victim = self.pick(state).expect("room, once it is empty");
            self.delete(tier, &victim);
        }
    }

    fn step(&mut self, tier: &Tier, state: &mut u64) {
        match dice(state) % 16 {
            0 => {
                assert_eq!(tier.nvme.flush(), Status::OK);
                self.flushed();
            }
            1..=4 => {
                if let Some(block) = self.pick(state) {
                    self.delete(tier, &block);
                }
            }
            5..=6 => {
                if let Some(block) = self.pick(state) {
                    assert_eq!(tier.get(&block), Ok(()));
                }
            }
            // So much is free then that some of it is punched.
            7 if dice(state).is_multiple_of(4) => {
                for _ in 0..self.living.len() * 2 / 3 {
                    let block = self.pick(state).expect("some are left");
                    self.delete(tier, &block);
                }
            }
            _ => self.put(tier, state),
        }
    }

    /// Reads back what a cut has left, and goes on with it.
    fn reopened(&mut self, tier: &Tier, what: &str) {
        let found = tier.recover();
        for number in &self.kept {
            assert!(found.contains_key(number), "{what}: block {number} was flushed and is gone");
        }
        self.living.clear();
        for (number, block) in found {
            assert!(!self.away.contains(&number), "{what}: the deletion of block {number} was flushed");
            // `get` compares the bytes of what succeeds.
            match tier.get(&block) {
                Ok(()) => drop(self.living.insert(number, block)),
                Err(status) => {
                    assert_eq!(status, Status::CORRUPT, "{what}: block {number}");
                    assert!(!self.kept.contains(&number), "{what}: block {number} was flushed and is damaged");
                    assert_eq!(tier.delete(&block), Status::OK);
                    self.deleted.insert(number);
                }
            }
        }
        // What the disk has is durable, and so is what it lacks; only what was deleted just now may come back.
        self.kept = self.living.keys().copied().collect();
        let gone = |number: &u64| !self.kept.contains(number) && !self.deleted.contains(number);
        self.away = (0..self.next).filter(gone).collect();
        self.deleted.retain(|number| !self.kept.contains(number));
    }
}

fn open(path: &Path, seed: u64) -> (Tier, Power) {
    let power = Power::default();
    let io = ["io = \"threads\"\ndirect = \"off\"", "direct = \"off\"", "io = \"threads\"", ""][seed as usize % 4];
    let more = format!("{io}\nsync_window = \"1h\"\ndepth = 4");
    let tier = Tier::open_with(&config(path, CAPACITY, &more), Arc::new(power.clone())).unwrap();
    tier.introduce();
    (tier, power)
}

/// Some stores and deletions that nobody waits for, so that the cut finds them under way.
fn leave_under_way(model: &mut Model, tier: &Tier, state: &mut u64) {
    for at in 0..dice(state) % 6 {
        if let Some(block) = model.pick(state).filter(|_| dice(state).is_multiple_of(3)) {
            let delete = tier.operation(code::DELETE, block.number, block.length);
            tier.submit(Operation { location: block.location, ..delete });
            model.living.remove(&block.number);
            model.kept.remove(&block.number);
            model.deleted.insert(block.number);
        }
        let (number, length, offset) = (model.next, 1 + dice(state) % 40_000, MIB + at * 65_536);
        model.next += 1;
        tier.memory.write(offset, &crate::common::payload(number, length));
        tier.submit(Operation { offset, ..tier.operation(code::PUT, number, length) });
    }
}

/// Runs one history; answers how many snapshots were written, and how many units were punched.
fn history(seed: u64) -> [u64; 2] {
    let (mut state, mut model, mut place) =
        (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, Model::default(), quick_folder());
    let mut counted = [0; 2];
    for life in 0..LIVES {
        let (tier, power) = open(place.path(), seed);
        model.reopened(&tier, &format!("seed {seed}, life {life}"));
        for _ in 0..STEPS / 2 + dice(&mut state) % STEPS {
            model.step(&tier, &mut state);
        }
        if life + 1 < LIVES {
            leave_under_way(&mut model, &tier, &mut state);
            let cut = power.cut(place.path(), &mut state);
            for (sum, name) in counted.iter_mut().zip(["snapshots", "punched_units"]) {
                *sum += tier.told.counted(name);
            }
            drop(tier);
            place = cut;
        }
    }
    counted
}

#[test]
fn a_power_cut_loses_what_was_not_flushed_at_most_and_nothing_wrong_is_ever_read() {
    // E7, E6, E8, K5, and punches among what is lost: NVME_TEST_SEED repeats one history, NVME_TEST_SEEDS runs more.
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("NVME_TEST_SEED") {
        history(seed);
        return;
    }
    let seeds = number("NVME_TEST_SEEDS").unwrap_or(SEEDS);
    let next = std::sync::atomic::AtomicU64::new(0);
    let work = || {
        let mut counted = [0; 2];
        loop {
            let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if seed >= seeds {
                return counted;
            }
            let run = std::panic::AssertUnwindSafe(|| history(seed));
            let [snapshots, punched] =
                std::panic::catch_unwind(run).unwrap_or_else(|_| panic!("NVME_TEST_SEED={seed} repeats it"));
            counted = [counted[0] + snapshots, counted[1] + punched];
        }
    };
    let counted: Vec<[u64; 2]> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let [snapshots, punched] = [0, 1].map(|what| counted.iter().map(|some| some[what]).sum::<u64>());
    println!("{seeds} histories, {snapshots} snapshots, {punched} units punched");
    assert!(snapshots > 0 && punched > 10 * seeds, "the histories are long enough for snapshots and punches");
}
