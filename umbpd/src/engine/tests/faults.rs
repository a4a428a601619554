//! Lower tiers that fail, answer late, or lie.

use umbp_plugin_api::types::code;
use umbp_plugin_api::{Completion, Status};
use umbp_protocol::message::{Acquired, Event, Found, MissReason, Reserved, SessionId};

use super::rig::{ABSENT, BLOCK, Rig, SECOND, ready, settings};
use crate::engine::api::{Promote, Settings, TierIndex, TierState};
use crate::engine::{DEGRADED_AFTER_MISSES, LIMIT_RAISE_EVERY_NS, PROBE_EVERY_NS, PUT_TRIES_MAX};

const NVME: TierIndex = TierIndex(1);
const DOWN: Found = Found::Miss(MissReason::TierDown);

/// Blocks 1 to 4 in the lower tier alone; the first tier has room for 8 and nothing in it.
fn below() -> (Rig, SessionId) {
    let mut rig = Rig::blocks(&[8, 64]);
    let session = rig.session();
    for n in [1, 2, 3, 4] {
        rig.store(session, &[n]);
    }
    rig.settle_stores();
    for n in 100..108 {
        rig.store(session, &[n]);
    }
    rig.settle_stores();
    assert_eq!(rig.lookup(session, 0, &[1, 2, 3, 4]), [Found::Hit { tier: 1, held: false }; 4]);
    (rig, session)
}

#[test]
fn a_failed_load_is_a_miss_of_that_block_alone_and_of_that_load_alone() {
    // A6: the medium's own faults delete nothing; what is lost is deleted.
    for (status, deletes) in
        [(Status::IO, 0), (Status::TIMED_OUT, 0), (Status::FAILED, 0), (Status::CORRUPT, 1), (Status::MISS, 1)]
    {
        let (mut rig, session) = below();
        let (_, answers) = rig.acquire(session, &[1, 2]);
        assert_eq!(answers, [Acquired::Pending; 2]);
        rig.finish(code::GET, status);
        rig.finish(code::GET, Status::OK);
        let promoted = rig.promoted();
        let (reason, name) = match status {
            Status::CORRUPT => (MissReason::Corrupt, "corrupt"),
            _ => (MissReason::Failed, "failed"),
        };
        assert_eq!(promoted[0].2, Acquired::Miss(reason), "K10: {status:?}");
        assert_eq!(rig.status("/load_misses")[name], 1);
        assert!(ready(&promoted[1].2).generation > 0);
        assert_eq!(rig.lookup(session, 0, &[1]), [ABSENT], "at most one failing load");
        assert_eq!(rig.acquire(session, &[1]).1, [Acquired::Miss(MissReason::Absent)]);
        assert_eq!(rig.in_flight(code::DELETE), deletes, "{status:?}");
        assert_eq!(rig.status("/tiers/1/errors").as_object().map(|kinds| kinds.len()), Some(1));
        assert!(matches!(rig.store(session, &[1])[0], Reserved::Extent(_)), "may be stored anew");
        rig.settle_stores();
        assert_eq!(rig.status("/tiers/1/used_bytes"), 12 * BLOCK, "{status:?}");
    }
}

/// P9: nobody knows what a driver that panicked still writes to. Its buffers are nobody's any more, whichever of its
/// completions and its failure is taken in first.
#[test]
fn the_buffer_of_an_operation_that_ended_by_a_panic_is_never_used_again() {
    for purpose in [code::GET, code::PUT] {
        let (mut rig, session) = below();
        if purpose == code::GET {
            assert_eq!(rig.acquire(session, &[1]).1, [Acquired::Pending]);
        } else {
            rig.store(session, &[50]);
        }
        let taken = rig.finish(purpose, Status::PANICKED);
        assert_eq!(rig.status("/tiers/1/errors/panicked"), 1);
        assert_eq!(rig.lookup(session, 0, &[2]), [DOWN]);
        if purpose == code::GET {
            assert_eq!(rig.promoted()[0].2, Acquired::Miss(MissReason::TierDown));
        }
        for n in 200..216 {
            let items = rig.chain(None, 0, &[n]);
            let (lease, answers) = rig.reserve(session, &items);
            if let Reserved::Extent(extent) = &answers[0] {
                assert_ne!(extent.offset, taken.offset, "block {n}");
                rig.engine.commit(session, lease, &[(0, 1)], rig.time());
            }
        }
        assert_eq!(rig.status("/tiers/0/quarantined_bytes"), BLOCK);
        rig.complete(NVME, Completion { id: taken.id, status: Status::OK, ..Completion::default() });
        assert_eq!(rig.status("/tiers/0/quarantined_bytes"), BLOCK, "a failed tier's word counts for nothing");
    }
}

/// K3: a full tier makes room by what it has had the longest.
#[test]
fn no_space_evicts_that_tiers_coldest_more_at_each_try_and_is_no_error() {
    for good in 2..=PUT_TRIES_MAX + 1 {
        let (mut rig, session) = below();
        rig.evicted(1);
        rig.store(session, &[50]);
        let mut tries = 0;
        while rig.in_flight(code::PUT) > 0 {
            tries += 1;
            rig.finish(code::PUT, if tries == good { Status::OK } else { Status::NO_SPACE });
            let makes_room = tries < good.min(PUT_TRIES_MAX);
            assert_eq!(rig.in_flight(code::PUT), 0, "it waits for room");
            assert_eq!(rig.in_flight(code::DELETE), if makes_room { 1 << (tries - 1) } else { 0 }, "try {tries}");
            rig.settle_deletes();
        }
        let dropped = good > PUT_TRIES_MAX;
        let refused = u64::from(good.min(PUT_TRIES_MAX + 1) - 1);
        assert_eq!(tries, good.min(PUT_TRIES_MAX));
        assert_eq!(rig.status("/tiers/1/dropped"), u64::from(dropped));
        assert_eq!(rig.status("/tiers/1/limit_found"), refused);
        assert_eq!(rig.status("/tiers/1/errors"), serde_json::json!({}), "a full tier is no fault");
        assert_eq!(rig.present(session, &[50]), [50], "its copy above is untouched");
        assert!(rig.engine.is_idle());
    }
}

#[test]
fn a_tier_that_ran_out_of_space_makes_room_before_the_next_store() {
    let (mut rig, session) = below();
    rig.evicted(1);
    rig.store(session, &[50]);
    rig.finish(code::PUT, Status::NO_SPACE);
    rig.finish(code::DELETE, Status::OK);
    rig.finish(code::PUT, Status::OK);
    rig.store(session, &[51]);
    assert_eq!((rig.in_flight(code::PUT), rig.in_flight(code::DELETE)), (0, 1), "what fits is known by now");
    rig.finish(code::DELETE, Status::OK);
    rig.finish(code::PUT, Status::OK);
    assert_eq!(rig.evicted(1), [1, 2]);
    assert_eq!(rig.status("/tiers/1/limit_found"), 1);
    assert_eq!(rig.status("/tiers/1/errors"), serde_json::json!({}), "it was to be expected");
    assert_eq!(rig.status("/tiers/1/limit_bytes"), 12 * BLOCK);
    assert_eq!(rig.status("/tiers/1/capacity_bytes"), 64 * BLOCK);
}

#[test]
fn a_tier_that_had_no_space_at_all_takes_blocks_again_once_it_has() {
    for used in [0, 1] {
        let mut rig = Rig::blocks(&[64, 64]);
        let session = rig.session();
        for n in 0..used {
            rig.store(session, &[n]);
            rig.settle_stores();
        }
        for n in 10..14 {
            rig.store(session, &[n]);
            while rig.in_flight(code::PUT) > 0 {
                rig.finish(code::PUT, Status::NO_SPACE);
                rig.settle_deletes();
            }
        }
        assert_eq!(rig.status("/tiers/1/limit_bytes"), 0);
        rig.store(session, &[20]);
        assert_eq!(rig.in_flight(code::PUT), 0, "it is full, as far as is known");
        rig.advance(LIMIT_RAISE_EVERY_NS);
        rig.store(session, &[21]);
        rig.finish(code::PUT, Status::NO_SPACE);
        assert_eq!(rig.status("/tiers/1/limit_bytes"), 0, "still full");
        rig.advance(LIMIT_RAISE_EVERY_NS);
        rig.store(session, &[22]);
        rig.finish(code::PUT, Status::OK);
        for _ in 0..8 {
            rig.advance(LIMIT_RAISE_EVERY_NS);
        }
        assert_eq!(rig.status("/tiers/1/limit_bytes"), 64 * BLOCK, "and soon all of it");
        let now = rig.time();
        assert_eq!(rig.engine.tick(now), None, "then nothing falls due any more");
    }
}

#[test]
fn a_refusal_that_comes_after_deletes_does_not_take_their_room_from_what_fits() {
    // K3: a clear frees all of a full tier while a put is under way that it had no room for.
    let mut rig = Rig::blocks(&[64, 64]);
    let session = rig.session();
    for n in 1..=8 {
        rig.store(session, &[n]);
        rig.settle_stores();
    }
    rig.store(session, &[20]);
    let now = rig.time();
    rig.engine.clear(session, None, 0, now);
    rig.drain();
    rig.settle_deletes();
    rig.finish(code::PUT, Status::NO_SPACE);
    assert_eq!(rig.status("/tiers/1/limit_bytes"), 8 * BLOCK);
    // The one under way is in use and stays; its second try succeeds.
    for n in 31..=37 {
        rig.store(session, &[n]);
        rig.settle_stores();
    }
    assert_eq!((rig.status("/tiers/1/resident_blocks"), rig.status("/tiers/1/evicted")), (8.into(), 0.into()));
}

#[test]
fn a_second_try_does_not_take_room_that_others_have_got() {
    let mut wide = settings(&[32, 6]);
    wide.tiers[1].slots = 32;
    let mut rig = Rig::new(wide);
    let session = rig.session();
    rig.store(session, &[1, 2, 3, 4, 5, 6]);
    rig.settle_stores();
    rig.store(session, &[10, 11]);
    rig.settle_deletes();
    rig.finish(code::PUT, Status::NO_SPACE);
    rig.store(session, &[20, 21, 22]);
    while rig.in_flight(code::PUT) + rig.in_flight(code::DELETE) > 0 {
        rig.settle_deletes();
        let used = rig.status("/tiers/1/used_bytes").as_u64();
        assert!(used <= Some(5 * BLOCK), "what was there when it was full is what fits: {used:?}");
        if rig.in_flight(code::PUT) > 0 {
            rig.finish(code::PUT, Status::OK);
        }
    }
    assert!(rig.engine.is_idle());
    assert_eq!((rig.status("/tiers/1/used_bytes"), rig.status("/tiers/1/dropped")), ((5 * BLOCK).into(), 0.into()));
}

#[test]
fn an_overdue_load_is_a_miss_and_its_buffer_stays_until_the_end() {
    // P6; B7
    let (mut rig, session) = below();
    rig.acquire(session, &[1]);
    let used = rig.status("/tiers/0/used_bytes");
    rig.advance(SECOND);
    assert_eq!(rig.promoted()[0].2, Acquired::Miss(MissReason::TierDown));
    assert_eq!(rig.cancelled.len(), 1);
    assert_eq!((rig.status("/tiers/0/quarantined_bytes"), rig.status("/tiers/0/used_bytes")), (BLOCK.into(), used));
    assert_eq!(rig.lookup(session, 0, &[1]), [ABSENT]);
    rig.advance(100 * SECOND);
    assert_eq!(rig.status("/tiers/0/quarantined_bytes"), BLOCK);
    rig.finish(code::GET, Status::CANCELLED);
    assert_eq!(rig.status("/tiers/0/quarantined_bytes"), 0);
    assert_eq!(rig.status("/tiers/0/used_bytes"), 7 * BLOCK);
}

#[test]
fn a_load_that_was_only_late_is_good_for_the_next_reader() {
    let (mut rig, session) = below();
    rig.acquire(session, &[1]);
    rig.advance(SECOND);
    rig.finish(code::GET, Status::OK);
    assert_eq!(rig.lookup(session, 0, &[1]), [Found::Hit { tier: 0, held: false }]);
    rig.acquire(session, &[2]);
    rig.advance(SECOND);
    rig.store(session, &[2]);
    rig.finish(code::GET, Status::OK);
    rig.settle_stores();
    assert_eq!(rig.lookup(session, 0, &[2]), [Found::Hit { tier: 0, held: false }]);
    assert_eq!(rig.status("/tiers/1/resident_blocks"), 12);
}

#[test]
fn a_tier_that_misses_repeatedly_is_degraded_probed_and_taken_back() {
    let (mut rig, session) = below();
    for n in 1..=u64::from(DEGRADED_AFTER_MISSES) {
        assert_eq!(rig.lookup(session, 0, &[4]), [Found::Hit { tier: 1, held: false }]);
        rig.acquire(session, &[n]);
        rig.advance(SECOND);
    }
    assert_eq!((rig.status("/tiers/1/state"), rig.lookup(session, 0, &[4])), ("degraded".into(), vec![DOWN]));
    assert_eq!(rig.acquire(session, &[4]).1, [Acquired::Miss(MissReason::TierDown)]);
    rig.store(session, &[50]);
    assert_eq!((rig.in_flight(code::PUT), rig.status("/tiers/1/dropped")), (0, 1.into()));
    for _ in 0..5 {
        rig.advance(PROBE_EVERY_NS);
    }
    assert_eq!(rig.in_flight(code::EXISTS), 1, "one probe at a time");
    rig.finish(code::EXISTS, Status::OK);
    assert_eq!((rig.status("/tiers/1/state"), rig.present(session, &[4])), ("running".into(), vec![4]));
    let states: Vec<_> =
        rig.events.iter().filter(|(_, event)| matches!(event, Event::TierState { tier: 1, .. })).collect();
    assert_eq!(states.len(), 2);
    assert_eq!(rig.introduced.len(), 1, "it has not forgotten its namespaces");
}

#[test]
fn a_completion_that_stands_for_nothing_makes_the_tier_failed() {
    for second in [false, true] {
        let (mut rig, session) = below();
        rig.acquire(session, &[1, 2]);
        rig.store(session, &[50]);
        let puts = rig.in_flight(code::PUT);
        let id = if second { rig.finish(code::GET, Status::OK).id } else { 1 << 50 };
        rig.promoted();
        rig.complete(NVME, Completion { id, ..Completion::default() });
        assert_eq!(
            (rig.status("/tiers/1/state"), rig.status("/tiers/1/unknown_completions")),
            ("failed".into(), 1.into())
        );
        let waiting = if second { 1 } else { 2 };
        assert_eq!(rig.promoted().len(), waiting);
        let stuck = (waiting + puts) as u64 * BLOCK;
        assert_eq!(rig.status("/tiers/0/quarantined_bytes"), stuck, "its buffers stay");
        let late = rig.finish(code::GET, Status::OK).id;
        rig.complete(NVME, Completion { id: late, ..Completion::default() });
        assert_eq!(rig.status("/tiers/0/quarantined_bytes"), stuck, "its word counts for nothing");
        rig.store(session, &[60, 61]);
        rig.advance(100 * SECOND);
        assert_eq!(rig.lookup(session, 0, &[3, 4]), [DOWN; 2]);
        assert_eq!(rig.in_flight(code::EXISTS), 0, "nothing is sent any more");
        let now = rig.time();
        rig.engine.tier_state(NVME, TierState::Running, now);
        assert_eq!(rig.status("/tiers/1/state"), "failed");
    }
}

#[test]
fn a_block_written_anew_while_its_tier_was_down_has_one_checksum() {
    let (mut rig, session) = below();
    let now = rig.time();
    rig.engine.tier_state(NVME, TierState::Degraded, now);
    assert_eq!(rig.lookup(session, 0, &[1]), [DOWN]);
    let items = rig.chain(None, 0, &[1]);
    let (lease, answers) = rig.reserve(session, &items);
    assert!(matches!(answers[0], Reserved::Extent(_)));
    let now = rig.time();
    rig.engine.commit(session, lease, &[(0, 42)], now);
    rig.engine.tier_state(NVME, TierState::Running, now);
    rig.drain();
    assert_eq!(rig.in_flight(code::DELETE), 1, "the other bytes of that key");
    rig.settle_stores();
    assert_eq!(rig.lookup(session, 0, &[1]), [Found::Hit { tier: 0, held: false }]);
    assert!(matches!(rig.acquire(session, &[1]).1[0], Acquired::Ready { checksum: 42, .. }));
}

#[test]
fn all_sessions_of_a_tenant_are_told_of_a_removal_by_one_list() {
    let (mut rig, session) = below();
    rig.session();
    rig.events.clear();
    let now = rig.time();
    rig.engine.clear(session, None, 0, now);
    rig.drain();
    let lists: Vec<_> = rig
        .events
        .iter()
        .filter_map(|(_, event)| match event {
            Event::Removed { tier: 1, keys, .. } => Some(keys),
            _ => None,
        })
        .collect();
    assert!(lists.len() == 2 && std::sync::Arc::ptr_eq(lists[0], lists[1]), "{lists:?}");
}

#[test]
fn a_failed_tier_leaves_nothing_of_the_loads_that_waited_for_a_slot() {
    let mut narrow = settings(&[8, 64]);
    narrow.tiers[1].slots = 1;
    let mut rig = Rig::new(narrow);
    let session = rig.session();
    rig.store(session, &[1, 2, 3]);
    rig.settle_stores();
    for n in 100..108 {
        rig.store(session, &[n]);
        rig.settle_stores();
    }
    rig.acquire(session, &[1, 2, 3]);
    assert_eq!(rig.in_flight(code::GET), 1);
    let now = rig.time();
    rig.engine.tier_state(NVME, TierState::Degraded, now);
    rig.drain();
    assert_eq!(rig.promoted().len(), 2, "those that were not submitted");
    rig.engine.tier_state(NVME, TierState::Running, now);
    rig.drain();
    rig.finish(code::GET, Status::OK);
    assert_eq!((rig.promoted().len(), rig.in_flight(code::GET)), (1, 0));
    assert_eq!(rig.present(session, &[1, 2, 3]), [1, 2, 3]);
}

#[test]
fn a_tier_that_never_ran_takes_nothing_and_hinders_nobody() {
    let mut rig = Rig::new(settings(&[8, 8]));
    let session = rig.session();
    let now = rig.time();
    rig.engine.tier_state(NVME, TierState::Failed, now);
    for n in 0..20 {
        rig.store(session, &[n]);
    }
    assert_eq!((rig.operations.len(), rig.status("/tiers/1/dropped")), (0, 20.into()));
    assert!(rig.engine.is_idle());
}

#[test]
fn a_late_load_passes_through_like_any_other() {
    let mut rig = Rig::new(Settings { promote: Promote::AfterHits(3), ..settings(&[4, 64]) });
    let session = rig.session();
    for n in 1..=5 {
        rig.store(session, &[n]);
        rig.settle_stores();
    }
    rig.acquire(session, &[1]);
    rig.advance(SECOND);
    rig.finish(code::GET, Status::OK);
    assert_eq!(rig.status("/tiers/0/passed_through"), 1);
    assert_eq!(rig.lookup(session, 0, &[1]), [Found::Hit { tier: 1, held: false }]);
}
