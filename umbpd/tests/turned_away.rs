//! Connections that are not served are told why, counted, and warned of; those that are served go on.

mod common;

use std::collections::BTreeSet;

use common::client::{Client, hello};
use common::daemon::{Daemon, Place};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use umbpd::session::CONNECTIONS_MAX;

/// The next connection is refused with this code and these words; another one after it is counted with it.
fn turned_away(daemon: &Daemon, code: &str, words: &str) {
    for _ in 0..2 {
        let mut client = Client::silent(&daemon.socket);
        let refusal = client.greet(hello()).expect_err("refused");
        assert!(refusal.code == code && refusal.message.contains(words), "{refusal:?}");
    }
}

fn files(soft: u64) -> Rlimit {
    Rlimit { current: Some(soft), maximum: getrlimit(Resource::Nofile).maximum }
}

#[test]
fn past_the_limit_a_client_is_told_and_counted() {
    setrlimit(Resource::Nofile, files(CONNECTIONS_MAX as u64 + 256)).expect("enough files for this test");
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let mut asks = Client::status_only(&daemon.socket);
    let mut others: Vec<Client> = (1..CONNECTIONS_MAX).map(|_| Client::silent(&daemon.socket)).collect();
    turned_away(&daemon, "connections", &format!("{CONNECTIONS_MAX} connections are open already"));
    let status = asks.status();
    assert_eq!(status["sessions_ended"]["connections"], 2, "{status:#}");
    others.truncate(others.len() - 8);
    daemon.until("there is room again", |status| status["connections"].as_u64() < Some(CONNECTIONS_MAX as u64 - 4));
    Client::new(&daemon.socket);
    drop((others, asks));
    let said = daemon.stop();
    assert_eq!(said.text.matches("a connection is turned away").count(), 1, "one line for both: {}", said.text);
}

#[test]
fn a_process_that_cannot_be_watched_is_told_and_counted() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let mut asks = Client::status_only(&daemon.socket);
    asks.status();
    // Room for the connection's own fd, and for no pidfd beside it.
    let pid = Pid::from_raw(daemon.pid() as i32).expect("a pid");
    let entries = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("its fds");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let open: BTreeSet<u64> = names.map(|name| name.to_string_lossy().parse().expect("a number")).collect();
    let free = (0..).find(|fd| !open.contains(fd)).expect("a free one");
    let before = prlimit(Some(pid), Resource::Nofile, files(free + 1)).expect("its limit is set");
    turned_away(&daemon, "peer", "cannot watch the process that connected");
    prlimit(Some(pid), Resource::Nofile, before).expect("its limit is set back");
    let status = asks.status();
    assert_eq!(status["sessions_ended"]["peer"], 2, "{status:#}");
    assert!(Client::new(&daemon.socket).store(1, 4096));
    let said = daemon.stop();
    assert_eq!(said.text.matches("a connection is turned away").count(), 1, "one line for both: {}", said.text);
}
