//! Records and data torn and flipped, byte by byte.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use tempfile::TempDir;
use umbp_plugin_api::{Backend, Status};

use crate::common::{MIB, Stored, Tier, copy_of, newest, quick_folder};

const CAPACITY: u64 = 8 * MIB;
const RECORD_BYTES: usize = 152;
const BLOCKS: u64 = 5;
const LENGTH: u64 = 5000;

/// A closed store with blocks 0 to 4, its journal's bytes, and where the blocks lie.
fn stored() -> (TempDir, Vec<u8>, Vec<Stored>) {
    let place = quick_folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "");
    let blocks = (0..BLOCKS).map(|number| tier.put(number, LENGTH).unwrap()).collect();
    tier.shutdown();
    let journal = std::fs::read(newest(place.path(), "journal.")).unwrap();
    assert_eq!(journal.len(), (1 + BLOCKS as usize) * RECORD_BYTES, "a start, and one record for each");
    (place, journal, blocks)
}

/// Opens the folder; exactly these blocks are there, and load.
fn check(path: &Path, expected: &[u64], what: &str) -> Tier {
    let (tier, blocks) = Tier::recovered(path, CAPACITY, "");
    let mut found: Vec<u64> = blocks.keys().copied().collect();
    found.sort_unstable();
    assert_eq!(found, expected, "{what}");
    assert!(blocks.values().all(|block| tier.get(block) == Ok(())), "{what}");
    tier
}

#[test]
fn a_last_record_torn_at_any_byte_in_any_way_costs_its_own_block_alone() {
    // K5, E7: cut off; its beginning, its end, or its middle never written. Some go on: append, and read old and new.
    let (place, whole, _) = stored();
    let last = BLOCKS as usize * RECORD_BYTES;
    for at in 0..RECORD_BYTES {
        let zeroed = |from: usize, to: usize| {
            let mut bytes = whole.clone();
            bytes[last + from..last + to].fill(0);
            bytes
        };
        let ways = [
            ("cut", whole[..last + at].to_vec()),
            ("beginning lost", zeroed(0, at + 1)),
            ("end lost", zeroed(at, RECORD_BYTES)),
            ("middle lost", zeroed(at, (at + 9).min(RECORD_BYTES))),
        ];
        for (way, bytes) in ways {
            // Bytes that were zero anyway are not lost.
            if bytes == whole {
                continue;
            }
            let what = format!("{way} at {at}");
            let torn = copy_of(place.path());
            std::fs::write(newest(torn.path(), "journal."), &bytes).unwrap();
            let tier = check(torn.path(), &[0, 1, 2, 3], &what);
            if at % 16 == 3 {
                tier.put(100, LENGTH).unwrap();
                drop(tier);
                check(torn.path(), &[0, 1, 2, 3, 100], &what);
            }
        }
    }
}

#[test]
fn a_flipped_bit_in_any_byte_of_a_record_costs_that_block_alone() {
    // E7, K5: nothing behind it is hidden either.
    let (place, whole, _) = stored();
    for at in 0..RECORD_BYTES {
        let mut bytes = whole.clone();
        bytes[3 * RECORD_BYTES + at] ^= 1 << (at % 8);
        let flipped = copy_of(place.path());
        std::fs::write(newest(flipped.path(), "journal."), &bytes).unwrap();
        let tier = check(flipped.path(), &[0, 1, 3, 4], &format!("byte {at}"));
        assert_eq!(tier.told.counted("recovery.damaged_records"), 1, "byte {at}");
    }
}

fn flip(file: &File, offset: u64) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1 << (offset % 8)], offset).unwrap();
}

#[test]
fn a_flipped_bit_anywhere_in_the_data_is_corrupt_for_its_block_alone_and_can_be_repaired() {
    // E5, E8: no flip passes for the block's bytes, and each load says so.
    let (place, _, _) = stored();
    let (tier, blocks) = Tier::recovered(place.path(), CAPACITY, "direct = \"off\"");
    let data = OpenOptions::new().read(true).write(true).open(place.path().join("data")).unwrap();
    let start = (blocks[&2].location & ((1 << 40) - 1)) * 4096;
    let samples = [0, 1, 511, 512, 4095, 4096, LENGTH - 1].into_iter().chain((0..LENGTH).step_by(97));
    let mut flips = 0;
    for at in samples {
        flip(&data, start + at);
        assert_eq!(tier.get(&blocks[&2]), Err(Status::CORRUPT), "byte {at}");
        assert!([0, 1, 3, 4].iter().all(|number| tier.get(&blocks[number]) == Ok(())), "byte {at}");
        flip(&data, start + at);
        assert_eq!(tier.get(&blocks[&2]), Ok(()), "byte {at}");
        flips += 1;
    }
    assert_eq!(tier.told.counted("corrupt"), flips);
    flip(&data, start + LENGTH);
    assert_eq!(tier.get(&blocks[&2]), Ok(()), "what pads the last unit is nobody's");
    flip(&data, start + 7);
    assert_eq!((tier.get(&blocks[&2]), tier.delete(&blocks[&2])), (Err(Status::CORRUPT), Status::OK));
    let again = tier.put(2, LENGTH).unwrap();
    assert_eq!((tier.get(&again), tier.nvme.stats().blocks), (Ok(()), BLOCKS));
}
