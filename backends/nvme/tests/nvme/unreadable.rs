//! Records that cannot be read, and files that cannot be removed.

use std::path::Path;
use std::sync::Arc;

use umbp_plugin_api::backend::{Level, Recovery};
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
fn k3_recovery_goes_without_records_that_cannot_be_read_and_the_whole_tier_serves() {
    // A6, K2, K3, E4: as with damaged ones, all older and newer ones count, and no file is given up.
    let place = folder();
    stored(place.path());
    let (medium, faults) = Faulty::new();
    faults.unreadable.lock().unwrap().push((FIRST_JOURNAL.to_owned(), SECTOR));
    let tier = Tier::open_with(&config(place.path(), CAPACITY, "sync_window = \"10ms\""), medium).unwrap();
    tier.introduce();
    let found = tier.recover();
    // Block n below 40 has record n + 1, another n - 100 + 51; the ten deletions are among the lost. Blocks 100 to 109
    // were written where the deleted had lain, and the record of 109 was read.
    assert_eq!(sorted(&found), (0..9).chain(10..LOST.start - 1).chain(LOST.end + 49..150).collect::<Vec<_>>());
    let deleted = |block: &&Stored| block.number < 10;
    assert!(found.values().filter(|block| !deleted(block)).all(|block| tier.get(block) == Ok(())));
    // What is back without its deletion is checked like any other.
    let back = found.values().filter(deleted).map(|block| tier.get(block)).collect::<Vec<_>>();
    assert!(back.len() == 9 && back.iter().all(|load| matches!(load, Ok(()) | Err(Status::CORRUPT))), "{back:?}");
    assert_eq!(tier.told.counted("recovery.unreadable_records"), LOST.count() as u64);
    let log = tier.told.log.lock().unwrap().clone();
    let told = |(level, text): &&(Level, String)| *level == Level::Error && text.contains(FIRST_JOURNAL);
    assert_eq!(log.iter().filter(told).count(), 1, "{log:?}");
    assert_eq!(tier.told.counted("snapshots"), 0, "none for the sake of what cannot be read");
    // A restart on a disk that reads again has it all.
    let (_, healthy) = Tier::recovered(copy_of(place.path()).path(), CAPACITY, "");
    assert_eq!(sorted(&healthy), (10..40).chain(100..150).collect::<Vec<_>>());
    let stored = (1000..).take_while(|number| tier.put(*number, 32 << 10).is_ok()).count() as u64;
    assert!(stored > 36, "{stored}: the room of what is lost is free");
    assert!(disk_bytes(place.path()) <= CAPACITY);
    tier.shutdown();
    let (tier, again) = Tier::recovered(place.path(), CAPACITY, "");
    assert!((1000..1000 + stored).all(|number| tier.get(&again[&number]) == Ok(())), "the newer of two in one place");
}

fn sorted(found: &std::collections::HashMap<u64, Stored>) -> Vec<u64> {
    let mut numbers: Vec<u64> = found.keys().copied().collect();
    numbers.sort_unstable();
    numbers
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
    assert!(stored > 40, "{stored}, and the next is refused at once");
}

#[test]
fn a6_a_path_that_cannot_be_read_for_a_while_lets_the_others_go_first_and_loses_nothing() {
    // A6, E3, K4: however long it lasts.
    let (first, second) = (folder(), folder());
    let options = format!("paths = [{:?}, {:?}]\nsync_window = \"1h\"", first.path(), second.path());
    let config = || umbp_plugin_api::OpenConfig { options: options.clone(), ..config(first.path(), 2 * CAPACITY, "") };
    let tier = Tier::open_with(&config(), Faulty::new().0).unwrap();
    tier.introduce();
    assert_eq!(tier.recover().len(), 0);
    assert!((0..150).all(|number| tier.put(number, 1000).is_ok()));
    tier.shutdown();
    let (medium, faults) = Faulty::new();
    faults.stubborn.store(true, std::sync::atomic::Ordering::SeqCst);
    let bad = format!("{}/{FIRST_JOURNAL}", first.path().display());
    faults.unreadable.lock().unwrap().push((bad, 0..u64::MAX));
    let tier = Tier::open_with(&config(), medium).unwrap();
    tier.introduce();
    let (mut cursor, mut blocks, mut idle) = (0, Vec::new(), 0);
    while let Recovery::More(next) = tier.nvme.recover(cursor, 7, &mut blocks).unwrap() {
        cursor = next;
        let read = blocks.iter().filter(|block| block.location >> 40 & 0xff == 1).count();
        idle = if blocks.len() == read { idle + 1 } else { 0 };
        if read > 60 && idle == 60 {
            faults.unreadable.lock().unwrap().clear();
        }
    }
    assert!(idle == 0 && blocks.len() == 150, "{} blocks", blocks.len());
    assert_eq!(tier.told.counted("recovery.unreadable_records"), 0);
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
    // From the piece of ten on that has a record of the last 4096 bytes.
    let lost = (length - 4096) / RECORD_BYTES / 10 * 10;
    assert_eq!(sorted(&found), (10..40).chain(100..lost + 100 - 51).collect::<Vec<_>>());
    assert_eq!(tier.told.counted("recovery.unreadable_records"), length / RECORD_BYTES - lost);
    assert_eq!(tier.get(&kept), Ok(()));
    drop(tier);
    let (_, found) = Tier::recovered(healthy.path(), CAPACITY, "");
    assert_eq!(sorted(&found), (10..40).chain(100..150).chain([700]).collect::<Vec<_>>(), "where it can be read again");
}

/// Those of a journal's records.
fn sequences(path: &Path, name: &str) -> Vec<u64> {
    let bytes = std::fs::read(path.join(name)).unwrap();
    let records = bytes.chunks_exact(RECORD_BYTES as usize);
    records.map(|record| u64::from_le_bytes(record[8..16].try_into().unwrap())).collect()
}

#[test]
fn e7_where_neither_journal_nor_snapshot_can_be_read_the_store_opens_and_gives_no_number_twice() {
    // E7, K2: the numbers of a journal are far beyond those of the blocks that live in the snapshot before it.
    for and_snapshot in [false, true] {
        let place = folder();
        let (tier, _) = opened(place.path(), "sync_window = \"10ms\"");
        tier.recover();
        tier.put(1, 1000).unwrap();
        churn_until(&tier, "snapshots", 1);
        assert!((2..6).all(|number| tier.put(number, 1000).is_ok()));
        tier.shutdown();
        let bad = ["journal.", "snapshot."].map(|prefix| names(place.path(), prefix).pop().unwrap());
        let (medium, faults) = Faulty::new();
        let bad = bad.into_iter().take(1 + usize::from(and_snapshot));
        faults.unreadable.lock().unwrap().extend(bad.map(|name| (name, 0..u64::MAX)));
        let tier = Tier::open_with(&config(place.path(), CAPACITY, "sync_window = \"1h\""), medium).unwrap();
        tier.introduce();
        for number in 500..800 {
            let block = tier.put(number, 1000).unwrap();
            assert_eq!(tier.delete(&block), Status::OK);
        }
        tier.put(900, 1000).unwrap();
        let given: Vec<u64> =
            names(place.path(), "journal.").iter().flat_map(|name| sequences(place.path(), name)).collect();
        let rising = given.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(given.len() > 600 && rising, "with the snapshot: {and_snapshot}, {given:?}");
        let (tier, found) = Tier::recovered(copy_of(place.path()).path(), CAPACITY, "");
        assert_eq!(sorted(&found), [1, 2, 3, 4, 5, 900]);
        assert!(found.values().all(|block| tier.get(block) == Ok(())));
    }
}

#[test]
fn a_snapshot_that_failed_for_want_of_room_gives_up_nothing_at_the_next_failed_read() {
    // A6: what is given up has failed at two tries, a sync window apart.
    let place = folder();
    let (tier, faults) = opened(place.path(), "sync_window = \"10ms\"");
    tier.recover();
    assert!((0..90).all(|number| tier.put(number, 1000).is_ok()));
    faults.fail_snapshot.store(true, std::sync::atomic::Ordering::SeqCst);
    churn_until(&tier, "snapshots", 1);
    let counted = |name| tier.told.counted(name);
    assert_eq!((counted("snapshot_errors"), counted("snapshot.unreadable_records")), (2, 0));
    tier.shutdown();
    let (_, found) = Tier::recovered(place.path(), CAPACITY, "");
    assert_eq!(sorted(&found), (0..90).collect::<Vec<_>>());
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
