//! Clients that die, stop, or come and go by the thousand.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::client::{Client, hello};
use common::daemon::{Daemon, Place};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use umbp_protocol::message::{Found, Hello, Outcome, Reply, Request, Reserved};

const BLOCK_BYTES: u64 = 64 << 10;
/// The program runs itself as a client: the socket, and what it is to do.
const SOCKET: &str = "UMBP_TEST_CLIENT_SOCKET";
const TASK: &str = "UMBP_TEST_CLIENT_TASK";

/// A client in a process of its own, in the middle of everything: it holds, reads and writes.
struct Other {
    child: Child,
    session: u64,
    _input: std::process::ChildStdin,
}

impl Other {
    fn start(socket: &Path, task: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "the_other_process", "--nocapture", "--test-threads=1"]);
        command.env(SOCKET, socket).env(TASK, task).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("started");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut ready = lines
            .map_while(Result::ok)
            .filter_map(|line| line.split_once("ready as session ").and_then(|(_, number)| number.trim().parse().ok()));
        let session = ready.next().expect("it gets ready");
        let input = child.stdin.take().expect("piped");
        Self { child, session, _input: input }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signalled");
    }

    fn kill(mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("dead");
    }
}

/// Not a test: what the other process does. It ends when its input does, or is killed.
#[test]
fn the_other_process() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let task = std::env::var(TASK).expect("a task");
    let mut client = Client::new(Path::new(&socket));
    let session = client.welcome.as_ref().expect("welcome").session;
    assert!(client.store(1, BLOCK_BYTES));
    assert!(matches!(client.lookup(&[1], 60_000)[..], [Found::Hit { held: true, .. }]));
    let keys = vec![client.key(1)];
    assert!(matches!(client.call(&Request::Acquire { keys }), Reply::Acquire { lease, .. } if lease.0 > 0));
    let (_, items) = client.reserve(&[100, 101, 102, 103], BLOCK_BYTES);
    assert!(items.iter().all(|item| matches!(item, Reserved::Extent(_))), "{items:?}");
    let mut keeper = None;
    match task.as_str() {
        "forks" => {
            // A child of it keeps the socket open beyond its death.
            rustix::io::fcntl_setfd(&client.stream, rustix::io::FdFlags::empty()).expect("inherited");
            keeper = Some(Command::new("cat").stdout(Stdio::null()).spawn().expect("a child"));
        }
        "closes" => {
            client.stream.shutdown(std::net::Shutdown::Both).expect("closed");
        }
        _ => {}
    }
    println!("ready as session {}", session.0);
    let _ = std::io::read_to_string(std::io::stdin());
    if let Some(mut keeper) = keeper {
        let _ = keeper.wait();
    }
}

fn session(status: &Value, id: u64) -> Option<&Value> {
    status["sessions"].as_array().expect("sessions").iter().find(|session| session["id"] == id)
}

fn is_clean(status: &Value, id: u64) -> bool {
    let zero = |value: &Value| *value == 0;
    session(status, id).is_none()
        && zero(&status["leases"]["read"])
        && zero(&status["leases"]["write"])
        && zero(&status["holds"]["now"])
        && zero(&status["tiers"][0]["quarantined_bytes"])
}

/// Its half-written blocks are not there, and their room is free for others.
fn check_nothing_of_it(daemon: &Daemon) {
    let mut client = Client::new(&daemon.socket);
    assert!(matches!(client.lookup(&[1], 0)[..], [Found::Hit { .. }]), "what was committed stays");
    assert!(client.lookup(&[100, 101, 102, 103], 0).iter().all(|found| matches!(found, Found::Miss(_))));
    assert!(client.store(100, BLOCK_BYTES));
    assert_eq!(client.load(100, BLOCK_BYTES), Some(0));
    assert!(matches!(client.call(&Request::Clear { namespace: None }), Reply::Clear { pinned: 0, .. }));
}

#[test]
fn kill_9_of_a_client_frees_all_that_it_had_twenty_times_without_growth() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let mut bystander = Client::new(&daemon.socket);
    assert!(bystander.store(7, BLOCK_BYTES));
    let mut figures = Vec::new();
    for round in 0..20 {
        let other = Other::start(&daemon.socket, if round % 2 == 0 { "dies" } else { "forks" });
        let id = other.session;
        let status = daemon.status();
        let its = session(&status, id).unwrap_or_else(|| panic!("session {id}: {status:#}"));
        assert_eq!((&its["leases"], &its["holds"]), (&2.into(), &0.into()), "the acquire adopted the hold: {its:#}");
        assert_eq!(its["pid"], other.child.id());
        other.kill();
        let status = daemon.until("leases, holds and quarantine gone", |status| is_clean(status, id));
        figures.push((status["process"]["open_fds"].as_u64(), status["process"]["rss_bytes"].as_u64()));
        check_nothing_of_it(&daemon);
        assert!(bystander.store(7, BLOCK_BYTES));
    }
    let (fds, rss): (Vec<_>, Vec<_>) =
        figures.into_iter().map(|(fds, rss)| (fds.expect("fds"), rss.expect("rss"))).unzip();
    assert!(fds.iter().all(|count| *count == fds[1]), "no fd is kept: {fds:?}");
    assert!(rss[19] < rss[1] + (4 << 20), "no memory is kept: {rss:?}");
}

/// C2's cousin: the process lives and could still write, so its extents wait until it is gone.
#[test]
fn what_a_living_process_was_writing_is_quarantined_until_it_is_gone() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let other = Other::start(&daemon.socket, "closes");
    let id = other.session;
    let quarantined = |status: &Value| status["tiers"][0]["quarantined_bytes"] == 4 * BLOCK_BYTES;
    let status = daemon.until("quarantine", quarantined);
    assert_eq!((&status["leases"]["read"], &status["leases"]["write"]), (&0.into(), &0.into()), "{status:#}");
    other.kill();
    daemon.until("quarantine over", |status| is_clean(status, id));
    check_nothing_of_it(&daemon);
}

/// A stopped client neither holds up others nor, past its lease, publishes anything.
#[test]
fn a_client_stopped_past_its_lease_publishes_nothing() {
    let place = Place::new("16MiB", "[limits]\nlease = \"200ms\"\nhold = \"100ms\"\n");
    let daemon = place.serve();
    let other = Other::start(&daemon.socket, "dies");
    other.signal(Signal::STOP);
    let status = daemon.until("expiry", |status| {
        status["leases"]["write"] == 0 && status["leases"]["read"] == 0 && status["holds"]["now"] == 0
    });
    assert_eq!(status["tiers"][0]["quarantined_bytes"], 4 * BLOCK_BYTES, "{status:#}");
    let mut client = Client::new(&daemon.socket);
    for number in 100..104 {
        assert!(client.store(number, BLOCK_BYTES), "its keys are free");
        assert_eq!(client.load(number, BLOCK_BYTES), Some(0), "and its extents are not");
    }
    other.kill();
    daemon.until("quarantine over", |status| status["tiers"][0]["quarantined_bytes"] == 0);
}

/// A living process that re-attaches and says that all is unmapped ends its quarantine itself.
#[test]
fn a_process_that_has_unmapped_all_ends_its_quarantine_with_its_next_hello() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let quarantined = |status: &Value| status["tiers"][0]["quarantined_bytes"].as_u64().expect("bytes");
    for (all_unmapped, before, after) in [(false, 1, 1), (true, 2, 1)] {
        let mut first = Client::new(&daemon.socket);
        let previous_session = first.welcome.as_ref().map(|welcome| welcome.session);
        let previous_boot_id = first.welcome.as_ref().expect("welcome").boot_id;
        let (_, items) = first.reserve(&[5], BLOCK_BYTES);
        assert!(matches!(items[0], Reserved::Extent(_)), "{items:?}");
        drop(first);
        daemon.until("quarantine", |status| quarantined(status) == before * BLOCK_BYTES);
        let mut second = Client::silent(&daemon.socket);
        second.greet(Hello { previous_session, previous_boot_id, all_unmapped, ..hello() }).expect("welcome");
        daemon.until("the word is taken", |status| quarantined(status) == after * BLOCK_BYTES);
        assert!(second.store(9, BLOCK_BYTES));
    }
}

/// Two clients of one process re-attach after the daemon was restarted: the number that one of them had before may be
/// the other's now, whose threads write. Taking the word for it would free extents that are being written.
#[test]
fn a_session_number_of_an_earlier_life_names_nobody_in_this_one() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let mut first = Client::new(&daemon.socket);
    let (lease, items) = first.reserve(&[5], BLOCK_BYTES);
    assert!(matches!(items[0], Reserved::Extent(_)), "{items:?}");
    let welcome = first.welcome.clone().expect("welcome");
    let mut second = Client::silent(&daemon.socket);
    let previous_session = Some(welcome.session);
    for previous_boot_id in [0, welcome.boot_id ^ 2] {
        let word = Hello { previous_session, previous_boot_id, all_unmapped: true, ..hello() };
        second.greet(word).expect("welcome");
        second = Client::silent(&daemon.socket);
    }
    let reply = first.call(&Request::Commit { lease, items: vec![(0, 7)] });
    assert_eq!(reply, Reply::Commit { items: vec![Outcome::Done] });
}

#[test]
fn d7_a_thousand_clients_come_and_go_and_leave_no_fd_behind() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let mut watcher = Client::new(&daemon.socket);
    let mut figures = Vec::new();
    for round in 0..1000 {
        let mut client = Client::silent(&daemon.socket);
        match round % 4 {
            0 => {}
            1 => client.greet(hello()).expect("welcome"),
            2 => {
                client.greet(hello()).expect("welcome");
                client.lookup(&[1, 2, 3], 1000);
            }
            _ => {
                client.greet(hello()).expect("welcome");
                assert!(client.store(round, 4096));
                client.load(round, 4096);
            }
        }
        client.unmap();
        drop(client);
        if round % 250 == 249 {
            let gone = |status: &Value| status["connections"] == 1;
            let status = common::until("all are gone", || Some(watcher.status()).filter(gone));
            figures.push(status["process"]["open_fds"].as_u64().expect("fds"));
        }
    }
    assert!(figures.iter().all(|count| *count == figures[0]), "fds after each 250 clients: {figures:?}");
}
