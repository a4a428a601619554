//! Files of an earlier life that cannot be removed.

use std::path::Path;
use std::sync::Arc;

use umbp_plugin_api::{Backend, OpenError};

use crate::common::{MIB, Tier, config, disk_bytes, folder};
use crate::faulty::{Faults, Faulty};

const CAPACITY: u64 = 4 * MIB;
const FIRST_JOURNAL: &str = "journal.0000000000000001";
const UNFINISHED: &str = "snapshot.0000000000000009.tmp";
const UNFINISHED_BYTES: u64 = MIB;

/// A closed store of 20 blocks.
fn stored(path: &Path) {
    let tier = Tier::fresh(path, CAPACITY, "");
    assert!((0..20).all(|number| tier.put(number, 1000).is_ok()));
    tier.shutdown();
}

fn open(path: &Path, unremovable: &str) -> (Result<Tier, OpenError>, Arc<Faults>) {
    let (medium, faults) = Faulty::new();
    *faults.unremovable.lock().unwrap() = Some(unremovable.to_owned());
    (Tier::open_with(&config(path, CAPACITY, "sync_window = \"10ms\""), medium), faults)
}

fn damage_superblock(path: &Path) {
    let mut bytes = std::fs::read(path.join("superblock")).unwrap();
    bytes[40] ^= 1;
    std::fs::write(path.join("superblock"), bytes).unwrap();
}

#[test]
fn k1_temporary_files_that_cannot_be_removed_count_as_taken_and_refuse_nothing() {
    // E4, K1, G2: none of them is ever read.
    let place = folder();
    stored(place.path());
    for name in ["superblock.tmp", "namespaces.tmp", "probe.tmp"] {
        std::fs::write(place.path().join(name), [0x5a; 5000]).unwrap();
    }
    std::fs::write(place.path().join(UNFINISHED), vec![0x5a; UNFINISHED_BYTES as usize]).unwrap();
    let (tier, faults) = open(place.path(), ".tmp");
    let tier = tier.unwrap();
    assert!(tier.told.counted("removal_errors") > 0);
    tier.introduce();
    let found = tier.recover();
    assert!(found.len() == 20 && found.values().all(|block| tier.get(block) == Ok(())));
    assert!(tier.nvme.stats().medium_bytes >= UNFINISHED_BYTES);
    let stored = (1000..).take_while(|number| tier.put(*number, 64 << 10).is_ok()).count();
    assert!(stored > 24 && disk_bytes(place.path()) <= CAPACITY, "{stored}");
    // Once it can be removed it is, and its room is there.
    *faults.unremovable.lock().unwrap() = None;
    let more = (2000..200_000).any(|number| tier.put(number, 64 << 10).is_ok());
    assert!(more && !place.path().join(UNFINISHED).exists());
}

#[test]
fn a_damaged_stores_journal_that_cannot_be_removed_is_refused_with_a_remedy_and_its_data_is_not() {
    // J2: the journal could be taken for the new store's own; data that no record leads to could not.
    let place = folder();
    stored(place.path());
    damage_superblock(place.path());
    for _ in 0..2 {
        let text = open(place.path(), FIRST_JOURNAL).0.err().expect("refused").to_string();
        for words in [FIRST_JOURNAL, "cannot remove", "by hand", "`paths`"] {
            assert!(text.contains(words), "no {words} in: {text}");
        }
    }
    let tier = open(place.path(), "/data").0.unwrap();
    tier.introduce();
    assert_eq!((tier.recover().len(), tier.told.counted("fallback.renewed")), (0, 1));
    let stored = (1000..).take_while(|number| tier.put(*number, 64 << 10).is_ok()).count();
    assert!(stored > 40 && disk_bytes(place.path()) <= CAPACITY, "{stored}");
}
