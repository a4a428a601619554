//! Deletes in lower tiers: those that fail.

use umbp_plugin_api::Status;
use umbp_plugin_api::types::{RecoveredBlock, code};

use super::rig::{BLOCK, Rig, SECOND, checksum};
use crate::engine::DELETE_RETRY_NS;
use crate::engine::api::TierIndex;

const NVME: TierIndex = TierIndex(1);

/// Blocks 1 to 4, the whole of the lower tier; the first tier has room for 64.
fn full() -> (Rig, umbp_protocol::message::SessionId) {
    let mut rig = Rig::blocks(&[64, 4]);
    let session = rig.session();
    for n in 1..=4 {
        rig.store(session, &[n]);
    }
    rig.settle_stores();
    (rig, session)
}

#[test]
fn a_failed_delete_frees_no_room_and_is_tried_again_until_it_is_done() {
    for status in [Status::NO_SPACE, Status::IO, Status::TIMED_OUT, Status::CANCELLED, Status::FAILED] {
        let (mut rig, session) = full();
        let now = rig.time();
        rig.engine.clear(session, None, 0, now);
        rig.drain();
        for _ in 0..3 {
            rig.finish(code::DELETE, Status::OK);
        }
        rig.finish(code::DELETE, status);
        assert_eq!(rig.status("/tiers/1/used_bytes"), BLOCK, "{status:?}");
        assert_eq!(rig.status("/tiers/1/undeleted_blocks"), 1);
        assert_eq!(rig.status("/tiers/1/errors").as_object().map(|kinds| kinds.len()), Some(1));
        assert!(rig.present(session, &[1]).is_empty() && rig.present(session, &[2, 3, 4]).is_empty(), "never served");
        assert_eq!(rig.in_flight(code::DELETE), 0, "not at once");
        rig.advance(DELETE_RETRY_NS);
        rig.finish(code::DELETE, status);
        rig.advance(DELETE_RETRY_NS);
        assert_eq!(rig.in_flight(code::DELETE), 0, "more rarely");
        rig.advance(DELETE_RETRY_NS);
        rig.finish(code::DELETE, Status::MISS);
        assert_eq!(rig.status("/tiers/1/used_bytes"), 0);
        assert_eq!(rig.status("/tiers/1/undeleted_blocks"), 0);
        assert!(rig.engine.is_idle());
    }
}

#[test]
fn a_block_that_could_not_be_deleted_hinders_no_other_block() {
    let (mut rig, session) = full();
    rig.store(session, &[5]);
    rig.finish(code::DELETE, Status::IO);
    assert_eq!(rig.evicted(1), [1, 2], "its room is not given away: one more leaves");
    rig.settle_deletes();
    rig.finish(code::PUT, Status::OK);
    assert_eq!(rig.status("/tiers/1/used_bytes"), 4 * BLOCK);
    rig.run_ticks();
    let now = rig.time();
    rig.engine.clear(session, None, 0, now);
    rig.drain();
    rig.settle_deletes();
    rig.store(session, &[1]);
    assert_eq!(rig.in_flight(code::PUT), 0, "the old bytes of that key are still there");
    assert_eq!(rig.status("/tiers/1/dropped"), 1);
    assert_eq!(rig.present(session, &[1]), [1]);
}

#[test]
fn a_tier_that_deletes_nothing_is_not_emptied() {
    let mut rig = Rig::blocks(&[1024, 256]);
    let session = rig.session();
    for n in 0..256 {
        rig.store(session, &[n]);
        rig.settle_stores();
    }
    for n in 300..600 {
        rig.store(session, &[n]);
        while rig.in_flight(code::DELETE) > 0 {
            rig.finish(code::DELETE, Status::IO);
        }
    }
    assert_eq!(rig.status("/tiers/1/used_bytes"), 256 * BLOCK);
    assert!(rig.status("/tiers/1/resident_blocks").as_u64() >= Some(256 - 64 - 8));
    assert!(rig.status("/tiers/1/dropped").as_u64() >= Some(200), "counted");
    rig.run_ticks();
    for _ in 0..20 {
        rig.advance(64 * SECOND);
        rig.settle_stores();
    }
    assert_eq!(rig.status("/tiers/1/undeleted_blocks"), 0);
    rig.store(session, &[700]);
    rig.settle_stores();
    assert_eq!(rig.status("/tiers/1/queued_blocks"), 0);
}

#[test]
fn a_stray_whose_delete_failed_is_deleted_later() {
    let (mut rig, _) = full();
    let found = RecoveredBlock {
        key: rig.key(1).local,
        namespace_id: rig.namespace.0,
        length: BLOCK,
        checksum: checksum(&rig.key(1)),
        location: 7,
        ..RecoveredBlock::default()
    };
    let now = rig.time();
    rig.engine.recovered(NVME, &[found], now);
    rig.drain();
    let at = rig.operations.iter().position(|(_, operation)| operation.location == 7).expect("the stray's delete");
    rig.operations.swap(0, at);
    rig.finish(code::DELETE, Status::IO);
    rig.settle_deletes();
    assert_eq!(
        (rig.status("/tiers/1/undeleted_blocks"), rig.status("/tiers/1/used_bytes")),
        (1.into(), (4 * BLOCK).into())
    );
    rig.advance(DELETE_RETRY_NS);
    assert_eq!(rig.finish(code::DELETE, Status::OK).location, 7);
    assert_eq!(rig.status("/tiers/1/used_bytes"), 3 * BLOCK);
}
