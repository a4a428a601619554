//! `/metrics`: the daemon's state as OpenMetrics text, from the same snapshot that `/status` shows.
//!
//! Names end in their unit; counters never decrease within a daemon's life. For lookups
//! `umbp_asked_blocks = sum(umbp_hit_blocks) + sum(umbp_missed_blocks)`. For loads that follow their lookup
//! `sum(umbp_hit_blocks) = umbp_acquired_blocks + sum(umbp_load_missed_blocks) +` the hits that nobody loaded, which only
//! engines know; of the acquired ones `umbp_bad_load_blocks` were of no use.

use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use serde_json::Value;

/// What the page is served as.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Where a figure's values stand in the status, and what tells them apart.
#[derive(Clone, Copy, Debug)]
enum At {
    /// One value, under a path of names.
    One(&'static [&'static str]),
    /// A 1 or a 0.
    Flag(&'static str),
    /// One value for each name of an object; the label's name.
    Each(&'static [&'static str], &'static str),
    /// One value of each tier.
    Tier(&'static str),
    /// A 1 or a 0 of each tier that says so.
    TierFlag(&'static str),
    /// One value of each tier that has an object of this name; the value's name in it.
    TierIn(&'static str, &'static str),
    /// One value of each tier, in milliseconds there and in seconds here.
    TierMs(&'static str),
    /// In each tier, one value for each name of an object; the label's name.
    TierEach(&'static str, &'static str),
    /// In each tier, a 1 beside a text; the label's name.
    TierText(&'static str, &'static str),
    /// In each tier whose plugin counts this fallback, be it never: a 0 once it was taken.
    TierWithout(&'static str),
    /// For each tenant, one value for each tier.
    TenantTier(&'static str),
    /// Number of items of a list.
    Count(&'static str),
}

/// What a figure counts, which ends its name.
#[derive(Clone, Copy, Debug)]
enum In {
    Bytes,
    Seconds,
    Blocks,
    /// A plain number, or what the name says already.
    Plain,
}

impl In {
    fn unit(self) -> Option<Unit> {
        match self {
            Self::Bytes => Some(Unit::Bytes),
            Self::Seconds => Some(Unit::Seconds),
            Self::Blocks => Some(Unit::Other("blocks".to_owned())),
            Self::Plain => None,
        }
    }
}

struct Figure {
    /// Without its unit.
    name: &'static str,
    unit: In,
    help: &'static str,
    kind: MetricType,
    at: At,
}

const fn counter(name: &'static str, unit: In, help: &'static str, at: At) -> Figure {
    Figure { name, unit, help, kind: MetricType::Counter, at }
}

const fn gauge(name: &'static str, unit: In, help: &'static str, at: At) -> Figure {
    Figure { name, unit, help, kind: MetricType::Gauge, at }
}

use At::{Count, Each, Flag, One, TenantTier, Tier, TierEach, TierFlag, TierIn, TierMs, TierText, TierWithout};
use In::{Blocks, Bytes, Plain, Seconds};

const FIGURES: &[Figure] = &[
    counter("asked", Blocks, "Blocks that lookups asked for", One(&["asked"])),
    counter("hit", Blocks, "Blocks that lookups found, by the uppermost tier that has them", Tier("hits")),
    counter("missed", Blocks, "Blocks that lookups did not find", Each(&["misses"], "reason")),
    counter("acquired", Blocks, "Blocks that were handed out to be loaded", One(&["acquired"])),
    counter("load_missed", Blocks, "Blocks that loads did not get", Each(&["load_misses"], "reason")),
    counter("bad_load", Blocks, "Blocks handed out that a client found not to be what was stored", One(&["bad_loads"])),
    counter("stored", Blocks, "Blocks that were stored", One(&["stored"])),
    counter("refused", Blocks, "Blocks that were refused for lack of room", One(&["refused"])),
    counter("stale_commit", Blocks, "Blocks whose commit came after their lease had ended", One(&["stale_commits"])),
    counter("promotions", Plain, "Fetches of a block into the first tier that were begun", One(&["promotions"])),
    counter(
        "promotions_failed",
        Plain,
        "Fetches of a block into the first tier that failed or were called off",
        One(&["promotions_failed"]),
    ),
    counter("leases_expired", Plain, "Leases that were not given back in time", One(&["leases", "expired"])),
    counter("holds_expired", Plain, "Holds that ended without a load", One(&["holds", "expired"])),
    counter("holds_refused", Plain, "Hits that were not held, beyond a session's share", One(&["holds", "refused"])),
    counter("sessions_ended", Plain, "Sessions that were ended by the daemon", Each(&["sessions_ended"], "reason")),
    counter(
        "fallbacks",
        Plain,
        "Times that the daemon took a lesser way of the system's",
        Each(&["fallbacks"], "what"),
    ),
    counter("faults", Plain, "Contradictions in the engine's own tables: must stay 0", One(&["faults"])),
    gauge("draining", Plain, "1 once the daemon is about to end", Flag("draining")),
    gauge("read_leases", Plain, "Leases for reading", One(&["leases", "read"])),
    gauge("write_leases", Plain, "Leases for writing", One(&["leases", "write"])),
    gauge("held", Blocks, "Blocks kept from eviction between lookup and load", One(&["holds", "now"])),
    gauge("resident", Blocks, "Blocks in some tier", One(&["resident_blocks"])),
    gauge(
        "known_keys",
        Plain,
        "Keys in the index, with those whose block has left and whose children have not",
        One(&["known_keys"]),
    ),
    gauge("orphan", Blocks, "Blocks that no lookup reaches, since an ancestor is in no tier", One(&["orphan_blocks"])),
    gauge("index", Bytes, "Memory of the index", One(&["index_bytes"])),
    gauge("sessions", Plain, "Sessions", Count("sessions")),
    gauge("connections", Plain, "Open connections", One(&["connections"])),
    gauge("uptime", Seconds, "Time since the daemon's start", One(&["uptime_seconds"])),
    gauge("process_open_fds", Plain, "Open files of the daemon", One(&["process", "open_fds"])),
    gauge("process_rss", Bytes, "Resident memory of the daemon, with its pool", One(&["process", "rss_bytes"])),
    gauge(
        "process_anonymous",
        Bytes,
        "Resident memory of the daemon that no file stands behind, without its pool",
        One(&["process", "anonymous_bytes"]),
    ),
    gauge("tenant_used", Bytes, "Room that a tenant takes in a tier", TenantTier("used_bytes")),
    gauge("tenant_quota", Bytes, "Most room that a tenant may take in a tier", TenantTier("quota_bytes")),
    gauge("tier_state", Plain, "1 beside the tier's state", TierText("state", "state")),
    gauge(
        "tier_direct_io",
        Plain,
        "1 where all of the tier's paths do without the page cache",
        TierWithout("fallback.direct"),
    ),
    gauge("tier_capacity", Bytes, "As configured; of the first tier, its pool", Tier("capacity_bytes")),
    gauge("tier_limit", Bytes, "What the tier has been found to hold, at most its capacity", Tier("limit_bytes")),
    gauge(
        "tier_used",
        Bytes,
        "Room taken, rounded up, with copies being written, deleted and quarantined",
        Tier("used_bytes"),
    ),
    gauge("tier_free", Bytes, "Room of the capacity that is not taken", Tier("free_bytes")),
    gauge("tier_disk", Bytes, "Bytes on the medium, as du counts them", Tier("disk_bytes")),
    gauge("tier_resident", Bytes, "Payload on the medium, as the plugin counts it", Tier("resident_bytes")),
    gauge("tier_plugin", Blocks, "Blocks on the medium, as the plugin counts them", Tier("blocks")),
    gauge("tier_resident", Blocks, "Copies that can be read", Tier("resident_blocks")),
    gauge("tier_evictable", Blocks, "Copies that nobody uses, which may leave", Tier("evictable_blocks")),
    gauge("tier_quarantined", Bytes, "Room that a late writer may still touch", Tier("quarantined_bytes")),
    gauge("tier_queued", Blocks, "Copies that wait to be written", Tier("queued_blocks")),
    gauge("tier_queued", Bytes, "Bytes of the copies that wait to be written", Tier("queued_bytes")),
    gauge("tier_in_flight", Plain, "Operations under way, as the engine counts them", Tier("in_flight")),
    gauge("tier_plugin_in_flight", Plain, "Operations that the plugin has", Tier("plugin_in_flight")),
    gauge("tier_plugin_waiting", Plain, "Operations that the plugin had no room for yet", Tier("plugin_waiting")),
    gauge("tier_commands_waiting", Plain, "Commands that wait for the tier's thread", Tier("commands_waiting")),
    gauge("tier_figures_age", Seconds, "Age of what the plugin told of itself", TierMs("figures_age_ms")),
    gauge("tier_recovering", Blocks, "Blocks of an earlier life that wait for their place", Tier("recovering_blocks")),
    gauge("tier_recovery", Seconds, "Time that the recovery of an earlier life took", TierMs("recovery_ms")),
    gauge("tier_namespaces_left_out", Plain, "Recovered namespaces that are not served", Tier("namespaces_left_out")),
    gauge("tier_undeleted", Blocks, "Blocks whose delete failed and is tried again", Tier("undeleted_blocks")),
    counter("tier_loaded", Blocks, "Blocks handed out to be loaded, by the tier that had them", Tier("loaded")),
    counter("tier_stored", Blocks, "Copies written by stores, demotions and background copies", Tier("stored")),
    counter("tier_promoted", Blocks, "Copies fetched from here into the first tier", Tier("promoted")),
    counter("tier_demoted", Blocks, "Copies queued as they left the tier above", Tier("demoted")),
    counter("tier_evicted", Blocks, "Copies evicted", Tier("evicted")),
    counter("tier_not_admitted", Blocks, "Copies that the tier's admission kept out", Tier("not_admitted")),
    counter("tier_passed_through", Blocks, "Copies that left the first tier after a load", Tier("passed_through")),
    counter(
        "tier_dropped",
        Blocks,
        "Copies given up: no room in the queue, no space, an ancestor gone, tier down",
        Tier("dropped"),
    ),
    gauge("tier_shared", Plain, "1 of a tier that other hosts store in too", TierFlag("shared")),
    counter("tier_asked", Blocks, "Blocks that no tier here has, asked for in a shared one", TierIn("ask", "asked")),
    counter("tier_ask_found", Blocks, "Blocks that a shared tier was found to have", TierIn("ask", "found")),
    counter("tier_ask_absent", Blocks, "Blocks that a shared tier has not", TierIn("ask", "absent")),
    counter(
        "tier_ask_known_absent",
        Blocks,
        "Blocks not asked for, since the last answer was no a short time ago",
        TierIn("ask", "known_absent"),
    ),
    counter(
        "tier_ask_not_taken",
        Blocks,
        "Blocks found that are of no use: malformed, other than ours, cleared, no room",
        TierIn("ask", "not_taken"),
    ),
    counter("tier_ask_failed", Blocks, "Blocks whose ask ended without an answer", TierIn("ask", "failed")),
    counter("tier_ask_late", Blocks, "Answers that no lookup had waited for so long", TierIn("ask", "late")),
    counter("tier_ask_dropped", Blocks, "Blocks not asked for, since too many waited", TierIn("ask", "dropped")),
    gauge("tier_asks_in_flight", Plain, "Asks under way", TierIn("ask", "in_flight")),
    gauge("tier_asks_waiting", Plain, "Asks that wait for their turn", TierIn("ask", "waiting")),
    gauge("tier_negative_entries", Plain, "Keys remembered as absent", TierIn("ask", "negative_entries")),
    counter(
        "tier_present_other",
        Blocks,
        "Copies given up since another host's were there, with other bytes",
        Tier("present_other"),
    ),
    counter("tier_limit_found", Plain, "Times that puts found the medium full", Tier("limit_found")),
    counter("tier_timeouts", Plain, "Operations past their deadline", Tier("timeouts")),
    counter("tier_unknown_completions", Plain, "Completions that nothing stands for", Tier("unknown_completions")),
    counter("tier_errors", Plain, "Operations that failed", TierEach("errors", "status")),
    counter(
        "tier_plugin_events",
        Plain,
        "What the plugin counts, its fallbacks among them",
        TierEach("counters", "name"),
    ),
];

/// The page, of a status as the status request gives it.
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
            let unit = figure.unit.unit();
            let mut metric = encoder.encode_descriptor(figure.name, figure.help, unit.as_ref(), figure.kind)?;
            match &values[..] {
                [(labels, value)] if labels.is_empty() => write(figure, *value, metric)?,
                _ => values
                    .iter()
                    .try_for_each(|(labels, value)| write(figure, *value, metric.encode_family(labels)?))?,
            }
        }
        Ok(())
    }
}

fn write(figure: &Figure, value: u64, metric: MetricEncoder<'_>) -> fmt::Result {
    match (figure.kind, figure.at) {
        (MetricType::Counter, _) => ConstCounter::new(value).encode(metric),
        (_, TierMs(_)) => ConstGauge::new(Duration::from_millis(value).as_secs_f64()).encode(metric),
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
            Flag(name) => self.0[name].as_bool().map(|is| (Vec::new(), u64::from(is))).into_iter().collect(),
            Tier(name) | TierMs(name) => {
                self.tiers().filter_map(|(tier, of)| Some((vec![("tier", tier)], of[name].as_u64()?))).collect()
            }
            TierFlag(name) => self
                .tiers()
                .filter_map(|(tier, of)| Some((vec![("tier", tier)], u64::from(of[name].as_bool()?))))
                .collect(),
            TierIn(object, name) => {
                self.tiers().filter_map(|(tier, of)| Some((vec![("tier", tier)], of[object][name].as_u64()?))).collect()
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
            TierWithout(fallback) => self
                .tiers()
                .filter_map(|(tier, of)| Some((tier, of["counters"][fallback].as_u64()?)))
                .map(|(tier, taken)| (vec![("tier", tier)], u64::from(taken == 0)))
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
mod tests;
