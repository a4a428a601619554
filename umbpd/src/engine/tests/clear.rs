//! Clear, while tiers recover or do not run.

use umbp_plugin_api::Status;
use umbp_plugin_api::types::{RecoveredBlock, code};
use umbp_protocol::message::NamespaceId;

use super::rig::{ABSENT, BLOCK, Rig, checksum, settings};
use crate::engine::api::{TenantIndex, TierIndex, TierState};

const NVME: TierIndex = TierIndex(1);

fn recovered(rig: &Rig, namespace: NamespaceId, n: u64) -> RecoveredBlock {
    let key = super::rig::key_in(namespace, n);
    RecoveredBlock {
        key: rig.key(n).local,
        namespace_id: namespace.0,
        length: BLOCK,
        checksum: checksum(&key),
        location: n + 500,
        ..RecoveredBlock::default()
    }
}

#[test]
fn what_recovery_brings_in_after_a_clear_never_hits_and_is_deleted() {
    for one in [false, true] {
        let mut rig = Rig::new(settings(&[64, 64]));
        let session = rig.session();
        let other = rig.engine.namespace(TenantIndex(0), b"other").expect("room for it");
        let (own, now) = (rig.namespace, rig.time());
        let before = [recovered(&rig, own, 1)];
        assert_eq!(rig.engine.recovered(NVME, &before, now), 1);
        rig.engine.clear(session, one.then_some(own), 0, now);
        rig.drain();
        assert_eq!(rig.finish(code::DELETE, Status::OK).location, 501);
        // Stored after the clear, with and without the same key in an earlier life.
        rig.store(session, &[2, 3]);
        rig.settle_stores();
        rig.store(session, &[4]);
        let later = [1, 2, 5].map(|n| recovered(&rig, own, n));
        let foreign = [recovered(&rig, other, 6)];
        assert_eq!(rig.engine.recovered(NVME, &later, now), 0);
        assert_eq!(rig.engine.recovered(NVME, &foreign, now), usize::from(one), "only what was cleared");
        rig.drain();
        assert_eq!(rig.lookup(session, 0, &[1, 5]), [ABSENT; 2]);
        let doomed: Vec<u64> =
            rig.operations.iter().filter(|(_, o)| o.code == code::DELETE).map(|(_, o)| o.location).collect();
        assert_eq!(doomed.len(), 4 - usize::from(one), "{doomed:?}");
        rig.engine.recovery_done(NVME, now);
        rig.drain();
        rig.settle_stores();
        assert_eq!(rig.present(session, &[2, 3, 4]), [2, 3, 4], "kept");
        assert_eq!(rig.status("/tiers/1/resident_blocks"), 3 + u64::from(one));
        assert_eq!(rig.status("/tiers/1/used_bytes"), (3 + u64::from(one)) * BLOCK);
        assert_eq!(rig.engine.recovered(NVME, &[recovered(&rig, own, 7)], now), 1, "it is over with the recovery");
    }
}

#[test]
fn a_clear_before_a_tier_runs_holds_for_all_that_it_recovers() {
    let mut rig = Rig::new(settings(&[8, 64]));
    let session = rig.session();
    let now = rig.time();
    rig.engine.clear(session, None, 0, now);
    let late = rig.engine.namespace(TenantIndex(0), b"recovered later").expect("room for it");
    let blocks = [recovered(&rig, late, 1)];
    assert_eq!(rig.engine.recovered(NVME, &blocks, now), 0);
    rig.drain();
    assert_eq!(rig.finish(code::DELETE, Status::OK).location, 501);
}

#[test]
fn what_is_cleared_while_its_tier_does_not_answer_is_deleted_when_it_does() {
    let mut rig = Rig::new(settings(&[8, 8]));
    let session = rig.session();
    rig.store(session, &[1, 2]);
    rig.settle_stores();
    let now = rig.time();
    rig.engine.tier_state(NVME, TierState::Degraded, now);
    rig.engine.clear(session, None, 0, now);
    rig.drain();
    rig.run_ticks();
    assert_eq!((rig.in_flight(code::DELETE), rig.status("/tiers/1/used_bytes")), (0, (2 * BLOCK).into()));
    rig.engine.tier_state(NVME, TierState::Running, now);
    rig.drain();
    assert_eq!(rig.lookup(session, 0, &[1, 2]), [ABSENT; 2]);
    assert_eq!(rig.in_flight(code::DELETE), 2);
    rig.settle_deletes();
    assert_eq!(rig.status("/tiers/1/used_bytes"), 0);
}
