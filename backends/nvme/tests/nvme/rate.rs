//! How fast an earlier life is read back.

use std::time::Instant;

use umbp_backend_nvme::format::{Kind, Record, Salt, decode_superblock};
use umbp_plugin_api::Backend;
use umbp_plugin_api::backend::Recovery;

use crate::common::{MIB, Tier, key, newest, quick_folder};

const BLOCKS: u64 = 100_000;
const CAPACITY: u64 = 1024 * MIB;
/// As many as the engine asks for at one time.
const PAGE_BLOCKS: usize = 4096;

#[test]
fn e3_a_hundred_thousand_records_in_no_order_come_back_in_pages() {
    // E3: all of them, and it prints how long that took.
    let place = quick_folder();
    Tier::fresh(place.path(), CAPACITY, "").shutdown();
    let uuid = decode_superblock(&std::fs::read(place.path().join("superblock")).unwrap()).unwrap().uuid;
    let journal = newest(place.path(), "journal.");
    let name = journal.extension().unwrap().to_str().unwrap();
    let salt = Salt::journal(&uuid, u64::from_str_radix(name, 16).unwrap());
    let mut bytes = Record { sequence: 1, ..Record::start() }.encode(&salt).to_vec();
    for number in 0..BLOCKS {
        // Units in no order, as after a long life.
        let unit = number * 7919 % BLOCKS;
        let (sequence, length) = (number + 2, 4096);
        let start = Record::start();
        let put = Record { kind: Kind::Put, sequence, generation: sequence, unit, length, key: key(number), ..start };
        bytes.extend_from_slice(&put.encode(&salt));
    }
    std::fs::write(&journal, &bytes).unwrap();
    let data = std::fs::File::options().write(true).open(place.path().join("data")).unwrap();
    data.set_len(BLOCKS * 4096).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&data, &[1; 4096], (BLOCKS - 1) * 4096).unwrap();
    let tier = Tier::open(place.path(), CAPACITY, "");
    tier.introduce();
    let (began, mut cursor, mut blocks) = (Instant::now(), 0, Vec::new());
    while let Recovery::More(next) = tier.nvme.recover(cursor, PAGE_BLOCKS, &mut blocks).unwrap() {
        assert!(blocks.len() <= PAGE_BLOCKS * (cursor as usize + 1), "a page is no larger than it was asked for");
        cursor = next;
    }
    println!("{} blocks in {:?}", blocks.len(), began.elapsed());
    assert_eq!(blocks.len() as u64, BLOCKS);
    assert_eq!(tier.nvme.stats().blocks, BLOCKS);
}
