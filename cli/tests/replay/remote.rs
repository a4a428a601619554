//! Two daemons and one cluster of three nodes: the real trace through both.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use umbp_testkit::cluster::Cluster;
use umbp_testkit::servers::servers;
use umbp_testkit::valkey::Valkey;

use crate::bench::{bench, real};
use crate::daemon::Daemon;
use crate::{check_bytes, number, trace};

/// Requests of the trace that are replayed, of some 12,000: without optimisation the whole takes minutes.
const REQUESTS: usize = 2000;

/// The first part of the real trace, in a file of the same name.
fn part_of_trace(folder: &tempfile::TempDir) -> Option<String> {
    let whole = std::fs::read_to_string(trace()?).expect("the trace");
    let path = folder.path().join("conversation_trace.jsonl");
    let lines: Vec<&str> = whole.lines().take(REQUESTS).collect();
    std::fs::write(&path, lines.join("\n") + "\n").expect("written");
    path.to_str().map(str::to_owned)
}

fn options(cluster: &Cluster) -> String {
    let addresses = cluster.addresses();
    format!("engine = \"redis\"\nmode = \"cluster\"\naddresses = {addresses:?}\nbreaker_pause = \"100ms\"\n")
}

/// A first tier of this size over the cluster; lookups wait for all answers.
fn daemon(cluster: &Cluster, dram: &str) -> Daemon {
    let tier = "lookup_budget = \"1s\"\nnegative_ttl = \"0ms\"\n";
    Daemon::start_remote(dram, tier, &options(cluster), "[limits]\nbackground = \"1GiB\"\n")
}

/// The remote tier, once nothing is under way there.
fn settled(daemon: &Daemon) -> Value {
    umbp_testkit::wait::until("nothing is queued for the remote tier", || {
        let output = daemon.umbp(&["status", "--json"]);
        let status: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        let tier = status["tiers"][1].clone();
        (tier["queued_blocks"] == 0 && tier["in_flight"] == 0).then_some(tier)
    })
}

/// D6, E8: what one host has written another, with nothing in its memory, finds after the first is gone: each block of
/// it, byte for byte.
#[test]
fn a_fresh_daemon_hits_every_block_of_the_real_trace_that_another_wrote() {
    let folder = tempfile::tempdir().expect("a folder");
    let (Some(servers), Some(trace)) = (servers(), part_of_trace(&folder)) else { return };
    let cluster = Cluster::start(&servers, 3, &[]);
    let first = daemon(&cluster, "1024MiB");
    let report = first.replay(&[&trace, "--block-bytes", "4KiB"]);
    check_bytes(&report);
    let tier = settled(&first);
    let (blocks, unique) = (number(&report, "blocks"), number(&report, "blocks") - number(&report, "hit_blocks"));
    assert!(unique > 20_000, "{report}");
    assert_eq!((number(&tier, "stored"), number(&tier, "dropped")), (unique, 0), "{tier}");
    drop(first);
    let second = daemon(&cluster, "64MiB");
    let report = second.replay(&[&trace, "--block-bytes", "4KiB", "--engines", "2"]);
    check_bytes(&report);
    assert_eq!((number(&report, "hit_blocks"), number(&report, "blocks")), (blocks, blocks), "{report}");
    assert!(report["tier_hits"]["remote"].as_u64() >= Some(unique), "{report}");
}

/// A node of the cluster is killed and comes back while two hosts replay: misses, nothing wrong, nothing failed; and
/// afterwards its slots hit again, without a restart of either daemon.
#[test]
fn a_node_that_is_lost_and_returns_costs_misses_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let (Some(servers), Some(trace)) = (servers(), part_of_trace(&folder)) else { return };
    let mut cluster = Cluster::start(&servers, 3, &[]);
    let (first, second) = (daemon(&cluster, "64MiB"), daemon(&cluster, "64MiB"));
    let over = AtomicBool::new(false);
    let reports = std::thread::scope(|scope| {
        let replays = [&first, &second].map(|daemon| {
            let (trace, over) = (&trace, &over);
            scope.spawn(move || {
                let report = daemon.replay(&[trace, "--block-bytes", "4KiB"]);
                over.store(true, Ordering::Relaxed);
                report
            })
        });
        let keys = |cluster: &Cluster, node: usize| cluster.node(node).ask(&["DBSIZE"]).integer();
        umbp_testkit::wait::until("the cluster fills", || (keys(&cluster, 1) > 2000).then_some(()));
        cluster.node_mut(1).kill();
        let at = keys(&cluster, 0);
        umbp_testkit::wait::until("the others serve on", || {
            (keys(&cluster, 0) > at + 1000 || over.load(Ordering::Relaxed)).then_some(())
        });
        cluster.node_mut(1).restart();
        cluster.await_agreement();
        replays.map(|replay| replay.join().expect("it ends"))
    });
    for report in &reports {
        check_bytes(report);
    }
    // The same daemons, once more: what the node lost is stored anew, and the next pass hits.
    let stored = |daemon: &Daemon| number(&settled(daemon), "stored");
    let before = stored(&first);
    check_bytes(&first.replay(&[&trace, "--block-bytes", "4KiB"]));
    assert!(stored(&first) > before, "what was missing is stored again");
    assert!(cluster.node(1).ask(&["DBSIZE"]).integer() > 2000, "by the node that came back too");
    let report = second.replay(&[&trace, "--block-bytes", "4KiB"]);
    check_bytes(&report);
    assert!(report["hit_ratio"].as_f64() > Some(0.99), "{report}");
}

/// The plugin and the bare loop had as many bytes of the same size, and nothing of it stays.
#[test]
fn stores_and_loads_are_measured_beside_the_client_library_alone() {
    let Some(servers) = servers() else { return };
    let valkey = Valkey::single(&servers, &[]);
    let options = format!("engine = \"redis\"\nmode = \"single\"\naddresses = [{:?}]\n", valkey.address());
    let daemon = Daemon::start_remote("16MiB", "", &options, "");
    let config = daemon.config();
    let file = config.to_str().expect("a path of letters");
    let report = bench(&daemon, &["remote", "--config", file, "--blocks", "32", "--rounds", "2"]);
    assert_eq!((&report["blocks"], &report["block_bytes"]), (&Value::from(32), &Value::from(1 << 20)), "{report}");
    for direction in ["store", "load"] {
        let speed = |name: &str| real(&report, &name.replace("{}", direction));
        assert!(speed("{}_gbps") > 0.0 && speed("bare_{}_gbps") > 0.0 && speed("{}_over_bare") > 0.0, "{report}");
    }
    assert!(valkey.keys("*").is_empty(), "nothing stays");
}
