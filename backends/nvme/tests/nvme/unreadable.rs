//! Records that cannot be read, and files that cannot be removed.

use std::path::Path;
use std::sync::Arc;

use umbp_plugin_api::backend::Level;
use umbp_plugin_api::{Backend, Status};

use crate::common::{MIB, Stored, Tier, config, copy_of, disk_bytes, folder};
use crate::faulty::{Faults, Faulty};

/// Small, so that a hundred records make a snapshot due.
const CAPACITY: u64 = 2 * MIB;
const RECORD_BYTES: u64 = 152;
const FIRST_JOURNAL: &str = "journal.0000000000000001";
/// A sector of 4096 bytes in the middle of the first journal.
const SECTOR: std::ops::Range<u64> = 4096..8192;
/// Records lost with it: those that it touches, 26 to 53, and those read together with them.
const LOST: std::ops::Range<u64> = 20..60;

fn opened(path: &Path, more: &str) -> (Tier, Arc<Faults>) {
    let (medium, faults) = Faulty::new();
    let tier = Tier::open_with(&config(path, CAPACITY, more), medium).unwrap();
    tier.introduce();
    (tier, faults)
}

/// Stores and deletes until something is counted so often.
fn churn_until(tier: &Tier, counter: &str, least: u64) {
    for number in 100_000..200_000 {
        if tier.told.counted(counter) >= least {
            return;
        }
        let block = tier.put(number, 61).unwrap();
        assert_eq!(tier.delete(&block), Status::OK);
    }
    panic!("{counter} never comes to {least}: {:?}", tier.told.counts.lock().unwrap());
}

fn names(path: &Path, prefix: &str) -> Vec<String> {
    let names = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
    found.sort();
    found
}

#[test]
fn k3_a_snapshot_goes_without_records_that_cannot_be_read_and_loses_no_others() {
    // K1, K3: else the journal grows until no store fits.
    let place = folder();
    let (tier, faults) = opened(place.path(), "sync_window = \"10ms\"");
    tier.recover();
    let blocks: Vec<Stored> = (0..90).map(|number| tier.put(number, 1000).unwrap()).collect();
    faults.unreadable.lock().unwrap().push((FIRST_JOURNAL.to_owned(), SECTOR));
    churn_until(&tier, "snapshots", 1);
    let lost = tier.told.counted("snapshot.unreadable_records");
    assert_eq!(tier.told.counted("snapshot_errors"), 1, "tried once more before anything is given up");
    assert_eq!(lost, LOST.count() as u64);
    assert!(blocks.iter().all(|block| tier.get(block) == Ok(())), "in memory they live on");
    churn_until(&tier, "snapshots", 3);
    assert_eq!(tier.told.counted("snapshot.unreadable_records"), lost, "the file is replaced");
    let log = tier.told.log.lock().unwrap().clone();
    assert!(log.iter().any(|(level, text)| *level == Level::Error && text.contains("cannot be read")), "{log:?}");
    tier.shutdown();
    let (tier, found) = Tier::recovered(place.path(), CAPACITY, "");
    let missing: Vec<u64> = (0..90).filter(|number| !found.contains_key(number)).collect();
    // Block n has record n + 1.
    assert_eq!(missing, (LOST.start - 1..LOST.end - 1).collect::<Vec<_>>());
    assert!(found.values().all(|block| tier.get(block) == Ok(())));
}

/// Blocks 0..40 and 100..150, of which 0..10 are deleted, the deletions between them; their records from 1 on.
fn stored(path: &Path) {
    let tier = Tier::fresh(path, CAPACITY, "sync_window = \"1h\"");
    let blocks: Vec<Stored> = (0..40).map(|number| tier.put(number, 1000).unwrap()).collect();
    assert!(blocks[..10].iter().all(|block| tier.delete(block) == Status::OK));
    assert!((100..150).all(|number| tier.put(number, 1000).is_ok()));
    tier.shutdown();
}

#[test]
fn k3_recovery_ends_at_records_that_cannot_be_read_and_the_whole_tier_serves() {
    // K2, K3, E4: a deletion may be among them, so nothing older is believed; its room is free all the same.
    let place = folder();
    stored(place.path());
    let (medium, faults) = Faulty::new();
    faults.unreadable.lock().unwrap().push((FIRST_JOURNAL.to_owned(), SECTOR));
    let tier = Tier::open_with(&config(place.path(), CAPACITY, "sync_window = \"10ms\""), medium).unwrap();
    tier.introduce();
    let found = tier.recover();
    // Block n has record n - 100 + 51.
    let mut numbers: Vec<u64> = found.keys().copied().collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (LOST.end + 100 - 51..150).collect::<Vec<_>>());
    assert!(found.values().all(|block| tier.get(block) == Ok(())));
    let given_up = tier.told.counted("recovery.unreadable_records");
    assert_eq!(given_up, LOST.end);
    let log = tier.told.log.lock().unwrap().clone();
    let told = |(level, text): &&(Level, String)| *level == Level::Error && text.contains(FIRST_JOURNAL);
    assert_eq!(log.iter().filter(told).count(), 1, "{log:?}");
    tier.told.await_counted("snapshots", 1);
    let mut stored = 0;
    while tier.put(1000 + stored, 64 << 10).is_ok() {
        stored += 1;
    }
    assert!(stored > 24, "{stored}: all else is free");
    assert!(disk_bytes(place.path()) <= CAPACITY);
    tier.shutdown();
    // Even if it can be read again, what was given up stays away, as does what was deleted.
    let (tier, again) = Tier::recovered(place.path(), CAPACITY, "");
    let mut expected: Vec<u64> = found.into_keys().chain(1000..1000 + stored).collect();
    let mut all: Vec<u64> = again.keys().copied().collect();
    expected.sort_unstable();
    all.sort_unstable();
    assert_eq!(all, expected);
    assert!(again.values().all(|block| tier.get(block) == Ok(())));
}

#[test]
fn k3_what_cannot_be_read_in_one_path_costs_the_other_nothing_and_nobody_waits_for_it() {
    // K3, E4: blocks of a namespace that nobody introduces any more are expected as long as recovery goes on.
    const OTHER: u32 = 9;
    let (first, second) = (folder(), folder());
    let options = format!("paths = [{:?}, {:?}]\nsync_window = \"1h\"", first.path(), second.path());
    let config = || umbp_plugin_api::OpenConfig { options: options.clone(), ..config(first.path(), 2 * CAPACITY, "") };
    let tier = Tier::open_with(&config(), Faulty::new().0).unwrap();
    tier.introduce();
    assert_eq!(tier.nvme.namespace_put(OTHER, &[9; 32], b"other"), Status::OK);
    assert_eq!(tier.recover().len(), 0);
    let blocks: Vec<Stored> = (0..150).map(|number| tier.put(number, 1000).unwrap()).collect();
    let in_second = |block: &&Stored| block.location >> 40 & 0xff == 1;
    let second_path = blocks.iter().filter(in_second).count();
    assert!((60..90).contains(&second_path), "{second_path}");
    tier.shutdown();
    let (medium, faults) = Faulty::new();
    faults.patient.store(true, std::sync::atomic::Ordering::SeqCst);
    let bad = format!("{}/{FIRST_JOURNAL}", first.path().display());
    faults.unreadable.lock().unwrap().push((bad, SECTOR));
    let tier = Tier::open_with(&config(), medium).unwrap();
    tier.introduce();
    let found = tier.recover();
    assert_eq!(found.values().filter(in_second).count(), second_path);
    assert!(found.len() < blocks.len() && tier.told.counted("recovery.unreadable_records") > 0);
    assert!(found.values().all(|block| tier.get(block) == Ok(())));
    let stored = (1000..).take_while(|number| tier.put(*number, 64 << 10).is_ok()).count();
    assert!(stored > 48, "{stored}, and the next is refused at once");
}

#[test]
fn e7_a_journal_whose_end_cannot_be_read_is_left_as_it_is_and_the_next_one_begins() {
    // E7: no number of a record is given twice, so that no deletion ends another life's block.
    let place = folder();
    stored(place.path());
    let length = std::fs::metadata(place.path().join(FIRST_JOURNAL)).unwrap().len();
    let (medium, faults) = Faulty::new();
    faults.unreadable.lock().unwrap().push((FIRST_JOURNAL.to_owned(), length - 4096..length));
    let tier = Tier::open_with(&config(place.path(), CAPACITY, ""), medium).unwrap();
    tier.introduce();
    for number in 500..650 {
        let block = tier.put(number, 1000).unwrap();
        assert_eq!(tier.delete(&block), Status::OK);
    }
    let kept = tier.put(700, 1000).unwrap();
    assert_eq!(tier.get(&kept), Ok(()));
    let healthy = copy_of(place.path());
    let found = tier.recover();
    assert_eq!(found.len(), 0, "nothing older is believed");
    assert_eq!(tier.told.counted("recovery.unreadable_records"), length / RECORD_BYTES);
    assert_eq!(tier.get(&kept), Ok(()));
    drop(tier);
    let (_, found) = Tier::recovered(healthy.path(), CAPACITY, "");
    let mut found: Vec<u64> = found.into_keys().collect();
    found.sort_unstable();
    assert_eq!(found, (10..40).chain(100..150).chain([700]).collect::<Vec<_>>(), "where it can be read again");
}

#[test]
fn k1_a_file_that_cannot_be_removed_keeps_no_other_and_asks_for_no_snapshot() {
    // K1, G2: it is tried again alone, and removed once it can be.
    let place = folder();
    let (tier, faults) = opened(place.path(), "sync_window = \"10ms\"");
    tier.recover();
    *faults.unremovable.lock().unwrap() = Some(FIRST_JOURNAL.to_owned());
    churn_until(&tier, "snapshots", 3);
    let (before, errors) = (tier.told.counted("snapshots"), tier.told.counted("removal_errors"));
    tier.told.await_counted("removal_errors", errors + 20);
    assert!(tier.told.counted("snapshots") <= before + 1, "twenty windows, and no snapshot for their sake");
    assert_eq!(tier.told.counted("snapshot_errors"), 0);
    let journals = names(place.path(), "journal.");
    assert!(journals.len() == 2 && journals[0] == FIRST_JOURNAL, "{journals:?}");
    assert_eq!(names(place.path(), "snapshot.").len(), 1);
    let log = tier.told.log.lock().unwrap().clone();
    let told = |(level, text): &&(Level, String)| *level == Level::Error && text.contains(FIRST_JOURNAL);
    assert_eq!(log.iter().filter(told).count(), 1, "{log:?}");
    // Nor does it keep the next life from beginning.
    let kept = tier.put(1, 1000).unwrap();
    tier.shutdown();
    let (medium, faults) = Faulty::new();
    *faults.unremovable.lock().unwrap() = Some(FIRST_JOURNAL.to_owned());
    let tier = Tier::open_with(&config(place.path(), CAPACITY, "sync_window = \"10ms\""), medium).unwrap();
    tier.introduce();
    let found = tier.recover();
    assert_eq!(found.keys().collect::<Vec<_>>(), [&kept.number]);
    assert_eq!(tier.get(&found[&1]), Ok(()));
    tier.told.await_counted("removal_errors", 2);
    let told = tier.nvme.stats().medium_bytes;
    assert!(told >= disk_bytes(place.path()), "{told} bytes, the file that should be gone among them");
    *faults.unremovable.lock().unwrap() = None;
    for number in 2..100_000 {
        if !place.path().join(FIRST_JOURNAL).exists() {
            break;
        }
        assert_eq!(tier.delete(&tier.put(number, 61).unwrap()), Status::OK);
    }
    assert!(!place.path().join(FIRST_JOURNAL).exists());
}

#[test]
fn g2_files_that_cannot_be_removed_count_against_the_capacity() {
    // G2, K1: rather than beyond the capacity, the tier grows smaller.
    let place = folder();
    let (tier, faults) = opened(place.path(), "sync_window = \"10ms\"");
    tier.recover();
    *faults.unremovable.lock().unwrap() = Some(".0000".to_owned());
    let (mut number, mut refused) = (0, 0);
    while refused == 0 && number < 60_000 {
        number += 1;
        match tier.put(number, 61) {
            Ok(block) => assert_eq!(tier.delete(&block), Status::OK),
            Err(status) => refused = u64::from(status == Status::NO_SPACE),
        }
        if number % 64 == 0 {
            let disk = disk_bytes(place.path());
            assert!(disk <= CAPACITY, "{disk} bytes on disk after {number} blocks");
        }
    }
    assert!(refused == 1, "no room is left for records");
    *faults.unremovable.lock().unwrap() = None;
    // The room is back once a window has passed.
    let served = (100_000..200_000).any(|number| tier.put(number, 61).is_ok());
    assert!(served && disk_bytes(place.path()) <= CAPACITY);
}
