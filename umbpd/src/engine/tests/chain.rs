//! Order of eviction, and what a store leaves visible.

use umbp_protocol::message::{Found, MissReason, Outcome, ReserveItem, Reserved};

use super::rig::{ABSENT, BLOCK, Rig, checksum, extent, ready, settings};
use crate::engine::api::{EvictionPolicy, Settings};

const ALL: [EvictionPolicy; 3] = [EvictionPolicy::PrefixLru, EvictionPolicy::S3Fifo, EvictionPolicy::ChainHazard];

#[test]
fn a_block_is_visible_from_its_commit_on_and_not_before() {
    let mut rig = Rig::blocks(&[8]);
    let session = rig.session();
    let items = rig.chain(None, 0, &[1, 2]);
    let (lease, answers) = rig.reserve(session, &items);
    assert_ne!(extent(&answers[0]).offset, extent(&answers[1]).offset);
    assert_eq!(rig.lookup(session, 0, &[1, 2]), [Found::Miss(MissReason::Writing); 2]);
    assert_eq!(rig.acquire(session, &[1]).1, [umbp_protocol::message::Acquired::Miss(MissReason::Writing)]);
    let now = rig.time();
    assert_eq!(rig.engine.commit(session, lease, &[(0, checksum(&items[0].key))], now), [Outcome::Done]);
    assert_eq!(
        rig.lookup(session, 0, &[1, 2]),
        [Found::Hit { tier: 0, held: false }, Found::Miss(MissReason::Writing)]
    );
    let (_, acquired) = rig.acquire(session, &[1]);
    assert_eq!(ready(&acquired[0]), extent(&answers[0]));
}

#[test]
fn the_first_writer_wins_and_another_length_is_an_error() {
    // K13: the old copy stays.
    let mut rig = Rig::blocks(&[8]);
    let (one, two) = (rig.session(), rig.session());
    let items = rig.chain(None, 0, &[1]);
    let (lease, first) = rig.reserve(one, &items);
    assert_eq!(rig.reserve(two, &items).1, [Reserved::BeingWritten]);
    let now = rig.time();
    rig.engine.commit(one, lease, &[(0, 5)], now);
    assert_eq!(rig.reserve(two, &items).1, [Reserved::Present]);
    let longer = [ReserveItem { length: BLOCK + 1, ..items[0] }];
    assert_eq!(rig.reserve(two, &longer).1, [Reserved::LengthDiffers]);
    assert_eq!(ready(&rig.acquire(two, &[1]).1[0]), extent(&first[0]));
}

#[test]
fn a_chain_leaves_from_its_tail() {
    // C10
    let mut rig = Rig::blocks(&[8]);
    let session = rig.session();
    rig.store(session, &[1, 2, 3, 4]);
    for n in 0..8 {
        rig.store(session, &[100 + n]);
    }
    assert_eq!(rig.evicted(0), [4, 3, 2, 1]);
}

#[test]
fn storing_a_tail_again_refreshes_its_ancestors() {
    // C10
    let mut rig = Rig::blocks(&[8]);
    let session = rig.session();
    rig.store(session, &[1, 2, 3, 4]);
    rig.store(session, &[11, 12, 13, 14]);
    let tail = rig.chain(Some(2), 2, &[3, 4]);
    assert_eq!(rig.store_items(session, &tail), [Reserved::Present; 2]);
    for n in 0..8 {
        rig.store(session, &[100 + n]);
    }
    assert_eq!(rig.evicted(0), [14, 13, 12, 11, 4, 3, 2, 1]);
}

#[test]
fn only_a_use_renews_and_a_lookup_is_none() {
    let mut rig = Rig::blocks(&[4]);
    let session = rig.session();
    [1, 2, 3, 4].iter().for_each(|n| drop(rig.store(session, &[*n])));
    rig.lookup(session, 0, &[1]);
    let (lease, _) = rig.acquire(session, &[2]);
    rig.release(session, lease, &[]);
    rig.store(session, &[5]);
    rig.store(session, &[6]);
    assert_eq!(rig.evicted(0), [1, 3]);
    assert_eq!(rig.lookup(session, 0, &[1]), [ABSENT]);
}

#[test]
fn a_request_never_evicts_what_it_stores_but_loses_its_tail() {
    let mut rig = Rig::blocks(&[4]);
    let session = rig.session();
    rig.store(session, &[1, 2]);
    let answers = rig.store(session, &[1, 2, 3, 4, 5, 6]);
    assert_eq!((&answers[..2], &answers[4..]), (&[Reserved::Present; 2][..], &[Reserved::Refused; 2][..]));
    assert_eq!(rig.present(session, &[1, 2, 3, 4, 5, 6]), [1, 2, 3, 4]);
    assert_eq!(rig.evicted(0), [0; 0]);
}

#[test]
fn no_hole_is_left_behind_a_refused_block() {
    // G7: the block after the one that found no room would fit.
    let mut rig = Rig::blocks(&[4]);
    let session = rig.session();
    let mut items = rig.chain(None, 0, &[1, 2, 3]);
    items[1].length = 16 * BLOCK;
    let answers = rig.store_items(session, &items);
    assert_eq!(answers[1..], [Reserved::Refused; 2]);
    assert_eq!(rig.present(session, &[1, 2, 3]), [1]);
}

#[test]
fn a9_blocks_without_their_head_are_orphans_until_it_is_stored() {
    let mut rig = Rig::blocks(&[200]);
    let session = rig.session();
    let numbers: Vec<u64> = (0..128).collect();
    let tail = rig.chain(Some(1), 2, &numbers[2..]);
    rig.store_items(session, &tail);
    assert_eq!(rig.status("/orphan_blocks"), 126);
    assert_eq!(rig.present(session, &numbers), numbers[2..], "and a prompt finds nothing at its head");
    rig.store(session, &numbers[..2]);
    assert_eq!(rig.status("/orphan_blocks"), 0);
    assert_eq!(rig.present(session, &numbers), numbers);
}

#[test]
fn a9_orphans_leave_before_all_others_and_tails_before_heads() {
    for eviction in [EvictionPolicy::PrefixLru, EvictionPolicy::S3Fifo, EvictionPolicy::ChainHazard] {
        let mut rig = Rig::new(Settings { eviction, ..settings(&[12]) });
        let session = rig.session();
        rig.store(session, &[1, 2, 3, 4]);
        let tail = rig.chain(Some(51), 2, &[52, 53, 54]);
        rig.store_items(session, &tail);
        // Used last, and of no use.
        let (lease, _) = rig.acquire(session, &[52, 53, 54]);
        rig.release(session, lease, &[]);
        (100..108).for_each(|n| drop(rig.store(session, &[n])));
        assert_eq!(rig.evicted(0), [54, 53, 52], "{eviction:?}");
        assert_eq!(rig.status("/orphan_blocks"), 0);
    }
}

/// A9: a client commits in the order in which its copies end, here the tail first and the head last.
#[test]
fn a9_a_block_that_is_committed_before_its_parent_is_no_orphan_until_that_is_given_up() {
    for (eviction, given_up) in ALL.into_iter().flat_map(|eviction| [(eviction, false), (eviction, true)]) {
        let mut rig = Rig::new(Settings { eviction, ..settings(&[12]) });
        let session = rig.session();
        rig.store(session, &[1, 2, 3, 4]);
        let items = rig.chain(None, 0, &[51, 52, 53, 54]);
        let (lease, _) = rig.reserve(session, &items);
        let now = rig.time();
        for at in [3, 2, 1] {
            rig.engine.commit(session, lease, &[(at, checksum(&items[at as usize].key))], now);
            assert_eq!(rig.status("/orphan_blocks"), 0, "{eviction:?}");
        }
        // Room is needed meanwhile: the older blocks leave.
        (100..106).for_each(|n| drop(rig.store(session, &[n])));
        assert_eq!(rig.evicted(0), [4, 3], "{eviction:?}");
        if given_up {
            rig.engine.abort(session, lease, &[0], now);
            rig.run_ticks();
            assert_eq!(rig.status("/orphan_blocks"), 3);
            (200..204).for_each(|n| drop(rig.store(session, &[n])));
            assert_eq!(rig.evicted(0), [54, 53, 52], "{eviction:?}");
        } else {
            rig.engine.commit(session, lease, &[(0, checksum(&items[0].key))], now);
            rig.run_ticks();
            assert_eq!(rig.status("/orphan_blocks"), 0);
            assert_eq!(rig.present(session, &[51, 52, 53, 54]), [51, 52, 53, 54]);
        }
    }
}

/// A9: what is kept of orphans that are long gone has a bound.
#[test]
fn a9_orphans_that_were_cleared_leave_no_notes_behind() {
    let mut rig = Rig::blocks(&[64]);
    let session = rig.session();
    for round in 0..400 {
        let numbers: Vec<u64> = (round * 32..round * 32 + 32).collect();
        let tail = rig.chain(Some(1 << 40), 1, &numbers);
        rig.store_items(session, &tail);
        let now = rig.time();
        while rig.engine.clear(session, None, 0, now).next.is_some() {}
        rig.run_ticks();
    }
    assert!(rig.engine.adrift[0].memory_bytes() <= 64 << 10, "{}", rig.engine.adrift[0].memory_bytes());
}
