//! `umbp bench` on small sets: what it says was measured was measured. Speeds are for a quiet machine and no test's.

use serde_json::Value;

use crate::daemon::Daemon;

pub(crate) fn bench(daemon: &Daemon, arguments: &[&str]) -> Value {
    let output = daemon.umbp(&[&["bench"], arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON on standard output")
}

pub(crate) fn real(report: &Value, name: &str) -> f64 {
    report[name].as_f64().unwrap_or_else(|| panic!("{name} in {report}"))
}

/// G6, K9: every measured load came from the disk, and one client, two clients and the bare read had the same blocks.
#[test]
fn g6_k9_loads_from_nvme_are_measured_beside_a_bare_read_and_beside_two_clients() {
    let daemon = Daemon::start("16MiB", Some("128MiB"));
    let data = daemon.data();
    let beside = data.to_str().expect("a path of letters");
    let shape = ["--set-bytes", "64MiB", "--block-bytes", "64KiB", "--rounds", "2", "--beside", beside];
    let report = bench(&daemon, &[&["load"][..], &shape].concat());
    assert_eq!((&report["blocks"], &report["clients"]), (&Value::from(1024), &Value::from(2)), "{report}");
    // Two rounds of two ways: hardly one in a hundred may have been in the first tier still.
    assert!(real(&report, "from_first_tier") < 4.0 * 1024.0 / 100.0, "{report}");
    for figure in ["one_gbps", "clients_gbps", "bare_gbps", "clients_over_one", "one_over_bare"] {
        assert!(real(&report, figure) > 0.0, "{figure} in {report}");
    }
}

/// C11: while blocks are evicted, lookups ask for those that are there as much as they do when nothing happens.
#[test]
fn c11_lookups_beside_evictions_ask_for_what_is_there() {
    let daemon = Daemon::start("64MiB", None);
    let report = bench(&daemon, &["scale", "--blocks", "15360", "--lookups", "400"]);
    let kinds = report["lookups"].as_array().expect("a list");
    assert_eq!(kinds.iter().map(|kind| real(kind, "keys")).collect::<Vec<_>>(), [64.0, 10_240.0], "{report}");
    for kind in kinds {
        assert!((real(kind, "idle_hits") - 0.9).abs() < 1e-9, "{report}");
        assert!(real(kind, "evicting_hits") > 0.85 && real(kind, "evicting_hits") < 0.91, "{report}");
    }
    assert!(real(&report, "evicted_blocks") > 0.0 && real(&report, "index_bytes_per_block") > 50.0, "{report}");
}
