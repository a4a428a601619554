//! Lower tiers that work: background copies, promotion, demotion, capacity, recovery.

use umbp_plugin_api::types::{RecoveredBlock, code};
use umbp_plugin_api::{Completion, Status};
use umbp_protocol::message::{Acquired, Found, MissReason, Reserved};

use super::rig::{ABSENT, BLOCK, LEASE_NS, Rig, checksum, ready, settings, write_all};
use crate::engine::api::{TierIndex, WritePolicy};

const NVME: TierIndex = TierIndex(1);

fn hit(tier: u8) -> Found {
    Found::Hit { tier, held: false }
}

/// A deployment whose first tier has room for `dram` blocks, with blocks 1 to 4 in the lower tier alone.
fn below(dram: u64, promotion: u64) -> (Rig, umbp_protocol::message::SessionId) {
    let mut reserved = settings(&[dram, 64]);
    reserved.promotion_budget = promotion * BLOCK;
    let mut rig = Rig::new(reserved);
    let session = rig.session();
    rig.store(session, &[1, 2, 3, 4]);
    rig.settle_stores();
    for n in 0..dram {
        rig.store(session, &[100 + n]);
        rig.settle_stores();
    }
    assert_eq!(rig.lookup(session, 0, &[1, 2, 3, 4]), [hit(1); 4]);
    (rig, session)
}

#[test]
fn a_committed_block_is_copied_below_with_all_that_its_backend_needs() {
    let mut rig = Rig::blocks(&[8, 8]);
    let session = rig.session();
    let told: Vec<_> = rig.introduced.iter().map(|(tier, id, _)| (*tier, *id)).collect();
    assert_eq!(told, [(NVME, rig.namespace.0)], "before anything names it");
    rig.store(session, &[1, 2]);
    let (one, two) = (rig.finish(code::PUT, Status::OK), rig.finish(code::PUT, Status::OK));
    let (first, second) = (rig.key(1), rig.key(2));
    assert_eq!((one.key, one.parent, one.depth), (first.local, [0; 44], 0));
    assert_eq!((two.key, two.parent, two.depth), (second.local, first.local, 1));
    assert_eq!((two.checksum, two.length, two.region), (checksum(&second), BLOCK, 7));
    assert!(one.recency > two.recency && one.id != two.id, "the parent is the more recent");
    assert_eq!(rig.status("/tiers/1/resident_blocks"), 2);
    assert!(rig.engine.is_idle());
}

#[test]
fn a_block_below_is_brought_up_once_for_all_who_wait() {
    let (mut rig, one) = below(8, 2);
    let two = rig.session();
    let (first, answers) = rig.acquire(one, &[1]);
    assert_eq!((answers, rig.acquire(two, &[1]).1), (vec![Acquired::Pending], vec![Acquired::Pending]));
    assert_eq!(rig.in_flight(code::GET), 1);
    let get = rig.finish(code::GET, Status::OK);
    let promoted = rig.promoted();
    assert_eq!(promoted.len(), 2);
    for (_, index, item) in &promoted {
        let Acquired::Ready { extent, length, checksum: sum, tier } = *item else { panic!("{item:?}") };
        assert_eq!((*index, length, sum, tier), (0, BLOCK, checksum(&rig.key(1)), 1));
        assert_eq!((u64::from(extent.segment), extent.offset), (get.region, get.offset));
        assert_eq!(rig.word(0, extent), extent.generation);
    }
    rig.release(one, first, &[]);
    assert_eq!(rig.lookup(one, 0, &[1]), [hit(0)], "an ordinary resident block");
}

#[test]
fn a_first_tier_full_of_pins_still_loads_through_the_budget_or_says_no_room() {
    // C6
    let (mut rig, session) = below(8, 2);
    let numbers: Vec<u64> = (102..108).collect();
    let resident = rig.present(session, &numbers);
    rig.acquire(session, &resident);
    assert_eq!(rig.store(session, &[50]), [Reserved::Refused], "stores do not touch the budget");
    let (_, answers) = rig.acquire(session, &[1, 2, 3]);
    assert_eq!(answers, [Acquired::Pending, Acquired::Pending, Acquired::Miss(MissReason::NoRoom)]);
    rig.finish(code::GET, Status::OK);
    rig.finish(code::GET, Status::OK);
    assert!(rig.promoted().iter().all(|(_, _, item)| ready(item).generation > 0));
    rig.advance(LEASE_NS);
    assert_eq!(rig.status("/tiers/0/used_bytes"), 6 * BLOCK, "the budget is refilled");
}

#[test]
fn a_waiter_that_leaves_calls_off_what_was_not_submitted() {
    let mut narrow = settings(&[8, 64]);
    narrow.tiers[1].slots = 1;
    let mut rig = Rig::new(narrow);
    let session = rig.session();
    rig.store(session, &[1, 2, 3]);
    rig.settle_stores();
    (100..108).for_each(|n| drop(rig.store(session, &[n])));
    rig.settle_stores();
    let used = rig.status("/tiers/0/used_bytes");
    let (lease, answers) = rig.acquire(session, &[1, 2]);
    assert_eq!((answers, rig.in_flight(code::GET)), (vec![Acquired::Pending; 2], 1));
    rig.release(session, lease, &[]);
    rig.finish(code::GET, Status::OK);
    assert_eq!(rig.in_flight(code::GET), 0);
    assert_eq!(rig.lookup(session, 0, &[1, 2]), [hit(0), hit(1)]);
    assert!(rig.status("/tiers/0/used_bytes").as_u64() <= used.as_u64());
    assert_eq!(rig.promoted(), []);
}

#[test]
fn a_held_block_below_is_not_evicted_there() {
    let mut rig = Rig::blocks(&[2, 4]);
    let session = rig.session();
    for n in 1..=4 {
        rig.store(session, &[n]);
        rig.settle_stores();
    }
    assert_eq!(rig.lookup(session, 1000, &[1]), [Found::Hit { tier: 1, held: true }]);
    for n in 11..=20 {
        rig.store(session, &[n]);
        rig.settle_stores();
    }
    assert_eq!(rig.present(session, &[1, 2, 3, 4]), [1]);
    assert_eq!(rig.status("/tiers/1/used_bytes"), 4 * BLOCK);
}

#[test]
fn a_full_lower_tier_evicts_its_own_coldest_and_stays_within_capacity() {
    let mut rig = Rig::blocks(&[64, 8]);
    let session = rig.session();
    for n in 0..40 {
        rig.store(session, &[n]);
        rig.settle_stores();
        assert!(rig.status("/tiers/1/used_bytes").as_u64() <= Some(8 * BLOCK));
    }
    assert_eq!(rig.evicted(1), (0..32).collect::<Vec<_>>());
    assert_eq!(rig.status("/tiers/1/resident_blocks"), 8);
}

#[test]
fn a_key_is_not_put_while_its_delete_is_under_way() {
    let mut rig = Rig::blocks(&[8, 8]);
    let session = rig.session();
    rig.store(session, &[1]);
    rig.settle_stores();
    let now = rig.time();
    rig.engine.clear(session, None, 0, now);
    rig.drain();
    assert_eq!((rig.in_flight(code::DELETE), rig.lookup(session, 0, &[1])), (1, vec![ABSENT]));
    rig.store(session, &[1]);
    assert_eq!(rig.in_flight(code::PUT), 0);
    rig.finish(code::DELETE, Status::OK);
    assert_eq!(rig.in_flight(code::PUT), 1);
    rig.finish(code::PUT, Status::OK);
    assert_eq!(rig.status("/tiers/1/used_bytes"), BLOCK);
}

#[test]
fn a_queued_copy_gives_way_to_memory_pressure_and_a_submitted_one_pins() {
    let mut narrow = settings(&[4, 64]);
    narrow.tiers[1].slots = 2;
    let mut rig = Rig::new(narrow);
    let session = rig.session();
    rig.store(session, &[1, 2, 3, 4]);
    assert_eq!((rig.in_flight(code::PUT), rig.status("/tiers/1/queued_blocks")), (1, 3.into()));
    let answers = rig.store(session, &[11, 12, 13, 14]);
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Reserved::Extent(_))).count(), 3);
    assert_eq!(rig.present(session, &[1, 2, 3, 4]), [1], "its put is submitted");
    assert_eq!(rig.status("/tiers/1/dropped"), 3);
    assert_eq!(rig.evicted(0), [4, 3, 2], "tails first");
    rig.settle_stores();
    assert_eq!(rig.status("/tiers/1/resident_blocks"), 4);
}

#[test]
fn the_background_queue_is_bounded_and_what_does_not_fit_is_counted() {
    // A medium that never answers: the queue, and its tables, do not grow (G4).
    let mut small = settings(&[16, 1 << 20]);
    small.background_bytes = 6 * BLOCK;
    let mut rig = Rig::new(small);
    let session = rig.session();
    for n in 0..5000 {
        rig.store(session, &[n]);
    }
    let status = rig.engine.status();
    assert!(status["tiers"][1]["queued_bytes"].as_u64() <= Some(6 * BLOCK));
    assert_eq!(rig.in_flight(code::PUT), 4);
    assert_eq!(
        status["tiers"][1]["dropped"].as_u64().map(|n| n + status["tiers"][1]["queued_blocks"].as_u64().expect("n")),
        Some(4996)
    );
}

#[test]
fn on_evict_a_block_leaves_only_when_its_copy_below_is_made() {
    let mut late = settings(&[8, 64]);
    write_all(&mut late, WritePolicy::OnEvict);
    late.headroom[0] = 2 * BLOCK;
    let mut rig = Rig::new(late);
    let session = rig.session();
    rig.store(session, &[1, 2, 3, 4, 5, 6]);
    assert_eq!(rig.in_flight(code::PUT), 0);
    rig.store(session, &[11, 12]);
    assert_eq!(rig.in_flight(code::PUT), 2);
    assert_eq!(rig.lookup(session, 0, &[5, 6]), [hit(0); 2], "readable until then");
    let (lease, _) = rig.acquire(session, &[6]);
    rig.settle_stores();
    assert_eq!(rig.lookup(session, 0, &[5, 6]), [hit(1), hit(0)], "used again, so it stays");
    rig.release(session, lease, &[]);
    rig.run_ticks();
    rig.settle_stores();
    assert_eq!(rig.status("/tiers/0/used_bytes"), 6 * BLOCK);
    assert_eq!(rig.present(session, &[1, 2, 3, 4, 5, 6, 11, 12]).len(), 8);
    assert_eq!(rig.status("/tiers/1/dropped"), 0);
}

#[test]
fn a_block_that_is_used_while_its_demotion_waits_is_queued_once() {
    let mut late = settings(&[8, 64]);
    write_all(&mut late, WritePolicy::OnEvict);
    (late.headroom[0], late.tiers[1].slots) = (2 * BLOCK, 2);
    let mut rig = Rig::new(late);
    let session = rig.session();
    rig.store(session, &[1, 2, 3, 4, 5, 6]);
    rig.store(session, &[11, 12]);
    assert_eq!((rig.in_flight(code::PUT), rig.status("/tiers/1/queued_blocks")), (1, 1.into()));
    let (lease, _) = rig.acquire(session, &[5, 6]);
    rig.release(session, lease, &[]);
    rig.run_ticks();
    rig.store(session, &[21, 22]);
    rig.settle_stores();
    rig.run_ticks();
    rig.settle_stores();
    assert_eq!(rig.status("/tiers/1/queued_blocks"), 0);
    assert!(rig.engine.is_idle());
}

#[test]
fn recovered_blocks_hit_and_leave_in_the_order_of_their_last_use() {
    let mut rig = Rig::blocks(&[8, 8]);
    let session = rig.session();
    let recovered = |n: u64, parent: Option<u64>, depth, recency| RecoveredBlock {
        key: rig.key(n).local,
        namespace_id: rig.namespace.0,
        parent: parent.map_or([0; 44], |n| rig.key(n).local),
        depth,
        length: BLOCK,
        checksum: checksum(&rig.key(n)),
        location: n + 500,
        recency,
    };
    // 1-2-3 was used last, though its head was written first; 6 before it; 7-8 before that.
    let blocks = [
        recovered(8, Some(7), 1, 40),
        recovered(3, Some(2), 2, 90),
        recovered(6, None, 0, 60),
        recovered(2, Some(1), 1, 10),
        recovered(7, None, 0, 30),
        recovered(1, None, 0, 20),
    ];
    let now = rig.time();
    assert_eq!(rig.engine.recovered(NVME, &blocks[..3], now), 3);
    assert_eq!(rig.engine.recovered(NVME, &blocks[2..], now), 3, "one came twice");
    rig.engine.recovery_done(NVME, now);
    assert_eq!(rig.lookup(session, 0, &[1, 2, 3, 6, 7, 8]), [hit(1); 6]);
    assert_eq!((rig.status("/orphan_blocks"), rig.status("/tiers/1/used_bytes")), (0.into(), (6 * BLOCK).into()));
    rig.acquire(session, &[3]);
    let get = rig.finish(code::GET, Status::OK);
    assert_eq!((get.location, get.checksum), (503, checksum(&rig.key(3))));
    for n in 20..30 {
        rig.store(session, &[n]);
        rig.settle_stores();
    }
    assert_eq!(rig.evicted(1)[..6], [8, 7, 6, 3, 2, 1]);
}

#[test]
fn a_recovered_block_of_an_unknown_namespace_or_other_bytes_is_not_served() {
    let mut rig = Rig::blocks(&[8, 8]);
    let session = rig.session();
    rig.store(session, &[1]);
    rig.finish(code::PUT, Status::IO);
    let good = RecoveredBlock {
        key: rig.key(1).local,
        namespace_id: rig.namespace.0,
        length: BLOCK,
        checksum: 1,
        location: 9,
        ..RecoveredBlock::default()
    };
    let now = rig.time();
    let foreign = RecoveredBlock { namespace_id: 33, ..good };
    let empty = RecoveredBlock { length: 0, key: rig.key(2).local, ..good };
    assert_eq!(rig.engine.recovered(NVME, &[good, foreign, empty], now), 0);
    rig.drain();
    assert_eq!(rig.finish(code::DELETE, Status::OK).location, 9);
    assert_eq!(rig.lookup(session, 0, &[1]), [hit(0)]);
    assert_eq!(rig.status("/tiers/1/used_bytes"), 0);
}

#[test]
fn what_recovery_finds_of_a_block_that_was_stored_anew_is_deleted() {
    let mut rig = Rig::blocks(&[8, 8]);
    let session = rig.session();
    rig.store(session, &[1]);
    let current = rig.finish(code::PUT, Status::OK).id + 1000;
    let found = |location| RecoveredBlock {
        key: rig.key(1).local,
        namespace_id: rig.namespace.0,
        length: BLOCK,
        checksum: checksum(&rig.key(1)),
        location,
        ..RecoveredBlock::default()
    };
    let (same, older, now) = (found(current), found(7), rig.time());
    assert_eq!(rig.engine.recovered(NVME, &[same, older], now), 0);
    rig.drain();
    assert_eq!(rig.status("/tiers/1/used_bytes"), 2 * BLOCK, "its room counts until it is free");
    let delete = rig.finish(code::DELETE, Status::OK);
    assert_eq!((delete.location, delete.key), (7, rig.key(1).local));
    assert_eq!((rig.in_flight(code::DELETE), rig.status("/tiers/1/used_bytes")), (0, BLOCK.into()));
    assert!(rig.engine.is_idle());
    assert_eq!(rig.lookup(session, 0, &[1]), [hit(0)]);
}

#[test]
fn a_block_that_recovery_finds_before_its_put_is_told_as_done_is_not_deleted() {
    let mut rig = Rig::blocks(&[8, 8]);
    let session = rig.session();
    rig.store(session, &[1]);
    rig.drain();
    let (_, put) = rig.operations.last().copied().expect("a put under way");
    let found = RecoveredBlock {
        key: rig.key(1).local,
        namespace_id: rig.namespace.0,
        length: BLOCK,
        checksum: checksum(&rig.key(1)),
        location: put.id + 1000,
        ..RecoveredBlock::default()
    };
    let now = rig.time();
    assert_eq!(rig.engine.recovered(NVME, &[found], now), 0);
    rig.drain();
    assert_eq!(rig.in_flight(code::DELETE), 0, "it may be the very block");
    rig.finish(code::PUT, Status::OK);
    assert_eq!((rig.in_flight(code::DELETE), rig.status("/tiers/1/used_bytes")), (0, BLOCK.into()));
}

#[test]
fn hits_and_misses_add_up_to_what_was_asked() {
    // J4
    let (mut rig, session) = below(8, 2);
    rig.lookup(session, 0, &[1, 2, 107, 999]);
    rig.acquire(session, &[1]);
    rig.finish(code::GET, Status::IO);
    rig.lookup(session, 500, &[1, 2]);
    let status = rig.engine.status();
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let hits: u64 = status["tiers"].as_array().expect("tiers").iter().map(|tier| number(&tier["hits"])).sum();
    let misses: u64 = status["misses"].as_object().expect("misses").values().map(number).sum();
    assert_eq!(number(&status["asked"]), hits + misses);
    assert_eq!(status["tiers"][1]["errors"]["i/o error"], 1);
}

#[test]
fn a_completion_that_cuts_the_block_short_is_no_block() {
    // A5
    let (mut rig, session) = below(8, 2);
    rig.acquire(session, &[1]);
    let (tier, get) = rig.operations.pop().expect("a get");
    let completion = Completion { id: get.id, length: BLOCK - 1, ..Completion::default() };
    rig.complete(tier, completion);
    assert_eq!(rig.promoted()[0].2, Acquired::Miss(MissReason::Failed));
    assert_eq!(rig.lookup(session, 0, &[1]), [ABSENT]);
}

#[test]
fn a_block_goes_down_with_the_ancestors_that_the_tier_lacks_or_not_at_all() {
    // C10, below the first tier: a child without its parent is of no use there.
    let mut rig = Rig::blocks(&[64, 64]);
    let session = rig.session();
    rig.store(session, &[1, 2]);
    for _ in 0..2 {
        rig.finish(code::PUT, Status::IO);
    }
    assert_eq!(rig.in_flight(code::PUT), 0, "what failed is not tried again by itself");
    let child = rig.chain(Some(2), 2, &[3]);
    rig.store_items(session, &child);
    let keys: Vec<_> = (0..3).map(|_| rig.finish(code::PUT, Status::OK).key).collect();
    assert_eq!(keys, [1, 2, 3].map(|n| rig.key(n).local), "root first");
    let stranger = rig.chain(Some(100), 1, &[101]);
    rig.store_items(session, &stranger);
    assert_eq!(rig.in_flight(code::PUT), 0, "its parent is nowhere");
}
