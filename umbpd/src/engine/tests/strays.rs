//! Copies that `chain-hazard` has no request for, more of them than one call gives a run.

use umbp_plugin_api::Status;
use umbp_plugin_api::types::{RecoveredBlock, code};
use umbp_protocol::message::{Event, ReserveItem, Reserved, SegmentId, SessionId};

use super::rig::{BLOCK, LEASE_NS, Rig, checksum, ready, settings};
use crate::engine::api::{EvictionPolicy, Settings, TenantIndex, TenantSettings, TierIndex};

const NVME: TierIndex = TierIndex(1);
/// Blocks of one tenant: several times of what one call adopts.
const BLOCKS: u64 = 2000;

fn rig(tenants: &[&str], blocks: [u64; 2]) -> Rig {
    let part = blocks.map(|blocks| blocks / tenants.len() as u64 * BLOCK);
    let tenants = tenants.iter().map(|name| TenantSettings { name: (*name).to_owned(), quota: part.into() }).collect();
    Rig::new(Settings { eviction: EvictionPolicy::ChainHazard, tenants, ..settings(&blocks) })
}

/// Roots, in slices; their copies below are there as well.
fn store_roots(rig: &mut Rig, session: SessionId, numbers: std::ops::Range<u64>) {
    for slice in numbers.collect::<Vec<_>>().chunks(250) {
        let items: Vec<ReserveItem> = slice.iter().flat_map(|n| rig.chain(None, 0, &[*n])).collect();
        let answers = rig.store_items(session, &items);
        assert!(answers.iter().all(|answer| matches!(answer, Reserved::Extent(_))), "{answers:?}");
        rig.settle_stores();
        rig.run_ticks();
    }
}

/// Loads blocks in slices, and lets them go again.
fn load(rig: &mut Rig, session: SessionId, numbers: std::ops::Range<u64>) {
    for slice in numbers.collect::<Vec<_>>().chunks(500) {
        let (lease, _) = rig.acquire(session, slice);
        while rig.in_flight(code::GET) > 0 {
            rig.finish(code::GET, Status::OK);
        }
        rig.release(session, lease, &[]);
    }
}

fn clear(rig: &mut Rig, session: SessionId) {
    let (now, mut next) = (rig.time(), Some(0));
    while let Some(cursor) = next {
        next = rig.engine.clear(session, None, cursor, now).next;
        rig.drain();
    }
    rig.settle_stores();
    rig.run_ticks();
    rig.settle_stores();
}

/// H5: what a tenant is told has left is its own, also where its blocks have the places of another's that were cleared.
#[test]
fn h5_a_tenants_order_never_names_another_tenants_copies() {
    let mut rig = rig(&["one", "two"], [4 * BLOCKS, 2 * BLOCKS]);
    rig.engine.segment_add(SegmentId(8), 2 * BLOCKS * BLOCK, Some(TenantIndex(0)));
    rig.engine.segment_add(SegmentId(9), 2 * BLOCKS * BLOCK, Some(TenantIndex(1)));
    let (one, two) = (rig.session_of(0, 1), rig.session_of(1, 2));
    let (first, second) = (rig.namespace, rig.engine.namespace(TenantIndex(1), b"").expect("room"));
    // Each copy below is a stray until it is used.
    store_roots(&mut rig, one, 0..BLOCKS);
    load(&mut rig, one, 0..BLOCKS);
    clear(&mut rig, one);
    rig.namespace = second;
    store_roots(&mut rig, two, 0..BLOCKS);
    rig.events.clear();
    rig.namespace = first;
    // Twice what the tenant may have below: the older half leaves.
    store_roots(&mut rig, one, 5000..5000 + 2 * BLOCKS);
    let mut removed = 0;
    for (session, event) in &rig.events {
        if let Event::Removed { tier: 1, keys, .. } = event {
            assert_eq!((*session, keys.iter().find(|key| key.namespace != first)), (one, None));
            removed += keys.len() as u64;
        }
    }
    assert_eq!(removed, BLOCKS);
    rig.namespace = second;
    assert_eq!(rig.status("/tiers/1/evicted"), BLOCKS);
    for slice in (0..BLOCKS).collect::<Vec<_>>().chunks(500) {
        assert_eq!(rig.present(two, slice), slice);
    }
}

#[test]
fn an_extent_in_quarantine_is_no_part_of_an_order() {
    let mut rig = rig(&["default"], [2 * BLOCKS, 2 * BLOCKS]);
    let session = rig.session();
    let recovered = |n: u64| RecoveredBlock {
        key: rig.key(n).local,
        namespace_id: rig.namespace.0,
        length: BLOCK,
        checksum: checksum(&rig.key(n)),
        location: n + 500,
        ..RecoveredBlock::default()
    };
    let blocks: Vec<RecoveredBlock> = (0..BLOCKS).map(recovered).collect();
    let now = rig.time();
    assert_eq!(rig.engine.recovered(NVME, &blocks, now), BLOCKS as usize);
    rig.engine.recovery_done(NVME, now);
    rig.run_ticks();
    // The first brings them up, each a stray; the second is a use of what is there.
    load(&mut rig, session, 0..BLOCKS);
    let (lease, acquired) = rig.acquire(session, &[7]);
    ready(&acquired[0]);
    rig.release(session, lease, &[]);
    load(&mut rig, session, 0..BLOCKS);
    clear(&mut rig, session);
    // They are leased to a writer that never comes back.
    for slice in (5000..5000 + BLOCKS).collect::<Vec<_>>().chunks(500) {
        let items: Vec<ReserveItem> = slice.iter().flat_map(|n| rig.chain(None, 0, &[*n])).collect();
        rig.reserve(session, &items);
    }
    rig.advance(LEASE_NS + 1);
    for n in 9000..9010 {
        assert!(matches!(rig.store(session, &[n])[0], Reserved::Extent(_)));
    }
    assert_eq!(rig.status("/tiers/0/resident_blocks"), 10);
}
