//! What recovery asks of the medium, counted.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use tempfile::TempDir;
use umbp_plugin_api::backend::Recovery;
use umbp_plugin_api::{Backend, Status};

use crate::common::{MIB, Tier, config, quick_folder};
use crate::faulty::{Faults, Faulty};

const CAPACITY: u64 = 32 * MIB;
const RECORD_BYTES: usize = 152;
/// Records of one read at most, and blocks of one page.
const RECORDS_PER_READ: usize = 430;
const PAGE_BLOCKS: usize = 64;

/// A closed store with a snapshot and a journal of several reads each, and how many blocks it holds.
fn stored() -> (TempDir, usize) {
    let place = quick_folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "sync_window = \"1h\"");
    let blocks: Vec<_> = (0..1500).map(|number| tier.put(number, 100).unwrap()).collect();
    assert!(blocks[..400].iter().all(|block| tier.delete(block) == Status::OK));
    assert!((2000..2700).all(|number| tier.put(number, 100).is_ok()));
    tier.shutdown();
    (place, 1500 - 400 + 700)
}

fn records_on_disk(path: &Path) -> Vec<usize> {
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    let of_records = entries.filter(|entry| {
        let name = entry.file_name().into_string().unwrap();
        name.starts_with("journal.") || name.starts_with("snapshot.")
    });
    of_records.map(|entry| entry.metadata().unwrap().len() as usize / RECORD_BYTES).collect()
}

fn open(path: &Path) -> (Tier, Arc<Faults>) {
    open_with(path, |_| {})
}

fn open_with(path: &Path, plan: impl FnOnce(&Faults)) -> (Tier, Arc<Faults>) {
    let (medium, faults) = Faulty::new();
    plan(&faults);
    let tier = Tier::open_with(&config(path, CAPACITY, "sync_window = \"1h\""), medium).unwrap();
    tier.introduce();
    (tier, faults)
}

#[test]
fn recovery_reads_each_record_once_and_in_batches_while_the_tier_serves() {
    let (place, count) = stored();
    let files = records_on_disk(place.path());
    assert!(files.len() >= 2 && files.iter().sum::<usize>() > 4 * RECORDS_PER_READ, "{files:?}");
    let (tier, faults) = open(place.path());
    let (mut cursor, mut blocks, mut number) = (0, Vec::new(), 10_000);
    while let Recovery::More(next) = tier.nvme.recover(cursor, PAGE_BLOCKS, &mut blocks).unwrap() {
        assert!(blocks.len() <= PAGE_BLOCKS * (cursor as usize + 1), "a page is no larger than it was asked for");
        cursor = next;
        number += 1;
        let stored = tier.put(number, 5000).unwrap();
        assert_eq!(tier.get(&stored), Ok(()), "served between two pages");
    }
    assert_eq!(blocks.len(), count);
    assert!(cursor as usize >= count / PAGE_BLOCKS, "in pages");
    let reads = faults.reads.lock().unwrap();
    let bytes: usize = reads.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(bytes, files.iter().sum::<usize>() * RECORD_BYTES, "each record once, opening included: {reads:?}");
    let least: usize = files.iter().map(|records| records.div_ceil(RECORDS_PER_READ)).sum();
    assert_eq!(reads.len(), least, "as few reads as batches need");
}

#[test]
fn a6_reads_that_fail_for_a_while_are_tried_again_and_lose_nothing() {
    // A6, E3, E7: an outage while reading back, be it twenty calls long; meanwhile the tier serves.
    let (place, count) = stored();
    let (tier, faults) = open_with(place.path(), |faults| faults.stubborn.store(true, SeqCst));
    *faults.fail_read.lock().unwrap() = (libc::EIO, u32::MAX);
    let (mut cursor, mut blocks, mut idle) = (0, Vec::new(), 0);
    loop {
        let before = blocks.len();
        match tier.nvme.recover(cursor, PAGE_BLOCKS, &mut blocks).unwrap() {
            Recovery::More(next) => cursor = next,
            Recovery::Done => break,
        }
        idle += usize::from(blocks.len() == before);
        if idle == 20 {
            *faults.fail_read.lock().unwrap() = (0, 0);
            assert!(tier.put(10_000, 5000).is_ok_and(|stored| tier.get(&stored) == Ok(())));
        }
    }
    assert!(idle >= 20 && faults.failed_reads.load(SeqCst) > 2);
    assert_eq!((blocks.len(), tier.told.counted("recovery.unreadable_records")), (count, 0));
}

#[test]
fn a6_a_read_that_fails_in_each_call_is_tried_again_and_loses_nothing() {
    let (place, count) = stored();
    let (tier, faults) = open_with(place.path(), |faults| faults.stubborn.store(true, SeqCst));
    let (mut cursor, mut blocks, mut failures) = (0, Vec::new(), 1);
    loop {
        *faults.fail_read.lock().unwrap() = (libc::EIO, failures);
        // One costs a try of less at once, two a later one.
        failures = (failures + 1) % 3;
        match tier.nvme.recover(cursor, PAGE_BLOCKS, &mut blocks).unwrap() {
            Recovery::More(next) => cursor = next,
            Recovery::Done => break,
        }
    }
    assert_eq!((blocks.len(), tier.told.counted("recovery.unreadable_records")), (count, 0));
}

#[test]
fn k3_a_folder_that_cannot_be_read_at_all_opens_after_few_reads_and_is_whole_again_later() {
    // A6, E3, K3: it serves, empty; once the disk reads again a new life has everything.
    let (place, count) = stored();
    let records: usize = records_on_disk(place.path()).iter().sum();
    let (medium, faults) = Faulty::new();
    for entry in std::fs::read_dir(place.path()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        faults.unreadable.lock().unwrap().push((name, 0..u64::MAX));
    }
    let tier = Tier::open_with(&config(place.path(), CAPACITY, "sync_window = \"1h\""), medium).unwrap();
    tier.introduce();
    let (failed, files) = (faults.failed_reads.load(SeqCst), records_on_disk(place.path()).len());
    assert!(failed <= 2 * files, "{failed} reads of {files} files");
    assert_eq!(tier.recover().len(), 0);
    assert_eq!(tier.told.counted("recovery.unreadable_records"), records as u64);
    let new = tier.put(10_000, 5000).unwrap();
    assert_eq!(tier.get(&new), Ok(()));
    assert_eq!(tier.delete(&new), Status::OK);
    tier.shutdown();
    let (tier, _) = open(place.path());
    let found = tier.recover();
    // The unit that was written meanwhile may have been a block's.
    assert!((count - 2..=count).contains(&found.len()), "{}", found.len());
}
