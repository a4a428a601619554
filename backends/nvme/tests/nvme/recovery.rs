//! What an earlier life leaves, and what it does not.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use umbp_plugin_api::{Backend, Status};

use crate::common::{DIGEST, MIB, NAMESPACE, Stored, Tier, copy_of, disk_bytes, folder, newest};

const CAPACITY: u64 = 32 * MIB;
const RECORD_BYTES: u64 = 152;

fn store(tier: &Tier, numbers: std::ops::Range<u64>, length: u64) -> HashMap<u64, Stored> {
    numbers.map(|number| (number, tier.put(number, length).unwrap())).collect()
}

/// Opens the folder; exactly these keys are there, and load.
fn check(path: &Path, mut expected: Vec<u64>) {
    let (tier, blocks) = Tier::recovered(path, CAPACITY, "");
    let mut found: Vec<u64> = blocks.keys().copied().collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    for block in blocks.values() {
        assert_eq!(tier.get(block), Ok(()), "{block:?}");
    }
    assert_eq!(tier.nvme.stats().blocks, expected.len() as u64);
}

#[test]
fn what_was_completed_is_there_after_a_kill_and_what_was_deleted_is_not() {
    // E6, K2, K4. A copy of the folder while the store is open is what a kill would leave.
    let place = folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "");
    let blocks = store(&tier, 0..20, 10_000);
    for number in 5..10 {
        assert_eq!(tier.delete(&blocks[&number]), Status::OK);
    }
    let killed = copy_of(place.path());
    let kept: Vec<u64> = (0..5).chain(10..20).collect();
    check(killed.path(), kept.clone());
    check(killed.path(), kept.clone());
    tier.shutdown();
    check(place.path(), kept);
}

#[test]
fn a_kill_in_the_middle_of_stores_loses_nothing_that_was_completed() {
    // E4: the child says a number only once its store has completed; it dies by SIGKILL.
    if let Ok(place) = std::env::var("NVME_TEST_FOLDER") {
        return store_until_killed(Path::new(&place));
    }
    let place = folder();
    for round in 0..5 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "recovery::a_kill_in_the_middle_of_stores_loses_nothing_that_was_completed",
                "--nocapture",
            ])
            .env("NVME_TEST_FOLDER", place.path())
            .env("NVME_TEST_FIRST", (round * 1000).to_string())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let out = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut said = Vec::new();
        for line in std::io::BufRead::lines(out) {
            if let Some(number) = line.unwrap().strip_prefix("stored ") {
                said.push(number.parse::<u64>().unwrap());
            }
            if said.len() == 20 {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        let (tier, blocks) = Tier::recovered(place.path(), CAPACITY, "");
        assert!(said.len() >= 20);
        for number in said {
            assert_eq!(tier.get(&blocks[&number]), Ok(()), "round {round}, block {number}");
        }
        for block in blocks.values() {
            assert_eq!(tier.get(block), Ok(()), "round {round}: what is found is right");
            assert_eq!(tier.delete(block), Status::OK);
        }
        assert!(disk_bytes(place.path()) <= CAPACITY);
    }
}

/// The child's part of the test above.
fn store_until_killed(place: &Path) {
    let first: u64 = std::env::var("NVME_TEST_FIRST").unwrap().parse().unwrap();
    let tier = Tier::fresh(place, CAPACITY, "");
    for number in first..first + 500 {
        if tier.put(number, 50_000).is_ok() {
            println!("stored {number}");
        }
    }
}

#[test]
fn a_torn_last_record_costs_its_own_block_and_hides_nothing_later() {
    // K5: cut at every byte of the last record, append, and read back old and new.
    let place = folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "");
    store(&tier, 0..4, 5000);
    tier.shutdown();
    let journal = newest(place.path(), "journal.");
    let whole = std::fs::metadata(&journal).unwrap().len();
    for cut in 1..=RECORD_BYTES {
        let torn = copy_of(place.path());
        File::options().write(true).open(newest(torn.path(), "journal.")).unwrap().set_len(whole - cut).unwrap();
        let (tier, blocks) = Tier::recovered(torn.path(), CAPACITY, "");
        assert_eq!(blocks.len(), 3, "cut {cut}");
        // The end is found in the same way whatever is left of the record; some cuts go the whole way.
        if cut % 8 != 0 && cut != 1 {
            continue;
        }
        tier.put(100, 5000).unwrap();
        drop(tier);
        check(torn.path(), vec![0, 1, 2, 100]);
    }
}

#[test]
fn garbage_after_the_last_record_is_cut() {
    let place = folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "");
    store(&tier, 0..4, 5000);
    tier.shutdown();
    let journal = OpenOptions::new().write(true).open(newest(place.path(), "journal.")).unwrap();
    journal.write_all_at(&[0x5a; 1000], journal.metadata().unwrap().len()).unwrap();
    check(place.path(), vec![0, 1, 2, 3]);
}

fn flip(path: &Path, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

#[test]
fn a_flipped_bit_in_the_data_is_corrupt_for_that_block_alone() {
    // E5: and once deleted, the block can be stored again.
    let place = folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "");
    let blocks = store(&tier, 0..5, 20_000);
    tier.shutdown();
    let unit = blocks[&2].location & ((1 << 40) - 1);
    flip(&place.path().join("data"), unit * 4096 + 19_999);
    let (tier, mut blocks) = Tier::recovered(place.path(), CAPACITY, "");
    let bad = blocks.remove(&2).unwrap();
    assert_eq!(tier.get(&bad), Err(Status::CORRUPT));
    assert_eq!(tier.told.counted("corrupt"), 1);
    assert!(blocks.values().all(|block| tier.get(block) == Ok(())));
    assert_eq!(tier.delete(&bad), Status::OK);
    let again = tier.put(2, 20_000).unwrap();
    assert_eq!(tier.get(&again), Ok(()));
}

#[test]
fn a_flipped_bit_in_a_record_costs_that_block_alone() {
    let place = folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "");
    store(&tier, 0..5, 20_000);
    tier.shutdown();
    // Record 0 begins the journal.
    flip(&newest(place.path(), "journal."), 3 * RECORD_BYTES + 70);
    check(place.path(), vec![0, 1, 3, 4]);
}

#[test]
fn a_block_whose_delete_record_is_lost_stays_away_once_it_was_overwritten() {
    let place = folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "");
    let first = tier.put(1, 20_000).unwrap();
    assert_eq!(tier.delete(&first), Status::OK);
    let second = tier.put(2, 20_000).unwrap();
    assert_eq!(tier.delete(&second), Status::OK);
    tier.shutdown();
    // Records: start, put 1, delete 1, put 2, delete 2.
    flip(&newest(place.path(), "journal."), 2 * RECORD_BYTES + 20);
    check(place.path(), vec![]);
}

#[test]
fn a_cut_data_file_costs_just_the_blocks_that_were_cut() {
    // A6, while closed and while open.
    for (length, kept) in [(0, 0), (1, 0), (5 * 20_480 - 1, 4), (3 * 20_480 + 20_000, 4), (3 * 20_480 + 19_999, 3)] {
        let place = folder();
        let tier = Tier::fresh(place.path(), CAPACITY, "");
        // 20,480 bytes are five units, so that cutting one byte cuts payload.
        let mut blocks = store(&tier, 0..4, 20_000);
        blocks.insert(4, tier.put(4, 20_480).unwrap());
        let data = OpenOptions::new().write(true).open(place.path().join("data")).unwrap();
        data.set_len(length).unwrap();
        let whole = |number: &u64| *number < kept;
        for (number, block) in &blocks {
            let expected = if whole(number) { Ok(()) } else { Err(Status::CORRUPT) };
            assert_eq!(tier.get(block), expected, "cut to {length}, block {number}");
        }
        tier.shutdown();
        let (tier, found) = Tier::recovered(place.path(), CAPACITY, "");
        let lost = blocks.keys().filter(|number| !whole(number));
        assert!(lost.into_iter().all(|number| !found.contains_key(number)), "cut to {length}");
        assert_eq!(found.len() as u64, kept, "cut to {length}");
        assert!(found.values().all(|block| tier.get(block) == Ok(())));
        let again = tier.put(4, 20_480).unwrap();
        assert_eq!(tier.get(&again), Ok(()));
    }
}

#[test]
fn churn_of_ten_times_the_capacity_stays_within_it_on_disk() {
    // K1, G2, K2
    for (capacity, length) in [(4 * MIB, 3000_u64), (8 * MIB, 61_000)] {
        let place = folder();
        let tier = Tier::fresh(place.path(), capacity, "sync_window = \"10ms\"");
        let mut kept: std::collections::VecDeque<Stored> = std::collections::VecDeque::new();
        let mut number = 0;
        for _ in 0..10 * capacity / length.next_multiple_of(4096) {
            number += 1;
            let block = loop {
                match tier.put(number, length) {
                    Ok(block) => break block,
                    Err(Status::NO_SPACE) => {
                        let victim = kept.pop_front().expect("room, once it is empty");
                        assert_eq!(tier.delete(&victim), Status::OK);
                    }
                    Err(status) => panic!("{status:?}"),
                }
            };
            kept.push_back(block);
            if number % 64 == 0 {
                let disk = disk_bytes(place.path());
                assert!(disk <= capacity, "{disk} bytes on disk at block {number}");
            }
        }
        assert!(tier.told.counted("snapshots") > 0);
        assert_eq!(tier.told.counted("snapshot_errors"), 0);
        assert!(kept.iter().all(|block| tier.get(block) == Ok(())));
        let killed = copy_of(place.path());
        drop(tier);
        for path in [place.path(), killed.path()] {
            let (tier, blocks) = Tier::recovered(path, capacity, "");
            assert_eq!(blocks.len(), kept.len(), "the living, and none of the {number} dead");
            assert!(kept.iter().all(|block| tier.get(&blocks[&block.number]) == Ok(())));
        }
    }
}

#[test]
fn namespaces_come_back_and_one_that_is_not_put_again_is_reclaimed() {
    let place = folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "");
    store(&tier, 0..5, 20_000);
    tier.shutdown();
    let tier = Tier::open(place.path(), CAPACITY, "");
    let namespaces = tier.nvme.recover_namespaces().unwrap();
    assert_eq!(namespaces.len(), 1);
    assert_eq!((namespaces[0].digest, namespaces[0].descriptor.as_slice()), (DIGEST, b"descriptor".as_slice()));
    assert_eq!(tier.nvme.namespace_put(NAMESPACE, &[8; 32], b"another"), Status::OK);
    assert_eq!(tier.recover().len(), 0);
    tier.shutdown();
    // Reclaimed for good, although its records were not overwritten.
    check(place.path(), vec![]);
}

#[test]
fn a_dropped_namespace_is_gone_at_once_and_after_a_kill() {
    let place = folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "");
    let blocks = store(&tier, 0..5, 20_000);
    tier.nvme.namespace_drop(NAMESPACE);
    assert_eq!(tier.nvme.stats().blocks, 0);
    tier.introduce();
    assert_eq!(tier.get(&blocks[&0]), Err(Status::MISS));
    store(&tier, 7..8, 20_000);
    check(copy_of(place.path()).path(), vec![7]);
}

#[test]
fn stores_during_recovery_overwrite_nothing_that_is_not_read_yet() {
    let place = folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "");
    store(&tier, 0..50, 20_000);
    tier.shutdown();
    let tier = Tier::open(place.path(), CAPACITY, "");
    tier.introduce();
    store(&tier, 100..150, 20_000);
    let blocks = tier.recover();
    assert_eq!(blocks.len(), 50);
    assert!(blocks.values().all(|block| tier.get(block) == Ok(())));
    tier.shutdown();
    check(place.path(), (0..50).chain(100..150).collect());
}

#[test]
fn a_record_whose_data_never_reached_the_disk_is_corrupt_not_wrong() {
    // E7: after a power loss the journal may be newer than the data.
    let place = folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "");
    let blocks = store(&tier, 0..4, 20_000);
    let older = copy_of(place.path());
    assert_eq!(tier.delete(&blocks[&3]), Status::OK);
    let replaced = tier.put(4, 20_000).unwrap();
    assert_eq!(replaced.location & ((1 << 40) - 1), blocks[&3].location & ((1 << 40) - 1), "the same units");
    tier.shutdown();
    std::fs::copy(older.path().join("data"), place.path().join("data")).unwrap();
    let (tier, blocks) = Tier::recovered(place.path(), CAPACITY, "");
    assert_eq!(tier.get(&blocks[&4]), Err(Status::CORRUPT));
    assert!((0..3).all(|number| tier.get(&blocks[&number]) == Ok(())));
}

#[test]
fn damaged_small_files_begin_the_store_anew_and_never_mix_namespaces() {
    for name in ["superblock", "namespaces"] {
        let place = folder();
        let tier = Tier::fresh(place.path(), CAPACITY, "");
        store(&tier, 0..4, 20_000);
        tier.shutdown();
        flip(&place.path().join(name), 40);
        let (tier, blocks) = Tier::recovered(place.path(), CAPACITY, "");
        assert_eq!((blocks.len(), tier.told.counted("fallback.renewed")), (0, 1), "{name}");
        store(&tier, 4..8, 20_000);
        drop(tier);
        check(place.path(), vec![4, 5, 6, 7]);
    }
}

#[test]
fn a_smaller_capacity_keeps_what_fits() {
    let place = folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "");
    store(&tier, 0..200, 100_000);
    tier.shutdown();
    let (tier, blocks) = Tier::recovered(place.path(), 8 * MIB, "");
    assert!(blocks.len() > 70 && blocks.len() < 82, "{}", blocks.len());
    assert!(blocks.values().all(|block| tier.get(block) == Ok(())));
    assert!(disk_bytes(place.path()) <= 8 * MIB + 128 * 1024);
}
