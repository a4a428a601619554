//! Blocks of a shared tier that other hosts delete and change, and puts that find them there.

use umbp_plugin_api::types::code;
use umbp_plugin_api::{Completion, Status};
use umbp_protocol::message::{Acquired, MissReason};

use super::rig::{ABSENT, BLOCK, Rig, SECOND, checksum};
use super::shared::{NEGATIVE_NS, REMOTE, found, shared};
use crate::engine::PRESENT_OTHER_NS;

fn used(rig: &Rig) -> u64 {
    rig.status("/tiers/1/used_bytes").as_u64().expect("a number")
}

/// Ends the oldest put as found done, with another host's bytes.
fn put_finds(rig: &mut Rig, checksum: u64) {
    let at = rig.operations.iter().position(|(_, operation)| operation.code == code::PUT).expect("a put");
    let (_, put) = rig.operations.remove(at);
    rig.complete(REMOTE, Completion { id: put.id, location: 9000 + put.id, checksum, ..Completion::default() });
}

/// A5, A7, C8: gone between the index and the read, it is a miss.
#[test]
fn a_load_of_what_has_left_fails_once_and_is_forgotten_without_a_delete() {
    for status in [Status::MISS, Status::IO, Status::FAILED] {
        let mut rig = Rig::new(shared([8, 8]));
        let session = rig.session();
        rig.learn(session, 1, None);
        assert_eq!(rig.acquire(session, &[1]).1, [Acquired::Pending]);
        rig.end_get(status);
        let [(_, _, item)] = rig.promoted()[..] else { panic!("one answer") };
        assert_eq!(item, Acquired::Miss(MissReason::Failed));
        assert_eq!((used(&rig), rig.in_flight(code::DELETE)), (0, 0), "{status:?}");
        assert_eq!((rig.lookup(session, 0, &[1]), rig.ask(session, &[1]).1.left), (vec![ABSENT], 0), "{status:?}");
        rig.advance(NEGATIVE_NS);
        assert_eq!(rig.ask(session, &[1]).1.left, 1, "it may be stored again");
    }
}

/// E5: it does not fail again and again.
#[test]
fn a_corrupt_block_is_deleted_where_it_lies() {
    let mut rig = Rig::new(shared([8, 8]));
    let session = rig.session();
    rig.learn(session, 1, None);
    rig.acquire(session, &[1]);
    rig.end_get(Status::CORRUPT);
    let delete = rig.finish(code::DELETE, Status::MISS);
    assert_eq!((delete.location, delete.checksum), (501, checksum(&rig.key(1))), "and nothing that has its place now");
    assert_eq!((used(&rig), rig.lookup(session, 0, &[1])), (0, vec![ABSENT]));
}

#[test]
fn a_copy_that_is_pinned_is_forgotten_with_its_last_pin() {
    let mut rig = Rig::new(shared([8, 8]));
    let (one, two) = (rig.session(), rig.session());
    rig.learn(one, 1, None);
    rig.lookup(two, 1000, &[1]);
    rig.acquire(one, &[1]);
    rig.end_get(Status::MISS);
    assert_eq!(rig.lookup(one, 0, &[1]), [ABSENT]);
    rig.engine.unhold(two, &[], rig.time());
    rig.drain();
    assert_eq!((used(&rig), rig.in_flight(code::DELETE), rig.status("/faults")), (0, 0, 0.into()));
}

/// B7: a completion that comes late harms nobody.
#[test]
fn a_load_that_was_only_late_serves_after_all() {
    let mut rig = Rig::new(shared([8, 8]));
    let session = rig.session();
    rig.learn(session, 1, None);
    rig.acquire(session, &[1]);
    rig.advance(SECOND);
    assert_eq!(rig.lookup(session, 0, &[1]), [ABSENT]);
    assert_eq!(rig.ask(session, &[1]).1.left, 0, "its copy is in doubt, and still known");
    rig.end_get(Status::OK);
    assert_eq!(rig.present(session, &[1]), [1]);
    // The same, and it is gone.
    rig.learn(session, 2, None);
    rig.acquire(session, &[2]);
    rig.advance(SECOND);
    rig.end_get(Status::CANCELLED);
    assert_eq!((used(&rig), rig.in_flight(code::DELETE)), (BLOCK, 0));
}

/// E2: two writers of one name, and the first one's bytes stay.
#[test]
fn a_put_that_finds_another_hosts_bytes_leaves_them_and_a_later_ask_learns_of_them() {
    let mut rig = Rig::new(shared([4, 16]));
    let session = rig.session();
    rig.store(session, &[1, 2]);
    let own = checksum(&rig.key(1));
    put_finds(&mut rig, own);
    put_finds(&mut rig, 71);
    assert_eq!((rig.status("/tiers/1/present_other"), rig.status("/tiers/1/resident_blocks")), (1.into(), 1.into()));
    assert_eq!((used(&rig), rig.in_flight(code::DELETE)), (BLOCK, 0));
    // What hangs on it goes down, and it is not put again and again.
    let more = rig.chain(Some(2), 2, &[3]);
    rig.store_items(session, &more);
    let puts: Vec<_> = rig.operations.iter().filter(|(_, put)| put.code == code::PUT).map(|(_, put)| put.key).collect();
    assert_eq!(puts, [rig.key(3).local]);
    rig.settle_stores();
    // It leaves the first tier, tails first; a lookup asks, and theirs is served from then on.
    for n in 10..14 {
        rig.store(session, &[n]);
        rig.settle_stores();
    }
    assert_eq!(rig.lookup(session, 0, &[2]), [ABSENT]);
    rig.ask(session, &[2]);
    rig.answer(2, Completion { checksum: 71, ..found(&rig, 2, Some((1, 0))) });
    rig.acquire(session, &[2]);
    assert_eq!(rig.end_get(Status::OK).checksum, 71);
}

#[test]
fn that_other_bytes_are_there_is_believed_until_an_ask_says_no_or_its_time_is_over() {
    for asked in [false, true] {
        let mut rig = Rig::new(shared([4, 16]));
        let session = rig.session();
        rig.store(session, &[1]);
        put_finds(&mut rig, 71);
        for n in 10..14 {
            rig.store(session, &[n]);
            rig.settle_stores();
        }
        if asked {
            rig.ask(session, &[1]);
            rig.answer_status(1, Status::MISS);
        } else {
            rig.store(session, &[1]);
            assert_eq!(rig.in_flight(code::PUT), 0);
            for n in 20..24 {
                rig.store(session, &[n]);
                rig.settle_stores();
            }
            rig.advance(PRESENT_OTHER_NS);
        }
        rig.store(session, &[1]);
        assert_eq!(rig.in_flight(code::PUT), 1);
    }
}

/// K3: room there is not this host's to make: nothing is forgotten for it, and what is known to fit stays so.
#[test]
fn a_shared_tier_without_space_costs_the_put_alone() {
    let mut rig = Rig::new(shared([8, 8]));
    let session = rig.session();
    rig.learn(session, 1, None);
    rig.store(session, &[2]);
    rig.finish(code::PUT, Status::NO_SPACE);
    assert_eq!(
        (rig.in_flight(code::PUT), rig.in_flight(code::DELETE)),
        (0, 0),
        "neither tried again nor made room for"
    );
    assert_eq!(rig.status("/tiers/1/limit_bytes"), 8 * BLOCK);
    assert_eq!((rig.status("/tiers/1/dropped"), rig.status("/tiers/1/limit_found")), (1.into(), 1.into()));
    assert_eq!(rig.present(session, &[1, 2]), [1, 2]);
    rig.store(session, &[3]);
    assert_eq!(rig.in_flight(code::PUT), 1, "the next one is tried");
}

/// Bytes that a client found bad are nobody's: what was put of them is deleted, and what another host has is not.
#[test]
fn a_put_of_bytes_that_turned_out_bad_is_deleted_unless_another_hosts_were_there() {
    for theirs in [false, true] {
        let mut rig = Rig::new(shared([8, 8]));
        let session = rig.session();
        rig.store(session, &[1]);
        let (lease, _) = rig.acquire(session, &[1]);
        rig.release(session, lease, &[(0, false)]);
        let sum = if theirs { 71 } else { checksum(&rig.key(1)) };
        put_finds(&mut rig, sum);
        assert_eq!(rig.in_flight(code::DELETE), usize::from(!theirs));
        rig.settle_stores();
        assert_eq!((used(&rig), rig.status("/faults")), (0, 0.into()));
    }
}
