//! A lower tier whose plugin does what it should not: the daemon serves on without it, or refuses the start, as the
//! rules say; nothing hangs.

mod common;

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use common::client::{Client, hello};
use common::daemon::{Daemon, Place};
use common::{fixture, workspace};
use serde_json::Value;
use umbp_config::{Config, HostFacts, Source};
use umbp_connector_core::namespace::NamespaceDescriptor;
use umbp_plugin_api::built::built;
use umbp_protocol::encode_request;
use umbp_protocol::message::{Hello, Reply, Request};
use umbpd::StartOptions;

const BLOCK_BYTES: u64 = 64 << 10;

/// A second tier with this behaviour.
fn place(behaviour: &str, required: bool) -> Place {
    place_of(&fixture(), behaviour, required)
}

/// The same of another file.
fn place_of(file: &Path, behaviour: &str, required: bool) -> Place {
    let tier = format!(
        "[[tier]]\nname = \"low\"\nbackend = \"{}\"\ncapacity = \"64MiB\"\nrequired = {required}\ndeadline = \"200ms\"\n\
         [tier.options]\nbehaviour = \"{behaviour}\"\n",
        file.display()
    );
    Place::new("16MiB", &tier)
}

fn low(status: &Value) -> &Value {
    &status["tiers"][1]
}

/// The first tier serves whatever the second does.
fn serves(daemon: &Daemon) {
    let mut client = Client::new(&daemon.socket);
    for number in 1000..1010 {
        assert!(client.store(number, BLOCK_BYTES));
        assert_eq!(client.load(number, BLOCK_BYTES), Some(0));
    }
}

#[test]
fn what_the_environment_lacks_obeys_required() {
    for (behaviour, state, words) in [
        ("check-panics", "loaded", "boom in check_options"),
        ("open-fails", "loaded", "the fixture has no device"),
        ("open-panics", "loaded", "boom in open"),
        ("open-misaligned", "loaded", "alignment 3"),
    ] {
        let daemon = place(behaviour, false).serve();
        let status = daemon.status();
        assert_eq!(low(&status)["state"], state, "{behaviour}: {status:#}");
        let report = low(&status)["report"].as_str().expect("a report");
        assert!(report.contains(words), "{behaviour}: {report}");
        serves(&daemon);
        assert!(daemon.stop().status.success());
        let refused = place(behaviour, true).refused();
        assert!(refused.text.contains("tier \"low\"") && refused.text.contains(words), "{behaviour}: {refused:?}");
    }
}

#[test]
fn a_missing_plugin_is_told_with_the_places_searched() {
    let tier = "[[tier]]\nname = \"low\"\nbackend = \"nosuch\"\ncapacity = \"64MiB\"\nrequired = false\n";
    let daemon = Place::new("16MiB", tier).serve();
    let status = daemon.status();
    let report = low(&status)["report"].as_str().expect("a report");
    assert!(low(&status)["state"] == "declared" && report.contains("libumbp_backend_nosuch.so"), "{status:#}");
    serves(&daemon);
    let refused = Place::new("16MiB", &tier.replace("false", "true")).refused();
    assert!(refused.text.contains("libumbp_backend_nosuch.so"), "{refused:?}");
}

/// Every fault that the loader refuses, told by the daemon with the file: it lives where the tier is not required.
#[test]
fn a_file_that_the_loader_refuses_obeys_required() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("text.so");
    std::fs::write(&text, "some words, and no program at all").expect("written");
    let open = folder.path().join("open.so");
    std::fs::copy(fixture(), &open).expect("copied");
    std::fs::set_permissions(&open, Permissions::from_mode(0o757)).expect("mode");
    let variant = |feature: &str| built(workspace().join("plugin-api/fixtures/backend"), &[feature]);
    for (file, words) in [
        (text, "not a loadable shared object"),
        (built(workspace().join("plugin-api/fixtures/stranger"), &[]), "not a umbp backend plugin"),
        (variant("other-major"), "built for plugin API 2."),
        (variant("other-layout"), "incompatible type layout"),
        (open, "mode 0757"),
        (folder.path().join("none.so"), "not found"),
    ] {
        let path = file.display().to_string();
        let daemon = place_of(&file, "works", false).serve();
        let status = daemon.status();
        let report = low(&status)["report"].as_str().expect("a report");
        assert_eq!(low(&status)["state"], "declared", "{path}: {status:#}");
        assert!(report.contains(&path) && report.contains(words) && !report.contains('\n'), "{path}: {report}");
        serves(&daemon);
        assert!(daemon.stop().status.success(), "{path}");
        let refused = place_of(&file, "works", true).refused();
        assert!(!refused.status.success(), "{refused:?}");
        for words in ["tier \"low\"", &path, words] {
            assert!(refused.text.contains(words), "no {words} in: {refused:?}");
        }
    }
}

/// A plugin that was built against the next minor version is one of this host's.
#[test]
fn a_plugin_of_the_next_minor_version_serves() {
    let file = built(workspace().join("plugin-api/fixtures/backend"), &["grown"]);
    for required in [false, true] {
        let daemon = place_of(&file, "works", required).serve();
        let status = daemon.status();
        assert_eq!(low(&status)["state"], "running", "{status:#}");
        serves(&daemon);
        daemon.until("copies below", |status| low(status)["resident_blocks"] == 10);
        assert!(daemon.stop().status.success());
    }
}

#[test]
fn wrong_options_a_held_lock_and_an_impossible_size_refuse_the_start_in_any_case() {
    for (behaviour, words) in [
        ("nonsense", "behaviour = \"nonsense\" is not known"),
        ("open-locked", "pid 1 holds the fixture"),
        ("open-too-large", "needed 2, free 1: lower capacity"),
    ] {
        let refused = place(behaviour, false).refused();
        assert!(!refused.status.success() && refused.text.contains(words), "{behaviour}: {refused:?}");
    }
}

#[test]
fn a_first_tier_that_cannot_be_mapped_is_refused_at_its_line() {
    let place = Place::new("16MiB", "");
    let toml = std::fs::read_to_string(place.config()).expect("config");
    let dram = common::dram().display().to_string();
    let toml = toml.replace(&dram, &fixture().display().to_string()).replace("hugepages = \"off\"", "");
    place.write(&toml);
    let refused = place.refused();
    assert!(refused.text.contains("mappable") && refused.text.contains("umbpd.toml"), "{refused:?}");
}

/// Stores one block, so that the tier gets its copy, and waits for the state.
fn falls(behaviour: &str, state: &str, words: &str) -> Daemon {
    let daemon = place(behaviour, false).serve();
    let mut client = Client::new(&daemon.socket);
    for number in 0..8 {
        assert!(client.store(number, BLOCK_BYTES), "{behaviour}");
    }
    let status = daemon.until(behaviour, |status| low(status)["state"] == state);
    let report = low(&status)["report"].as_str().expect("a report");
    assert!(report.contains(words), "{behaviour}: {report}");
    serves(&daemon);
    daemon
}

/// P9 and P5: the tier is not called any more, the daemon serves on, and its end is not held up.
#[test]
fn a_plugin_that_panics_or_breaks_the_contract_fails_its_tier_alone() {
    for (behaviour, words) in [
        ("region-panics", "boom in region_register"),
        ("submit-panics", "boom in submit"),
        ("worker-panics", "a thread of the plugin has panicked"),
        ("completes-twice", "completed before"),
        ("completes-unknown", "not in flight"),
    ] {
        let daemon = falls(behaviour, "failed", words);
        let ended = daemon.stop();
        assert!(ended.status.success(), "{behaviour}: {ended:?}");
    }
}

/// Answers in time are missing: lookups of the tier are misses, it is probed, and the daemon ends within its deadline.
#[test]
fn a_plugin_that_never_answers_degrades_its_tier_alone() {
    for (behaviour, words) in
        [("never-completes", ""), ("submit-busy", ""), ("submit-hangs", "the plugin has been in submit")]
    {
        let daemon = falls(behaviour, "degraded", "");
        daemon.until(behaviour, |status| low(status)["report"].as_str().expect("a report").contains(words));
        let start = Instant::now();
        let ended = daemon.stop();
        assert!(ended.status.success(), "{behaviour}: {ended:?}");
        assert!(start.elapsed() < Duration::from_secs(6), "{behaviour}: drain = 2s, took {:?}", start.elapsed());
    }
}

#[test]
fn a_bad_end_of_a_plugin_is_not_the_daemons() {
    for behaviour in ["shutdown-panics", "shutdown-hangs", "drop-panics", "completes-late"] {
        let daemon = place(behaviour, false).serve();
        serves(&daemon);
        let start = Instant::now();
        let ended = daemon.stop();
        assert!(ended.status.success(), "{behaviour}: {ended:?}");
        assert!(start.elapsed() < Duration::from_secs(6), "{behaviour}: drain = 2s, took {:?}", start.elapsed());
    }
}

/// What a plugin still stores while it shuts down lies in the first tier's memory.
#[test]
fn the_first_tier_shuts_down_after_those_that_read_from_it() {
    let slow = place("stores-at-shutdown", false);
    let toml = std::fs::read_to_string(slow.config()).expect("config");
    slow.write(&toml.replace("deadline = \"200ms\"", "deadline = \"60s\""));
    let daemon = slow.serve();
    serves(&daemon);
    daemon.until("stores wait", |status| low(status)["in_flight"] != 0);
    let ended = daemon.stop();
    assert!(ended.status.success(), "{ended:?}");
    assert!(!ended.text.contains("did not shut down"), "{ended:?}");
}

/// A client can name as many models as it likes; a tier that has room for no more of them serves the others.
#[test]
fn a_tier_without_room_for_a_namespace_is_not_a_failed_tier() {
    let daemon = place("namespaces-full", false).serve();
    serves(&daemon);
    let status = daemon.until("stores are given up", |status| low(status)["dropped"].as_u64() >= Some(10));
    assert_eq!(low(&status)["state"], "running", "{status:#}");
    assert_eq!(low(&status)["counters"]["namespaces_refused"], 1, "{status:#}");
}

/// The longest descriptor that is let in fits into a backend's table, together with the tenant's name.
#[test]
fn no_descriptor_that_is_let_in_fails_a_tier() {
    let daemon = place("works", false).serve();
    let mut accepted = 0;
    for bytes in [32_000, 32_740, 65_400, 65_515, 70_000] {
        let namespace = Some(NamespaceDescriptor::default().with("model", "m".repeat(bytes)));
        match Client::silent(&daemon.socket).greet(Hello { namespace, ..hello() }) {
            Ok(()) => accepted += 1,
            Err(refusal) => assert!(refusal.message.contains("descriptor of"), "{refusal:?}"),
        }
    }
    assert!(accepted >= 2, "{accepted}");
    let status = daemon.status();
    assert_eq!(low(&status)["state"], "running", "{status:#}");
}

/// Whoever asks for status again and again fills no tier's queue: at its bound the tier would be of no use.
#[test]
fn questions_for_status_do_not_fill_the_queue_of_a_tier_that_hangs() {
    let daemon = place("submit-hangs", false).serve();
    serves(&daemon);
    let mut clients: Vec<Client> = (0..100).map(|_| Client::status_only(&daemon.socket)).collect();
    for client in &mut clients {
        client.stream.write_all(&encode_request(9, &Request::Status)).expect("sent");
    }
    let waiting = clients.iter_mut().map(|client| match client.reply() {
        Reply::Status(status) => low(&status)["commands_waiting"].as_u64().expect("a number"),
        other => panic!("Status was answered with {other:?}"),
    });
    let most = waiting.max().expect("some");
    assert!(most < 80, "{most} commands wait");
}

/// More than the first tier holds: what left it comes back from the tier below, byte for byte.
#[test]
fn what_left_the_first_tier_is_promoted_byte_for_byte() {
    for behaviour in ["works", "submit-completes"] {
        let daemon = place(behaviour, true).serve();
        let mut client = Client::new(&daemon.socket);
        let all: Vec<u64> = (0..384).collect();
        for number in &all {
            assert!(client.store(*number, BLOCK_BYTES));
            if number % 32 == 31 {
                daemon
                    .until("copies below", |status| low(status)["queued_blocks"] == 0 && low(status)["in_flight"] == 0);
            }
        }
        let tiers: Vec<Option<u8>> = all.iter().map(|number| client.load(*number, BLOCK_BYTES)).collect();
        assert!(tiers.iter().all(Option::is_some), "{behaviour}: every block is somewhere: {tiers:?}");
        assert!(tiers.iter().filter(|tier| **tier == Some(1)).count() > 100, "{behaviour}: {tiers:?}");
        let status = daemon.status();
        assert_eq!(low(&status)["resident_blocks"], 384, "{behaviour}: {status:#}");
        assert_eq!(low(&status)["counters"]["fixture.opened"], 1, "{behaviour}: what a plugin counts is shown");
    }
}

/// In this process, since the usual wait for an open is long: the hung thread stays behind.
#[test]
fn an_open_that_never_returns_is_given_up() {
    for (required, expected) in [(false, None), (true, Some("has not returned from open"))] {
        let place = place("open-hangs", required);
        let host = HostFacts { uid: rustix::process::getuid().as_raw(), memory_available: 8 << 30 };
        let source = Source { file: Some(place.config()), variables: Vec::new(), socket: None, host };
        let config = Config::load(&source).unwrap_or_else(|errors| panic!("{}", errors.lines()));
        let options = StartOptions { open_wait: Duration::from_millis(300), ..StartOptions::new("test") };
        let started = umbpd::Daemon::start(config, &options);
        match expected {
            None => {
                let daemon = started.unwrap_or_else(|error| panic!("it serves without: {error}"));
                assert!(daemon.greeting().contains("low (loaded: the plugin has not returned from open"));
                let ended = daemon.run(std::future::ready(())).expect("it ran");
                assert_eq!((ended.drained, ended.tiers_left), (true, 1));
            }
            Some(words) => {
                let error = started.err().expect("refused").to_string();
                assert!(error.contains(words), "{error}");
            }
        }
    }
}
