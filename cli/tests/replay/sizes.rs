//! `umbp replay --sizes`: the real engine over real traces, against figures of an independent simulator.

use std::path::Path;

use serde_json::Value;

use crate::daemon::umbp;
use crate::trace_of;

const CONVERSATION: &str = "conversation_trace.jsonl";
const SYNTHETIC: &str = "synthetic_trace.jsonl";
/// How far below tail-first LRU a hit ratio may lie.
const TOLERANCE: f64 = 0.005;
/// Most orphans among resident blocks.
const ORPHANS_MAX: f64 = 0.001;
/// Sizes in percent of the unique blocks, with the known hit ratio of tail-first LRU.
const CONVERSATION_LRU: [(&str, f64); 4] = [("5%", 0.1958), ("10%", 0.2789), ("25%", 0.3535), ("50%", 0.3631)];
const SYNTHETIC_LRU: [(&str, f64); 4] = [("5%", 0.1566), ("10%", 0.2623), ("25%", 0.4441), ("50%", 0.5888)];

/// The list that it prints. No socket is there to be asked.
fn points(arguments: &[&str]) -> Vec<Value> {
    let output = umbp(Path::new("/no/such.sock"), &[&["replay"], arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    match serde_json::from_slice(&output.stdout).expect("JSON on standard output") {
        Value::Array(points) => points,
        other => panic!("{other}"),
    }
}

fn ratio(point: &Value) -> f64 {
    point["hit_ratio"].as_f64().expect("a number")
}

/// The default policy, and no orphans on the way.
fn check(name: &str, known: &[(&str, f64)], all: f64) {
    let Some(trace) = trace_of(name) else { return };
    let sizes: Vec<&str> = known.iter().map(|(size, _)| *size).chain(["100%"]).collect();
    let found = points(&[&trace, "--sizes", &sizes.join(",")]);
    for (point, (size, lru)) in found.iter().zip(known) {
        assert_eq!((&point["size"], &point["policy"]), (&Value::from(*size), &Value::from("prefix-lru")));
        assert!(ratio(point) >= lru - TOLERANCE, "{name}: {point}, LRU_t {lru}");
        assert!(point["orphan_share"].as_f64() <= Some(ORPHANS_MAX), "{name}: {point}");
    }
    assert!((ratio(&found[known.len()]) - all).abs() < 1e-9, "{name}: {}", found[known.len()]);
}

#[test]
fn the_default_policy_hits_as_tail_first_lru_does_on_the_conversation_trace() {
    check(CONVERSATION, &CONVERSATION_LRU, 105_710.0 / 288_500.0);
}

#[test]
fn the_default_policy_hits_as_tail_first_lru_does_on_the_synthetic_trace() {
    check(SYNTHETIC, &SYNTHETIC_LRU, 77_953.0 / 121_877.0);
}

#[test]
fn chain_hazard_closes_a_fifth_of_the_gap_on_the_half_that_it_was_not_tuned_on() {
    let Some(trace) = trace_of(CONVERSATION) else { return };
    let policies = "prefix-lru,chain-hazard,optimum";
    let found = points(&[&trace, "--sizes", "5%,10%", "--policy", policies, "--warm-up", "50%"]);
    for size in 0..2 {
        let [lru, own, optimum] = [0, 1, 2].map(|policy| ratio(&found[2 * policy + size]));
        let closed = (own - lru) / (optimum - lru);
        assert!(closed >= 0.2, "{}: {closed}", found[size]["size"]);
    }
}

/// C10: with a cache in front only tails are asked for, and their heads would age out first. The default policy leaves
/// no orphan even where that cache is half as large as the tier; the others where it is a quarter or less.
#[test]
fn c10_no_policy_leaves_orphans_behind_an_engines_own_cache() {
    let check = |name: &str, sizes: &str, policies: &str, gpu_blocks: &str| {
        let Some(trace) = trace_of(name) else { return };
        let found = points(&[&trace, "--sizes", sizes, "--policy", policies, "--gpu-blocks", gpu_blocks]);
        assert_eq!(found.len(), policies.split(',').count() * sizes.split(',').count());
        for point in found {
            assert!(point["orphan_share"].as_f64() <= Some(ORPHANS_MAX), "{name}: {point}");
            assert!(ratio(&point) > 0.0, "{name}: {point}");
        }
    };
    check(CONVERSATION, "2%,10%", "prefix-lru,s3-fifo,chain-hazard", "900");
    check(SYNTHETIC, "10%,25%", "prefix-lru,s3-fifo,chain-hazard", "1000");
    check(SYNTHETIC, "2%", "prefix-lru", "400");
}

#[test]
fn the_default_headroom_costs_less_than_a_hundredth() {
    for name in [CONVERSATION, SYNTHETIC] {
        let Some(trace) = trace_of(name) else { return };
        let none = points(&[&trace, "--sizes", "5%,10%,25%,50%"]);
        let some = points(&[&trace, "--sizes", "5%,10%,25%,50%", "--headroom", "1%"]);
        for (none, some) in none.iter().zip(&some) {
            assert_eq!(none["blocks"], some["blocks"]);
            assert!(ratio(some) <= ratio(none) && ratio(some) > ratio(none) - 0.01, "{none} {some}");
        }
    }
}

#[test]
fn points_come_in_the_order_asked_with_the_fields_that_programs_read() {
    let found = points(&["--generate", "40", "--sizes", "50%,10%", "--policy", "s3-fifo,prefix-lru,chain-hazard"]);
    let named: Vec<(String, String)> = found.iter().map(|p| (p["policy"].to_string(), p["size"].to_string())).collect();
    let named: Vec<String> = named.iter().map(|(policy, size)| format!("{policy}{size}").replace('"', " ")).collect();
    let expected = [
        " s3-fifo  50% ",
        " s3-fifo  10% ",
        " prefix-lru  50% ",
        " prefix-lru  10% ",
        " chain-hazard  50% ",
        " chain-hazard  10% ",
    ];
    assert_eq!(named, expected);
    for point in &found {
        let mut fields: Vec<&String> = point.as_object().expect("an object").keys().collect();
        fields.sort();
        assert_eq!(fields, ["blocks", "hit_ratio", "orphan_share", "policy", "size"]);
        assert!(ratio(point) > 0.0 && point["blocks"].as_u64() > Some(0), "{point}");
    }
}

#[test]
fn a_plot_has_axes_a_legend_and_a_line_for_each_policy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plot.svg");
    let svg = file.to_str().unwrap();
    points(&["--generate", "20", "--sizes", "10%,50%", "--policy", "prefix-lru,optimum", "--svg", svg]);
    let plot = std::fs::read_to_string(&file).unwrap();
    for part in ["<svg ", "prefix-lru", "optimum", "hit blocks", "10%", "50%", "</svg>"] {
        assert!(plot.contains(part), "{part} in {plot}");
    }
    assert_eq!(plot.matches("<circle").count(), 4);
}

#[test]
fn sizes_that_cannot_be_are_refused_in_words() {
    let check = |arguments: &[&str], part: &str| {
        let output = umbp(Path::new("/no/such.sock"), &[&["replay", "--generate", "2"], arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(part), "{arguments:?}: {stderr}");
    };
    check(&["--sizes", "0%"], "less than one of");
    check(&["--sizes", "101%"], "from 0% to 100%");
    check(&["--sizes", "many"], "--sizes many");
    check(&["--sizes", "5%", "--policy", "lfu"], "prefix-lru");
    check(&["--sizes", "5%", "--headroom", "95%"], "from 0% to 90%");
    check(&["--policy", "s3-fifo"], "--sizes");
}
