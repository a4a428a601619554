//! Orphans that the first tier has not noted: blocks of an earlier life, and those that have left it for a lower tier.

use umbp_plugin_api::types::RecoveredBlock;
use umbp_protocol::message::{Found, SessionId};

use super::rig::{BLOCK, Rig, checksum};
use crate::engine::api::TierIndex;

const NVME: TierIndex = TierIndex(1);

/// Block n hangs on block n - 1; the first is block 1.
fn recover(rig: &mut Rig, numbers: &[u64]) {
    let recovered = |n: &u64| RecoveredBlock {
        key: rig.key(*n).local,
        namespace_id: rig.namespace.0,
        parent: if *n == 1 { [0; 44] } else { rig.key(n - 1).local },
        depth: *n as u32 - 1,
        length: BLOCK,
        checksum: checksum(&rig.key(*n)),
        location: n + 500,
        ..RecoveredBlock::default()
    };
    let blocks: Vec<RecoveredBlock> = numbers.iter().map(recovered).collect();
    let now = rig.time();
    assert_eq!(rig.engine.recovered(NVME, &blocks, now), blocks.len());
}

fn recovery_done(rig: &mut Rig) {
    let now = rig.time();
    rig.engine.recovery_done(NVME, now);
    rig.run_ticks();
}

/// Ends a write lease's only block, and whatever that leaves to be done.
fn end_write(rig: &mut Rig, session: SessionId, lease: umbp_protocol::message::LeaseId, number: u64, stored: bool) {
    let (sum, now) = (checksum(&rig.key(number)), rig.time());
    if stored {
        rig.engine.commit(session, lease, &[(0, sum)], now);
    } else {
        rig.engine.abort(session, lease, &[0], now);
    }
    rig.run_ticks();
    rig.settle_stores();
}

/// A9: nobody asks for ever whether a block is an orphan.
#[test]
fn a9_a_block_that_was_recovered_while_its_parent_was_written_is_in_doubt_no_longer_than_that() {
    for (stored, orphans) in [(true, 0), (false, 1)] {
        let mut rig = Rig::blocks(&[8, 8]);
        let session = rig.session();
        let items = rig.chain(None, 0, &[1]);
        let (lease, _) = rig.reserve(session, &items);
        recover(&mut rig, &[2, 3]);
        recovery_done(&mut rig);
        assert_eq!(rig.status("/orphan_blocks"), 0);
        end_write(&mut rig, session, lease, 1, stored);
        assert_eq!((rig.engine.index.pending(), rig.status("/orphan_blocks")), (0, orphans.into()));
    }
}

/// A9: the same of one that has left the first tier meanwhile.
#[test]
fn a9_a_block_that_leaves_the_first_tier_while_its_parent_is_written_is_in_doubt_no_longer() {
    for (stored, orphans) in [(true, 0), (false, 1)] {
        let mut rig = Rig::blocks(&[4, 16]);
        let session = rig.session();
        let items = rig.chain(None, 0, &[1, 2]);
        let (lease, _) = rig.reserve(session, &items);
        let (sum, now) = (checksum(&rig.key(2)), rig.time());
        rig.engine.commit(session, lease, &[(1, sum)], now);
        rig.drain();
        rig.settle_stores();
        for n in 100..104 {
            rig.store(session, &[n]);
            rig.settle_stores();
        }
        assert_eq!(rig.lookup(session, 0, &[2]), [Found::Hit { tier: 1, held: false }]);
        end_write(&mut rig, session, lease, 1, stored);
        assert_eq!((rig.engine.index.pending(), rig.status("/orphan_blocks")), (0, orphans.into()));
    }
}

/// A9: how many orphans a restart finds does not hang on the order in which a tier tells its blocks.
#[test]
fn a9_recovered_orphans_are_counted_whatever_their_order_until_a_prompt_reaches_them() {
    for numbers in [[2, 3, 4, 5], [5, 4, 3, 2], [3, 5, 2, 4], [4, 2, 5, 3]] {
        let mut rig = Rig::blocks(&[16, 16]);
        recover(&mut rig, &numbers);
        recover(&mut rig, &[1]);
        recovery_done(&mut rig);
        assert_eq!(rig.status("/orphan_blocks"), 0, "{numbers:?}, and their head at last");

        let mut rig = Rig::blocks(&[16, 16]);
        let session = rig.session();
        recover(&mut rig, &numbers);
        recovery_done(&mut rig);
        assert_eq!(rig.status("/orphan_blocks"), 4, "{numbers:?} without their head");
        rig.store(session, &[1]);
        rig.acquire(session, &[1, 2, 3, 4, 5]);
        assert_eq!(rig.status("/orphan_blocks"), 0, "{numbers:?}, used after their head was stored");
    }
}

/// A9: the blocks of one commit come in the order in which their copies ended.
#[test]
fn a9_tails_that_are_committed_before_their_heads_are_told_all_the_same() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        let mut rig = Rig::blocks(&[16, 16]);
        let session = rig.session();
        // Block 1 is nowhere.
        let items = rig.chain(Some(1), 1, &[2, 3, 4, 5]);
        let (lease, _) = rig.reserve(session, &items);
        let items: Vec<_> = order.iter().map(|at| (*at, checksum(&rig.key(u64::from(*at) + 2)))).collect();
        let now = rig.time();
        rig.engine.commit(session, lease, &items, now);
        rig.run_ticks();
        assert_eq!(rig.status("/orphan_blocks"), 4, "{order:?}");
    }
}
