//! The daemon inside an engine's process: members of one engine are processes of their own.

use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use umbpd::StartOptions;
use umbpd::embedded::{Host, Joined, config, join};

use crate::child::{Other, hear, say};
use crate::common::daemon::Place;
use crate::common::{DEADLINE, until};
use crate::rig::{Engine, is_loaded, is_stored, summary};

const BLOCKS: u64 = 32;

fn numbers() -> Vec<u64> {
    (0..BLOCKS).collect()
}

/// Joins by the config beside the socket.
fn join_at(socket: &Path) -> Joined {
    let file = socket.with_file_name("umbpd.toml");
    join(config(Some(file), Some(socket)).expect("a config"), StartOptions::new("test")).expect("joined")
}

/// A member of an engine: joins, says what it is, then does as it is told.
pub(crate) fn member(socket: &Path) {
    let joined = join_at(socket);
    match &joined {
        Joined::Host(_) => say("host"),
        Joined::Guest { pid } => say(&format!("guest of {pid}")),
    }
    let mut engine = Engine::new(socket);
    while let Some(word) = hear() {
        let outcomes = match word.as_str() {
            "store" => engine.store(&numbers()),
            _ => engine.load(&numbers()),
        };
        let done = outcomes.iter().filter(|outcome| is_stored(**outcome) || is_loaded(**outcome)).count();
        say(&format!("{word} {done}"));
    }
}

/// A host that forks; the child goes on after the host's end, without an exec.
pub(crate) fn member_that_forks(socket: &Path) {
    let joined = join_at(socket);
    assert!(matches!(joined, Joined::Host(_)), "{joined:?}");
    say("host");
    assert_eq!(hear().as_deref(), Some("fork"));
    // SAFETY: the child only drops the host, which does nothing there, and sleeps until it is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(joined);
        // SAFETY: ends this process by a signal, at the latest when no test waits for it any more.
        unsafe { libc::alarm(2 * DEADLINE.as_secs() as u32) };
        loop {
            // SAFETY: waits for a signal, and none that returns is set up.
            unsafe { libc::pause() };
        }
    }
    say(&format!("forked {child}"));
    hear();
}

/// What the daemon's own program changes of its process: limits, and what SIGXFSZ does.
fn process_wide() -> String {
    let limits = [Resource::Nofile, Resource::Memlock, Resource::Fsize].map(|limit| getrlimit(limit).current);
    // SAFETY: all zeros is a valid sigaction, and the call only asks.
    let signal = unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        assert_eq!(libc::sigaction(libc::SIGXFSZ, std::ptr::null(), &mut now), 0);
        now.sa_sigaction
    };
    format!("{limits:?} {signal}")
}

fn limit(resource: Resource, current: Option<u64>) {
    setrlimit(resource, Rlimit { current, ..getrlimit(resource) }).expect("below the hard limit");
}

/// A host whose limits are set by nobody but itself.
pub(crate) fn member_with_limits(socket: &Path) {
    let refusal = || {
        let file = socket.with_file_name("umbpd.toml");
        let joined = join(config(Some(file), Some(socket)).expect("a config"), StartOptions::new("test"));
        joined.expect_err("refused").to_string()
    };
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_DFL) };
    let files = getrlimit(Resource::Fsize).current;
    limit(Resource::Fsize, Some(1 << 40));
    say(&format!("refused {}", refusal()));
    limit(Resource::Fsize, files);
    limit(Resource::Nofile, Some(30));
    say(&format!("refused {}", refusal()));
    limit(Resource::Nofile, Some(256));
    limit(Resource::Memlock, Some(1 << 16));
    let before = process_wide();
    let joined = join_at(socket);
    assert!(matches!(joined, Joined::Host(_)), "{joined:?}");
    say(&format!("before {before}"));
    say(&format!("after {}", process_wide()));
    limit(Resource::Nofile, Some(30));
    assert!(matches!(join_at(socket), Joined::Guest { .. }), "one that only attaches needs no room for a daemon");
    limit(Resource::Nofile, Some(256));
    say("guest");
}

/// What it does to its own program's process, an embedded daemon does not do to an engine, whose children would have it
/// too; what it cannot do without is an error.
#[test]
fn an_embedded_daemon_leaves_its_process_as_it_is() {
    let place = Place::new("16MiB", "");
    let host = Other::start(&place.socket(), "member-with-limits");
    let refused = host.await_word("refused ");
    assert!(refused.contains("RLIMIT_FSIZE is 1099511627776") && refused.contains("SIGXFSZ"), "{refused}");
    let refused = host.await_word("refused ");
    assert!(refused.contains("RLIMIT_NOFILE is 30") && refused.contains("ulimit -n"), "{refused}");
    let before = host.await_word("before ");
    assert_eq!(host.await_word("after "), before);
    assert_eq!(host.next(), "guest");
}

/// A process that is no child of this one; killed when a test drops it.
struct Stray(rustix::process::Pid);

impl Drop for Stray {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::KILL);
    }
}

fn ask(member: &mut Other, word: &str) -> u64 {
    member.tell(word);
    member.await_word(word).parse().expect("a count")
}

#[test]
fn the_first_process_serves_and_the_others_attach_to_it() {
    let place = Place::new("16MiB", "");
    let mut members: Vec<Other> = (0..3).map(|_| Other::start(&place.socket(), "member")).collect();
    let words: Vec<String> = members.iter().map(Other::next).collect();
    let hosts: Vec<usize> = (0..3).filter(|at| words[*at] == "host").collect();
    assert_eq!(hosts.len(), 1, "{words:?}");
    let pid = members[hosts[0]].child.id().to_string();
    // One that comes while the lock's file is not written yet cannot name the first.
    let guests = words.iter().filter_map(|word| word.strip_prefix("guest of "));
    assert!(guests.clone().count() == 2 && guests.clone().all(|of| of == pid || of == "unknown"), "{words:?}");
    assert_eq!(ask(&mut members[0], "store"), BLOCKS);
    for member in &mut members {
        assert_eq!(ask(member, "load"), BLOCKS);
    }

    // The host dies: misses for those who live on, and the next process that starts serves them.
    let host = members.remove(hosts[0]);
    host.kill();
    assert_eq!(ask(&mut members[0], "load"), 0);
    let mut next = Other::start(&place.socket(), "member");
    assert_eq!(next.next(), "host");
    assert_eq!(ask(&mut next, "store"), BLOCKS);
    for member in &mut members {
        until("it attaches anew and hits", || (ask(member, "load") == BLOCKS).then_some(()));
    }
}

fn host(place: &Place) -> Host {
    match join_at(&place.socket()) {
        Joined::Host(host) => host,
        guest => panic!("nobody else serves here: {guest:?}"),
    }
}

#[test]
fn an_embedded_daemon_ends_when_it_is_dropped_and_can_be_had_again() {
    let place = Place::new("16MiB", "");
    for _ in 0..2 {
        let host = host(&place);
        assert_eq!(host.socket(), place.socket());
        assert!(host.greeting().contains("dram (running"), "{}", host.greeting());
        // A second connector in the same process is a guest like any other.
        assert!(matches!(join_at(&place.socket()), Joined::Guest { .. }));
        let mut engine = Engine::new(&place.socket());
        engine.store_all(&numbers());
        assert_eq!(engine.load(&numbers()).iter().filter(|outcome| is_loaded(**outcome)).count() as u64, BLOCKS);
        drop(engine);
        let ended = host.stop().expect("it has not failed");
        assert!(ended.drained && ended.tiers_left == 0, "{ended:?}");
        assert!(!place.socket().exists(), "the socket's name is free");
    }
}

/// D4: clients of a host that dies see its end at once, and another may serve, though a child of it lives on.
#[test]
fn d4_a_forked_child_of_the_host_keeps_nothing_of_the_daemon_alive() {
    let place = Place::new("16MiB", "");
    let mut first = Other::start(&place.socket(), "member-that-forks");
    assert_eq!(first.next(), "host");
    let mut engine = Engine::new(&place.socket());
    engine.store_all(&numbers());
    first.tell("fork");
    let child: i32 = first.await_word("forked ").parse().expect("a pid");
    let child = Stray(rustix::process::Pid::from_raw(child).expect("a pid"));
    assert!(engine.client.welcome().is_some());
    first.kill();
    // No call waits for its time-out: the socket's end is seen.
    until("the session ends", || engine.client.welcome().is_none().then_some(()));
    assert_eq!(engine.client.counter(umbp_client::Counter::CallsTimedOut), 0);
    let host = host(&place);
    assert!(engine.client.wait_attached(DEADLINE), "it attaches to the next host");
    let outcomes = engine.store(&numbers());
    assert!(outcomes.iter().all(|outcome| is_stored(*outcome)), "{:?}", summary(&outcomes));
    drop(engine);
    drop(host);
    assert!(rustix::process::test_kill_process(child.0).is_ok(), "the child lived until now");
}

#[test]
fn without_a_socket_of_its_own_a_deployment_gets_a_private_one() {
    let place = Place::new("16MiB", "");
    let toml = std::fs::read_to_string(place.config()).expect("config");
    let line = format!("socket = \"{}\"\nadmin = \"off\"\n", place.socket().display());
    let without = toml.replace(&line, "");
    assert_ne!(toml, without);
    let of_file = config(Some(place.config()), None).expect("a config");
    assert_eq!(*of_file.daemon.socket, place.socket(), "what the file says counts");
    place.write(&without);
    let private = config(Some(place.config()), None).expect("a config");
    let again = config(Some(place.config()), None).expect("a config");
    assert_eq!(*private.daemon.socket, *again.daemon.socket, "all processes of an engine find the same one");
    let name = private.daemon.socket.file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(name.starts_with("embedded-"), "{name}");
    assert_eq!(*private.daemon.admin, None, "engines of one host do not fight for a port");
}
