//! kill -9 of clients in the middle of stores and loads, and clients that come and go by the thousand (D7).

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use serde_json::Value;
use umbp_client::Outcome;
use umbp_protocol::message::{Reply, Request};

use crate::child::{Other, hear, say};
use crate::common;
use crate::common::client::{Client as Bare, hello};
use crate::common::daemon::{Daemon, Place};
use crate::rig::{BLOCK_BYTES, Ends, Engine, figures, is_quiet, key, with_nvme};

/// Blocks of one job of the child.
const JOB_BLOCKS: u64 = 64;
const KILLS: u64 = 20;
/// Sessions of one process in the crowd.
const CROWD: usize = 50;

/// Blocks of the child's n-th round.
fn numbers(base: u64, round: u64) -> Vec<u64> {
    (0..JOB_BLOCKS).map(|at| base + round * JOB_BLOCKS + at).collect()
}

/// The child: stores blocks, holds and loads them and those of the round before, for ever.
pub(crate) fn churn(socket: &Path) {
    let mut engine = Engine::new(socket);
    let session = engine.client.welcome().expect("a session").session.0;
    say(&format!("session {session}"));
    let base: u64 = hear().expect("a number").parse().expect("a number");
    for round in 0.. {
        let own = numbers(base, round);
        let job = engine.begin_store(&own);
        say(&format!("storing {round}"));
        engine.client.wait(job, common::DEADLINE).expect("it ends");
        let older = numbers(base, round.saturating_sub(4));
        let keys: Vec<_> = older.iter().map(|number| key(*number)).collect();
        engine.client.lookup(&keys, 2_000);
        let job = engine.begin_load(&older);
        say(&format!("loading {round}"));
        engine.end_load(job, &older);
    }
}

fn session(status: &Value, id: u64) -> Option<&Value> {
    status["sessions"].as_array().expect("sessions").iter().find(|session| session["id"] == id)
}

/// Stops the child while it has a lease open right after it said `word`; answers its round.
fn stop_in_the_middle(daemon: &Daemon, other: &Other, id: u64, word: &str) -> u64 {
    loop {
        let round = other.await_word(word).parse().expect("a round");
        other.signal(Signal::STOP);
        let status = daemon.status();
        let its = session(&status, id).unwrap_or_else(|| panic!("session {id}: {status:#}"));
        if its["leases"].as_u64() > Some(0) {
            return round;
        }
        other.signal(Signal::CONT);
    }
}

/// Works on its own blocks until told to stop; nothing of it may fail.
fn works_on(socket: &Path, stop: &AtomicBool) -> u64 {
    let mut engine = Engine::new(socket);
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let own: Vec<u64> = (0..32).map(|at| 10_000_000 + (rounds * 8 + at) % 512).collect();
        for outcome in engine.store(&own).into_iter().chain(engine.load(&own)) {
            assert!(!matches!(outcome, Outcome::Failed(_) | Outcome::Cancelled), "the bystander: {outcome:?}");
        }
        rounds += 1;
    }
    rounds
}

fn kill_once(daemon: &Daemon, verifier: &mut Engine, kill: u64) {
    let mut other = Other::start(&daemon.socket, "churn");
    let id: u64 = other.await_word("session").parse().expect("a number");
    let base = (kill + 1) * 100_000;
    other.tell(&base.to_string());
    // The moment varies: in a store or a load, early or late in the client's life.
    for _ in 0..kill / 4 {
        other.await_word("loading");
    }
    let word = if kill.is_multiple_of(2) { "storing" } else { "loading" };
    let round = stop_in_the_middle(daemon, &other, id, word);
    other.kill();
    daemon.until("the session and all that it had are gone", |status| session(status, id).is_none());
    // What it had committed is right; what it was writing is not there. Wrong bytes would panic here.
    for round in round.saturating_sub(1)..=round {
        let outcomes = verifier.load(&numbers(base, round));
        let known = |outcome: &Outcome| matches!(outcome, Outcome::Loaded { .. } | Outcome::Missed(_));
        assert!(outcomes.iter().all(known), "kill {kill}, round {round}: {outcomes:?}");
    }
}

/// Leases, holds and quarantine of the dead are gone, half-written blocks unreadable, neither fds nor memory grow, and
/// another client works on.
#[test]
fn kill_9_in_the_middle_of_stores_and_loads_twenty_times_costs_nobody_else_anything() {
    let place = with_nvme("32MiB", "128MiB", "");
    let daemon = place.serve();
    let stop = AtomicBool::new(false);
    let mut before = Vec::new();
    std::thread::scope(|scope| {
        let ends = Ends(&stop);
        let bystander = scope.spawn(|| works_on(&daemon.socket, &stop));
        let mut verifier = Engine::new(&daemon.socket);
        for kill in 0..KILLS {
            kill_once(&daemon, &mut verifier, kill);
            before.push(figures(&daemon.status()));
        }
        drop(ends);
        assert!(bystander.join().expect("the bystander's every block was right") > KILLS, "it worked throughout");
    });
    let status = daemon.until("all quiet", |status| is_quiet(status) && status["connections"] == 1);
    assert_eq!(status["faults"], 0, "{status:#}");
    let (fds, rss): (Vec<u64>, Vec<u64>) = before.into_iter().unzip();
    // The least of each half, since a status session that is just closing, or a journal that is just replaced, counts.
    let least = |figures: &[u64]| figures.iter().copied().min().unwrap_or(0);
    assert!(least(&fds[10..]) <= least(&fds[..10]), "no fd is kept: {fds:?}");
    assert!(least(&rss[10..]) <= least(&rss[..10]) + (4 << 20), "no memory is kept: {rss:?}");
}

/// The child: many sessions, each in another state, until it is killed.
pub(crate) fn crowd(socket: &Path) {
    let mut sessions = Vec::new();
    for at in 0..CROWD {
        let mut client = Bare::silent(socket);
        if !at.is_multiple_of(5) {
            client.greet(hello()).expect("welcome");
            let number = u64::from(std::process::id()) * 1000 + at as u64;
            match at % 5 {
                1 => {}
                2 => drop(client.lookup(&[1, 2, 3], 60_000)),
                3 => drop(client.reserve(&[number], BLOCK_BYTES)),
                _ => {
                    let keys = vec![client.key(1)];
                    assert!(matches!(client.call(&Request::Acquire { keys }), Reply::Acquire { .. }));
                }
            }
        }
        sessions.push(client);
    }
    say("ready");
    while hear().is_some() {}
}

/// D7: 1,000 connections, half of which end by kill -9.
#[test]
fn d7_a_thousand_sessions_half_of_them_killed_leave_the_daemon_as_it_was() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    assert!(Bare::new(&daemon.socket).store(1, BLOCK_BYTES));
    let mut seen = Vec::new();
    for _ in 0..500 / CROWD {
        let other = Other::start(&daemon.socket, "crowd");
        other.await_word("ready");
        let status = daemon.status();
        assert!(status["connections"].as_u64() > Some(CROWD as u64), "they are all there: {status:#}");
        other.kill();
        for at in 0..CROWD {
            let mut client = Bare::silent(&daemon.socket);
            if !at.is_multiple_of(3) {
                client.greet(hello()).expect("welcome");
                client.load(1, BLOCK_BYTES);
            }
            client.unmap();
        }
        let gone = |status: &Value| status["connections"] == 1 && is_quiet(status);
        seen.push(figures(&daemon.until("they are all gone", gone)));
    }
    let (fds, rss): (Vec<u64>, Vec<u64>) = seen.into_iter().unzip();
    assert!(fds.iter().all(|count| *count == fds[0]), "fds after each hundred: {fds:?}");
    assert!(rss[9] <= rss[1] + (4 << 20), "memory after each hundred: {rss:?}");
    let mut client = Bare::new(&daemon.socket);
    assert_eq!(client.load(1, BLOCK_BYTES), Some(0));
}
