//! Stores and loads through the seam, on real files.

use std::sync::Arc;

use crate::common::{self, MIB, NAMESPACE, REGION, Stored, Tier, config, folder};
use umbp_backend_nvme::port::{Disk, Medium};
use umbp_plugin_api::backend::Level;
use umbp_plugin_api::types::{Operation, code};
use umbp_plugin_api::{Backend, OpenError, Status, Submitted};

const CAPACITY: u64 = 64 * MIB;
/// From one byte to several pieces; with MLA's odd sizes and the fragment of a tiny block.
const LENGTHS: [u64; 9] = [1, 61, 4096, 4097, 73_728, 640_256, 1_124_352, 2_561_024, 5 * MIB];

fn check_lengths(more: &str, report: &str) {
    let place = folder();
    let tier = Tier::fresh(place.path(), CAPACITY, more);
    let ring = Disk.ring(8).is_ok();
    assert!(tier.opened.report.contains(report) || !ring, "{}", tier.opened.report);
    let stored: Vec<Stored> =
        LENGTHS.iter().zip(0..).map(|(&length, number)| tier.put(number, length).unwrap()).collect();
    for block in &stored {
        assert_eq!(tier.get(block), Ok(()), "{more}: {block:?}");
    }
    let stats = tier.nvme.stats();
    assert_eq!((stats.blocks, stats.resident_bytes), (LENGTHS.len() as u64, LENGTHS.iter().sum()));
    assert_eq!(stats.medium_bytes, common::disk_bytes(place.path()), "{more}");
    tier.shutdown();
    let (tier, blocks) = Tier::recovered(place.path(), CAPACITY, more);
    assert_eq!(blocks.len(), LENGTHS.len());
    for block in blocks.values() {
        assert_eq!(tier.get(block), Ok(()), "{more}: {block:?}");
    }
}

#[test]
fn what_is_stored_comes_back_byte_for_byte_by_io_uring() {
    check_lengths("", "io_uring, O_DIRECT");
}

#[test]
fn what_is_stored_comes_back_byte_for_byte_by_threads() {
    check_lengths("io = \"threads\"", "threads, as configured, O_DIRECT");
}

#[test]
fn what_is_stored_comes_back_byte_for_byte_through_the_page_cache() {
    check_lengths("direct = \"off\"", "io_uring, page cache");
    check_lengths("io = \"threads\"\ndirect = \"off\"", "threads, as configured, page cache");
}

#[test]
fn one_piece_at_a_time_is_enough() {
    check_lengths("depth = 1", "io_uring");
    check_lengths("depth = 1\nio = \"threads\"", "threads");
}

#[test]
fn a_store_written_one_way_is_read_the_other_way() {
    let place = folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "direct = \"off\"\nio = \"threads\"");
    tier.put(1, 61).unwrap();
    tier.put(2, 1_124_352).unwrap();
    drop(tier);
    let (tier, blocks) = Tier::recovered(place.path(), CAPACITY, "");
    assert_eq!(blocks.values().map(|block| tier.get(block)).collect::<Vec<_>>(), [Ok(()), Ok(())]);
}

#[test]
fn a_buffer_that_the_disk_would_not_take_goes_through_a_bounce_buffer() {
    let place = folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "");
    let end = 16 * MIB;
    let (at_the_end, unaligned) = (tier.put_at(1, 61, end - 61).unwrap(), tier.put_at(2, 8192, 4097).unwrap());
    assert_eq!(tier.get_at(&at_the_end, end - 61), Ok(()));
    assert_eq!(tier.get_at(&unaligned, 4097), Ok(()));
    assert_eq!(tier.told.counted("bounce"), 4);
}

#[test]
fn many_blocks_in_flight_all_come_back_right() {
    let place = folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "depth = 16");
    let (count, length) = (64, 73_728);
    let operations: Vec<Operation> = (0..count)
        .map(|number| {
            let offset = number * 77_824;
            tier.memory.write(offset, &common::payload(number, length));
            Operation { offset, ..tier.operation(code::PUT, number, length) }
        })
        .collect();
    let mut results = vec![Submitted::default(); operations.len()];
    tier.nvme.submit(&operations, &mut results);
    assert!(results.iter().all(|result| *result == Submitted::ACCEPTED));
    let gets: Vec<Operation> = operations
        .iter()
        .map(|put| Operation { id: tier.id(), code: code::GET, location: tier.told.wait(put.id).location, ..*put })
        .collect();
    tier.memory.write(0, &vec![0; (count * 77_824) as usize]);
    tier.nvme.submit(&gets, &mut results);
    for (get, number) in gets.iter().zip(0..) {
        assert_eq!(tier.told.wait(get.id).status, Status::OK);
        assert!(tier.memory.read(get.offset, length) == common::payload(number, length));
    }
}

#[test]
fn a_load_beside_deletes_and_stores_gives_right_bytes_or_a_miss() {
    // A7: counts instead of a time. Two loaders, one who deletes and stores again in the same units.
    let place = folder();
    let tier = Tier::fresh(place.path(), 8 * MIB, "");
    let blocks: Vec<std::sync::Mutex<Stored>> =
        (0..8).map(|number| std::sync::Mutex::new(tier.put(number, 200_000).unwrap())).collect();
    let copy = |at: usize| blocks[at].lock().unwrap().clone();
    let missed = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for loader in 1..=2 {
            let (tier, copy, missed) = (&tier, &copy, &missed);
            scope.spawn(move || {
                for round in 0..400 {
                    // `get_at` compares the bytes of what succeeds.
                    match tier.get_at(&copy(round % 8), loader * 4 * MIB) {
                        Ok(()) => {}
                        Err(Status::MISS) => drop(missed.fetch_add(1, std::sync::atomic::Ordering::Relaxed)),
                        Err(status) => panic!("{status:?}"),
                    }
                }
            });
        }
        for round in 0..400 {
            let at = round % 8;
            assert_eq!(tier.delete(&copy(at)), Status::OK);
            let stored = tier.put(1000 + round as u64, 200_000).unwrap();
            *blocks[at].lock().unwrap() = stored;
        }
    });
    assert_eq!(tier.told.counted("corrupt"), 0);
    assert!((0..8).all(|at| tier.get(&copy(at)) == Ok(())));
}

#[test]
fn a_block_across_two_registered_buffers_comes_back_right() {
    let place = folder();
    let memory = common::Memory::new((1 << 30) + 4 * MIB);
    let tier = Tier::fresh(place.path(), CAPACITY, "");
    assert_eq!(tier.register(77, &memory), Status::OK);
    for offset in [(1 << 30) - MIB - 4096, (1 << 30) - 2 * MIB, 1 << 30, (1 << 30) + MIB] {
        let (number, length) = (offset, 2 * MIB);
        memory.write(offset, &common::payload(number, length));
        let put = Operation { region: 77, offset, ..tier.operation(code::PUT, number, length) };
        let location = tier.run(put).location;
        memory.write(offset, &vec![0; length as usize]);
        let get = Operation { id: tier.id(), code: code::GET, location, ..put };
        assert_eq!(tier.run(get).status, Status::OK);
        assert!(memory.read(offset, length) == common::payload(number, length));
    }
    tier.nvme.region_unregister(77);
}

#[test]
fn a_wrong_argument_is_rejected_and_a_wrong_location_is_a_miss() {
    let place = folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "");
    let block = tier.put(1, 5000).unwrap();
    let (put, get) = (tier.operation(code::PUT, 2, 5000), tier.operation(code::GET, 1, 5000));
    let rejected = [
        (Operation { namespace_id: NAMESPACE + 1, ..put }, Status::INVALID),
        (Operation { region: REGION + 1, ..put }, Status::INVALID),
        (Operation { offset: 16 * MIB - 4999, ..put }, Status::INVALID),
        (Operation { offset: u64::MAX, ..put }, Status::INVALID),
        (Operation { length: 0, ..put }, Status::INVALID),
        (Operation { length: u64::MAX, ..put }, Status::INVALID),
        (Operation { code: code::COPY_TO_DEVICE, ..put }, Status::UNSUPPORTED),
        (Operation { code: 4711, ..put }, Status::UNSUPPORTED),
    ];
    for (operation, status) in rejected {
        assert_eq!(tier.submit(operation), Submitted::rejected(status), "{operation:?}");
    }
    for location in [0, u64::MAX, block.location + 1, block.location ^ 1 << 48, block.location ^ 1 << 40] {
        for code in [code::GET, code::DELETE, code::EXISTS, code::FILE_EXTENT] {
            let done = tier.run(Operation { id: tier.id(), code, location, ..get });
            assert_eq!(done.status, Status::MISS, "{location:x}");
        }
    }
    let (location, id) = (block.location, tier.id());
    assert_eq!(tier.run(Operation { id, location, length: 4999, ..get }).status, Status::MISS);
    let other_key = Operation { id: tier.id(), location, key: common::key(9), ..get };
    assert_eq!(tier.run(other_key).status, Status::MISS, "bytes of one key never pass for another's");
    assert_eq!(tier.get(&block), Ok(()));
}

#[test]
fn exists_and_file_extent_say_where_a_block_lies() {
    let place = folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "direct = \"off\"");
    tier.put(1, 4096).unwrap();
    let block = tier.put(2, 10_000).unwrap();
    let ask = Operation { location: block.location, ..tier.operation(code::EXISTS, 2, 10_000) };
    let done = tier.run(ask);
    assert_eq!((done.status, done.location, done.length), (Status::OK, block.location, 10_000));
    let done = tier.run(Operation { id: tier.id(), code: code::FILE_EXTENT, ..ask });
    let file = std::fs::read(format!("/proc/self/fd/{}", done.fd)).unwrap();
    let (from, to) = (done.offset as usize, (done.offset + done.length) as usize);
    assert!(file[from..to] == common::payload(2, 10_000));
}

#[test]
fn a_second_opener_is_refused_with_the_first_ones_pid_and_path() {
    // E2, K7
    let place = folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "");
    let Err(error) = Tier::open_with(&config(place.path(), CAPACITY, ""), Arc::new(Disk)) else {
        panic!("two openers of one folder");
    };
    let OpenError::Locked(text) = error else { panic!("{error}") };
    assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
    assert!(text.contains(place.path().to_str().unwrap()), "{text}");
    tier.put(1, 100).unwrap();
}

#[test]
fn a_full_tier_refuses_and_takes_again_after_a_delete() {
    let place = folder();
    let tier = Tier::fresh(place.path(), 8 * MIB, "");
    let mut stored = Vec::new();
    let refused = loop {
        match tier.put(stored.len() as u64, 100_000) {
            Ok(block) => stored.push(block),
            Err(status) => break status,
        }
    };
    assert_eq!(refused, Status::NO_SPACE);
    assert!(stored.len() as u64 * 102_400 > 7 * MIB, "{} blocks fit", stored.len());
    assert!(common::disk_bytes(place.path()) <= 8 * MIB);
    let victim = stored.swap_remove(5);
    assert_eq!(tier.delete(&victim), Status::OK);
    assert_eq!((tier.delete(&victim), tier.get(&victim)), (Status::MISS, Err(Status::MISS)));
    let taken = tier.put(1000, 100_000).unwrap();
    assert_eq!(tier.get(&victim), Err(Status::MISS), "its units hold another block now");
    stored.push(taken);
    assert!(stored.iter().all(|block| tier.get(block) == Ok(())));
}

#[test]
fn several_paths_share_the_blocks_and_may_be_reordered() {
    let (first, second) = (folder(), folder());
    let options = |paths: [&tempfile::TempDir; 2]| {
        let [a, b] = paths.map(|place| place.path().to_str().unwrap().to_owned());
        let mut both = config(first.path(), CAPACITY, "");
        both.options = format!("paths = [{a:?}, {b:?}]");
        both
    };
    let tier = Tier::open_with(&options([&first, &second]), Arc::new(Disk)).unwrap();
    tier.introduce();
    assert_eq!(tier.recover().len(), 0);
    (0..20).for_each(|number| assert!(tier.put(number, 100_000).is_ok()));
    tier.shutdown();
    assert!(common::disk_bytes(first.path()) > MIB / 2 && common::disk_bytes(second.path()) > MIB / 2);
    let tier = Tier::open_with(&options([&second, &first]), Arc::new(Disk)).unwrap();
    tier.introduce();
    let blocks = tier.recover();
    assert_eq!(blocks.len(), 20);
    assert!(blocks.values().all(|block| tier.get(block) == Ok(())));
}

#[test]
fn a_strangers_superblock_is_refused_and_left_alone() {
    let place = folder();
    std::fs::write(place.path().join("superblock"), b"precious").unwrap();
    let Err(error) = Tier::open_with(&config(place.path(), CAPACITY, ""), Arc::new(Disk)) else { panic!() };
    assert!(matches!(&error, OpenError::Environment(text) if text.contains("wrong magic")), "{error}");
    assert_eq!(std::fs::read(place.path().join("superblock")).unwrap(), b"precious");
}

#[test]
fn nothing_is_logged_as_a_warning_where_nothing_is_wrong() {
    let place = folder();
    let tier = Tier::fresh(place.path(), CAPACITY, "");
    tier.put(1, 1000).unwrap();
    let log = tier.told.log.lock().unwrap();
    // A plain user may not lock as much memory, and a container may have no io_uring: then that is right to be said.
    let machine = |text: &str| text.contains("RLIMIT_MEMLOCK") || text.contains("io_uring is");
    assert!(log.iter().all(|(level, text)| *level > Level::Warn || machine(text)), "{log:?}");
}
