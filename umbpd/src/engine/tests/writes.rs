//! When each lower tier gets its copy.

use umbp_plugin_api::types::code;
use umbp_plugin_api::{Operation, Status};

use super::rig::{BLOCK, LEASE_NS, Rig, settings};
use crate::engine::api::{Admission, Settings, TierIndex, WritePolicy};

/// Three tiers; when the second and the third get their copy.
fn three(blocks: [u64; 3], writes: [WritePolicy; 2]) -> Settings {
    let mut settings = settings(&blocks);
    (settings.tiers[1].write, settings.tiers[2].write) = (writes[0], writes[1]);
    settings
}

/// Tiers of the puts in flight, in order.
fn puts(rig: &Rig) -> Vec<u8> {
    let is_put = |(_, operation): &&(TierIndex, Operation)| operation.code == code::PUT;
    rig.operations.iter().filter(is_put).map(|(tier, _)| tier.0).collect()
}

#[test]
fn each_tier_gets_its_copy_when_its_own_rule_says_so() {
    let mut rig = Rig::new(three([2, 8, 8], [WritePolicy::Through, WritePolicy::OnEvict]));
    let session = rig.session();
    rig.store(session, &[1]);
    assert_eq!(puts(&rig), [1]);
    rig.settle_stores();
    rig.store(session, &[2]);
    rig.settle_stores();
    // Their successor has no room before they have left, and they leave when the third tier has them.
    rig.store(session, &[3]);
    assert_eq!(puts(&rig), [2, 2]);
    rig.settle_stores();
    assert_eq!(rig.evicted(0), [1, 2]);
    let counts = ["/tiers/1/resident_blocks", "/tiers/2/resident_blocks"].map(|path| rig.status(path));
    assert_eq!(counts, [2, 2]);
}

#[test]
fn a_block_that_several_tiers_want_as_it_leaves_leaves_when_the_last_has_it() {
    let mut late = three([4, 8, 8], [WritePolicy::OnEvict; 2]);
    (late.headroom[0], late.tiers[2].slots) = (BLOCK, 1);
    let mut rig = Rig::new(late);
    let session = rig.session();
    rig.store(session, &[1, 2, 3]);
    // Room for one more is kept free: block 3, the deepest, begins to leave, and then the next.
    rig.store(session, &[11]);
    rig.run_ticks();
    assert_eq!(puts(&rig), [1, 2]);
    rig.finish(code::PUT, Status::OK);
    assert_eq!((rig.evicted(0), puts(&rig)), (vec![], vec![2]), "one of them has it");
    assert_eq!(rig.present(session, &[3]), [3]);
    rig.finish(code::PUT, Status::OK);
    assert_eq!(rig.evicted(0), [3]);
    assert_eq!((rig.status("/tiers/1/demoted"), rig.status("/tiers/2/demoted")), (1.into(), 1.into()));
}

#[test]
fn a_block_that_waits_for_its_second_put_is_not_evicted_twice_and_stays_if_it_is_used() {
    let mut late = three([4, 8, 8], [WritePolicy::OnEvict; 2]);
    (late.headroom[0], late.tiers[2].slots) = (4 * BLOCK, 1);
    let mut rig = Rig::new(late);
    let session = rig.session();
    rig.store(session, &[1, 2]);
    rig.run_ticks();
    // Both leave; the third tier's only slot has the first of them, and the other one waits there.
    rig.settle_stores_of(TierIndex(1));
    assert_eq!((puts(&rig), rig.evicted(0)), (vec![2], vec![]), "neither is in both");
    let (lease, _) = rig.acquire(session, &[1, 2]);
    rig.settle_stores();
    rig.release(session, lease, &[]);
    rig.advance(LEASE_NS);
    rig.settle_stores();
    assert_eq!(rig.status("/faults"), 0);
    let counts = ["/tiers/1/resident_blocks", "/tiers/2/resident_blocks"].map(|path| rig.status(path));
    assert_eq!(counts, [2, 2]);
}

#[test]
fn a_tier_that_waits_for_loads_gets_a_block_with_its_ancestors_once_it_was_loaded_so_often() {
    let mut rig = Rig::new(three([8, 8, 8], [WritePolicy::Through, WritePolicy::AfterHits(2)]));
    let session = rig.session();
    rig.store(session, &[1, 2, 3]);
    assert_eq!(puts(&rig), [1; 3]);
    rig.settle_stores();
    for loads in 1..=2 {
        assert_eq!(puts(&rig), [0_u8; 0], "{loads}");
        let (lease, _) = rig.acquire(session, &[2]);
        rig.release(session, lease, &[]);
    }
    assert_eq!(puts(&rig), [2, 2], "with what it hangs on, and without what hangs on it");
    rig.settle_stores();
    let (lease, _) = rig.acquire(session, &[2]);
    rig.release(session, lease, &[]);
    assert_eq!(puts(&rig), [0_u8; 0], "once");
}

#[test]
fn loads_are_counted_anew_for_a_block_that_was_gone() {
    let mut rig = Rig::new(three([1, 8, 8], [WritePolicy::AfterHits(2), WritePolicy::AfterHits(100)]));
    let session = rig.session();
    for _ in 0..3 {
        rig.store(session, &[1]);
        let (lease, _) = rig.acquire(session, &[1]);
        rig.release(session, lease, &[]);
        rig.store(session, &[2]);
    }
    assert_eq!(puts(&rig), [0_u8; 0]);
}

#[test]
fn what_admission_keeps_out_is_kept_out_however_often_it_is_loaded() {
    let mut rig = Rig::new(Settings {
        admission: Admission::MinDepth(1),
        ..three([8, 8, 8], [WritePolicy::AfterHits(1), WritePolicy::OnEvict])
    });
    let session = rig.session();
    rig.store(session, &[1]);
    for _ in 0..3 {
        let (lease, _) = rig.acquire(session, &[1]);
        rig.release(session, lease, &[]);
    }
    assert_eq!((puts(&rig), rig.status("/tiers/1/not_admitted")), (vec![], 1.into()));
}
