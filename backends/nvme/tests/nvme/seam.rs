//! What recovery asks of the medium, counted.

use std::path::Path;
use std::sync::Arc;

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
    let (medium, faults) = Faulty::new();
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
fn a_read_that_fails_once_is_tried_again_and_loses_nothing() {
    // E7: a passing error of the disk while reading back.
    let (place, count) = stored();
    let (tier, faults) = open(place.path());
    let (mut cursor, mut blocks, mut fault) = (0, Vec::new(), 1);
    loop {
        *faults.fail_read.lock().unwrap() = (libc::EIO, fault);
        fault = 1 - fault;
        match tier.nvme.recover(cursor, PAGE_BLOCKS, &mut blocks).unwrap() {
            Recovery::More(next) => cursor = next,
            Recovery::Done => break,
        }
    }
    assert_eq!((blocks.len(), tier.told.counted("recovery.unreadable_records")), (count, 0));
}
