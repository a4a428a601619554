//! What lies under a block's name and is not that block; and what lies beside the prefix.

use umbp_plugin_api::Status;
use umbp_plugin_api::types::code;
use umbp_testkit::s3::S3;
use umbp_testkit::servers::servers;
use umbp_testkit::valkey::Valkey;

use crate::rig::{self, Known, Tier, key};

const LENGTH: u64 = 100_000;

/// A5, A6, E5, E8: each way of being worthless is a miss under its own counter, and the next put heals it.
#[test]
fn what_is_cut_foreign_of_another_version_or_damaged_is_a_miss_that_a_put_heals() {
    let Some(servers) = servers() else { return };
    let server = Valkey::single(&servers, &[]);
    let mut tier = Tier::open(&rig::single(&server.address()));
    let known = tier.put_ok(3, LENGTH);
    let name = server.keys("*").remove(0);
    let whole = server.ask(&["GET", &name]).bytes().expect("an object").to_vec();
    let changed = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    let cases: [(&str, Vec<u8>, Status); 6] = [
        ("object.truncated", whole[..whole.len() - 1].to_vec(), Status::MISS),
        ("object.truncated", whole[..100].to_vec(), Status::MISS),
        ("object.foreign", b"somebody else's".to_vec(), Status::MISS),
        ("object.version", changed(8), Status::MISS),
        ("object.corrupt", changed(60), Status::MISS),
        ("object.corrupt", changed(whole.len() - 5), Status::CORRUPT),
    ];
    for (counter, bytes, status) in cases {
        server.ask(&[b"SET", name.as_bytes(), &bytes]);
        let before = tier.counted(counter);
        assert_eq!(tier.get(&known), status, "{counter}");
        assert_eq!(tier.counted(counter), before + 1, "{counter}: {:?}", tier.counters());
        // Nobody looked, and another host stores.
        server.ask(&[b"SET", name.as_bytes(), &bytes]);
        let again = tier.put(3, LENGTH).0;
        if status == Status::CORRUPT {
            // The header is whole: only a reader finds out, and takes it away.
            assert_eq!(tier.get(&again), Status::CORRUPT);
            tier.put_ok(3, LENGTH);
        }
        assert_eq!(tier.get(&known), Status::OK, "{counter}");
    }
    // Another block's object under this name.
    let other = tier.put_ok(4, LENGTH);
    let other_name = server.keys("*").into_iter().find(|found| *found != name).expect("another");
    let others = server.ask(&["GET", &other_name]).bytes().expect("an object").to_vec();
    server.ask(&[b"SET", name.as_bytes(), &others]);
    assert_eq!(tier.get(&known), Status::MISS);
    assert_eq!((tier.counted("object.other_key"), tier.get(&other)), (1, Status::OK));
}

/// A5, E7: no reader sees half: without its manifest a block is not there, and one whose part is gone is none any
/// more.
#[test]
fn a_large_block_is_there_with_its_manifest_and_gone_with_any_of_its_parts() {
    let Some(servers) = servers() else { return };
    let server = Valkey::single(&servers, &[]);
    let options = format!("{}part_bytes = \"64KiB\"\n", rig::single(&server.address()));
    let (mut tier, mut other) = (Tier::open(&options), Tier::open(&options));
    let length = 5 * (64 << 10) + 17;
    let known = tier.put_ok(9, length);
    assert_eq!(server.keys("*").len(), 7, "six parts and what names them");
    assert_eq!(other.get(&known), Status::OK);
    let name = server.keys("*").into_iter().min_by_key(String::len).expect("the manifest");
    let part = server.keys("*").into_iter().rfind(|found| *found != name).expect("a part");
    server.ask(&["DEL", &part]);
    assert_eq!(other.get(&known), Status::MISS);
    assert_eq!(other.counted("object.part_missing"), 1);
    assert_eq!(tier.run(code::EXISTS, &known).status, Status::MISS, "so that it is stored again");
    let known = tier.put_ok(9, length);
    assert_eq!(other.get(&known), Status::OK);
    assert_eq!(tier.run(code::DELETE, &known).status, Status::OK);
    assert_eq!(other.get(&known), Status::MISS);
    // The same block of a second writer leaves no part behind.
    let first = tier.put_ok(10, length);
    let objects = server.keys("*").len();
    let second = other.put_ok(10, length);
    assert_eq!((second.location, server.keys("*").len()), (first.location, objects));
}

/// In a database and in a bucket that others use too.
#[test]
fn nothing_outside_the_prefix_is_touched() {
    let Some(servers) = servers() else { return };
    let server = Valkey::single(&servers, &[]);
    for name in ["umb", "umbp", "umbp2:x", "other:umbp:x", "session:1"] {
        server.ask(&["SET", name, "mine"]);
    }
    work(&mut Tier::open(&rig::single(&server.address())));
    assert_eq!(server.keys("*"), ["other:umbp:x", "session:1", "umb", "umbp", "umbp2:x"]);
    let (s3, folder) = (S3::start(&servers), tempfile::tempdir().expect("a folder"));
    for name in ["umb", "umbp2/x", "other/umbp/x"] {
        s3.plant(name, b"mine");
    }
    work(&mut Tier::open(&rig::s3(&s3, folder.path())));
    assert_eq!(s3.keys(), ["other/umbp/x", "umb", "umbp2/x"]);
    assert_eq!(s3.peek("umb").as_deref(), Some(&b"mine"[..]));
}

/// Puts, looks, and takes away all that it put.
fn work(tier: &mut Tier) {
    let known: Vec<Known> = (0..8).map(|number| tier.put_ok(number, 70_000)).collect();
    for block in &known {
        assert_eq!(tier.get(block), Status::OK);
        assert_eq!(tier.run(code::EXISTS, block).status, Status::OK);
        assert_eq!(tier.run(code::DELETE, block).status, Status::OK);
        assert_eq!(tier.get(block), Status::MISS);
    }
}

/// E2, K13: what another host stored under the same key, with other bytes that are as good, is told by its
/// checksum.
#[test]
fn another_hosts_bytes_are_told_apart_from_ours() {
    let Some(servers) = servers() else { return };
    let server = Valkey::single(&servers, &[]);
    let (mut tier, other) = (Tier::open(&rig::single(&server.address())), Tier::open(&rig::single(&server.address())));
    let ours = tier.put_ok(2, LENGTH);
    let theirs = Known { checksum: ours.checksum ^ 1, location: 0, ..ours };
    let done = other.run(code::PUT, &theirs);
    assert_eq!((done.status, done.checksum, done.location), (Status::OK, ours.checksum, ours.location));
    assert_eq!(other.counted("put.other"), 1);
    let found = other.run(code::EXISTS, &theirs);
    assert_eq!((found.checksum, found.depth, found.parent, found.length), (ours.checksum, 2, key(1), LENGTH));
    let shorter = Known { length: LENGTH - 1, location: 0, ..ours };
    assert_eq!(other.run(code::PUT, &shorter).status, Status::FAILED, "the old one stays");
    assert_eq!(tier.get(&ours), Status::OK);
}

#[test]
fn objects_live_as_long_as_the_options_say() {
    let Some(servers) = servers() else { return };
    let server = Valkey::single(&servers, &[]);
    let mut tier = Tier::open(&format!("{}ttl = \"1h\"\npart_bytes = \"64KiB\"\n", rig::single(&server.address())));
    tier.put_ok(0, 1000);
    tier.put_ok(1, 200_000);
    for name in server.keys("*") {
        let left = server.ask(&["TTL", &name]).integer();
        assert!((3500..=3600).contains(&left), "{name}: {left} s");
    }
}
