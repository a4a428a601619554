use std::collections::BTreeSet;

use serde_json::json;

use super::*;
use crate::engine::Engine;
use crate::engine::api::{
    Admission, EvictionPolicy, Generations, Promote, Settings, Shared, TenantIndex, TenantSettings, TierSettings,
    WritePolicy,
};

#[test]
fn a_figure_is_told_once_with_its_kind_its_unit_and_each_value_with_its_labels() {
    let status = json!({
        "asked": 7, "misses": { "absent": 2, "corrupt": 0 }, "sessions": [{}, {}], "draining": false,
        "tiers": [
            { "name": "dram", "state": "running", "hits": 4, "errors": {}, "counters": {}, "recovery_ms": null },
            { "name": "a \"b\"\\", "state": "failed", "hits": 1, "errors": { "io": 3 }, "recovery_ms": 1250,
              "counters": { "fallback.threads": 1 } },
        ],
        "tenants": [{ "name": "default", "used_bytes": { "dram": 4096 }, "quota_bytes": { "dram": 8192 } }],
    });
    let expected = r#"# HELP umbp_asked_blocks Blocks that lookups asked for
# TYPE umbp_asked_blocks counter
# UNIT umbp_asked_blocks blocks
umbp_asked_blocks_total 7
# HELP umbp_hit_blocks Blocks that lookups found, by the uppermost tier that has them
# TYPE umbp_hit_blocks counter
# UNIT umbp_hit_blocks blocks
umbp_hit_blocks_total{tier="dram"} 4
umbp_hit_blocks_total{tier="a \"b\"\\"} 1
# HELP umbp_missed_blocks Blocks that lookups did not find
# TYPE umbp_missed_blocks counter
# UNIT umbp_missed_blocks blocks
umbp_missed_blocks_total{reason="absent"} 2
umbp_missed_blocks_total{reason="corrupt"} 0
# HELP umbp_draining 1 once the daemon is about to end
# TYPE umbp_draining gauge
umbp_draining 0
# HELP umbp_sessions Sessions
# TYPE umbp_sessions gauge
umbp_sessions 2
# HELP umbp_tenant_used_bytes Room that a tenant takes in a tier
# TYPE umbp_tenant_used_bytes gauge
# UNIT umbp_tenant_used_bytes bytes
umbp_tenant_used_bytes{tenant="default",tier="dram"} 4096
# HELP umbp_tenant_quota_bytes Most room that a tenant may take in a tier
# TYPE umbp_tenant_quota_bytes gauge
# UNIT umbp_tenant_quota_bytes bytes
umbp_tenant_quota_bytes{tenant="default",tier="dram"} 8192
# HELP umbp_tier_state 1 beside the tier's state
# TYPE umbp_tier_state gauge
umbp_tier_state{tier="dram",state="running"} 1
umbp_tier_state{tier="a \"b\"\\",state="failed"} 1
# HELP umbp_tier_recovery_seconds Time that the recovery of an earlier life took
# TYPE umbp_tier_recovery_seconds gauge
# UNIT umbp_tier_recovery_seconds seconds
umbp_tier_recovery_seconds{tier="a \"b\"\\"} 1.25
# HELP umbp_tier_errors Operations that failed
# TYPE umbp_tier_errors counter
umbp_tier_errors_total{tier="a \"b\"\\",status="io"} 3
# HELP umbp_tier_plugin_events What the plugin counts, its fallbacks among them
# TYPE umbp_tier_plugin_events counter
umbp_tier_plugin_events_total{tier="a \"b\"\\",name="fallback.threads"} 1
# EOF
"#;
    assert_eq!(page(status).expect("text"), expected);
}

/// F1: 1 while no path of the tier has fallen back to the page cache, 0 once one has, nothing of a tier whose plugin
/// does not say.
#[test]
fn f1_direct_io_is_told_of_each_tier_whose_plugin_counts_its_fallback() {
    let tier = |name: &str, counters: Value| json!({ "name": name, "counters": counters });
    let status = json!({ "tiers": [
        tier("dram", json!({ "fallback.hugepages": 1 })),
        tier("direct", json!({ "fallback.direct": 0 })),
        tier("cached", json!({ "fallback.direct": 2 })),
    ] });
    let text = page(status).expect("text");
    let told: Vec<&str> = text.lines().filter(|line| line.starts_with("umbp_tier_direct_io")).collect();
    assert_eq!(told, [r#"umbp_tier_direct_io{tier="direct"} 1"#, r#"umbp_tier_direct_io{tier="cached"} 0"#]);
}

/// J4: what only a shared tier counts is on the page too, each number of it.
#[test]
fn j4_all_that_a_shared_tier_counts_is_on_the_page() {
    let before = json!({ "tiers": [{ "name": "far", "shared": true, "present_other": 1, "ask": shared_status() }] });
    let page_before = page(before.clone()).expect("text");
    let names: Vec<String> = before["tiers"][0]["ask"].as_object().expect("a map").keys().cloned().collect();
    assert!(names.len() >= 11, "{names:?}");
    let paths = names.iter().map(|name| format!("/tiers/0/ask/{name}"));
    for path in paths.chain(["/tiers/0/present_other", "/tiers/0/shared"].map(str::to_owned)) {
        let mut changed = before.clone();
        let value = changed.pointer_mut(&path).expect("it is there");
        *value = if value.is_boolean() { json!(false) } else { json!(77_777) };
        assert_ne!(page(changed).expect("text"), page_before, "{path} is not on the page");
    }
}

/// What an engine says of the asks of its shared tier.
fn shared_status() -> Value {
    struct Nothing;
    impl Generations for Nothing {
        fn get(&self, _: TenantIndex, _: u32) -> u64 {
            0
        }

        fn advance(&mut self, _: TenantIndex, _: u32) {}
    }
    let tier = |name: &str, shared| TierSettings {
        name: name.to_owned(),
        capacity: 1 << 20,
        alignment: 4096,
        largest_payload: 1 << 20,
        slots: 8,
        deadline_ns: 1,
        write: WritePolicy::Through,
        shared,
    };
    let settings = Settings {
        tiers: vec![tier("near", None), tier("far", Some(Shared { lookup_budget_ns: 1, negative_ns: 1 }))],
        tenants: vec![TenantSettings { name: "default".to_owned(), quota: vec![u64::MAX; 2] }],
        headroom: vec![0; 2],
        promotion_budget: 0,
        eviction: EvictionPolicy::PrefixLru,
        admission: Admission::All,
        promote: Promote::OnAcquire,
        lease_ns: 1,
        hold_ns: 1,
        hold_bytes: 0,
        quarantine_bytes: 0,
        background_bytes: 0,
        block_bytes: 4096,
    };
    let status = Engine::new(settings, Box::new(Nothing)).status();
    assert_eq!((status["tiers"][0].get("ask"), &status["tiers"][1]["shared"]), (None, &json!(true)));
    status["tiers"][1]["ask"].clone()
}

#[test]
fn a_status_without_anything_is_an_empty_page() {
    assert_eq!(page(json!({})).expect("text"), "# EOF\n");
}

#[test]
fn no_two_figures_have_the_same_name_and_none_leaves_a_unit_to_its_text() {
    let mut names = BTreeSet::new();
    for figure in FIGURES {
        let unit = figure.unit.unit().map(|unit| format!("_{}", unit.as_str())).unwrap_or_default();
        assert!(names.insert(format!("{}{unit}", figure.name)), "{} stands there twice", figure.name);
        for ending in ["bytes", "blocks", "seconds", "milliseconds", "total"] {
            assert!(!figure.name.ends_with(ending), "{}: the unit is not told", figure.name);
        }
        let sentence = figure.help;
        assert!(!sentence.is_empty() && !sentence.ends_with('.') && !sentence.contains('\n'), "{}", figure.name);
    }
}
