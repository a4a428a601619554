//! Tenants: namespaces, quotas, segments.

use std::collections::HashSet;

use umbp_connector_core::namespace::of_tenant;
use umbp_protocol::message::{Event, Found, MissReason, Reserved, SegmentId};

use super::rig::{BLOCK, LEASE_NS, Rig, key_in, settings};
use crate::engine::api::{Settings, TenantIndex, TenantSettings};
use crate::engine::{NAMESPACES_MAX, parse_stored_descriptor};

fn two_tenants(blocks: u64) -> Settings {
    let mut settings = settings(&[blocks]);
    settings.tenants =
        ["one", "two"].map(|name| TenantSettings { name: name.to_owned(), quota: vec![blocks / 2 * BLOCK] }).into();
    settings
}

#[test]
fn the_same_model_of_two_tenants_is_two_namespaces() {
    let mut rig = Rig::new(Settings { tenants: two_tenants(8).tenants, ..settings(&[8, 8]) });
    let mut number = |tenant, model| rig.engine.namespace(TenantIndex(tenant), model).expect("room");
    let (a, b) = (number(0, b"model"), number(1, b"model"));
    assert_eq!((a == b, a == number(0, b"model"), a == number(0, b"other")), (false, true, false));
    rig.drain();
    let digests: HashSet<[u8; 32]> = rig.introduced.iter().map(|(_, _, digest)| *digest).collect();
    assert_eq!(digests.len(), 3, "no tier takes one for the other");
    assert_eq!(rig.engine.namespace(TenantIndex(2), b""), None);
    let (one, two) = (rig.session_of(0, 1), rig.session_of(1, 2));
    rig.store(one, &[1]);
    assert_eq!(rig.lookup(two, 0, &[1]), [Found::Miss(MissReason::BadKey)], "names the other's namespace");
    assert_eq!(rig.store(two, &[2]), [Reserved::Invalid]);
    let now = rig.time();
    assert_eq!(rig.engine.lookup(two, 0, &[key_in(b, 1)], now), [Found::Miss(MissReason::Absent)]);
}

#[test]
fn a_stored_descriptor_names_its_tenant() {
    let stored = of_tenant("tenänt", b"model");
    assert_eq!(parse_stored_descriptor(&stored), Some(("tenänt", &b"model"[..])));
    for cut in 0..9 {
        assert_eq!(parse_stored_descriptor(&stored[..cut]), None, "{cut} bytes");
    }
}

#[test]
fn a_clear_reaches_no_other_tenant_and_no_other_namespace() {
    // K12
    let mut rig = Rig::new(two_tenants(64));
    rig.engine.segment_add(SegmentId(8), 64 * BLOCK, None);
    let (one, two) = (rig.session_of(0, 1), rig.session_of(1, 2));
    let first = rig.namespace;
    rig.store(one, &[1, 2, 3]);
    let second = rig.engine.namespace(TenantIndex(0), b"").expect("room");
    rig.namespace = second;
    rig.store(one, &[4]);
    let (lease, _) = rig.acquire(one, &[4]);
    let now = rig.time();
    let clear = |rig: &mut Rig, session, namespace| {
        let slice = rig.engine.clear(session, namespace, 0, now);
        (slice.removed, slice.pinned, slice.next)
    };
    assert_eq!(clear(&mut rig, two, Some(first)), (0, 0, None));
    assert_eq!(clear(&mut rig, two, None), (0, 0, None));
    assert_eq!(clear(&mut rig, one, Some(second)), (0, 1, None), "in use");
    rig.release(one, lease, &[]);
    assert_eq!(clear(&mut rig, one, Some(second)), (1, 0, None));
    assert_eq!(clear(&mut rig, one, None), (3, 0, None));
    assert_eq!(rig.status("/tiers/0/used_bytes"), 0);
}

#[test]
fn a_tenant_evicts_its_own_within_its_quota() {
    let mut rig = Rig::new(two_tenants(8));
    let (one, two) = (rig.session_of(0, 1), rig.session_of(1, 2));
    let (first, second) = (rig.namespace, rig.engine.namespace(TenantIndex(1), b"").expect("room"));
    rig.engine.segment_add(SegmentId(8), 8 * BLOCK, None);
    rig.namespace = second;
    rig.store(two, &[1, 2]);
    rig.namespace = first;
    (10..20).for_each(|n| drop(rig.store(one, &[n])));
    assert_eq!(rig.present(one, &(10..20).collect::<Vec<_>>()), [16, 17, 18, 19]);
    rig.namespace = second;
    assert_eq!(rig.present(two, &[1, 2]), [1, 2]);
}

#[test]
fn an_empty_segment_is_withdrawn_for_a_tenant_that_needs_one() {
    let mut rig = Rig::new(two_tenants(8));
    let (one, two) = (rig.session_of(0, 1), rig.session_of(1, 2));
    let second = rig.engine.namespace(TenantIndex(1), b"").expect("room");
    rig.store(one, &[1]);
    assert_eq!(rig.engine.segments_of(TenantIndex(0)), [(SegmentId(7), 8 * BLOCK)]);
    let added = Event::SegmentsAdded { segments: vec![(SegmentId(7), 8 * BLOCK)] };
    assert!(rig.events.contains(&(one, added.clone())) && !rig.events.contains(&(two, added)));
    let now = rig.time();
    rig.engine.clear(one, None, 0, now);
    rig.namespace = second;
    assert_eq!(rig.store(two, &[1]), [Reserved::Refused]);
    let withdrawn = Event::SegmentWithdrawn { segment: SegmentId(7) };
    assert_eq!(rig.events.iter().filter(|(id, event)| *id == one && *event == withdrawn).count(), 1);
    assert_eq!((rig.freed_segments.len(), rig.engine.segments_of(TenantIndex(0))), (0, vec![]));
    rig.engine.segment_unmapped(two, SegmentId(7));
    rig.drain();
    assert_eq!(rig.freed_segments, [], "nobody waits for those who never mapped it");
    rig.engine.segment_unmapped(one, SegmentId(7));
    rig.drain();
    assert_eq!(rig.freed_segments, [SegmentId(7)]);
    assert!(rig.engine.segment_add(SegmentId(8), 8 * BLOCK, None));
    assert!(matches!(rig.store(two, &[1])[0], Reserved::Extent(_)));
}

/// K12: a client that never unmaps keeps no segment from another tenant: its session ends, and the segment is free.
#[test]
fn a_session_that_does_not_unmap_in_time_is_ended() {
    let mut rig = Rig::new(two_tenants(8));
    let (one, two) = (rig.session_of(0, 1), rig.session_of(1, 2));
    let second = rig.engine.namespace(TenantIndex(1), b"").expect("room");
    rig.store(one, &[1]);
    let now = rig.time();
    rig.engine.clear(one, None, 0, now);
    rig.namespace = second;
    assert_eq!(rig.store(two, &[1]), [Reserved::Refused]);
    rig.advance(LEASE_NS - 1);
    assert_eq!(rig.ended, []);
    rig.advance(1);
    assert_eq!(rig.ended, [one]);
    let now = rig.time();
    rig.engine.session_close(one, false, now);
    rig.drain();
    assert_eq!(rig.freed_segments, [SegmentId(7)]);
}

#[test]
fn a_tenant_leaves_numbers_of_namespaces_to_the_others() {
    let mut rig = Rig::new(two_tenants(8));
    let known = |rig: &mut Rig, tenant, number: usize| {
        rig.engine.namespace(TenantIndex(tenant), &number.to_le_bytes()).is_some()
    };
    let given = (0..NAMESPACES_MAX).filter(|number| known(&mut rig, 0, *number)).count();
    assert_eq!(given, NAMESPACES_MAX / 2 - 1, "one is the rig's");
    assert!(known(&mut rig, 0, 1), "those that are known stay so");
    assert!(known(&mut rig, 1, NAMESPACES_MAX));
}
