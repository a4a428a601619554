//! Bounds: of one call's work, of one item, of the pool; and what malformed input gets.

use umbp_protocol::message::{
    Acquired, Event, Found, KEYS_PER_MESSAGE_MAX, MissReason, NamespaceId, ReserveItem, Reserved, WireKey,
};

use super::rig::{BLOCK, LEASE_NS, Rig, key_in, settings};
use crate::engine::api::{EvictionPolicy, Settings, TierIndex, TierState};
use crate::engine::background::ANCESTORS_PER_CALL_MAX;
use crate::engine::{
    DEPTH_MAX, EXPIRY_SLICE_ITEMS, KEYS_PER_SLICE_MAX, LEASED_ITEMS_PER_SESSION_MAX, LeaseKind, RECLAIM_SLICE_ENTRIES,
};

#[test]
fn each_bad_item_gets_its_own_answer_and_the_others_are_served() {
    // K14
    let mut rig = Rig::blocks(&[16]);
    let session = rig.session();
    let good = rig.chain(None, 0, &[1])[0];
    let key = |n| key_in(rig.namespace, n);
    let mut padded = key(2);
    padded.local[33] = 1;
    let cases = [
        ("fine", good),
        ("no length", ReserveItem { length: 0, ..good }),
        ("too long", ReserveItem { length: (1 << 24) + 1, ..good }),
        ("no key", ReserveItem { key: WireKey { local: [0; 44], ..good.key }, ..good }),
        ("not canonical", ReserveItem { key: padded, ..good }),
        ("unknown namespace", ReserveItem { key: key_in(NamespaceId(77), 3), ..good }),
        ("namespace 0", ReserveItem { key: key_in(NamespaceId(0), 3), ..good }),
        ("its own parent", ReserveItem { key: key(4), parent: key(4).local, depth: 1, length: BLOCK }),
        ("a root with a parent", ReserveItem { key: key(5), parent: key(1).local, depth: 0, length: BLOCK }),
        ("too deep", ReserveItem { key: key(6), parent: key(1).local, depth: DEPTH_MAX + 1, length: BLOCK }),
        ("fine too", ReserveItem { key: key(7), parent: key(1).local, depth: 1, length: 2 * BLOCK }),
    ];
    let items: Vec<_> = cases.iter().map(|(_, item)| *item).collect();
    let answers = rig.reserve(session, &items).1;
    for ((name, _), answer) in cases.iter().zip(answers) {
        assert_eq!(matches!(answer, Reserved::Extent(_)), name.starts_with("fine"), "{name}: {answer:?}");
        assert!(name.starts_with("fine") || answer == Reserved::Invalid, "{name}: {answer:?}");
    }
    let now = rig.time();
    let keys = [padded, key_in(NamespaceId(77), 1)];
    let found = rig.engine.lookup(session, 0, &keys, now);
    assert_eq!(found, [Found::Miss(MissReason::Absent), Found::Miss(MissReason::BadKey)]);
}

#[test]
fn links_cannot_form_a_ring() {
    let mut rig = Rig::blocks(&[16]);
    let session = rig.session();
    let item = |child: u64, parent: u64, depth| ReserveItem {
        key: key_in(rig.namespace, child),
        parent: key_in(rig.namespace, parent).local,
        depth,
        length: BLOCK,
    };
    let (first, back, same) = (item(1, 2, 5), item(2, 1, 6), item(3, 1, 5));
    assert!(matches!(rig.store_items(session, &[first])[0], Reserved::Extent(_)));
    assert_eq!(rig.store_items(session, &[back]), [Reserved::Invalid]);
    assert_eq!(rig.store_items(session, &[same]), [Reserved::Invalid], "no deeper than its parent");
    assert_eq!(rig.status("/known_keys"), 2);
}

#[test]
fn an_entry_is_forgotten_with_its_last_copy_and_child() {
    let mut rig = Rig::blocks(&[4]);
    let session = rig.session();
    for n in 0..100 {
        let items = rig.chain(Some(1000 + n), 1, &[n]);
        rig.store_items(session, &items);
    }
    assert_eq!((rig.status("/resident_blocks"), rig.status("/known_keys")), (4.into(), 8.into()));
}

#[test]
fn a_slice_beyond_the_bound_is_refused_whole() {
    let mut rig = Rig::blocks(&[16]);
    let session = rig.session();
    let numbers: Vec<u64> = (0..=KEYS_PER_SLICE_MAX as u64).collect();
    assert!(rig.store(session, &numbers).iter().all(|answer| *answer == Reserved::Refused));
    assert!(rig.acquire(session, &numbers).1.iter().all(|answer| matches!(answer, Acquired::Miss(_))));
}

#[test]
fn one_lease_takes_many_slices_and_its_items_count_on() {
    let mut rig = Rig::blocks(&[2048]);
    let session = rig.session();
    let numbers: Vec<u64> = (0..1500).collect();
    let items = rig.chain(None, 0, &numbers);
    let now = rig.time();
    let lease = rig.engine.lease_begin(session, LeaseKind::Write, now).expect("open");
    for slice in items.chunks(KEYS_PER_SLICE_MAX) {
        assert!(rig.engine.reserve(session, lease, slice, now).iter().all(|a| matches!(a, Reserved::Extent(_))));
    }
    rig.engine.lease_finish(lease, now);
    rig.engine.commit(session, lease, &[(1499, 1), (0, 1)], now);
    assert_eq!(rig.present(session, &[0, 1, 1498, 1499]), [0, 1499]);
    let aborted: Vec<u32> = (0..4).map(|_| rig.engine.abort(session, lease, &[], now)).collect();
    assert_eq!(aborted, [512, 512, 474, 0]);
}

#[test]
fn what_expires_at_once_goes_in_slices() {
    let mut rig = Rig::blocks(&[4096]);
    let session = rig.session();
    for at in 0..8 {
        let numbers: Vec<u64> = (at * 500..(at + 1) * 500).collect();
        rig.store(session, &numbers);
        rig.acquire(session, &numbers);
    }
    rig.now += LEASE_NS;
    let (mut ticks, mut most) = (0, 0);
    while rig.engine.tick(rig.time()).is_some_and(|next| next <= rig.time()) {
        (ticks, most) = (ticks + 1, most.max(rig.engine.last_work()));
    }
    assert!(ticks >= 7 && most <= EXPIRY_SLICE_ITEMS as u64, "{ticks} ticks of at most {most} entries");
    assert_eq!((rig.status("/leases/read"), rig.status("/sessions/0/pinned_bytes")), (0.into(), 0.into()));
}

#[test]
fn reclaim_keeps_the_headroom_free_in_slices() {
    let mut roomy = settings(&[1000]);
    roomy.headroom[0] = 100 * BLOCK;
    let mut rig = Rig::new(roomy);
    let session = rig.session();
    let mut most = 0;
    for n in 0..30 {
        let numbers: Vec<u64> = (n * 50..(n + 1) * 50).collect();
        rig.store(session, &numbers);
        most = most.max(rig.engine.last_work());
    }
    rig.run_ticks();
    assert_eq!(rig.status("/tiers/0/used_bytes"), 900 * BLOCK);
    assert!(most <= (50 + RECLAIM_SLICE_ENTRIES) as u64, "{most}");
}

#[test]
fn the_work_of_a_store_does_not_grow_with_what_is_resident() {
    let work = |resident: u64| {
        let mut rig = Rig::blocks(&[resident]);
        let session = rig.session();
        for at in 0..resident / 100 {
            let numbers: Vec<u64> = (at * 100..(at + 1) * 100).collect();
            rig.store(session, &numbers);
        }
        let fresh: Vec<u64> = (1 << 40..(1 << 40) + 100).collect();
        let items = rig.chain(None, 0, &fresh);
        let (lease, _) = rig.reserve(session, &items);
        let reserved = rig.engine.last_work();
        let written: Vec<_> = (0..100).map(|at| (at, 1)).collect();
        rig.engine.commit(session, lease, &written, rig.time());
        (reserved, rig.engine.last_work())
    };
    assert_eq!(work(1_000), work(20_000));
}

/// Each block of a chain is queued behind those of its ancestors that the tier below lacks; a tier that takes none
/// costs nothing, and all blocks of one call look for theirs within one bound.
#[test]
fn a_store_far_down_a_chain_that_a_lower_tier_lacks_is_bounded() {
    const DEPTH: u64 = 40_000;
    const MORE: u64 = 512;
    let down = |rig: &mut Rig, is_down: bool| {
        let state = if is_down { TierState::Degraded } else { TierState::Running };
        rig.engine.tier_state(TierIndex(1), state, rig.time());
    };
    let commit = |rig: &mut Rig, session, from: u64| {
        let items = rig.chain(from.checked_sub(1), from as u32, &(from..from + MORE).collect::<Vec<_>>());
        let (lease, _) = rig.reserve(session, &items);
        let written: Vec<_> = (0..MORE as u32).map(|at| (at, 1)).collect();
        rig.engine.commit(session, lease, &written, rig.time());
        rig.engine.last_work()
    };
    let mut rig = Rig::blocks(&[2 * DEPTH, 2 * DEPTH]);
    let session = rig.session();
    down(&mut rig, true);
    let (mut at, mut most) = (0, 0);
    while at < DEPTH {
        let work = commit(&mut rig, session, at);
        at += MORE;
        // A use of a chain is a use of all its ancestors, once in a call.
        most = most.max(work.saturating_sub(at));
    }
    assert!(most <= 2 * MORE, "{most} entries more than the chain's own while the tier takes nothing");
    assert_eq!(rig.status("/tiers/1/dropped"), at);
    down(&mut rig, false);
    let work = commit(&mut rig, session, at);
    let climbed = work - at - MORE;
    assert!((ANCESTORS_PER_CALL_MAX..=ANCESTORS_PER_CALL_MAX + 2 * MORE).contains(&climbed), "{climbed} entries");
    assert_eq!(rig.status("/tiers/1/dropped"), at + MORE, "each is counted");
}

/// Bytes of tables that a block takes with so many blocks in each tier, all of them in all, after as many have left.
fn table_bytes(eviction: EvictionPolicy, tiers: &[u64]) -> usize {
    let mut rig = Rig::new(Settings { eviction, ..settings(tiers) });
    let session = rig.session();
    for at in 0..2 * tiers[0] / 100 {
        let numbers: Vec<u64> = (at * 100..(at + 1) * 100).collect();
        rig.store(session, &numbers);
        rig.settle_stores();
    }
    let last = format!("/tiers/{}/resident_blocks", tiers.len() - 1);
    assert!(rig.status(&last).as_u64() > Some(tiers[0] * 9 / 10), "{}", rig.status(&last));
    // The tiers may not hold the same blocks.
    let blocks = rig.status("/resident_blocks").as_u64().expect("a number");
    rig.engine.memory_bytes() / blocks as usize
}

#[test]
fn a_block_takes_at_most_two_hundred_bytes_of_tables() {
    for eviction in [EvictionPolicy::PrefixLru, EvictionPolicy::S3Fifo, EvictionPolicy::ChainHazard] {
        let found = [table_bytes(eviction, &[50_000]), table_bytes(eviction, &[50_000, 50_000])];
        eprintln!("{eviction:?}: {} bytes in one tier, {} in two", found[0], found[1]);
        // Its queues and ghosts in each of two tiers that hold the same blocks.
        let two_tiers = if eviction == EvictionPolicy::S3Fifo { 205 } else { 200 };
        assert!(found[0] <= 200 && found[1] <= two_tiers, "{eviction:?}: {found:?}");
    }
}

#[test]
fn extents_of_mixed_sizes_find_room_by_evicting_neighbours() {
    let mut rig = Rig::blocks(&[64]);
    let session = rig.session();
    for n in 0..500_u64 {
        let mut item = rig.chain(None, 0, &[n])[0];
        item.length = [1, 4096, 5000, 12_288, 32_768, 65_536][n as usize % 6];
        assert!(matches!(rig.store_items(session, &[item])[0], Reserved::Extent(_)), "block {n}");
    }
}

#[test]
fn a_draining_engine_says_so_and_lets_what_is_under_way_end() {
    let mut rig = Rig::blocks(&[4]);
    let session = rig.session();
    rig.store(session, &[1]);
    let items = rig.chain(None, 0, &[2]);
    let (lease, _) = rig.reserve(session, &items);
    let now = rig.time();
    rig.engine.drain(now);
    rig.drain();
    assert!(rig.events.iter().any(|(_, event)| *event == Event::Draining));
    assert_eq!(rig.lookup(session, 0, &[1]), [Found::Miss(MissReason::Draining)]);
    assert_eq!(rig.acquire(session, &[1]).1, [Acquired::Miss(MissReason::Draining)]);
    assert_eq!(rig.store(session, &[3]), [Reserved::Refused]);
    assert_eq!(rig.engine.commit(session, lease, &[(0, 1)], now), [umbp_protocol::message::Outcome::Done]);
    assert!(rig.engine.is_idle());
}

/// A message has at most so many keys: more, and every session of the tenant would end over it.
#[test]
fn news_of_many_removals_fits_into_messages() {
    const SMALL: u64 = 9000;
    const LARGE: u64 = 4096 * BLOCK;
    let mut settings = settings(&[SMALL]);
    settings.headroom = vec![100 * BLOCK];
    settings.promotion_budget = 16 * BLOCK;
    settings.block_bytes = LARGE;
    let mut rig = Rig::new(settings);
    let session = rig.session();
    let numbers: Vec<u64> = (0..SMALL - 100).collect();
    for slice in numbers.chunks(512) {
        rig.store(session, slice);
    }
    rig.run_ticks();
    rig.events.clear();
    let mut items = rig.chain(None, 0, &(20_000..20_102).collect::<Vec<_>>());
    items.iter_mut().take(2).for_each(|item| item.length = LARGE);
    rig.reserve(session, &items);
    let counts = rig.events.iter().filter_map(|(_, event)| match event {
        Event::Removed { keys, .. } => Some(keys.len()),
        _ => None,
    });
    let counts: Vec<usize> = counts.collect();
    assert!(counts.iter().sum::<usize>() > KEYS_PER_MESSAGE_MAX, "{counts:?}");
    assert!(counts.iter().all(|count| *count <= KEYS_PER_MESSAGE_MAX), "{counts:?}");
}

/// The same block leased over and over takes no room in the pool, but in the tables.
#[test]
fn a_session_has_a_bounded_number_of_leased_items() {
    let mut rig = Rig::blocks(&[8]);
    let (session, other) = (rig.session(), rig.session());
    rig.store(session, &[1]);
    let same = [1; KEYS_PER_SLICE_MAX];
    let mut leases = Vec::new();
    for _ in 0..LEASED_ITEMS_PER_SESSION_MAX / KEYS_PER_SLICE_MAX {
        let (lease, items) = rig.acquire(session, &same);
        assert!(items.iter().all(|item| matches!(item, Acquired::Ready { .. })));
        leases.push(lease);
    }
    let now = rig.time();
    assert_eq!(rig.engine.lease_begin(session, LeaseKind::Read, now), None);
    assert!(rig.engine.lease_begin(other, LeaseKind::Read, now).is_some());
    rig.release(session, leases[0], &[]);
    assert!(rig.engine.lease_begin(session, LeaseKind::Read, now).is_some());
}

/// A first block of a few bytes says nothing of how many blocks there will be.
#[test]
fn a_tiny_first_block_takes_no_memory_for_others_that_do_not_come() {
    let mut large = settings(&[64]);
    large.eviction = EvictionPolicy::ChainHazard;
    large.tiers.push(super::rig::tier("nvme", 1 << 32));
    large.tenants[0].quota.push(u64::MAX);
    large.headroom.push(0);
    large.tiers[1].alignment = 1;
    let mut rig = Rig::new(large);
    let session = rig.session();
    let tiny = ReserveItem { length: 61, ..rig.chain(None, 0, &[1])[0] };
    rig.store_items(session, &[tiny]);
    rig.settle_stores();
    assert_eq!(rig.status("/tiers/1/resident_blocks"), 1);
    assert!(rig.engine.memory_bytes() < 32 << 20, "{}", rig.engine.memory_bytes());
}
