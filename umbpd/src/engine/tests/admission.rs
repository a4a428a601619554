//! Which blocks lower tiers take, what a loaded one does to the first tier, and quotas below.

use umbp_plugin_api::{Status, types::code};
use umbp_protocol::message::{Acquired, MissReason, SegmentId, SessionId};

use super::rig::{BLOCK, Rig, settings, write_all};
use crate::engine::api::{Admission, Promote, Settings, TenantIndex, TenantSettings, WritePolicy};

/// Two tiers of so many blocks.
fn rig(blocks: [u64; 2], admission: Admission, write: WritePolicy) -> Rig {
    let mut settings = Settings { admission, ..settings(&blocks) };
    write_all(&mut settings, write);
    Rig::new(settings)
}

/// Numbers of the blocks below, of those that were ever stored.
fn below(rig: &mut Rig, all: std::ops::Range<u64>) -> Vec<u64> {
    rig.settle_stores();
    let found = all.filter(|n| {
        let entry = rig.engine.index.find(&rig.key(*n));
        entry.is_some_and(|entry| rig.engine.index.copy(entry, 1) != super::super::slab::NONE)
    });
    found.collect()
}

/// Loads a chain and gives it back; what is below comes up.
fn load(rig: &mut Rig, session: SessionId, numbers: &[u64]) -> Vec<Acquired> {
    let (lease, answers) = rig.acquire(session, numbers);
    while rig.in_flight(code::GET) > 0 {
        rig.finish(code::GET, Status::OK);
    }
    rig.promoted();
    let now = rig.time();
    rig.engine.release(session, lease, &[], now);
    rig.drain();
    answers
}

#[test]
fn under_second_sighting_a_block_goes_down_when_it_is_loaded_and_takes_its_chain_along() {
    let mut rig = rig([8, 64], Admission::SecondSighting, WritePolicy::Through);
    let session = rig.session();
    rig.store(session, &[1, 2, 3, 4]);
    assert_eq!(below(&mut rig, 1..5), [0; 0]);
    assert_eq!(rig.status("/tiers/1/not_admitted"), 4);
    load(&mut rig, session, &[1, 2]);
    assert_eq!(below(&mut rig, 1..5), [1, 2]);
}

#[test]
fn under_second_sighting_a_block_that_left_and_is_stored_anew_goes_down() {
    let mut rig = rig([8, 64], Admission::SecondSighting, WritePolicy::Through);
    let session = rig.session();
    rig.store(session, &[1, 2]);
    (100..108).for_each(|n| drop(rig.store(session, &[n])));
    assert_eq!(rig.present(session, &[1, 2]), [0; 0]);
    rig.store(session, &[1, 2]);
    assert_eq!(below(&mut rig, 1..3), [1, 2]);
    assert_eq!(below(&mut rig, 100..108), [0; 0]);
}

#[test]
fn under_min_depth_only_long_chains_go_down_and_do_so_whole() {
    for write in [WritePolicy::Through, WritePolicy::OnEvict] {
        // Some room is kept free, so that what leaves can be demoted before it must.
        let headroom = vec![2 * BLOCK, 0];
        let mut settings = Settings { admission: Admission::MinDepth(3), headroom, ..settings(&[10, 64]) };
        write_all(&mut settings, write);
        let mut rig = Rig::new(settings);
        let session = rig.session();
        rig.store(session, &[1, 2, 3]);
        rig.store(session, &[11, 12, 13, 14, 15]);
        for n in 100..110 {
            rig.store(session, &[n]);
            rig.settle_stores();
            rig.run_ticks();
        }
        assert_eq!(below(&mut rig, 1..4), [0; 0], "{write:?}");
        assert_eq!(below(&mut rig, 11..16), [11, 12, 13, 14, 15], "{write:?}");
        assert_eq!(rig.status("/orphan_blocks"), 0);
    }
}

#[test]
fn a_block_loaded_from_below_leaves_the_first_tier_until_it_was_loaded_often_enough() {
    let mut rig = Rig::new(Settings { promote: Promote::AfterHits(3), ..settings(&[4, 64]) });
    let session = rig.session();
    rig.store(session, &[1]);
    rig.settle_stores();
    (100..104).for_each(|n| drop(rig.store(session, &[n])));
    rig.settle_stores();
    assert_eq!(rig.evicted(0), [1]);
    for loads in 1..=4 {
        let answers = load(&mut rig, session, &[1]);
        let was_below = answers == [Acquired::Pending];
        assert_eq!(was_below, loads <= 3, "load {loads}: {answers:?}");
        assert_eq!(rig.status("/tiers/0/passed_through"), loads.min(2), "load {loads}");
    }
    assert_eq!(rig.present(session, &[1]), [1]);
}

#[test]
fn a_block_that_passes_through_stays_while_it_is_read_and_where_its_copy_below_is_gone() {
    let mut rig = Rig::new(Settings { promote: Promote::AfterHits(9), ..settings(&[4, 64]) });
    let (one, two) = (rig.session(), rig.session());
    rig.store(one, &[1]);
    rig.settle_stores();
    (100..104).for_each(|n| drop(rig.store(one, &[n])));
    rig.settle_stores();
    let (first, _) = rig.acquire(one, &[1]);
    let (second, _) = rig.acquire(two, &[1]);
    rig.finish(code::GET, Status::OK);
    rig.release(one, first, &[]);
    assert_eq!(rig.status("/tiers/0/passed_through"), 0, "another reads it");
    // The copy below is lost meanwhile.
    let entry = rig.engine.index.find(&rig.key(1)).expect("known");
    let lower = rig.engine.index.copy(entry, 1);
    rig.engine.hide(1, lower, crate::engine::tier::CopyState::Doubted);
    rig.release(two, second, &[]);
    assert_eq!(rig.status("/tiers/0/passed_through"), 0, "no one else has it");
    assert_eq!(rig.present(one, &[1]), [1]);
}

#[test]
fn a_quota_below_evicts_the_tenants_own_and_reaches_no_other() {
    let quota = |blocks: u64| vec![u64::MAX, blocks * BLOCK];
    let tenants = [("one", 3), ("two", 100)];
    let tenants = tenants.map(|(name, blocks)| TenantSettings { name: name.to_owned(), quota: quota(blocks) });
    let mut rig = Rig::new(Settings { tenants: tenants.into(), ..settings(&[64, 64]) });
    rig.engine.segment_add(SegmentId(8), 64 * BLOCK, None);
    let (one, two) = (rig.session_of(0, 1), rig.session_of(1, 2));
    let (first, second) = (rig.namespace, rig.engine.namespace(TenantIndex(1), b"").expect("room"));
    rig.namespace = second;
    (100..110).for_each(|n| drop(rig.store(two, &[n])));
    rig.settle_stores();
    rig.namespace = first;
    for n in 1..=8 {
        rig.store(one, &[n]);
        rig.settle_stores();
        assert!(rig.status("/tenants/0/used_bytes/nvme").as_u64() <= Some(3 * BLOCK), "block {n}");
    }
    assert_eq!(below(&mut rig, 1..9), [6, 7, 8], "the coldest of its own left");
    assert_eq!(rig.status("/tenants/1/used_bytes/nvme"), 10 * BLOCK);
}

/// C8: the copy below is evicted first, and nobody takes it for granted when the one above leaves.
#[test]
fn c8_a_block_evicted_below_and_then_above_is_a_miss_and_never_a_failed_hit() {
    for write in [WritePolicy::Through, WritePolicy::OnEvict] {
        let mut rig = rig([4, 2], Admission::All, write);
        let session = rig.session();
        rig.store(session, &[1]);
        rig.settle_stores();
        // Pushes 1 out of the tier below, though not above it at first.
        for n in 2..20 {
            rig.store(session, &[n]);
            rig.settle_stores();
            rig.run_ticks();
            let answers = load(&mut rig, session, &[1]);
            let is_clean = matches!(answers[0], Acquired::Ready { .. } | Acquired::Pending)
                || answers[0] == Acquired::Miss(MissReason::Absent);
            assert!(is_clean, "{write:?}, {n}: {answers:?}");
            let fresh = rig.present(session, &[1]).len() == 1;
            assert_eq!(fresh, !matches!(answers[0], Acquired::Miss(_)), "{write:?}, {n}");
        }
        assert_eq!(rig.status("/promotions_failed"), 0);
        assert_eq!(rig.status("/load_misses/failed"), 0);
    }
}

/// C7: a first tier smaller than what the engine has in its own memory.
#[test]
fn c7_a_small_first_tier_takes_stores_for_ever() {
    let mut rig = Rig::blocks(&[16, 64]);
    let session = rig.session();
    let mut refused = 0;
    for round in 0..200 {
        // Each request is half as large as the tier, and all of it lies in the engine's memory.
        let numbers: Vec<u64> = (round * 8..round * 8 + 8).collect();
        let answers = rig.store(session, &numbers);
        refused += answers.iter().filter(|answer| **answer == umbp_protocol::message::Reserved::Refused).count();
        // One copy below at a time is done: the queue never empties.
        if rig.in_flight(code::PUT) > 0 {
            rig.finish(code::PUT, Status::OK);
        }
        rig.settle_deletes();
    }
    assert_eq!(refused, 0, "of {} blocks", 200 * 8);
}

#[test]
fn under_min_depth_a_chain_longer_than_one_puts_ancestors_goes_down_whole() {
    let mut rig = rig([2048, 2048], Admission::MinDepth(1200), WritePolicy::Through);
    let session = rig.session();
    let numbers: Vec<u64> = (0..1210).collect();
    let items = rig.chain(None, 0, &numbers);
    items.chunks(500).for_each(|slice| drop(rig.store_items(session, slice)));
    assert_eq!(below(&mut rig, 0..1210), numbers);
}

#[test]
fn a_block_committed_before_its_parent_goes_down_with_it_under_any_admission() {
    for admission in [Admission::All, Admission::MinDepth(3)] {
        let mut rig = rig([64, 64], admission, WritePolicy::Through);
        let session = rig.session();
        let items = rig.chain(None, 0, &[1, 2, 3, 4, 5]);
        let (lease, _) = rig.reserve(session, &items);
        for at in (0..5).rev() {
            let now = rig.time();
            rig.engine.commit(session, lease, &[(at, u64::from(at))], now);
            rig.drain();
        }
        assert_eq!(below(&mut rig, 1..6), [1, 2, 3, 4, 5], "{admission:?}");
    }
}
