//! The daemon's status as text. What a daemon of another release does not say is left out.

use std::fmt::Write;

use serde_json::Value;

/// Columns of a table; the first is aligned left.
struct Table {
    rows: Vec<Vec<String>>,
}

/// All of it.
pub(crate) fn table(status: &Value) -> String {
    let mut out = String::new();
    tiers(status, &mut out);
    movers(status, &mut out);
    sessions(status, &mut out);
    let mut line = |name: &str, text: String| {
        if !text.is_empty() {
            // Writing to a String does not fail.
            let _ = writeln!(out, "{name:<10}{text}");
        }
    };
    line("misses", counters(&status["misses"]));
    line("leases", counters(&status["leases"]));
    line("holds", counters(&status["holds"]));
    line("blocks", blocks(status));
    line("draining", if status["draining"] == true { "yes".to_owned() } else { String::new() });
    out
}

fn tiers(status: &Value, out: &mut String) {
    let mut table = Table::new(&["tier", "state", "used", "capacity", "disk", "quarantined", "hits", "errors"]);
    let mut reports = String::new();
    for tier in status["tiers"].as_array().into_iter().flatten() {
        let errors: u64 = numbers(&tier["errors"]).map(|(_, count)| count).sum();
        table.rows.push(vec![
            text(&tier["name"]),
            text(&tier["state"]),
            size(&tier["used_bytes"]),
            size(&tier["capacity_bytes"]),
            size(&tier["disk_bytes"]),
            size(&tier["quarantined_bytes"]),
            text(&tier["hits"]),
            errors.to_string(),
        ]);
        let errors = counters(&tier["errors"]);
        let asks = prefixed("shared with other hosts; asks: ", shared(tier));
        let details =
            [text(&tier["report"]), asks, prefixed("errors: ", errors), limit(tier), fallbacks(&tier["counters"])];
        for detail in details.iter().filter(|detail| !matches!(detail.as_str(), "" | "-")) {
            let _ = writeln!(reports, "{}: {detail}", text(&tier["name"]));
        }
    }
    table.print(out);
    out.push_str(&reports);
}

fn movers(status: &Value, out: &mut String) {
    let mut table = Table::new(&["mover", "state", "backend"]);
    let mut reports = String::new();
    for mover in status["movers"].as_array().into_iter().flatten() {
        table.rows.push(vec![text(&mover["name"]), text(&mover["state"]), text(&mover["backend"])]);
        let _ = writeln!(reports, "{}: {}", text(&mover["name"]), text(&mover["report"]));
    }
    if table.rows.len() > 1 {
        out.push('\n');
        table.print(out);
        out.push_str(&reports);
    }
}

fn sessions(status: &Value, out: &mut String) {
    let sessions: Vec<_> = status["sessions"].as_array().into_iter().flatten().collect();
    if sessions.is_empty() {
        out.push_str("\nno sessions\n");
        return;
    }
    let mut table = Table::new(&["session", "client", "tenant", "pid", "leases", "holds", "pinned", "quarantined"]);
    table.rows.extend(sessions.into_iter().map(|session| {
        vec![
            text(&session["id"]),
            text(&session["client"]),
            text(&session["tenant"]),
            text(&session["pid"]),
            text(&session["leases"]),
            text(&session["holds"]),
            size(&session["pinned_bytes"]),
            size(&session["quarantined_bytes"]),
        ]
    }));
    out.push('\n');
    table.print(out);
    out.push('\n');
}

fn blocks(status: &Value) -> String {
    let names = ["resident_blocks", "stored", "refused", "promotions", "evictions", "orphan_blocks"];
    let known = names.iter().filter_map(|name| Some((*name, status[*name].as_u64()?)));
    known.map(|(name, count)| format!("{} {count}", name.replace('_', " "))).collect::<Vec<_>>().join(", ")
}

/// What the tier's medium is believed to hold now, where that is less than its capacity.
fn limit(tier: &Value) -> String {
    match (tier["limit_bytes"].as_u64(), tier["capacity_bytes"].as_u64()) {
        (Some(limit), Some(capacity)) if limit < capacity => {
            format!("no more than {} fit now, the rest is tried by and by", size(&tier["limit_bytes"]))
        }
        _ => String::new(),
    }
}

/// What a tier that hosts share was asked and has answered.
fn shared(tier: &Value) -> String {
    let asks = counters(&tier["ask"]);
    match tier["present_other"].as_u64() {
        Some(count) if !asks.is_empty() => format!("{asks}; puts that found other bytes {count}"),
        _ => asks,
    }
}

/// Every fallback that a backend took is named, with how often.
fn fallbacks(counters: &Value) -> String {
    let taken = numbers(counters).filter_map(|(name, count)| Some((name.strip_prefix("fallback.")?, count)));
    let taken: Vec<_> = taken.filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}")).collect();
    prefixed("fallbacks: ", taken.join(", "))
}

fn prefixed(prefix: &str, text: String) -> String {
    if text.is_empty() { text } else { format!("{prefix}{text}") }
}

/// Numbers of an object by name.
fn numbers(object: &Value) -> impl Iterator<Item = (&str, u64)> {
    object.as_object().into_iter().flatten().filter_map(|(name, value)| Some((name.as_str(), value.as_u64()?)))
}

fn counters(object: &Value) -> String {
    numbers(object).map(|(name, count)| format!("{} {count}", name.replace('_', " "))).collect::<Vec<_>>().join(", ")
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Bytes to three digits or so, in the unit that suits.
fn size(value: &Value) -> String {
    let Some(bytes) = value.as_u64() else { return "-".to_owned() };
    let units = [("TiB", 1_u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.iter().find(|(_, scale)| bytes >= *scale) {
        Some((unit, scale)) => format!("{:.1} {unit}", bytes as f64 / *scale as f64),
        None => format!("{bytes} B"),
    }
}

impl Table {
    fn new(names: &[&str]) -> Self {
        Self { rows: vec![names.iter().map(|name| (*name).to_owned()).collect()] }
    }

    fn print(&self, out: &mut String) {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<_> = (0..columns).map(width).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
                0 | 1 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            let line = cells.collect::<Vec<_>>().join("  ");
            out.push_str(line.trim_end());
            out.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tiers_reports_fallbacks_misses_and_sessions_are_all_shown() {
        let shown = table(&json!({
            "tiers": [
                {"name": "dram", "state": "running", "used_bytes": 1 << 20, "capacity_bytes": 1 << 30, "limit_bytes": 1 << 30,
                 "quarantined_bytes": 65536, "hits": 7, "errors": {}, "report": "memfd, 4 segments"},
                {"name": "nvme", "state": "degraded", "used_bytes": 0, "capacity_bytes": 4_u64 << 30, "disk_bytes": 4096,
                 "limit_bytes": 3_u64 << 30,
                 "shared": true, "present_other": 6, "ask": {"asked": 10, "found": 4, "known_absent": 3, "negative_entries": 2},
                 "hits": 2, "errors": {"corrupt": 3}, "counters": {"fallback.buffered": 1, "fallback.none": 0, "reads": 9}},
            ],
            "movers": [{"name": "gpu", "state": "declared", "backend": "gpu-direct", "report": "no plugin for it"}],
            "sessions": [{"id": 4, "client": "vllm", "tenant": "default", "pid": 77, "leases": 1, "holds": 0}],
            "misses": {"absent": 5, "no_room": 0},
            "leases": {"read": 1, "write": 0},
        }));
        for part in [
            "1.0 MiB",
            "1.0 GiB",
            "64.0 KiB",
            "dram: memfd, 4 segments",
            "degraded",
            "nvme: errors: corrupt 3",
            "nvme: shared with other hosts; asks: asked 10, found 4, known absent 3, negative entries 2",
            "puts that found other bytes 6",
            "nvme: no more than 3.0 GiB fit now",
            "nvme: fallbacks: buffered 1",
            "gpu    declared  gpu-direct",
            "gpu: no plugin for it",
            "vllm",
            "absent 5, no room 0",
            "read 1, write 0",
        ] {
            assert!(shown.contains(part), "{part:?} is missing in\n{shown}");
        }
        assert!(!shown.contains("reads") && !shown.contains("dram: no more"), "{shown}");
    }

    #[test]
    fn a_status_of_another_release_is_shown_as_far_as_it_goes() {
        for status in [json!({}), json!({"tiers": [{}], "sessions": [{}]}), json!([1]), json!(null)] {
            assert!(table(&status).contains("tier"), "{status}");
        }
    }
}
