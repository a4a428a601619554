//! What a full first tier costs those who ask, and whom it turns away.

use umbp_plugin_api::Status;
use umbp_plugin_api::types::code;
use umbp_protocol::message::{Found, Reserved};

use super::rig::{BLOCK, Rig, settings, write_all};
use crate::engine::api::{EvictionPolicy, Settings, WritePolicy};
use crate::engine::{EVICTIONS_PER_CALL_MAX, KEYS_PER_SLICE_MAX, LeaseKind};

const ALL: [EvictionPolicy; 3] = [EvictionPolicy::PrefixLru, EvictionPolicy::S3Fifo, EvictionPolicy::ChainHazard];

/// A first tier of so many blocks, full of chains of 50.
fn full(eviction: EvictionPolicy, blocks: u64) -> (Rig, umbp_protocol::message::SessionId) {
    let mut rig = Rig::new(Settings { eviction, ..settings(&[blocks]) });
    let session = rig.session();
    for chain in 0..blocks / 50 {
        rig.store(session, &(chain * 50..chain * 50 + 50).collect::<Vec<_>>());
    }
    assert_eq!(rig.status("/resident_blocks"), blocks);
    (rig, session)
}

/// C11: a lookup touches no entry of an order, and the work of a store that evicts is that of its own blocks,
/// whatever is resident.
#[test]
fn c11_eviction_costs_the_same_at_any_size_and_lookups_nothing() {
    for eviction in ALL {
        let work = |blocks: u64| {
            let (mut rig, session) = full(eviction, blocks);
            let (mut most, mut total) = (0, 0);
            for round in 0..200_u64 {
                let numbers: Vec<u64> = (0..20).map(|n| 1_000_000 + round * 20 + n).collect();
                let items = rig.chain(None, 0, &numbers);
                let lease = {
                    let (lease, answers) = rig.reserve(session, &items);
                    assert!(answers.iter().all(|answer| matches!(answer, Reserved::Extent(_))), "{eviction:?}");
                    lease
                };
                most = most.max(rig.engine.last_work());
                total += rig.engine.last_work();
                let keys: Vec<_> = (0..KEYS_PER_SLICE_MAX as u64).map(|n| rig.key(n * 7)).collect();
                let now = rig.time();
                rig.engine.lookup(session, 0, &keys, now);
                assert_eq!(rig.engine.last_work(), 0, "{eviction:?}: a lookup while evicting");
                let written: Vec<(u32, u64)> = (0..20).map(|at| (at, 0)).collect();
                rig.engine.commit(session, lease, &written, now);
                rig.drain();
            }
            assert!(most <= 2048, "{eviction:?}, {blocks} blocks: {most}");
            total / 200
        };
        let (few, many) = (work(1000), work(50_000));
        assert!(many <= 3 * few + 40, "{eviction:?}: {few} entries a store of 20 at 1,000 blocks, {many} at 50,000");
    }
    const { assert!(EVICTIONS_PER_CALL_MAX <= 8192) };
}

/// C10: with any policy a chain leaves from its tail, and its head is what is left of it.
#[test]
fn c10_under_any_policy_what_is_left_of_a_chain_is_its_head() {
    for eviction in ALL {
        let (mut rig, session) = full(eviction, 500);
        (0..400_u64).for_each(|n| drop(rig.store(session, &[10_000 + n])));
        for chain in 0..10_u64 {
            let numbers: Vec<u64> = (chain * 50..chain * 50 + 50).collect();
            let left = rig.present(session, &numbers);
            assert_eq!(left, numbers[..left.len()], "{eviction:?}");
        }
        assert_eq!(rig.status("/orphan_blocks"), 0);
    }
}

/// G5: ten times the first tier at once, from several sessions, while its blocks are all in use.
#[test]
fn g5_a_burst_of_ten_times_the_tier_is_refused_from_its_tails_and_told_once_a_block() {
    for eviction in ALL {
        let mut rig = Rig::new(Settings { eviction, ..settings(&[100]) });
        let sessions: Vec<_> = (0..10).map(|_| rig.session()).collect();
        let mut leases = Vec::new();
        let (mut taken, mut refused) = (0, 0);
        for (at, session) in sessions.iter().enumerate() {
            let numbers: Vec<u64> = (at as u64 * 100..at as u64 * 100 + 100).collect();
            let items = rig.chain(None, 0, &numbers);
            let (lease, answers) = rig.reserve(*session, &items);
            let room = answers.iter().take_while(|answer| matches!(answer, Reserved::Extent(_))).count();
            assert!(answers[room..].iter().all(|answer| *answer == Reserved::Refused), "heads first, and no hole");
            taken += room;
            refused += answers.len() - room;
            leases.push((*session, lease, room));
        }
        assert_eq!((taken, refused), (100, 900));
        assert_eq!((rig.status("/refused"), rig.events.len()), (900.into(), 0), "no event tells of it");
        for (session, lease, room) in leases.into_iter().filter(|lease| lease.2 > 0) {
            let written: Vec<(u32, u64)> = (0..room as u32).map(|at| (at, 0)).collect();
            let now = rig.time();
            rig.engine.commit(session, lease, &written, now);
        }
        // And after it all is as before.
        assert!(matches!(rig.store(sessions[5], &[5000])[0], Reserved::Extent(_)));
        assert_eq!(rig.status("/resident_blocks"), 100);
    }
}

/// G7: what was refused is stored by the next request, from there on.
#[test]
fn g7_after_a_refused_block_the_next_request_stores_from_there() {
    for eviction in ALL {
        let mut rig = Rig::new(Settings { eviction, ..settings(&[10]) });
        let session = rig.session();
        let busy: Vec<u64> = (100..105).collect();
        rig.store(session, &busy);
        let (lease, _) = rig.acquire(session, &busy);
        let numbers: Vec<u64> = (0..10).collect();
        let answers = rig.store(session, &numbers);
        assert!(answers[..5].iter().all(|answer| matches!(answer, Reserved::Extent(_))), "{answers:?}");
        assert_eq!(answers[5..], [Reserved::Refused; 5]);
        assert_eq!(rig.status("/orphan_blocks"), 0);
        rig.release(session, lease, &[]);
        let again = rig.store(session, &numbers);
        assert_eq!(again[..5], [Reserved::Present; 5]);
        assert!(again[5..].iter().all(|answer| matches!(answer, Reserved::Extent(_))), "{eviction:?}: {again:?}");
        assert!(rig.lookup(session, 0, &numbers).iter().all(|found| matches!(found, Found::Hit { .. })));
    }
}

/// G5: a request that uses more of the coldest blocks than one search looks at still evicts the others.
#[test]
fn g5_a_request_that_holds_all_the_coldest_blocks_is_given_room_by_the_others() {
    for eviction in ALL {
        let mut rig = Rig::new(Settings { eviction, ..settings(&[2048]) });
        let session = rig.session();
        (0..2048_u64).for_each(|n| drop(rig.store(session, &[n])));
        let now = rig.time();
        let lease = rig.engine.lease_begin(session, LeaseKind::Write, now).expect("open");
        for slice in 0..3 {
            let roots = (slice * 512..slice * 512 + 512).flat_map(|n| rig.chain(None, 0, &[n]));
            let answers = rig.engine.reserve(session, lease, &roots.collect::<Vec<_>>(), now);
            assert!(answers.iter().all(|answer| *answer == Reserved::Present));
        }
        let new: Vec<u64> = (5000..5100).collect();
        let items = rig.chain(None, 0, &new);
        let answers = rig.engine.reserve(session, lease, &items, now);
        assert!(answers.iter().all(|answer| matches!(answer, Reserved::Extent(_))), "{eviction:?}: {answers:?}");
        assert!(rig.engine.last_work() < 20_000, "{eviction:?}: {}", rig.engine.last_work());
    }
}

/// What was on its way into a tier that fails stays for good, so that others have to make the room.
#[test]
fn a_tier_that_fails_with_demotions_under_way_costs_no_headroom() {
    let mut late = settings(&[8, 64]);
    write_all(&mut late, WritePolicy::OnEvict);
    late.headroom[0] = 2 * BLOCK;
    let mut rig = Rig::new(late);
    let session = rig.session();
    rig.store(session, &[1, 2, 3, 4, 5, 6]);
    rig.store(session, &[11, 12]);
    assert_eq!((rig.in_flight(code::PUT), rig.status("/tiers/0/used_bytes")), (2, (8 * BLOCK).into()));
    rig.finish(code::PUT, Status::PANICKED);
    rig.run_ticks();
    assert_eq!(rig.status("/tiers/0/used_bytes"), 6 * BLOCK);
}
