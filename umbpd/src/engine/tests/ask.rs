//! What a lookup asks a shared tier, how long it waits, and what becomes of the answers.

use umbp_plugin_api::types::code;
use umbp_plugin_api::{Completion, Status};
use umbp_protocol::message::{Acquired, Found, MissReason, NamespaceId, Reserved};

use super::rig::{ABSENT, BLOCK, Rig, SECOND, checksum, key_in};
use super::shared::{BUDGET_NS, NEGATIVE_NS, REMOTE, found, shared};
use crate::engine::api::{Asked, TenantIndex, TierState, Time};
use crate::engine::{ASKS_WAITING_MAX, DEGRADED_AFTER_MISSES, PROBE_EVERY_NS};

fn hit(tier: u8) -> Found {
    Found::Hit { tier, held: false }
}

fn waits(left: usize, until: u64) -> Asked {
    Asked { left, until: Time(until) }
}

#[test]
fn a_block_that_another_host_stored_is_asked_for_once_and_then_hits_and_loads() {
    let mut rig = Rig::new(shared([8, 8]));
    let (one, two) = (rig.session(), rig.session());
    let (first, asked) = rig.ask(one, &[1, 2, 3]);
    assert_eq!((asked, rig.in_flight(code::EXISTS)), (waits(3, rig.now + BUDGET_NS), 3));
    let (second, asked) = rig.ask(two, &[2, 1]);
    assert_eq!((asked.left, rig.in_flight(code::EXISTS)), (2, 3), "joined");
    let ask = rig.answer(1, found(&rig, 1, None));
    assert_eq!((ask.location, ask.length, ask.checksum, ask.namespace_id), (0, 0, 0, rig.namespace.0));
    rig.answer(2, found(&rig, 2, Some((1, 0))));
    assert_eq!(rig.answered, [second], "woken when the last answer is there, and not before");
    rig.answer_status(3, Status::MISS);
    assert_eq!((rig.answered.clone(), rig.engine.asked_left(first)), (vec![second, first], 0));
    rig.engine.ask_end(first);
    assert_eq!(rig.lookup(one, 0, &[1, 2, 3]), [hit(1), hit(1), ABSENT]);
    assert_eq!((rig.status("/asked"), rig.status("/misses/absent")), (3.into(), 1.into()), "each key counts once");
    assert_eq!(["asked", "found", "absent", "in_flight"].map(|name| rig.asks(name)), [3, 2, 1, 0]);

    let (_, answers) = rig.acquire(two, &[1, 2]);
    assert_eq!(answers, [Acquired::Pending; 2]);
    let get = rig.end_get(Status::OK);
    assert_eq!((get.location, get.checksum, get.length), (501, checksum(&rig.key(1)), BLOCK));
    let get = rig.end_get(Status::OK);
    assert_eq!((get.depth, get.parent), (1, rig.key(1).local), "it hangs where its writer hung it");
    assert!(rig.promoted().iter().all(|(_, _, item)| matches!(item, Acquired::Ready { tier: 1, .. })));
}

#[test]
fn a_lookup_of_what_is_here_asks_nothing_and_waits_for_nothing() {
    let mut rig = Rig::new(shared([8, 8]));
    let session = rig.session();
    rig.store(session, &[1, 2]);
    rig.settle_stores();
    let (_, asked) = rig.ask(session, &[1, 2]);
    assert_eq!((asked.left, rig.in_flight(code::EXISTS), rig.asks("asked")), (0, 0, 0));
    // Being written here, in a namespace of nobody's, malformed, or another tenant's.
    let items = rig.chain(None, 0, &[7]);
    rig.reserve(session, &items);
    let nobodys = key_in(NamespaceId(99), 1);
    let mut malformed = rig.key(1);
    malformed.local[32] = 200;
    let (ticket, now) = (rig.engine.ask_begin(rig.time()), rig.time());
    rig.engine.ask(session, ticket, &[rig.key(7), nobodys, malformed], now);
    rig.drain();
    assert_eq!((rig.engine.asked_left(ticket), rig.in_flight(code::EXISTS)), (0, 0));
}

#[test]
fn without_a_shared_tier_nothing_is_asked() {
    let mut rig = Rig::blocks(&[8, 8]);
    let session = rig.session();
    assert!(!rig.engine.asks_others());
    let (_, asked) = rig.ask(session, &[1]);
    assert_eq!((asked.left, rig.in_flight(code::EXISTS)), (0, 0));
    assert_eq!(rig.status("/tiers/1").get("shared"), None);
}

#[test]
fn that_a_block_is_not_there_is_believed_for_its_time_and_until_this_host_puts_it() {
    let mut rig = Rig::new(shared([2, 8]));
    let session = rig.session();
    rig.ask(session, &[1, 2]);
    rig.answer_status(1, Status::MISS);
    rig.answer_status(2, Status::IO);
    let (_, asked) = rig.ask(session, &[1, 2]);
    assert_eq!((asked.left, rig.asks("asked"), rig.asks("known_absent")), (1, 3, 1), "what failed is asked again");
    rig.answer_status(2, Status::MISS);
    assert_eq!((rig.asks("failed"), rig.asks("negative_entries")), (1, 2));
    // Stored, put, evicted here and forgotten there: nothing says that it is absent.
    rig.store(session, &[1]);
    rig.settle_stores();
    assert_eq!(rig.asks("negative_entries"), 1);
    rig.advance(NEGATIVE_NS - 1);
    assert_eq!(rig.ask(session, &[2]).1.left, 0);
    rig.advance(1);
    assert_eq!((rig.asks("negative_entries"), rig.ask(session, &[2]).1.left), (0, 1));
}

/// By the clock: a tier that hangs costs one budget, whatever the number of lookups.
#[test]
fn a_late_tier_is_waited_for_once_and_again_when_it_answers() {
    let mut rig = Rig::new(shared([8, 8]));
    let session = rig.session();
    let (_, asked) = rig.ask(session, &[1]);
    assert_eq!(asked, waits(1, rig.now + BUDGET_NS));
    rig.now += BUDGET_NS - 1;
    assert_eq!(rig.ask(session, &[2]).1, waits(1, rig.now + BUDGET_NS), "not late yet");
    rig.now += 1;
    for n in 3..10 {
        let (_, asked) = rig.ask(session, &[1, n]);
        assert_eq!(asked.left, 0, "asked, and not waited for");
    }
    assert_eq!(rig.asks("asked"), 9);
    rig.store(session, &[20]);
    assert_eq!(rig.present(session, &[20]), [20], "what is here is served meanwhile");
    // The late answer is taken in all the same.
    rig.answer(1, found(&rig, 1, None));
    assert_eq!((rig.lookup(session, 0, &[1]), rig.asks("late")), (vec![hit(1)], 0), "just within the budget");
    rig.now += BUDGET_NS;
    assert_eq!(rig.ask(session, &[30]).1.left, 0, "another one is older than the budget");
    for n in 2..6 {
        rig.answer_status(n, Status::MISS);
    }
    assert_eq!(rig.asks("late"), 1, "block 2 alone was asked longer ago than the budget");
    for n in [6, 7, 8, 9, 30] {
        rig.answer_status(n, Status::MISS);
    }
    assert_eq!(rig.ask(session, &[31]).1, waits(1, rig.now + BUDGET_NS));
}

#[test]
fn a_tier_without_a_budget_is_asked_and_never_waited_for() {
    let mut settings = shared([8, 8]);
    settings.tiers[1].shared = settings.tiers[1].shared.map(|mut shared| {
        shared.lookup_budget_ns = 0;
        shared
    });
    let mut rig = Rig::new(settings);
    let session = rig.session();
    assert_eq!((rig.ask(session, &[1]).1.left, rig.in_flight(code::EXISTS)), (0, 1));
    rig.answer(1, found(&rig, 1, None));
    assert_eq!(rig.lookup(session, 0, &[1]), [hit(1)]);
}

/// B7: what never answers is given up, and nobody waits for it.
#[test]
fn asks_that_hang_are_cancelled_degrade_their_tier_and_nothing_is_asked_until_it_answers() {
    let mut rig = Rig::new(shared([8, 64]));
    let session = rig.session();
    let numbers: Vec<u64> = (1..=u64::from(DEGRADED_AFTER_MISSES)).collect();
    let (ticket, _) = rig.ask(session, &numbers);
    rig.ask(session, &[50, 51, 52]);
    rig.advance(SECOND);
    assert!(rig.cancelled.len() >= numbers.len(), "{:?}", rig.cancelled);
    assert_eq!(rig.status("/tiers/1/state"), "degraded");
    assert_eq!((rig.engine.asked_left(ticket), rig.asks("waiting")), (0, 0), "nobody waits, nothing waits");
    assert!(!rig.engine.asks_others());
    let asked = rig.asks("asked");
    assert_eq!((rig.ask(session, &[60]).1.left, rig.asks("asked")), (0, asked));
    for n in numbers {
        rig.answer_status(n, Status::CANCELLED);
    }
    rig.advance(PROBE_EVERY_NS);
    let probe = rig.operations.iter().rposition(|(_, operation)| operation.code == code::EXISTS).expect("a probe");
    let (_, probe) = rig.operations.remove(probe);
    rig.complete(REMOTE, Completion { id: probe.id, status: Status::MISS, ..Completion::default() });
    assert_eq!(rig.status("/tiers/1/state"), "running");
    let asked = rig.asks("asked");
    rig.ask(session, &[60]);
    assert_eq!(rig.asks("asked"), asked + 1);
}

#[test]
fn a_failed_tier_keeps_nobody_waiting() {
    let mut rig = Rig::new(shared([8, 8]));
    let session = rig.session();
    let (ticket, asked) = rig.ask(session, &(1..=6).collect::<Vec<_>>());
    assert_eq!((asked.left, rig.asks("in_flight"), rig.asks("waiting")), (6, 4, 2), "half of 8 slots");
    rig.engine.tier_state(REMOTE, TierState::Failed, rig.time());
    rig.drain();
    assert_eq!((rig.engine.asked_left(ticket), rig.answered.clone()), (0, vec![ticket]));
    assert_eq!((rig.asks("waiting"), rig.asks("failed")), (0, 2));
}

#[test]
fn answers_that_cannot_be_right_are_not_taken() {
    let mut rig = Rig::new(shared([8, 8]));
    let session = rig.session();
    let whole = |rig: &Rig, n: u64| found(rig, n, None);
    let largest = 1 << 24;
    let wrong = [
        Completion { length: 0, ..whole(&rig, 1) },
        Completion { length: largest + 1, ..whole(&rig, 2) },
        Completion { length: u64::MAX, ..whole(&rig, 3) },
        Completion { checksum: 0, ..whole(&rig, 4) },
    ];
    for (n, answer) in (1..).zip(wrong) {
        rig.ask(session, &[n]);
        rig.answer(n, answer);
    }
    assert_eq!((rig.asks("not_taken"), rig.asks("found")), (4, 0));
    assert_eq!(rig.lookup(session, 0, &[1, 2, 3, 4]), [ABSENT; 4]);
    assert_eq!((rig.status("/known_keys"), rig.status("/tiers/1/used_bytes")), (0.into(), 0.into()));
    // A parent that is itself, and one that is deeper than it: it hangs on none.
    rig.learn(session, 8, Some((8, 3)));
    rig.learn(session, 9, Some((8, 1)));
    assert_eq!(rig.lookup(session, 0, &[8, 9]), [hit(1), hit(1)]);
    assert_eq!(rig.status("/known_keys"), 2);
}

/// E2, E8: the first writer wins, and bytes of two writers are never mixed up.
#[test]
fn other_bytes_than_those_that_are_here_are_not_taken_and_not_put_over() {
    let mut rig = Rig::new(shared([8, 8]));
    let session = rig.session();
    rig.ask(session, &[1, 2]);
    // Stored here while the answer is on its way.
    rig.store(session, &[1]);
    let put = rig.operations.iter().position(|(_, operation)| operation.code == code::PUT).expect("a put");
    let (_, put) = rig.operations.remove(put);
    rig.complete(REMOTE, Completion { id: put.id, status: Status::IO, ..Completion::default() });
    rig.answer(1, Completion { checksum: 77, ..found(&rig, 1, None) });
    assert_eq!((rig.asks("not_taken"), rig.lookup(session, 0, &[1])), (1, vec![hit(0)]));
    // Written here, not committed yet: theirs serves, and ours takes its place without touching it.
    let items = rig.chain(None, 0, &[2]);
    let (lease, reserved) = rig.reserve(session, &items);
    assert!(matches!(reserved[..], [Reserved::Extent(_)]));
    rig.answer(2, Completion { checksum: 78, ..found(&rig, 2, None) });
    assert_eq!(rig.lookup(session, 0, &[2]), [hit(1)]);
    let now = rig.time();
    rig.engine.commit(session, lease, &[(0, checksum(&rig.key(2)))], now);
    rig.drain();
    assert_eq!(rig.lookup(session, 0, &[2]), [hit(0)]);
    let left = [code::PUT, code::DELETE].map(|kind| rig.in_flight(kind));
    assert_eq!(left, [0, 0], "known to be there with other bytes, which are as good");
    assert_eq!(rig.status("/faults"), 0);
}

#[test]
fn beyond_its_capacity_the_coldest_are_forgotten_and_never_deleted() {
    let mut rig = Rig::new(shared([8, 4]));
    let session = rig.session();
    for n in 1..=6 {
        rig.learn(session, n, None);
    }
    assert_eq!(rig.present(session, &[1, 2, 3, 4, 5, 6]), [3, 4, 5, 6]);
    assert_eq!((rig.status("/tiers/1/used_bytes"), rig.in_flight(code::DELETE)), ((4 * BLOCK).into(), 0));
    assert_eq!((rig.status("/tiers/1/evicted"), rig.evicted(1)), (2.into(), vec![1, 2]));
    // What is held stays; where all is held nothing more is taken.
    rig.lookup(session, 1000, &[3, 4, 5, 6]);
    rig.learn(session, 7, None);
    assert_eq!((rig.present(session, &[3, 7]), rig.asks("not_taken")), (vec![3], 1));
    // A store makes room by forgetting too.
    rig.engine.unhold(session, &[], rig.time());
    rig.store(session, &[20, 21]);
    rig.settle_stores();
    assert_eq!(rig.status("/tiers/1/resident_blocks"), 4);
    rig.learn(session, 1, None);
    assert_eq!(rig.present(session, &[1]), [1], "what was forgotten is found again");
}

/// C10: asks go out head first, and so do answers come as a rule.
#[test]
fn what_a_found_block_hangs_on_is_not_forgotten_for_it() {
    let mut rig = Rig::new(shared([8, 6]));
    let session = rig.session();
    let chain = |n: u64| (n > 1).then(|| (n - 1, n as u32 - 2));
    for n in 1..=3 {
        rig.learn(session, n, chain(n));
    }
    rig.now += SECOND;
    (10..13).for_each(|n| rig.learn(session, n, None));
    rig.now += SECOND;
    (4..6).for_each(|n| rig.learn(session, n, chain(n)));
    assert_eq!(rig.present(session, &[1, 2, 3, 4, 5, 10, 11, 12]), [1, 2, 3, 4, 5, 12]);
    rig.ask(session, &[6]);
    assert_eq!(rig.answer(6, found(&rig, 6, chain(6))).code, code::EXISTS);
    assert_eq!(rig.evicted(1), [10, 11, 12]);
}

/// G3: loads wait for no question and no store.
#[test]
fn asks_come_after_loads_and_before_stores_and_leave_half_of_the_slots() {
    let mut rig = Rig::new(shared([64, 256]));
    let session = rig.session();
    for n in 1..=8 {
        rig.learn(session, n, None);
    }
    let numbers: Vec<u64> = (100..120).collect();
    rig.ask(session, &numbers);
    assert_eq!((rig.asks("in_flight"), rig.asks("waiting")), (4, 16));
    rig.store(session, &[50, 51, 52, 53, 54, 55]);
    assert_eq!(rig.in_flight(code::PUT), 4, "the other half");
    let (_, answers) = rig.acquire(session, &[1, 2]);
    assert_eq!(answers, [Acquired::Pending; 2]);
    rig.answer_status(100, Status::MISS);
    assert_eq!((rig.in_flight(code::GET), rig.asks("in_flight")), (1, 3), "a slot that comes free is the load's");
    rig.finish(code::PUT, Status::OK);
    assert_eq!((rig.in_flight(code::GET), rig.asks("in_flight")), (2, 3));
    rig.finish(code::PUT, Status::OK);
    assert_eq!((rig.in_flight(code::PUT), rig.asks("in_flight")), (2, 4), "then the ask's");
}

/// G4: the queue has its bound.
#[test]
fn more_asks_than_may_wait_are_misses_and_counted() {
    let mut rig = Rig::new(shared([8, 8]));
    let session = rig.session();
    let numbers: Vec<u64> = (0..ASKS_WAITING_MAX as u64 + 1000).collect();
    let (ticket, asked) = rig.ask(session, &numbers);
    let taken = rig.asks("in_flight") + rig.asks("waiting");
    assert_eq!((asked.left as u64, rig.asks("asked")), (taken, taken));
    assert_eq!(rig.asks("dropped"), numbers.len() as u64 - taken);
    assert_eq!(rig.asks("waiting"), ASKS_WAITING_MAX as u64);
    rig.engine.drain(rig.time());
    rig.drain();
    assert_eq!((rig.asks("waiting"), rig.engine.asked_left(ticket)), (0, 0), "a daemon that ends asks nothing more");
    assert!(!rig.engine.asks_others());
}

/// K12: a clear reaches its own namespace alone.
#[test]
fn what_is_cleared_is_deleted_where_it_is_known_and_not_asked_for_again() {
    for one in [false, true] {
        let mut rig = Rig::new(shared([8, 8]));
        let session = rig.session();
        let other = rig.engine.namespace(TenantIndex(0), b"other").expect("room for it");
        rig.learn(session, 1, None);
        let (ticket, _) = rig.ask(session, &[2, 3, 4, 5, 6]);
        let (own, now) = (rig.namespace, rig.time());
        rig.engine.clear(session, one.then_some(own), 0, now);
        rig.drain();
        let delete = rig.finish(code::DELETE, Status::OK);
        assert_eq!((delete.location, delete.key), (501, rig.key(1).local));
        // What is in flight is not taken, what waits is not sent, and who waits goes on.
        for n in 2..=5 {
            rig.answer(n, found(&rig, n, None));
        }
        assert_eq!((rig.asks("not_taken"), rig.asks("failed"), rig.in_flight(code::EXISTS)), (4, 1, 0));
        assert_eq!(rig.engine.asked_left(ticket), 0);
        rig.advance(2 * NEGATIVE_NS);
        assert_eq!((rig.ask(session, &[1, 2, 9]).1.left, rig.in_flight(code::EXISTS)), (0, 0));
        assert_eq!(rig.lookup(session, 0, &[1, 2, 3, 4, 5]), [ABSENT; 5]);
        let (ticket, now) = (rig.engine.ask_begin(rig.time()), rig.time());
        rig.engine.ask(session, ticket, &[key_in(other, 1)], now);
        rig.drain();
        assert_eq!(rig.engine.asked_left(ticket), usize::from(one), "only what was cleared");
        rig.store(session, &[1]);
        rig.settle_stores();
        assert_eq!(rig.present(session, &[1]), [1], "stored anew, it is there");
    }
}

#[test]
fn a_miss_of_a_block_that_is_there_is_a_miss_of_the_lookup_alone() {
    let mut rig = Rig::new(shared([8, 8]));
    let session = rig.session();
    let (lease, answers) = rig.acquire(session, &[1]);
    assert_eq!((lease.0, answers), (0, vec![Acquired::Miss(MissReason::Absent)]));
    assert_eq!(rig.asks("asked"), 0, "a load asks nothing: its lookup did");
}
