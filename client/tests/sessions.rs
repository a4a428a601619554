//! Claims about the loss of a session: nothing hangs, nothing is wrongly good, and the client attaches anew by itself.

mod fake;

use std::time::{Duration, Instant};

use fake::*;
use umbp_client::runtime::{Hold, RuntimeOptions, SchedulerRuntime};
use umbp_client::{Client, Counter, Error, FailCause, Outcome};
use umbp_protocol::message::*;

const LOST: Outcome = Outcome::Failed(FailCause::SessionLost);

/// The client attaches anew and names its session before; everything of it is unmapped.
fn check_attaches_anew(fake: &Fake, client: &Client, boot_id: u64) -> Peer {
    let peer = fake.accept(boot_id, 11);
    assert_eq!((peer.hello.previous_session, peer.hello.all_unmapped), (Some(SessionId(10)), true));
    assert_eq!(peer.hello.previous_boot_id, 1, "the life that gave the number");
    assert!(client.wait_attached(LONG));
    assert_eq!(client.welcome().expect("attached").boot_id, boot_id);
    peer
}

/// Unanswered, each alone would take a whole time-out.
#[test]
fn a_clear_and_the_end_of_its_own_holds_are_waited_for_together() {
    let fake = Fake::new();
    let options = RuntimeOptions { timeout: LONG, ..RuntimeOptions::new(fake.options().socket, namespace()) };
    let clearing = std::thread::spawn(move || SchedulerRuntime::start(&options).expect("started").clear());
    let mut peer = fake.accept(1, 10);
    let (_, unhold) = peer.next();
    assert!(matches!(&unhold, Request::Unhold { keys } if keys.is_empty()), "{unhold:?}");
    let (id, clear) = peer.next();
    assert!(matches!(clear, Request::Clear { .. }), "{clear:?}");
    peer.reply(id, &Reply::Clear { removed: 1, pinned: 0 });
    assert!(clearing.join().expect("no panic"));
}

#[test]
fn a_lost_socket_fails_all_that_is_left_at_once_and_the_client_attaches_anew() {
    let fake = Fake::new();
    let (client, mut peer) = fake.client();
    let engine = Engine::new(&client, 3, 2, 4096);
    let bytes = engine.block_bytes();
    let ready = peer.put(&key(0), 0, 0, &payload(0, bytes), 0);
    let blocks: Vec<_> = (0..3).map(|n| engine.load_block(n)).collect();
    let load = client.load(&blocks).expect("begun");
    let store = client.store(&blocks.iter().enumerate().map(|(n, _)| engine.store_block(n)).collect::<Vec<_>>());
    let store = store.expect("begun");
    peer.acquire(9, LEASE_MS, |n| if n == 0 { ready } else { Acquired::Pending });
    peer.reserve(8, LEASE_MS);
    let (_, commit) = peer.next();
    assert!(matches!(commit, Request::Commit { .. }), "{commit:?}");
    drop(peer);
    // The one that was ready may have been copied in time; the others were not, and nothing is left open.
    let loaded = outcomes(&client, load);
    assert!(loaded[0] == LOST || loaded[0] == Outcome::Loaded { tier: 0, bytes: bytes as u64 }, "{loaded:?}");
    assert_eq!((loaded[1], loaded[2]), (LOST, LOST));
    assert_eq!(outcomes(&client, store), [LOST; 3], "a Commit without an answer is no success");
    check_attaches_anew(&fake, &client, 1);
    assert_eq!((client.counter(Counter::SessionsLost), client.counter(Counter::Attached)), (1, 2));
}

#[test]
fn another_boot_id_ends_the_session() {
    let fake = Fake::new();
    let (client, mut peer) = fake.client();
    peer.push_with_boot_id(2, &Event::Resync);
    assert!(peer.try_next().is_none(), "the client has closed");
    check_attaches_anew(&fake, &client, 2);
}

#[test]
fn answers_that_are_none_end_the_session_and_the_job() {
    let wrong: [(&str, Reply); 4] = [
        ("an answer to something else", Reply::SegmentUnmapped),
        ("too few items", Reply::Acquire { lease: LeaseId(1), lease_ms: LEASE_MS, items: vec![] }),
        (
            "extents without a lease",
            Reply::Acquire { lease: LeaseId(0), lease_ms: LEASE_MS, items: vec![Acquired::Pending] },
        ),
        (
            "a refusal, which ends the job alone",
            Reply::Refused(Refusal { code: "draining".to_owned(), message: "later".to_owned() }),
        ),
    ];
    for (what, reply) in wrong {
        let fake = Fake::new();
        let (client, mut peer) = fake.client();
        let engine = Engine::new(&client, 1, 1, 4096);
        let job = client.load(&[engine.load_block(0)]).expect("begun");
        let (id, _) = peer.next();
        peer.reply(id, &reply);
        let refused = matches!(reply, Reply::Refused(_));
        let cause = if refused { FailCause::RequestRefused } else { FailCause::SessionLost };
        assert_eq!(outcomes(&client, job), [Outcome::Failed(cause)], "{what}");
        if !refused {
            assert!(peer.try_next().is_none(), "{what}");
        }
    }
}

/// D4, B7: a daemon that does not answer costs at most the time-out of a call, and says which call it was.
#[test]
fn d4_a_daemon_that_does_not_answer_is_given_up_in_time() {
    let fake = Fake::new();
    let mut options = fake.options();
    options.call_timeout = Duration::from_millis(100);
    let (client, mut peer) = fake.client_with(options);
    let engine = Engine::new(&client, 1, 1, 4096);
    let job = client.load(&[engine.load_block(0)]).expect("begun");
    assert_eq!(outcomes(&client, job), [Outcome::Failed(FailCause::TimedOut)]);
    assert_eq!(client.counter(Counter::CallsTimedOut), 1);
    assert!(matches!(peer.next().1, Request::Acquire { .. }));
    assert!(peer.try_next().is_none(), "the session is given up, since its stream is in doubt");
    let peer = fake.accept(1, 11);
    assert!(client.wait_attached(LONG));
    let status = client.status();
    assert!(matches!(status, Err(Error::TimedOut { request: "Status", .. })), "{status:?}");
    drop(peer);
}

#[test]
fn without_a_daemon_every_lookup_is_a_miss_and_every_job_fails_at_once() {
    let fake = Fake::new();
    let mut options = fake.options();
    options.socket = options.socket.with_file_name("nobody");
    let refused = Client::connect(options.clone());
    assert!(matches!(&refused, Err(Error::Detached { reason, .. }) if reason.contains("connect")), "{refused:?}");
    let client = Client::start(options.clone()).expect("started");
    let engine = Engine::new(&client, 1, 1, 4096);
    assert_eq!(client.lookup(&[key(1)], 0), [Found::Miss(MissReason::TierDown)]);
    let jobs = [client.load(&[engine.load_block(0)]), client.store(&[engine.store_block(0)])];
    for job in jobs {
        assert_eq!(outcomes(&client, job.expect("begun")), [Outcome::Failed(FailCause::Detached)]);
    }
    assert!(client.status().is_err());
    // The daemon comes up later.
    std::fs::rename(options.socket.with_file_name("socket"), &options.socket).expect("renamed");
    let _peer = fake.accept(1, 10);
    assert!(client.wait_attached(LONG));
}

#[test]
fn a_refused_hello_is_told_in_the_daemons_words() {
    let fake = Fake::new();
    let options = fake.options();
    let refused = std::thread::scope(|scope| {
        let client = scope.spawn(|| Client::connect(options));
        let _ = fake.accept_with(1, 10, |welcome| welcome.version = 77);
        client.join().expect("joined")
    });
    let Err(Error::Detached { reason, .. }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("version 77") && reason.contains("1 to 1"), "{reason}");
}

/// D3: the daemon goes while the client copies out of its memory: an error, and no SIGBUS, since the mapping holds the
/// memory until the last copy has left it.
#[test]
fn d3_the_daemon_goes_while_the_client_copies() {
    let fake = Fake::new();
    let (client, mut peer) = fake.client();
    let engine = Engine::new(&client, 24, 160, 1024);
    let bytes = engine.block_bytes();
    for round in 0..10_u64 {
        let ready: Vec<_> =
            (0..24_u32).map(|n| peer.put(&key(n), n, u64::from(n) * bytes as u64, &payload(n, bytes), 1)).collect();
        let blocks: Vec<_> = (0..24).map(|n| engine.load_block(n)).collect();
        let job = client.load(&blocks).expect("begun");
        peer.acquire(9, LEASE_MS, |n| ready[n]);
        // Its memory, its socket and its table go, all at once.
        drop(peer);
        for (n, outcome) in outcomes(&client, job).into_iter().enumerate() {
            match outcome {
                Outcome::Loaded { .. } => assert!(engine.payload(n) == payload(n as u32, bytes), "block {n}"),
                other => assert_eq!(other, LOST),
            }
        }
        peer = fake.accept(round + 2, 10);
        assert!(peer.hello.all_unmapped);
        assert!(client.wait_attached(LONG));
    }
}

#[test]
fn a_client_that_is_dropped_leaves_nothing_open() {
    let fake = Fake::new();
    let (client, mut peer) = fake.client();
    let engine = Engine::new(&client, 2, 160, 4096);
    let blocks = [engine.store_block(0), engine.store_block(1)];
    client.store(&blocks).expect("begun");
    peer.reserve(8, LEASE_MS);
    drop(client);
    while peer.try_next().is_some() {}
}

#[test]
fn memory_is_given_up_only_when_no_job_uses_it() {
    let fake = Fake::new();
    let (client, mut peer) = fake.client();
    let engine = Engine::new(&client, 1, 1, 4096);
    let job = client.load(&[engine.load_block(0)]).expect("begun");
    peer.acquire(9, LEASE_MS, |_| Acquired::Pending);
    std::thread::scope(|scope| {
        let given_up = scope.spawn(|| client.unregister(engine.region, LONG));
        client.cancel(job);
        assert!(given_up.join().expect("joined"));
    });
    assert_eq!(outcomes(&client, job), [Outcome::Cancelled]);
    let job = client.load(&[engine.load_block(0)]).expect("begun");
    assert_eq!(outcomes(&client, job), [Outcome::Failed(FailCause::BadRuns)]);
}

/// A child that was forked off never says a word on its parent's session, and does not keep it open.
#[test]
fn a_forked_child_leaves_the_session_alone() {
    let fake = Fake::new();
    let (client, mut peer) = fake.client();
    let engine = Engine::new(&client, 1, 1, 4096);
    // SAFETY: the child calls only the client under test, which takes no lock in a forked child, and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let bad = u8::from(!matches!(client.load(&[engine.load_block(0)]), Err(Error::Forked)))
            | u8::from(!client.lookup(&[], 0).is_empty()) << 1
            | u8::from(client.welcome().is_some()) << 2
            | u8::from(!matches!(client.status(), Err(Error::Forked))) << 3;
        drop(client);
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(bad)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above, into a word of this frame.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));
    let job = client.load(&[engine.load_block(0)]).expect("begun");
    peer.acquire(9, LEASE_MS, |_| Acquired::Miss(MissReason::Absent));
    assert_eq!(outcomes(&client, job), [Outcome::Missed(MissReason::Absent)]);
    drop(client);
    assert!(peer.try_next().is_none(), "the parent's close is the session's end");
}

/// B7, D4: a daemon that answers each lookup just in time costs a step one time-out, however many it asks; C1: what was
/// given up in the middle holds nothing.
#[test]
fn d4_lookups_of_a_step_together_wait_no_longer_than_the_time_out() {
    const TIMEOUT: Duration = Duration::from_millis(1_000);
    let fake = Fake::new();
    let mut options = RuntimeOptions::new(fake.options().socket, namespace());
    options.timeout = TIMEOUT;
    let (hurry, hurried) = std::sync::mpsc::channel::<()>();
    let slow = std::thread::spawn(move || {
        let mut peer = fake.accept(1, 1);
        let mut given_up = 0;
        // Two lookups of the first step reach it, and one of the second.
        for _ in 0..3 {
            let (id, keys) = loop {
                match peer.next() {
                    (id, Request::Lookup { keys, .. }) => break (id, keys),
                    (id, Request::Unhold { keys }) => {
                        given_up += keys.len();
                        peer.reply(id, &Reply::Unhold { count: 0 });
                    }
                    (_, request) => panic!("{request:?}"),
                }
            };
            // How slow it is; nobody hurries it before the claims are made.
            let _ = hurried.recv_timeout(TIMEOUT * 6 / 10);
            peer.reply(id, &Reply::Lookup { found: vec![Found::Miss(MissReason::Absent); keys.len()] });
        }
        given_up
    });
    let mut scheduler = SchedulerRuntime::start(&options).expect("started");
    let began = Instant::now();
    let answers: Vec<bool> = (0..50).map(|n| scheduler.lookup(&[key(n)], Hold::Hits).is_ok()).collect();
    let waited = began.elapsed();
    assert!(waited < TIMEOUT * 15 / 10, "a step has waited {waited:?}");
    assert_eq!(answers.iter().filter(|answered| **answered).count(), 1, "the others are misses");
    scheduler.step_planned();
    assert!(scheduler.lookup(&[key(99)], Hold::Hits).is_ok(), "the next step has its own time");
    drop((scheduler, hurry));
    assert_eq!(slow.join().expect("the peer"), 1, "the hold of the lookup that was given up");
}
