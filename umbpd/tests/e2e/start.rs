//! What the real program refuses at its start, in which words, and how fast (F6, F7, J2, J3).

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::client::Client as Bare;
use crate::common::daemon::{Place, Refused};
use crate::rig::Engine;

/// A refusal takes less than this.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Without line breaks and frames, since a terminal's width is not the point.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace() && *c != '│').collect()
}

fn refused(place: &Place, command: Command) -> Refused {
    let start = Instant::now();
    let refused = place.try_serve(command).err().expect("it is refused");
    assert!(!refused.status.success() && refused.status.code().is_some(), "in words: {refused:?}");
    assert!(start.elapsed() < AT_ONCE, "took {:?}: {refused:?}", start.elapsed());
    refused
}

/// The folder has the config, and the lock that is never removed, and nothing else.
fn nothing_is_left(place: &Place) {
    let names = std::fs::read_dir(place.path()).expect("the folder").map(|entry| entry.expect("an entry").file_name());
    let left: Vec<_> = names.filter(|name| name != "umbpd.toml" && name != "umbpd.sock.lock").collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// F7: more than the machine has.
#[test]
fn f7_a_pool_beyond_the_machines_memory_is_refused_with_needed_free_and_knob() {
    let place = Place::new("64TiB", "");
    let refused = refused(&place, place.command());
    for words in ["needs 64.0 TiB", "are free", "MemAvailable", "lower the tier's `capacity`"] {
        assert!(refused.text.contains(words), "{words}: {}", refused.text);
    }
    nothing_is_left(&place);
}

/// A test that needs root skips itself, but where `UMBP_REQUIRE_ROOT_TESTS` is set.
fn without_root(reason: &str) {
    assert!(std::env::var_os("UMBP_REQUIRE_ROOT_TESTS").is_none(), "UMBP_REQUIRE_ROOT_TESTS is set, but {reason}");
    println!("skipped: {reason}");
}

/// A group of this process's own memory hierarchy, removed when dropped; none where this process may not make one.
struct Group(PathBuf);

impl Group {
    fn new(name: &str, limit_bytes: u64) -> Option<Self> {
        let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let of = |controller: &str| {
            own.lines().find_map(|line| line.split_once(controller).map(|(_, path)| path.to_owned()))
        };
        let (root, limit) = match of(":memory:") {
            Some(path) => (format!("/sys/fs/cgroup/memory{path}"), "memory.limit_in_bytes"),
            None => (format!("/sys/fs/cgroup{}", of("0::")?), "memory.max"),
        };
        let folder = PathBuf::from(root).join(format!("umbp-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).ok()?;
        let group = Self(folder);
        std::fs::write(group.0.join(limit), limit_bytes.to_string()).ok()?;
        Some(group)
    }

    /// The command that serves a place from inside the group.
    fn command(&self, place: &Place) -> Command {
        let mut command = Command::new("sh");
        let script = "echo $$ > \"$2/cgroup.procs\" && exec \"$0\" --config \"$1\"";
        command.args(["-c", script, env!("CARGO_BIN_EXE_umbpd")]).arg(place.config()).arg(&self.0);
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The daemon in it has ended; a group that is left is empty.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// F6: the limit of the daemon's cgroup, where this test may make one (root, and a hierarchy that can be written). The
/// rules themselves are pinned by the dram backend's tests, on files of their own.
#[test]
fn f6_a_pool_beyond_the_cgroups_limit_is_refused_with_needed_free_and_knob() {
    let Some(group) = Group::new("f6", 96 << 20) else { return without_root("no cgroup can be made here") };
    let place = Place::new("512MiB", "");
    let refused = refused(&place, group.command(&place));
    for words in ["needs 512.0 MiB", "are free", "is 96.0 MiB", "lower the tier's `capacity`"] {
        assert!(refused.text.contains(words), "{words}: {}", refused.text);
    }
    nothing_is_left(&place);
}

/// Memory of a dead daemon is charged while clients map it: the next one waits a bounded time for them, then names
/// them. Where it may make a cgroup, since no other limit counts what is mapped.
#[test]
fn a_pool_that_does_not_fit_beside_a_dead_daemons_waits_for_its_clients_and_then_names_them() {
    let Some(group) = Group::new("holders", 160 << 20) else { return without_root("no cgroup can be made here") };
    let place = Place::new("96MiB", "");
    let serve = || place.try_serve(group.command(&place)).unwrap_or_else(|refused| panic!("it serves: {refused:?}"));
    let kill = |daemon: crate::common::daemon::Daemon| {
        daemon.signal(Signal::KILL);
        daemon.wait();
    };
    // The real client notices and unmaps by itself.
    let daemon = serve();
    let engine = Engine::new(&daemon.socket);
    kill(daemon);
    let daemon = serve();
    drop(engine);
    // A client that does not is named, and only as long as it is in the way.
    let mut client = Bare::new(&daemon.socket);
    assert!(client.store(1, 4096), "it maps the pool");
    kill(daemon);
    let refused = refused(&place, group.command(&place));
    let own = format!("process {} (", std::process::id());
    assert!(refused.text.contains("still mapped by") && refused.text.contains(&own), "{}", refused.text);
    client.unmap();
    serve();
}

fn with_line(place: &Place, section: &str, line: &str) {
    let toml = std::fs::read_to_string(place.config()).expect("config");
    let toml = toml.replace("drain = \"2s\"\n", "");
    let toml = match section {
        "daemon" => toml.replace("[daemon]\n", &format!("[daemon]\n{line}\n")),
        "tier" => toml.replace("capacity = \"16MiB\"", line),
        _ => format!("{toml}[{section}]\n{line}\n"),
    };
    place.write(&toml);
}

/// J2, J3: one bad value by file and by environment: the same words, each naming field, value and remedy, and the
/// way that it came.
#[test]
fn j2_j3_a_bad_value_by_file_and_by_environment_is_refused_in_the_same_words() {
    for (section, line, variable, value, message, remedy) in [
        (
            "tier",
            "capacity = \"12 parsecs\"",
            "UMBP_TIER__DRAM__CAPACITY",
            "12 parsecs",
            "unknown unit \"parsecs\"",
            "8GiB",
        ),
        ("daemon", "drain = \"soon\"", "UMBP_DAEMON__DRAIN", "soon", "daemon.drain = \"soon\"", "write"),
        ("policy", "headroom = \"150%\"", "UMBP_POLICY__HEADROOM", "150%", "policy.headroom = \"150%\"", "write"),
        ("limits", "lease = \"10\"", "UMBP_LIMITS__LEASE", "\"10\"", "limits.lease = \"10\"", "write"),
    ] {
        let place = Place::new("16MiB", "");
        let mut by_variable = place.command();
        by_variable.env(variable, value);
        let by_variable = refused(&place, by_variable);
        with_line(&place, section, line);
        let by_file = refused(&place, place.command());
        for (refused, origin) in [(&by_file, "umbpd.toml:"), (&by_variable, variable)] {
            for words in [message, remedy, origin, "help:"] {
                assert!(plain(&refused.text).contains(&plain(words)), "{variable}, {words}: {}", refused.text);
            }
        }
        assert_eq!(by_file.status.code(), by_variable.status.code());
        nothing_is_left(&place);
    }
}

/// J3: a bad socket by file, by environment in both spellings, and by flag.
#[test]
fn j3_a_bad_socket_is_refused_in_the_same_words_by_file_environment_and_flag() {
    let long = format!("/{}", "x".repeat(200));
    let place = Place::new("16MiB", "");
    let mut by_flag = place.command();
    by_flag.arg("--socket").arg(&long);
    let by_variable = |name| {
        let mut command = place.command();
        command.env(name, &long);
        refused(&place, command).text
    };
    let mut texts = vec![
        (refused(&place, by_flag).text, "from flag --socket"),
        (by_variable("UMBP_SOCKET"), "environment variable UMBP_SOCKET"),
        (by_variable("UMBP_DAEMON__SOCKET"), "variable UMBP_DAEMON__SOCKET"),
    ];
    let toml = std::fs::read_to_string(place.config()).expect("config");
    place.write(&toml.replace(&place.socket().display().to_string(), &long));
    texts.push((refused(&place, place.command()).text, "umbpd.toml:"));
    for (text, origin) in texts {
        let bytes = "the socket's path has 201 bytes, more than the 107 that Unix sockets allow";
        for words in [bytes, origin, "choose a shorter path"] {
            assert!(plain(&text).contains(&plain(words)), "{words}: {text}");
        }
    }
    nothing_is_left(&place);
}
