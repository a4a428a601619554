//! Claims about jobs, against a daemon in the test's own hands.

mod fake;

use fake::*;
use umbp_client::{Checksums, ClientEvent, Counter, FailCause, Outcome};
use umbp_protocol::message::*;

const RUNS: usize = 160;
const RUN_BYTES: usize = 4096;

#[test]
fn blocks_of_160_runs_are_stored_and_loaded_byte_exact() {
    let fake = Fake::new();
    let (client, mut peer) = fake.client();
    let mut engine = Engine::new(&client, 3, RUNS, RUN_BYTES);
    let bytes = engine.block_bytes();
    (0..3).for_each(|n| engine.fill(n, &payload(n as u32, bytes)));
    let job = client.store(&[engine.store_block(0), engine.store_block(1), engine.store_block(2)]).expect("begun");
    let items = peer.reserve(8, LEASE_MS);
    assert_eq!((items[0].parent, items[1].parent, items[2].depth), ([0; 44], key(0).to_bytes(), 2));
    let mut committed = peer.commit();
    committed.sort_unstable();
    assert_eq!(outcomes(&client, job), vec![Outcome::Stored { bytes: bytes as u64 }; 3]);
    for (n, checksum) in &committed {
        let stored = peer.bytes_at(u64::from(*n) * bytes as u64, bytes);
        assert!(stored == payload(*n, bytes), "block {n} as stored");
        assert_eq!(*checksum, umbp_plugin_api::checksum::of_block(&digest(), &key(*n).to_bytes(), &stored));
    }

    engine.memory.fill(0xee);
    let ready = [0, 1, 2].map(|n: u32| peer.put(&key(n), n, u64::from(n) * bytes as u64, &payload(n, bytes), n as u8));
    let job = client.load(&[engine.load_block(0), engine.load_block(1), engine.load_block(2)]).expect("begun");
    peer.acquire(9, LEASE_MS, |n| ready[n]);
    assert!(peer.release().is_empty());
    let loaded = |tier| Outcome::Loaded { tier, bytes: bytes as u64 };
    assert_eq!(outcomes(&client, job), [loaded(0), loaded(1), loaded(2)]);
    for n in 0..3 {
        assert!(engine.payload(n) == payload(n as u32, bytes), "block {n} as loaded");
    }
    let beside = engine.memory.chunks(2 * RUN_BYTES).all(|pair| pair[RUN_BYTES..].iter().all(|b| *b == 0xee));
    assert!(beside, "no byte beside the runs was touched");
    assert_eq!(client.counter(Counter::BytesLoaded), 3 * bytes as u64);
    assert_eq!(client.counter(Counter::BytesStored), 3 * bytes as u64);
}

/// A3, A5, K14: a batch with a failure of every kind; the failed are exactly those, each with its own reason, and
/// nothing that failed is counted as loaded.
#[test]
fn a3_a5_the_failures_of_a_load_are_exactly_its_failures() {
    let fake = Fake::new();
    let mut options = fake.options();
    options.checksums = Checksums::Always;
    let (client, mut peer) = fake.client_with(options);
    let engine = Engine::new(&client, 10, 4, RUN_BYTES);
    let bytes = engine.block_bytes();
    let mut blocks: Vec<_> = (0..10).map(|n| engine.load_block(n)).collect();
    blocks[8].runs[1].offset = u64::MAX - 5;
    let ready: Vec<_> =
        (0..8_u32).map(|n| peer.put(&key(n), n, u64::from(n) * bytes as u64, &payload(n, bytes), 0)).collect();
    peer.set_generation(2, 6);
    std::os::unix::fs::FileExt::write_all_at(&peer.segment, b"scribble", 3 * bytes as u64 + 9000).expect("written");
    let job = client.load(&blocks).expect("begun");
    let changed = |n: usize, change: fn(&mut Extent, &mut u64)| match ready[n] {
        Acquired::Ready { mut extent, mut length, checksum, tier } => {
            change(&mut extent, &mut length);
            Acquired::Ready { extent, length, checksum, tier }
        }
        other => other,
    };
    let keys = peer.acquire(9, LEASE_MS, |n| match n {
        1 => Acquired::Miss(MissReason::TierDown),
        4 => changed(4, |_, length| *length -= 1),
        5 => changed(5, |extent, _| extent.offset = SEGMENT_BYTES - 1),
        6 => changed(6, |extent, _| extent.slot = WORDS as u32),
        7 => changed(7, |extent, _| extent.segment = 99),
        8 => Acquired::Miss(MissReason::Corrupt),
        n => ready[n],
    });
    assert_eq!((keys.len(), keys[8].local), (9, key(9).to_bytes()), "the block with the bad run is not asked for");
    let bad = peer.release();
    use FailCause::*;
    let failed = Outcome::Failed;
    let good = Outcome::Loaded { tier: 0, bytes: bytes as u64 };
    let expected = [
        good,
        Outcome::Missed(MissReason::TierDown),
        failed(GenerationChanged),
        failed(ChecksumMismatch),
        failed(LengthDiffers),
        failed(BadExtent),
        failed(BadExtent),
        failed(BadExtent),
        failed(BadRuns),
        Outcome::Missed(MissReason::Corrupt),
    ];
    assert_eq!(outcomes(&client, job), expected);
    assert_eq!(bad, [3], "only the copy whose bytes are bad is reported as bad");
    let counts = [Counter::BlocksLoaded, Counter::LoadErrors, Counter::BlocksMissed, Counter::BlocksCorrupt];
    assert_eq!(counts.map(|c| client.counter(c)), [1, 7, 1, 1]);
    assert_eq!(expected[9].key_result(), umbp_connector_core::job::KeyResult::Corrupt, "K10");
    assert!(engine.payload(0) == payload(0, bytes));
}

/// A3: two requests share a block of engine memory; each job names it by itself, and nothing else.
#[test]
fn a3_two_loads_onto_the_same_memory_each_tell_their_own_failure() {
    let fake = Fake::new();
    let (client, mut peer) = fake.client();
    let engine = Engine::new(&client, 3, 2, RUN_BYTES);
    let bytes = engine.block_bytes();
    let good = peer.put(&key(2), 2, 2 * bytes as u64, &payload(2, bytes), 0);
    let mut shared = engine.load_block(1);
    shared.runs = engine.load_block(0).runs;
    let first = client.load(&[engine.load_block(0), engine.load_block(2)]).expect("begun");
    peer.acquire(2, LEASE_MS, |n| if n == 0 { Acquired::Miss(MissReason::Failed) } else { good });
    assert!(peer.release().is_empty());
    let second = client.load(&[shared]).expect("begun");
    peer.acquire(1, LEASE_MS, |_| Acquired::Miss(MissReason::Absent));
    let loaded = Outcome::Loaded { tier: 0, bytes: bytes as u64 };
    assert_eq!(outcomes(&client, first), [Outcome::Missed(MissReason::Failed), loaded]);
    assert_eq!(outcomes(&client, second), [Outcome::Missed(MissReason::Absent)]);
}

#[test]
fn k10_k13_a_store_tells_for_each_block_what_became_of_it() {
    let fake = Fake::new();
    let (client, mut peer) = fake.client();
    let mut engine = Engine::new(&client, 7, 2, RUN_BYTES);
    engine.fill(6, &payload(6, 8192));
    let blocks: Vec<_> = (0..7).map(|n| engine.store_block(n)).collect();
    let job = client.store(&blocks).expect("begun");
    let (id, _) = peer.next();
    let extent = |slot, offset| Reserved::Extent(Extent { segment: SEGMENT, slot, offset, generation: 1 });
    let items = vec![
        Reserved::Present,
        Reserved::BeingWritten,
        Reserved::Refused,
        Reserved::LengthDiffers,
        Reserved::Invalid,
        extent(5, SEGMENT_BYTES),
        extent(6, 4096),
    ];
    peer.reply(id, &Reply::Reserve { lease: LeaseId(4), lease_ms: LEASE_MS, items });
    assert_eq!(peer.commit().iter().map(|(index, _)| *index).collect::<Vec<_>>(), [6]);
    // The extent outside the segment was leased, and is not written: it is given back.
    assert_eq!(peer.abort(), (LeaseId(4), vec![]));
    let expected = [
        Outcome::Present,
        Outcome::BeingWritten,
        Outcome::Refused,
        Outcome::Failed(FailCause::LengthDiffers),
        Outcome::Failed(FailCause::Invalid),
        Outcome::Failed(FailCause::BadExtent),
        Outcome::Stored { bytes: 8192 },
    ];
    assert_eq!(outcomes(&client, job), expected);
}

/// B8: past its deadline a lease reads and writes nothing more, and is acknowledged.
#[test]
fn b8_a_lease_that_is_over_copies_nothing_and_is_given_back() {
    let fake = Fake::new();
    let (client, mut peer) = fake.client();
    let mut engine = Engine::new(&client, 2, 4, RUN_BYTES);
    engine.fill(0, &payload(1, engine.block_bytes()));
    let job = client.store(&[engine.store_block(0)]).expect("begun");
    peer.reserve(8, 0);
    assert_eq!(peer.abort(), (LeaseId(8), vec![]));
    assert_eq!(outcomes(&client, job), [Outcome::Failed(FailCause::LeaseExpired)]);
    assert!(peer.bytes_at(0, engine.block_bytes()).iter().all(|byte| *byte == 0), "nothing was written");

    let ready = peer.put(&key(1), 1, 65536, &payload(2, engine.block_bytes()), 0);
    let job = client.load(&[engine.load_block(1)]).expect("begun");
    peer.acquire(9, 0, |_| ready);
    assert!(peer.release().is_empty());
    assert_eq!(outcomes(&client, job), [Outcome::Failed(FailCause::LeaseExpired)]);
    assert!(engine.payload(1).iter().all(|byte| *byte == 0), "nothing was read");
}

#[test]
fn a_commit_that_comes_too_late_fails_its_blocks_and_is_acknowledged() {
    let fake = Fake::new();
    let (client, mut peer) = fake.client();
    let engine = Engine::new(&client, 2, 1, RUN_BYTES);
    let job = client.store(&[engine.store_block(0), engine.store_block(1)]).expect("begun");
    peer.reserve(8, LEASE_MS);
    let (id, _) = peer.next();
    peer.reply(id, &Reply::Commit { items: vec![Outcome_::Done, Outcome_::LeaseExpired] });
    assert_eq!(peer.abort(), (LeaseId(8), vec![]));
    let mut outcomes = outcomes(&client, job);
    outcomes.sort_unstable_by_key(|outcome| matches!(outcome, Outcome::Failed(_)));
    assert_eq!(outcomes, [Outcome::Stored { bytes: 4096 }, Outcome::Failed(FailCause::LeaseExpired)]);
}

/// B1: once a cancelled store is reported, its memory may be overwritten: nothing of it is committed.
#[test]
fn b1_a_cancelled_store_commits_nothing_that_was_overwritten() {
    const BLOCKS: usize = 20;
    let fake = Fake::new();
    let (client, mut peer) = fake.client();
    let mut engine = Engine::new(&client, BLOCKS, RUNS, RUN_BYTES);
    let bytes = engine.block_bytes();
    for round in 0..12_u32 {
        (0..BLOCKS).for_each(|n| engine.fill(n, &payload(round * 100 + n as u32, bytes)));
        let blocks: Vec<_> = (0..BLOCKS).map(|n| engine.store_block(n)).collect();
        let job = client.store(&blocks).expect("begun");
        if round % 4 == 0 {
            client.cancel(job);
            assert_eq!(outcomes(&client, job), vec![Outcome::Cancelled; BLOCKS], "reported before the daemon answers");
            engine.memory.fill(0x77);
            peer.reserve(8, LEASE_MS);
            assert_eq!(peer.abort(), (LeaseId(8), vec![]));
            continue;
        }
        let block = round % 4 - 1;
        let (end, expected) = (u64::from(block + 1) * bytes as u64 - 64, payload(round * 100 + block, bytes));
        peer.reserve(8, LEASE_MS);
        // In the midst of it: as soon as the end of one block is there.
        let begin = std::time::Instant::now();
        while peer.bytes_at(end, 64) != expected[bytes - 64..] {
            assert!(begin.elapsed() < LONG, "block {block} is copied");
        }
        client.cancel(job);
        // Either all was copied before, and is committed as it was, or nothing is.
        let (id, request) = peer.next();
        match request {
            Request::Commit { items, .. } => {
                peer.reply(id, &Reply::Commit { items: vec![Outcome_::Done; items.len()] });
                let outcomes = outcomes(&client, job);
                engine.memory.fill(0x77);
                for (index, checksum) in items {
                    assert_eq!(outcomes[index as usize], Outcome::Stored { bytes: bytes as u64 });
                    let stored = peer.bytes_at(u64::from(index) * bytes as u64, bytes);
                    assert!(stored == payload(round * 100 + index, bytes), "the old bytes under the old key");
                    let key = key(index).to_bytes();
                    assert_eq!(checksum, umbp_plugin_api::checksum::of_block(&digest(), &key, &stored));
                }
            }
            Request::Abort { items, .. } => {
                assert!(items.is_empty());
                peer.reply(id, &Reply::Abort { count: BLOCKS as u32 });
                assert_eq!(outcomes(&client, job), vec![Outcome::Cancelled; BLOCKS]);
                engine.memory.fill(0x77);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn ready_blocks_are_loaded_while_others_await_their_promotion() {
    let fake = Fake::new();
    let (client, mut peer) = fake.client();
    let engine = Engine::new(&client, 3, 2, RUN_BYTES);
    let bytes = engine.block_bytes();
    let ready = [0, 1, 2].map(|n: u32| peer.put(&key(n), n, u64::from(n) * 65536, &payload(n, bytes), n as u8));
    let blocks: Vec<_> = (0..3).map(|n| engine.load_block(n)).collect();
    let job = client.load(&blocks).expect("begun");
    peer.acquire(9, LEASE_MS, |n| if n == 0 { ready[0] } else { Acquired::Pending });
    assert_eq!(client.poll(job), None);
    let promoted = |index, item| Event::Promoted { lease: LeaseId(9), index, item };
    peer.push(&promoted(2, ready[2]));
    peer.push(&promoted(2, ready[1]));
    peer.push(&promoted(70, ready[1]));
    peer.push(&promoted(1, Acquired::Miss(MissReason::Failed)));
    assert!(peer.release().is_empty());
    let loaded = |tier| Outcome::Loaded { tier, bytes: bytes as u64 };
    assert_eq!(outcomes(&client, job), [loaded(0), Outcome::Missed(MissReason::Failed), loaded(2)]);
    assert!(engine.payload(2) == payload(2, bytes));
}

#[test]
fn a_promotion_that_never_comes_fails_at_the_jobs_deadline_and_its_lease_is_given_back() {
    let fake = Fake::new();
    let mut options = fake.options();
    options.job_timeout = std::time::Duration::from_millis(50);
    let (client, mut peer) = fake.client_with(options);
    let engine = Engine::new(&client, 1, 1, RUN_BYTES);
    let job = client.load(&[engine.load_block(0)]).expect("begun");
    peer.acquire(9, LEASE_MS, |_| Acquired::Pending);
    assert_eq!(outcomes(&client, job), [Outcome::Failed(FailCause::JobTimedOut)]);
    assert!(peer.release().is_empty());
}

#[test]
fn a_lease_whose_job_takes_long_is_renewed_and_a_lease_that_is_gone_ends_it() {
    let fake = Fake::new();
    let (client, mut peer) = fake.client();
    let engine = Engine::new(&client, 1, 1, RUN_BYTES);
    let ready = peer.put(&key(0), 0, 0, &payload(0, RUN_BYTES), 1);
    for lives in [[1000, 60_000], [1000, 0]] {
        let job = client.load(&[engine.load_block(0)]).expect("begun");
        peer.acquire(9, 1000, |_| Acquired::Pending);
        (peer.renewals, peer.renewed) = (lives.to_vec(), 0);
        let (_, request) = peer.next();
        assert_eq!(request, Request::Renew { leases: vec![LeaseId(9)] });
        peer.push(&Event::Promoted { lease: LeaseId(9), index: 0, item: ready });
        assert!(peer.release().is_empty());
        let expected = match lives[1] {
            0 => Outcome::Failed(FailCause::LeaseExpired),
            _ => Outcome::Loaded { tier: 1, bytes: RUN_BYTES as u64 },
        };
        assert_eq!(outcomes(&client, job), [expected]);
    }
}

#[test]
fn a_lookup_of_any_length_is_one_answer_per_key() {
    let fake = Fake::new();
    let (client, mut peer) = fake.client();
    let keys: Vec<_> = (0..KEYS_PER_MESSAGE_MAX as u32 + 5).map(key).collect();
    std::thread::scope(|scope| {
        let found = scope.spawn(|| client.lookup(&keys, 70));
        for part in [KEYS_PER_MESSAGE_MAX, 5] {
            let (id, request) = peer.next();
            let Request::Lookup { hold_ms: 70, keys } = request else { panic!("{request:?}") };
            assert_eq!(keys.len(), part);
            let hit = Found::Hit { tier: 1, held: true };
            peer.reply(id, &Reply::Lookup { found: vec![hit; part] });
        }
        let found = found.join().expect("joined");
        assert_eq!(found, vec![Found::Hit { tier: 1, held: true }; keys.len()]);
    });
}

#[test]
fn events_of_the_daemon_reach_whoever_takes_them() {
    let fake = Fake::new();
    let (client, peer) = fake.client();
    let of = |namespace, number| WireKey { namespace: NamespaceId(namespace), local: key(number).to_bytes() };
    let removed = |keys: Vec<WireKey>| Event::Removed { tier: 0, reason: RemovedReason::Evicted, keys: keys.into() };
    // The same prompts in another model of this tenant: their blocks have the same hashes.
    peer.push(&removed(vec![of(8, 1), of(8, 2)]));
    peer.push(&removed(vec![of(8, 2), of(7, 1), of(8, 3)]));
    let keys = vec![of(7, 1)];
    let mut events = Vec::new();
    while events.len() < 2 {
        let more = client.events(LONG);
        assert!(!more.is_empty());
        events.extend(more);
    }
    let attached = ClientEvent::Attached { session: SessionId(10), boot_id: 1 };
    assert_eq!(events, [attached, ClientEvent::Removed { tier: 0, reason: RemovedReason::Evicted, keys }]);
}

#[test]
fn a_withdrawn_segment_is_unmapped_and_acknowledged() {
    let fake = Fake::new();
    let (client, mut peer) = fake.client();
    let engine = Engine::new(&client, 1, 1, RUN_BYTES);
    peer.push(&Event::SegmentWithdrawn { segment: SegmentId(SEGMENT) });
    let (id, request) = peer.next();
    assert_eq!(request, Request::SegmentUnmapped { segment: SegmentId(SEGMENT) });
    peer.reply(id, &Reply::SegmentUnmapped);
    let job = client.store(&[engine.store_block(0)]).expect("begun");
    peer.reserve(8, LEASE_MS);
    assert_eq!(peer.abort(), (LeaseId(8), vec![]));
    assert_eq!(outcomes(&client, job), [Outcome::Failed(FailCause::BadExtent)]);
}
