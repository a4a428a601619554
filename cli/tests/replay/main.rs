//! `umbp replay` through a real umbpd, real sockets and real shared objects: what is stored comes back byte for byte,
//! and as much of it as there is room for.

mod bench;
mod daemon;
mod remote;
mod sizes;

use daemon::{Daemon, umbp};
use serde_json::Value;

fn number(report: &Value, field: &str) -> u64 {
    report[field].as_u64().unwrap_or_else(|| panic!("{field} in {report}"))
}

/// Nothing was wrong and nothing failed.
fn check_bytes(report: &Value) {
    assert_eq!((number(report, "mismatched_blocks"), number(report, "failed_blocks")), (0, 0), "{report}");
}

/// With room for all, every block but the first of its kind hits, and each kind is stored once.
fn check_all_hit(report: &Value, block_bytes: u64) {
    check_bytes(report);
    let stored = number(report, "bytes_stored") / block_bytes;
    assert_eq!(number(report, "hit_blocks"), number(report, "blocks") - stored, "{report}");
    assert_eq!(number(report, "refused_blocks"), 0, "{report}");
    assert_eq!(report["orphan_share"], 0.0, "{report}");
}

#[test]
fn a_generated_workload_hits_all_it_can_and_comes_back_byte_for_byte() {
    let daemon = Daemon::start("256MiB", None);
    let report = daemon.replay(&["--generate", "60", "--block-bytes", "4KiB", "--runs-per-block", "32"]);
    check_all_hit(&report, 4096);
    assert_eq!(report["tier_hits"]["dram"], report["hit_blocks"], "{report}");
    let again = daemon.replay(&["--generate", "60", "--block-bytes", "4KiB", "--runs-per-block", "1"]);
    assert_eq!(again["hit_ratio"], 1.0, "another engine, with another layout, finds the same blocks: {again}");
}

#[test]
fn blocks_that_no_longer_fit_in_dram_come_back_from_nvme() {
    let daemon = Daemon::start("32MiB", Some("512MiB"));
    let report = daemon.replay(&["--generate", "200", "--engines", "4"]);
    check_bytes(&report);
    assert!(report["tier_hits"]["nvme"].as_u64() > Some(0), "{report}");
}

#[test]
fn blocks_of_another_size_are_another_namespace() {
    let daemon = Daemon::start("64MiB", None);
    check_all_hit(&daemon.replay(&["--generate", "5", "--block-bytes", "4KiB"]), 4096);
    check_all_hit(&daemon.replay(&["--generate", "5", "--block-bytes", "8KiB"]), 8192);
}

/// Two traces number their blocks alike, and mean other blocks.
#[test]
fn traces_of_two_names_share_no_block() {
    let (daemon, folder) = (Daemon::start("64MiB", None), tempfile::tempdir().unwrap());
    let replay = |name: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, "{\"hash_ids\": [1, 2, 3]}\n").unwrap();
        number(&daemon.replay(&[path.to_str().unwrap(), "--block-bytes", "4KiB"]), "hit_blocks")
    };
    assert_eq!([replay("one.jsonl"), replay("other.jsonl"), replay("one.jsonl")], [0, 0, 3]);
}

/// Parents age no sooner than their children, though an engine's own cache keeps them from being asked for.
#[test]
fn behind_an_engines_own_cache_no_block_loses_its_prefix() {
    let daemon = Daemon::start("32MiB", None);
    // 8192 blocks of 4 KiB in the tier; a quarter of that in front of it.
    let report = daemon.replay(&["--generate", "1500", "--block-bytes", "4KiB", "--gpu-blocks", "2048"]);
    check_bytes(&report);
    assert!(number(&report, "engine_blocks") > 0, "{report}");
    assert!(number(&report, "bytes_stored") > 64 << 20, "the tier was filled more than once: {report}");
    assert!(report["orphan_share"].as_f64() <= Some(0.001), "{report}");
}

/// The ratio that an independent simulator computed for this trace: 0.3664.
#[test]
fn of_the_real_conversation_trace_exactly_105710_of_288500_blocks_hit() {
    let Some(trace) = trace() else { return };
    let daemon = Daemon::start("1024MiB", None);
    let report = daemon.replay(&[&trace, "--engines", "1", "--block-bytes", "4KiB"]);
    check_all_hit(&report, 4096);
    assert_eq!((number(&report, "hit_blocks"), number(&report, "blocks")), (105_710, 288_500), "{report}");
}

#[test]
fn four_engines_on_the_real_trace_read_nothing_wrong_from_dram_and_nvme() {
    let Some(trace) = trace() else { return };
    let daemon = Daemon::start("256MiB", Some("2GiB"));
    let report = daemon.replay(&[&trace, "--engines", "4"]);
    check_bytes(&report);
    assert!(report["tier_hits"]["nvme"].as_u64() > Some(0), "{report}");
    assert!(report["orphan_share"].as_f64() <= Some(0.001), "{report}");
}

/// An engine whose own cache holds a quarter as many blocks as the tier.
#[test]
fn behind_an_engines_own_cache_the_real_trace_leaves_hardly_an_orphan() {
    let Some(trace) = trace() else { return };
    let daemon = Daemon::start("128MiB", None);
    let report = daemon.replay(&[&trace, "--block-bytes", "4KiB", "--gpu-blocks", "8192"]);
    check_bytes(&report);
    assert!(number(&report, "engine_blocks") > 0, "{report}");
    assert!(report["orphan_share"].as_f64() <= Some(0.001), "{report}");
}

#[test]
fn status_of_a_daemon_that_served_shows_its_tiers() {
    let daemon = Daemon::start("32MiB", None);
    daemon.replay(&["--generate", "3", "--block-bytes", "4KiB"]);
    let output = daemon.umbp(&["status", "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout).expect("one JSON object on standard output");
    let tier = &status["tiers"][0];
    assert_eq!((tier["name"].as_str(), tier["state"].as_str()), (Some("dram"), Some("running")), "{status}");
    for field in ["report", "capacity_bytes", "used_bytes", "disk_bytes", "quarantined_bytes", "hits", "errors"] {
        assert!(!tier[field].is_null(), "{field} in {status}");
    }
    for field in ["misses", "sessions", "leases", "holds"] {
        assert!(!status[field].is_null(), "{field} in {status}");
    }
    let people = String::from_utf8(daemon.umbp(&["status"]).stdout).unwrap();
    assert!(people.contains("dram") && people.contains("running"), "{people}");
}

#[test]
fn what_cannot_be_replayed_is_refused_in_words_with_exit_status_1() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    std::fs::write(&trace, "{\"hash_ids\": [0, 1]}\n{\"hash_ids\": [0, 1, 0]}\n").unwrap();
    let check = |arguments: &[&str], part: &str| {
        let output = umbp(&folder.path().join("none.sock"), arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.contains(part), "{arguments:?}: {part:?} is missing in\n{stderr}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    };
    check(&["replay", trace.to_str().unwrap()], "line 2");
    check(&["replay", "/no/such/trace.jsonl"], "/no/such/trace.jsonl");
    check(&["replay", "--generate", "1"], "none.sock");
    check(&["replay", "--generate", "1", "--block-bytes", "4KiB", "--runs-per-block", "3"], "3 equal runs");
    check(&["replay", "--generate", "1", "--engines", "0"], "--engines 0");
    check(&["status"], "none.sock");
}

/// A real trace in the folder that `UMBP_TRACES` names, else beside the repository.
fn trace_of(name: &str) -> Option<String> {
    let beside = || std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces");
    let folder = std::env::var_os("UMBP_TRACES").map_or_else(beside, Into::into);
    let path = folder.join(name);
    if path.exists() {
        return path.to_str().map(str::to_owned);
    }
    eprintln!("skipped: {} is not there (UMBP_TRACES names the folder)", path.display());
    None
}

fn trace() -> Option<String> {
    trace_of("conversation_trace.jsonl")
}
