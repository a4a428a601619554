//! Room on disk: given back when other sizes, or other namespaces, need it.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

use umbp_backend_nvme::port::{Disk, Medium};
use umbp_plugin_api::{Backend, Status};

use crate::common::{MIB, Stored, Tier, config, copy_of, disk_bytes, folder};

const KIB: u64 = 1 << 10;

/// Punches fail with this errno, unless it is 0; those that succeed are counted.
#[derive(Default)]
struct Punches {
    errno: AtomicI32,
    done: AtomicU64,
}

struct Punching(Arc<Punches>);

impl Medium for Punching {
    fn punch(&self, file: &File, offset: u64, length: u64) -> io::Result<()> {
        match self.0.errno.load(SeqCst) {
            0 => {
                self.0.done.fetch_add(1, SeqCst);
                Disk.punch(file, offset, length)
            }
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// A tier with the blocks that live in it, oldest first.
struct Churn<'a> {
    tier: Tier,
    place: &'a Path,
    capacity: u64,
    kept: VecDeque<Stored>,
    number: u64,
    refused: u64,
}

impl<'a> Churn<'a> {
    fn new(place: &'a Path, capacity: u64) -> Self {
        Self::on(place, capacity, Arc::new(Disk))
    }

    fn on(place: &'a Path, capacity: u64, medium: Arc<dyn Medium>) -> Self {
        let tier = Tier::open_with(&config(place, capacity, "sync_window = \"10ms\""), medium).unwrap();
        tier.introduce();
        assert_eq!(tier.recover().len(), 0);
        Self { tier, place, capacity, kept: VecDeque::new(), number: 0, refused: 0 }
    }

    /// Stores one block; false where there is no room.
    fn store(&mut self, length: u64) -> bool {
        self.number += 1;
        let stored = self.tier.put(self.number, length);
        if self.number.is_multiple_of(64) {
            self.sample();
        }
        match stored {
            Ok(block) => self.kept.push_back(block),
            Err(Status::NO_SPACE) => self.refused += 1,
            Err(status) => panic!("{status:?}"),
        }
        stored_of(&self.kept, self.number)
    }

    /// Room may be given back while du looks, so what the tier tells before and after bounds what it may find.
    fn sample(&self) {
        let told = || self.tier.nvme.stats().medium_bytes;
        let (before, disk, after) = (told(), disk_bytes(self.place), told());
        assert!(disk <= self.capacity, "{disk} bytes on disk at block {}", self.number);
        // A snapshot takes the place of its journals between two looks.
        let snapshot = self.kept.len() as u64 * 152 + 4096;
        let (least, most) = (before.min(after), before.max(after));
        let told = least - (least / 100 + snapshot)..=most + most / 100 + snapshot;
        assert!(told.contains(&disk), "du {disk}, told {before}, then {after}");
    }

    fn evict(&mut self) -> bool {
        let Some(victim) = self.kept.pop_front() else { return false };
        assert_eq!(self.tier.delete(&victim), Status::OK);
        true
    }

    /// Stores blocks until none fits.
    fn fill(&mut self, length: u64) {
        while self.store(length) {}
    }

    /// Stores blocks, each in the place of the oldest where there is no room, until all are of this length and none
    /// fits any more; answers how many.
    fn turn_over(&mut self, length: u64) -> u64 {
        while self.kept.front().is_some_and(|block| block.length != length) || self.store(length) {
            if self.kept.front().is_some_and(|block| block.length != length) && !self.store(length) {
                self.evict();
            }
        }
        self.kept.len() as u64
    }
}

fn stored_of(kept: &VecDeque<Stored>, number: u64) -> bool {
    kept.back().is_some_and(|block| block.number == number)
}

fn fresh_count(capacity: u64, length: u64) -> u64 {
    let place = folder();
    let mut churn = Churn::new(place.path(), capacity);
    churn.fill(length);
    churn.kept.len() as u64
}

#[test]
fn k1_after_long_blocks_as_many_short_ones_fit_as_in_a_new_tier_and_back_again() {
    // K1, G2: the room of long blocks becomes the room of short ones and of their records.
    let capacity = 16 * MIB;
    let (short, long) = (fresh_count(capacity, 4 * KIB), fresh_count(capacity, 64 * KIB));
    let place = folder();
    let mut churn = Churn::new(place.path(), capacity);
    churn.fill(64 * KIB);
    let found = churn.turn_over(4 * KIB);
    println!("{found} blocks of 4 KiB after those of 64 KiB, {short} in a new tier");
    assert!(found * 10 >= short * 9, "{found} short blocks, {short} in a new tier");
    let found = churn.turn_over(64 * KIB);
    println!("{found} blocks of 64 KiB after those of 4 KiB, {long} in a new tier");
    assert!(found * 10 >= long * 9, "{found} long blocks, {long} in a new tier");
    assert!(churn.kept.iter().all(|block| churn.tier.get(block) == Ok(())));
    churn.sample();
}

#[test]
fn a_churn_of_one_size_punches_nothing() {
    let place = folder();
    let punches = Arc::new(Punches::default());
    let mut churn = Churn::on(place.path(), 8 * MIB, Arc::new(Punching(punches.clone())));
    for _ in 0..300 {
        if !churn.store(64 * KIB) {
            churn.evict();
            assert!(churn.store(64 * KIB), "in the place of the one that went");
        }
    }
    assert_eq!(punches.done.load(SeqCst), 0);
}

#[test]
fn without_punching_the_tier_serves_and_says_so_once() {
    for (errno, counter) in [(libc::EOPNOTSUPP, "fallback.no_punch"), (libc::EIO, "punch_errors")] {
        let place = folder();
        let punches = Arc::new(Punches::default());
        punches.errno.store(errno, SeqCst);
        let mut churn = Churn::on(place.path(), 8 * MIB, Arc::new(Punching(punches.clone())));
        churn.fill(64 * KIB);
        let first = churn.turn_over(4 * KIB);
        assert!(first > 50, "{first}");
        let counted = churn.tier.told.counted(counter);
        assert!(counted == 1 || errno == libc::EIO && counted > 1, "{counter}: {counted}");
        assert!(churn.kept.iter().all(|block| churn.tier.get(block) == Ok(())));
        // What failed once is tried again, where there is hope.
        punches.errno.store(0, SeqCst);
        churn.turn_over(64 * KIB);
        let second = churn.turn_over(4 * KIB);
        assert_eq!(second > first * 2, errno == libc::EIO, "{first}, then {second}");
    }
}

#[test]
fn k2_mixed_sizes_over_ten_times_the_capacity_stay_within_it_and_the_evicted_stay_away() {
    // K1, K2, K4, G2, E3: sizes of models side by side, about a hundredth of each, with lengths that are no whole
    // units.
    const SIZES: [u64; 8] = [4096, 5622, 11_243, 20_972, 44_974, 65_536, 131_072, 327_680];
    let (capacity, place) = (16 * MIB, folder());
    let mut churn = Churn::new(place.path(), capacity);
    let (mut written, mut halves) = (0, [(0_u64, 0_u64); 2]);
    while written < 10 * capacity {
        let length = SIZES[(churn.number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) as usize];
        let half = &mut halves[usize::from(written > 5 * capacity)];
        half.1 += 1;
        while !churn.store(length) {
            half.0 += 1;
            assert!(churn.evict(), "room, once it is empty");
        }
        written += length;
    }
    println!("refused and stored, in each half of the churn: {halves:?}");
    // Evictions for each block that was stored: the second half is no worse than the first, which began empty.
    let [(early, first), (late, second)] = halves.map(|(refused, stored)| (refused as f64, stored as f64));
    assert!(late / second <= early / first * 1.25 + 0.05, "{halves:?}");
    assert!(churn.kept.iter().all(|block| churn.tier.get(block) == Ok(())));
    let killed = copy_of(place.path());
    let (tier, blocks) = Tier::recovered(killed.path(), capacity, "");
    assert_eq!(blocks.len(), churn.kept.len(), "the living, and none of the evicted");
    assert!(churn.kept.iter().all(|block| tier.get(&blocks[&block.number]) == Ok(())));
}

/// K4, E3.
#[test]
fn k4_holes_of_an_earlier_life_are_room_for_records() {
    // E3, K4: a restart over a data file full of holes is neither cold nor short of room.
    let (capacity, place) = (16 * MIB, folder());
    let mut churn = Churn::new(place.path(), capacity);
    churn.fill(64 * KIB);
    churn.turn_over(4 * KIB);
    let kept = churn.kept.len();
    churn.tier.shutdown();
    let (tier, blocks) = Tier::recovered(place.path(), capacity, "");
    assert_eq!(blocks.len(), kept);
    let mut blocks = blocks.into_values();
    for number in 1..200 {
        assert_eq!(tier.delete(&blocks.next().unwrap()), Status::OK);
        assert!(tier.put(1_000_000 + number, 4 * KIB).is_ok(), "block {number} in the place of another");
    }
    assert!(disk_bytes(place.path()) <= capacity);
}

/// E4.
#[test]
fn strangers_make_room_as_soon_as_recovery_has_begun_and_the_introduced_stay() {
    // E4: what nobody introduces any more is freed first, and nothing else is.
    const OTHER: u32 = 9;
    let (capacity, place) = (8 * MIB, folder());
    let mut churn = Churn::new(place.path(), capacity);
    for _ in 0..20 {
        assert!(churn.store(64 * KIB));
    }
    assert_eq!(churn.tier.nvme.namespace_put(OTHER, &[9; 32], b"other"), Status::OK);
    let mut strangers = 0;
    loop {
        let operation = churn.tier.operation(umbp_plugin_api::types::code::PUT, 5000 + strangers, 64 * KIB);
        let other = umbp_plugin_api::types::Operation { namespace_id: OTHER, ..operation };
        match churn.tier.run(other).status {
            Status::OK => strangers += 1,
            status => break assert_eq!(status, Status::NO_SPACE),
        }
    }
    assert!(strangers > 50);
    churn.tier.shutdown();
    // One page of seven blocks is read at most; the strangers are the newest, so they are met first.
    let tier = Tier::open(place.path(), capacity, "");
    tier.introduce();
    let mut page = Vec::new();
    tier.nvme.recover(0, 7, &mut page).unwrap();
    for number in 0..strangers - 2 {
        assert!(tier.put(9000 + number, 64 * KIB).is_ok(), "block {number} of {strangers}");
    }
    assert!(disk_bytes(place.path()) <= capacity);
    tier.shutdown();
    let (tier, blocks) = Tier::recovered(place.path(), capacity, "");
    assert_eq!(blocks.len() as u64, 20 + strangers - 2);
    assert!(blocks.values().all(|block| tier.get(block) == Ok(())));
}

#[test]
fn where_only_strangers_are_left_all_is_free_at_once() {
    let (capacity, place) = (8 * MIB, folder());
    let mut churn = Churn::new(place.path(), capacity);
    churn.fill(64 * KIB);
    let count = churn.kept.len();
    churn.tier.shutdown();
    let tier = Tier::open(place.path(), capacity, "");
    assert_eq!(tier.nvme.namespace_put(crate::common::NAMESPACE, &crate::common::DIGEST, b"changed"), Status::OK);
    let mut page = Vec::new();
    tier.nvme.recover(0, 1, &mut page).unwrap();
    assert!(page.is_empty());
    assert!((0..count as u64).all(|number| tier.put(number, 64 * KIB).is_ok()));
}
