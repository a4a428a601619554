//! Leases, holds, late writers, late readers, the end of sessions.

use umbp_protocol::message::{Found, LeaseId, Outcome, Reserved, SessionId};

use super::rig::{ABSENT, BLOCK, LEASE_NS, Rig, SECOND, checksum, extent, ready, settings};
use crate::engine::SessionInfo;
use crate::engine::api::TenantIndex;

fn quarantined(rig: &Rig) -> u64 {
    rig.status("/tiers/0/quarantined_bytes").as_u64().expect("a number")
}

fn used(rig: &Rig) -> u64 {
    rig.status("/tiers/0/used_bytes").as_u64().expect("a number")
}

#[test]
fn a_double_release_changes_nothing_and_the_other_pin_protects() {
    // C2
    let mut rig = Rig::blocks(&[2]);
    let (one, two) = (rig.session(), rig.session());
    rig.store(one, &[1]);
    let (first, _) = rig.acquire(one, &[1]);
    let (second, held) = rig.acquire(two, &[1]);
    assert_eq!(rig.release(one, first, &[(0, true)]), [Outcome::Done]);
    for lease in [first, LeaseId(999)] {
        assert_eq!(rig.release(one, lease, &[(0, true)]), [Outcome::LeaseExpired]);
    }
    assert_eq!(rig.release(one, second, &[(0, true)]), [Outcome::LeaseExpired], "not its own");
    rig.store(one, &[2]);
    assert_eq!(rig.store(one, &[3, 4]).last(), Some(&Reserved::Refused), "two blocks of room, one pinned");
    assert_eq!(rig.present(two, &[1]), [1]);
    assert_eq!(rig.word(0, ready(&held[0])), ready(&held[0]).generation);
    assert_eq!(
        rig.release(two, second, &[(0, true), (0, true), (7, true)]),
        [Outcome::Done, Outcome::NotLeased, Outcome::NotLeased]
    );
}

#[test]
fn lookups_with_hold_and_no_load_leave_no_pin() {
    // C1
    let mut rig = Rig::blocks(&[64]);
    let session = rig.session();
    let numbers: Vec<u64> = (0..64).collect();
    rig.store(session, &numbers);
    for round in 0..1000 {
        let found = rig.lookup(session, 2000, &numbers[round % 60..][..4]);
        assert_eq!(found, [Found::Hit { tier: 0, held: true }; 4]);
        rig.advance(SECOND / 100);
    }
    rig.advance(2 * SECOND);
    assert_eq!((rig.status("/holds/now"), rig.status("/sessions/0/held_bytes")), (0.into(), 0.into()));
    let fresh: Vec<u64> = (100..164).collect();
    assert!(rig.store(session, &fresh).iter().all(|answer| matches!(answer, Reserved::Extent(_))));
    assert_eq!(rig.present(session, &numbers), [0; 0]);
}

#[test]
fn a_held_block_survives_until_its_load_and_then_may_go() {
    // A8: the worker of a session loads what another session, the scheduler, held.
    let mut rig = Rig::blocks(&[4]);
    let (scheduler, worker) = (rig.session(), rig.session());
    rig.store(worker, &[1, 2]);
    rig.lookup(scheduler, 1000, &[1, 2]);
    (10..20).for_each(|n| drop(rig.store(worker, &[n])));
    let (lease, acquired) = rig.acquire(worker, &[1, 2]);
    assert!(acquired.iter().all(|answer| ready(answer).generation > 0));
    assert_eq!(rig.status("/holds/now"), 0, "adopted");
    rig.release(worker, lease, &[]);
    (20..24).for_each(|n| drop(rig.store(worker, &[n])));
    assert_eq!(rig.present(worker, &[1, 2]), [0; 0]);
}

#[test]
fn a_hold_beyond_the_budget_is_a_hit_without_a_promise() {
    let mut small = settings(&[8]);
    small.hold_bytes = 2 * BLOCK;
    let mut rig = Rig::new(small);
    let session = rig.session();
    rig.store(session, &[1, 2, 3]);
    let held = |held| Found::Hit { tier: 0, held };
    assert_eq!(rig.lookup(session, 1000, &[1, 2, 3]), [held(true), held(true), held(false)]);
    assert_eq!(rig.lookup(session, 1000, &[1, 2]), [held(true); 2], "renewed, not taken twice");
    let (key, now) = (rig.key(1), rig.time());
    assert_eq!(rig.engine.unhold(session, &[key, key], now), 1);
    assert_eq!(rig.engine.unhold(session, &[], now), 1);
    assert_eq!(rig.status("/sessions/0/held_bytes"), 0);
}

#[test]
fn a_late_writer_cannot_commit_and_its_extent_is_not_reused_until_it_acknowledges() {
    let mut rig = Rig::blocks(&[2]);
    let session = rig.session();
    let items = rig.chain(None, 0, &[1, 2]);
    let (lease, answers) = rig.reserve(session, &items);
    rig.advance(LEASE_NS);
    assert_eq!(quarantined(&rig), 2 * BLOCK);
    assert_ne!(rig.word(0, extent(&answers[0])), extent(&answers[0]).generation);
    let now = rig.time();
    assert_eq!(rig.engine.commit(session, lease, &[(0, 1)], now), [Outcome::LeaseExpired]);
    assert_eq!(rig.engine.renew(session, &[lease], now), [0]);
    assert_eq!(rig.lookup(session, 0, &[1]), [ABSENT]);
    assert_eq!(rig.store(session, &[1]), [Reserved::Refused]);
    assert_eq!(rig.engine.abort(session, lease, &[], now), 2);
    assert_eq!((quarantined(&rig), used(&rig)), (0, 0));
    assert!(matches!(rig.store(session, &[1])[0], Reserved::Extent(_)));
}

#[test]
fn a_commit_past_the_deadline_is_refused_even_before_the_clock_has_ticked() {
    let mut rig = Rig::blocks(&[2]);
    let session = rig.session();
    let items = rig.chain(None, 0, &[1]);
    let (lease, _) = rig.reserve(session, &items);
    rig.now += LEASE_NS;
    let now = rig.time();
    assert_eq!(rig.engine.commit(session, lease, &[(0, 1)], now), [Outcome::LeaseExpired]);
}

#[test]
fn a_renewed_lease_lives_on() {
    let mut rig = Rig::blocks(&[2]);
    let session = rig.session();
    let items = rig.chain(None, 0, &[1]);
    let (lease, _) = rig.reserve(session, &items);
    for _ in 0..5 {
        rig.advance(LEASE_NS - 1);
        let now = rig.time();
        assert_eq!(rig.engine.renew(session, &[lease, LeaseId(99)], now), [10_000, 0]);
    }
    let now = rig.time();
    assert_eq!(rig.engine.commit(session, lease, &[(0, checksum(&items[0].key))], now), [Outcome::Done]);
}

#[test]
fn a_late_reader_finds_another_generation() {
    // B8: never bytes of another key under a generation that still matches.
    let mut rig = Rig::blocks(&[1]);
    let session = rig.session();
    rig.store(session, &[1]);
    let (lease, acquired) = rig.acquire(session, &[1]);
    let read = ready(&acquired[0]);
    assert_eq!(rig.store(session, &[2]), [Reserved::Refused], "pinned");
    rig.advance(LEASE_NS);
    let taken = extent(&rig.store(session, &[2])[0]);
    assert_eq!((taken.segment, taken.offset), (read.segment, read.offset));
    assert_ne!(rig.word(0, read), read.generation);
    assert_eq!(rig.release(session, lease, &[(0, true)]), [Outcome::LeaseExpired]);
    assert_eq!(rig.present(session, &[2]), [2]);
}

#[test]
fn blocks_outlive_the_session_that_wrote_them() {
    // D6
    let mut rig = Rig::blocks(&[4]);
    let (one, two) = (rig.session(), rig.session());
    rig.store(one, &[1, 2]);
    let now = rig.time();
    rig.engine.session_close(one, true, now);
    assert_eq!(rig.present(two, &[1, 2]), [1, 2]);
}

/// A session with a committed block, one being written, one pinned and one held, ends.
fn end(process_gone: bool) -> (Rig, SessionId) {
    let mut rig = Rig::blocks(&[8]);
    let session = rig.session();
    rig.store(session, &[1, 2, 3]);
    let items = rig.chain(None, 0, &[4, 5]);
    rig.reserve(session, &items);
    rig.acquire(session, &[1]);
    rig.lookup(session, 1000, &[2]);
    let now = rig.time();
    rig.engine.session_close(session, process_gone, now);
    rig.run_ticks();
    (rig, session)
}

#[test]
fn a_dead_client_leaves_nothing_behind() {
    let (rig, _) = end(true);
    for path in ["/leases/read", "/leases/write", "/holds/now", "/tiers/0/quarantined_bytes"] {
        assert_eq!(rig.status(path), 0, "{path}");
    }
    assert_eq!(rig.status("/sessions"), serde_json::json!([]));
    assert_eq!((used(&rig), rig.status("/tiers/0/evictable_blocks")), (3 * BLOCK, 3.into()));
}

#[test]
fn a_closed_socket_of_a_living_process_keeps_its_writes_in_quarantine() {
    let (mut rig, session) = end(false);
    assert_eq!((quarantined(&rig), rig.status("/tiers/0/evictable_blocks")), (2 * BLOCK, 3.into()));
    assert_eq!(rig.status("/sessions/0/open"), false);
    let other = rig.session_of(0, 200);
    assert_eq!(rig.lookup(other, 0, &[4, 5]), [ABSENT; 2]);
    rig.advance(2 * LEASE_NS);
    assert_eq!(quarantined(&rig), 2 * BLOCK, "the end of its lease changes nothing");
    let now = rig.time();
    rig.engine.process_gone(session, now);
    rig.run_ticks();
    assert_eq!((quarantined(&rig), used(&rig)), (0, 3 * BLOCK));
}

#[test]
fn only_the_same_process_ends_the_quarantine_of_its_session_before() {
    for (pid, all_unmapped, left) in [(100, true, 0), (100, false, 2 * BLOCK), (101, true, 2 * BLOCK)] {
        let (mut rig, session) = end(false);
        let info = SessionInfo {
            tenant: TenantIndex(0),
            pid,
            client: String::new(),
            previous_session: Some(session),
            all_unmapped,
        };
        let now = rig.time();
        rig.engine.session_open(info, now).expect("tenant is known");
        rig.run_ticks();
        assert_eq!(quarantined(&rig), left, "pid {pid}, all_unmapped {all_unmapped}");
    }
}

/// In a container of its own a process has no number here; all such processes look alike, so none is taken at its word.
#[test]
fn a_process_without_a_pid_speaks_for_no_other_and_pays_for_no_other() {
    let mut small = settings(&[8]);
    small.quarantine_bytes = BLOCK;
    let mut rig = Rig::new(small);
    let (late, other) = (rig.session_of(0, 0), rig.session_of(0, 0));
    let items = rig.chain(None, 0, &[1]);
    rig.reserve(late, &items);
    rig.advance(LEASE_NS);
    let info = SessionInfo {
        tenant: TenantIndex(0),
        pid: 0,
        client: String::new(),
        previous_session: Some(late),
        all_unmapped: true,
    };
    let now = rig.time();
    rig.engine.session_open(info, now).expect("tenant is known");
    rig.run_ticks();
    assert_eq!(quarantined(&rig), BLOCK);
    assert_eq!(rig.store(late, &[3]), [Reserved::Refused]);
    assert!(matches!(rig.store(other, &[3])[0], Reserved::Extent(_)));
}

#[test]
fn a_process_at_its_quarantine_bound_may_not_reserve() {
    let mut small = settings(&[8]);
    small.quarantine_bytes = 2 * BLOCK;
    let mut rig = Rig::new(small);
    let (session, other) = (rig.session(), rig.session_of(0, 200));
    let items = rig.chain(None, 0, &[1, 2]);
    let (lease, _) = rig.reserve(session, &items);
    rig.advance(LEASE_NS);
    let again = rig.session();
    for (session, refused) in [(session, true), (again, true), (other, false)] {
        assert_eq!(rig.store(session, &[3]) == [Reserved::Refused], refused);
    }
    let now = rig.time();
    rig.engine.abort(session, lease, &[0], now);
    assert!(matches!(rig.store(again, &[4])[0], Reserved::Extent(_)));
}

#[test]
fn bad_bytes_cost_that_copy_once_its_readers_are_done() {
    let mut rig = Rig::blocks(&[4]);
    let (one, two) = (rig.session(), rig.session());
    rig.store(one, &[1]);
    let (first, acquired) = rig.acquire(one, &[1]);
    let (second, _) = rig.acquire(two, &[1]);
    rig.release(one, first, &[(0, false)]);
    assert_eq!(rig.lookup(two, 0, &[1]), [ABSENT]);
    assert_eq!((used(&rig), rig.word(0, ready(&acquired[0]))), (BLOCK, ready(&acquired[0]).generation));
    assert!(matches!(rig.store(one, &[1])[0], Reserved::Extent(_)), "may be written anew meanwhile");
    rig.release(two, second, &[]);
    assert_eq!(used(&rig), BLOCK);
    assert_eq!(rig.present(two, &[1]), [1]);
}

/// A hold on a copy that turned out bad is over with it, and does not pass for a hold on the next block that is known.
#[test]
fn bad_bytes_end_the_holds_on_their_copy() {
    let mut rig = Rig::blocks(&[2]);
    let (reader, holder, other) = (rig.session(), rig.session(), rig.session());
    rig.store(reader, &[1]);
    for session in [other, holder] {
        assert_eq!(rig.lookup(session, 2000, &[1]), [Found::Hit { tier: 0, held: true }]);
    }
    let (lease, _) = rig.acquire(reader, &[1]);
    rig.release(reader, lease, &[(0, false)]);
    assert_eq!(rig.status("/holds/now"), 0);
    assert_eq!(used(&rig), 0);
    rig.store(reader, &[2]);
    assert_eq!(rig.lookup(holder, 2000, &[2]), [Found::Hit { tier: 0, held: true }]);
    rig.store(reader, &[3]);
    rig.store(reader, &[4]);
    assert_eq!(rig.present(reader, &[2, 3, 4]), [2, 4], "the held one stays");
}
