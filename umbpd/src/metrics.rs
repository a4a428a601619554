//! `/metrics`: the daemon's state as OpenMetrics text, from the same snapshot that `/status` shows.
//!
//! Names end in their unit; counters never decrease within a daemon's life. For lookups
//! `umbp_asked_blocks = sum(umbp_hit_blocks) + sum(umbp_missed_blocks)`.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use serde_json::Value;

/// What the page is served as.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Where a figure's values stand in the status, and what tells them apart.
#[derive(Clone, Copy, Debug)]
enum At {
    /// One value, under a path of names.
    One(&'static [&'static str]),
    /// One value for each name of an object; the label's name.
    Each(&'static [&'static str], &'static str),
    /// One value of each tier.
    Tier(&'static str),
    /// In each tier, one value for each name of an object; the label's name.
    TierEach(&'static str, &'static str),
    /// In each tier, a 1 beside a text; the label's name.
    TierText(&'static str, &'static str),
    /// For each tenant, one value for each tier.
    TenantTier(&'static str),
    /// Number of items of a list.
    Count(&'static str),
}

struct Figure {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    at: At,
}

const fn counter(name: &'static str, help: &'static str, at: At) -> Figure {
    Figure { name, help, kind: MetricType::Counter, at }
}

const fn gauge(name: &'static str, help: &'static str, at: At) -> Figure {
    Figure { name, help, kind: MetricType::Gauge, at }
}

use At::{Count, Each, One, TenantTier, Tier, TierEach, TierText};

const FIGURES: &[Figure] = &[
    counter("asked_blocks", "Blocks that lookups asked for", One(&["asked"])),
    counter("hit_blocks", "Blocks that lookups found, by the uppermost tier that has them", Tier("hits")),
    counter("missed_blocks", "Blocks that lookups did not find", Each(&["misses"], "reason")),
    counter("acquired_blocks", "Blocks that were handed out to be loaded", One(&["acquired"])),
    counter("load_missed_blocks", "Blocks that loads did not get", Each(&["load_misses"], "reason")),
    counter("bad_loads", "Blocks that a client found not to be what was stored", One(&["bad_loads"])),
    counter("stored_blocks", "Blocks that were stored", One(&["stored"])),
    counter("refused_blocks", "Blocks that were refused for lack of room", One(&["refused"])),
    counter("stale_commits", "Stores that came after their lease had ended", One(&["stale_commits"])),
    counter("promotions", "Fetches of a block into the first tier that were begun", One(&["promotions"])),
    counter("promotions_failed", "Those of them that failed", One(&["promotions_failed"])),
    counter("leases_expired", "Leases that were not given back in time", One(&["leases", "expired"])),
    counter("holds_expired", "Holds that ended without a load", One(&["holds", "expired"])),
    counter("holds_refused", "Holds beyond a session's share", One(&["holds", "refused"])),
    counter("sessions_ended", "Sessions that were ended by the daemon", Each(&["sessions_ended"], "reason")),
    counter("fallbacks", "Less than the machine could do", Each(&["fallbacks"], "what")),
    counter("faults", "Contradictions in the engine's own tables: must stay 0", One(&["faults"])),
    gauge("read_leases", "Leases for reading", One(&["leases", "read"])),
    gauge("write_leases", "Leases for writing", One(&["leases", "write"])),
    gauge("holds", "Blocks kept from eviction between lookup and load", One(&["holds", "now"])),
    gauge("resident_blocks", "Blocks in some tier", One(&["resident_blocks"])),
    gauge(
        "known_keys",
        "Keys in the index, with those whose block has left and whose children have not",
        One(&["known_keys"]),
    ),
    gauge("orphan_blocks", "Blocks that no lookup reaches: an ancestor is in no tier", One(&["orphan_blocks"])),
    gauge("index_bytes", "Memory of the index", One(&["index_bytes"])),
    gauge("sessions", "Sessions", Count("sessions")),
    gauge("connections", "Open connections", One(&["connections"])),
    gauge("uptime_seconds", "Time since the daemon's start", One(&["uptime_seconds"])),
    gauge("process_open_fds", "Open files of the daemon", One(&["process", "open_fds"])),
    gauge("process_rss_bytes", "Resident memory of the daemon, with its pool", One(&["process", "rss_bytes"])),
    gauge("process_anonymous_bytes", "Resident memory that is the daemon's own", One(&["process", "anonymous_bytes"])),
    gauge("tenant_used_bytes", "Room that a tenant takes", TenantTier("used_bytes")),
    gauge("tier_state", "1 beside the tier's state", TierText("state", "state")),
    gauge("tier_capacity_bytes", "As configured; of the first tier, its pool", Tier("capacity_bytes")),
    gauge("tier_limit_bytes", "What the tier has been found to hold, at most its capacity", Tier("limit_bytes")),
    gauge(
        "tier_used_bytes",
        "Room taken, rounded up, with copies being written, deleted and quarantined",
        Tier("used_bytes"),
    ),
    gauge("tier_free_bytes", "Room not taken", Tier("free_bytes")),
    gauge("tier_disk_bytes", "Bytes on the medium, as du counts them", Tier("disk_bytes")),
    gauge("tier_resident_bytes", "Payload in the medium", Tier("resident_bytes")),
    gauge("tier_resident_blocks", "Blocks that can be read", Tier("resident_blocks")),
    gauge("tier_evictable_blocks", "Blocks that nobody uses", Tier("evictable_blocks")),
    gauge("tier_quarantined_bytes", "Room that a late writer may still touch", Tier("quarantined_bytes")),
    gauge("tier_queued_blocks", "Copies that wait to be written", Tier("queued_blocks")),
    gauge("tier_queued_bytes", "Their bytes", Tier("queued_bytes")),
    gauge("tier_in_flight", "Operations under way", Tier("in_flight")),
    gauge("tier_recovering_blocks", "Blocks of an earlier life that wait for their place", Tier("recovering_blocks")),
    gauge("tier_recovery_milliseconds", "What the recovery of an earlier life took", Tier("recovery_ms")),
    gauge("tier_undeleted_blocks", "Blocks whose delete failed and is tried again", Tier("undeleted_blocks")),
    counter("tier_stored_blocks", "Copies written", Tier("stored")),
    counter("tier_promoted_blocks", "Copies fetched from here into the first tier", Tier("promoted")),
    counter("tier_demoted_blocks", "Copies queued as they left the tier above", Tier("demoted")),
    counter("tier_evicted_blocks", "Copies evicted", Tier("evicted")),
    counter("tier_not_admitted_blocks", "Copies that the tier's admission kept out", Tier("not_admitted")),
    counter("tier_passed_through_blocks", "Copies that left the first tier after a load", Tier("passed_through")),
    counter("tier_dropped_blocks", "Copies not written: no room in the queue, no space, tier down", Tier("dropped")),
    counter("tier_limit_found", "Puts that found the medium full", Tier("limit_found")),
    counter("tier_timeouts", "Operations past their deadline", Tier("timeouts")),
    counter("tier_unknown_completions", "Completions that nothing stands for", Tier("unknown_completions")),
    counter("tier_errors", "Operations that failed", TierEach("errors", "status")),
    counter("tier_plugin_events", "What the plugin counts, its fallbacks among them", TierEach("counters", "name")),
];

/// The page, of a status as [`crate::core::hub::Hub::status`] gives it.
pub fn page(status: Value) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("umbp");
    registry.register_collector(Box::new(Snapshot(status)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Snapshot(Value);

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for figure in FIGURES {
            let values = self.values(figure.at);
            if values.is_empty() {
                continue;
            }
            let mut metric = encoder.encode_descriptor(figure.name, figure.help, None, figure.kind)?;
            match &values[..] {
                [(labels, value)] if labels.is_empty() => write(figure.kind, *value, metric)?,
                _ => values
                    .iter()
                    .try_for_each(|(labels, value)| write(figure.kind, *value, metric.encode_family(labels)?))?,
            }
        }
        Ok(())
    }
}

fn write(kind: MetricType, value: u64, metric: MetricEncoder<'_>) -> fmt::Result {
    match kind {
        MetricType::Counter => ConstCounter::new(value).encode(metric),
        _ => ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(metric),
    }
}

type Labels<'a> = Vec<(&'static str, &'a str)>;

impl Snapshot {
    /// What is there of a figure; a tier that was never asked for its own figures has none of them.
    fn values(&self, at: At) -> Vec<(Labels<'_>, u64)> {
        let find = |path: &[&str]| path.iter().fold(&self.0, |value, name| &value[name]);
        match at {
            One(path) => find(path).as_u64().map(|value| (Vec::new(), value)).into_iter().collect(),
            Each(path, label) => named(find(path)).map(|(name, value)| (vec![(label, name)], value)).collect(),
            Tier(name) => {
                self.tiers().filter_map(|(tier, of)| Some((vec![("tier", tier)], of[name].as_u64()?))).collect()
            }
            TierEach(name, label) => self
                .tiers()
                .flat_map(|(tier, of)| {
                    named(&of[name]).map(move |(each, value)| (vec![("tier", tier), (label, each)], value))
                })
                .collect(),
            TierText(name, label) => self
                .tiers()
                .filter_map(|(tier, of)| Some((vec![("tier", tier), (label, of[name].as_str()?)], 1)))
                .collect(),
            TenantTier(name) => self
                .list("tenants")
                .flat_map(|(tenant, of)| {
                    named(&of[name]).map(move |(tier, value)| (vec![("tenant", tenant), ("tier", tier)], value))
                })
                .collect(),
            Count(name) => self.0[name].as_array().map(|all| (Vec::new(), all.len() as u64)).into_iter().collect(),
        }
    }

    fn tiers(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.list("tiers")
    }

    /// Items of a list, with their names.
    fn list(&self, of: &str) -> impl Iterator<Item = (&str, &Value)> {
        let items = self.0[of].as_array().map_or(&[][..], Vec::as_slice);
        items.iter().filter_map(|item| Some((item["name"].as_str()?, item)))
    }
}

/// The numbers of an object.
fn named(object: &Value) -> impl Iterator<Item = (&str, u64)> {
    object.as_object().into_iter().flatten().filter_map(|(name, value)| Some((name.as_str(), value.as_u64()?)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_figure_is_told_once_with_its_kind_and_each_value_with_its_labels() {
        let status = json!({
            "asked": 7, "misses": { "absent": 2, "corrupt": 0 }, "sessions": [{}, {}],
            "tiers": [
                { "name": "dram", "state": "running", "hits": 4, "errors": {}, "counters": {} },
                { "name": "a \"b\"\\", "state": "failed", "hits": 1, "errors": { "io": 3 },
                  "counters": { "fallback.threads": 1 } },
            ],
            "tenants": [{ "name": "default", "used_bytes": { "dram": 4096 } }],
        });
        let expected = r#"# HELP umbp_asked_blocks Blocks that lookups asked for
# TYPE umbp_asked_blocks counter
umbp_asked_blocks_total 7
# HELP umbp_hit_blocks Blocks that lookups found, by the uppermost tier that has them
# TYPE umbp_hit_blocks counter
umbp_hit_blocks_total{tier="dram"} 4
umbp_hit_blocks_total{tier="a \"b\"\\"} 1
# HELP umbp_missed_blocks Blocks that lookups did not find
# TYPE umbp_missed_blocks counter
umbp_missed_blocks_total{reason="absent"} 2
umbp_missed_blocks_total{reason="corrupt"} 0
# HELP umbp_sessions Sessions
# TYPE umbp_sessions gauge
umbp_sessions 2
# HELP umbp_tenant_used_bytes Room that a tenant takes
# TYPE umbp_tenant_used_bytes gauge
umbp_tenant_used_bytes{tenant="default",tier="dram"} 4096
# HELP umbp_tier_state 1 beside the tier's state
# TYPE umbp_tier_state gauge
umbp_tier_state{tier="dram",state="running"} 1
umbp_tier_state{tier="a \"b\"\\",state="failed"} 1
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

    #[test]
    fn a_status_without_anything_is_an_empty_page() {
        assert_eq!(page(json!({})).expect("text"), "# EOF\n");
    }
}
