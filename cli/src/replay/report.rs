//! What a replay found out: for programs one JSON object, for people a few lines.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// What one engine counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    pub(crate) blocks: u64,
    /// Blocks that the engines' own caches had.
    pub(crate) engine_blocks: u64,
    pub(crate) hit_blocks: u64,
    /// Hits by index of the tier that served them.
    pub(crate) tier_hits: BTreeMap<u8, u64>,
    pub(crate) bytes_loaded: u64,
    pub(crate) bytes_stored: u64,
    pub(crate) load_time: Duration,
    pub(crate) store_time: Duration,
    /// Microseconds of each lookup.
    pub(crate) lookups: Vec<f64>,
    pub(crate) refused_blocks: u64,
    pub(crate) failed_blocks: u64,
    pub(crate) mismatched_blocks: u64,
}

impl Counts {
    /// Adds another engine's.
    pub(crate) fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.blocks += other.blocks;
        self.engine_blocks += other.engine_blocks;
        self.hit_blocks += other.hit_blocks;
        for (tier, blocks) in other.tier_hits {
            *self.tier_hits.entry(tier).or_default() += blocks;
        }
        self.bytes_loaded += other.bytes_loaded;
        self.bytes_stored += other.bytes_stored;
        self.load_time += other.load_time;
        self.store_time += other.store_time;
        self.lookups.extend(other.lookups);
        self.refused_blocks += other.refused_blocks;
        self.failed_blocks += other.failed_blocks;
        self.mismatched_blocks += other.mismatched_blocks;
    }
}

/// The report. Its fields are an interface: programs read them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) requests: u64,
    pub(crate) blocks: u64,
    /// Blocks that an engine's own prefix cache had; no tier was asked for them.
    pub(crate) engine_blocks: u64,
    /// Blocks that a tier served, with all before them in the request there too.
    pub(crate) hit_blocks: u64,
    pub(crate) hit_ratio: f64,
    pub(crate) tier_hits: BTreeMap<String, u64>,
    pub(crate) bytes_loaded: u64,
    pub(crate) bytes_stored: u64,
    /// 10^9 bytes a second while loading, all engines together.
    pub(crate) load_gbps: f64,
    /// 10^9 bytes a second while storing, all engines together.
    pub(crate) store_gbps: f64,
    pub(crate) lookup_p50_us: f64,
    pub(crate) lookup_p99_us: f64,
    /// Stores for which there was no room.
    pub(crate) refused_blocks: u64,
    pub(crate) failed_blocks: u64,
    pub(crate) mismatched_blocks: u64,
    /// Share of the resident blocks that no prompt can reach, since a block before them is gone.
    pub(crate) orphan_share: f64,
    pub(crate) seconds: f64,
}

impl Report {
    /// From all engines' counts, the names of the tiers in order, and what was measured around the engines.
    pub(crate) fn new(mut counts: Counts, tiers: &[String], engines: usize, orphan_share: f64, time: Duration) -> Self {
        counts.lookups.sort_by(f64::total_cmp);
        let tier_hits = tiers
            .iter()
            .zip(0_u8..)
            .map(|(name, index)| (name.clone(), counts.tier_hits.get(&index).copied().unwrap_or(0)));
        Self {
            requests: counts.requests,
            blocks: counts.blocks,
            engine_blocks: counts.engine_blocks,
            hit_blocks: counts.hit_blocks,
            hit_ratio: ratio(counts.hit_blocks, counts.blocks),
            tier_hits: tier_hits.collect(),
            bytes_loaded: counts.bytes_loaded,
            bytes_stored: counts.bytes_stored,
            load_gbps: gbps(counts.bytes_loaded, counts.load_time, engines),
            store_gbps: gbps(counts.bytes_stored, counts.store_time, engines),
            lookup_p50_us: quantile(&counts.lookups, 0.50),
            lookup_p99_us: quantile(&counts.lookups, 0.99),
            refused_blocks: counts.refused_blocks,
            failed_blocks: counts.failed_blocks,
            mismatched_blocks: counts.mismatched_blocks,
            orphan_share,
            seconds: time.as_secs_f64(),
        }
    }
}

/// A part of a whole; 0 of nothing.
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The engines' times overlap: a second of each of four engines is one second of the store.
fn gbps(bytes: u64, time: Duration, engines: usize) -> f64 {
    let seconds = time.as_secs_f64() / engines.max(1) as f64;
    if seconds > 0.0 { bytes as f64 / 1e9 / seconds } else { 0.0 }
}

/// Nearest rank of a sorted list.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, blocks, hit_blocks, engine_blocks, .. } = self;
        writeln!(f, "requests   {requests}, {blocks} blocks, in {:.1} s", self.seconds)?;
        if *engine_blocks > 0 {
            writeln!(f, "engines    {engine_blocks} blocks in their own prefix caches")?;
        }
        writeln!(f, "hits       {hit_blocks} blocks ({:.2} %)", self.hit_ratio * 100.0)?;
        for (name, hits) in &self.tier_hits {
            writeln!(f, "  {name:<8} {hits}")?;
        }
        writeln!(f, "loaded     {} at {:.2} GB/s, every byte verified", gigabytes(self.bytes_loaded), self.load_gbps)?;
        writeln!(f, "stored     {} at {:.2} GB/s", gigabytes(self.bytes_stored), self.store_gbps)?;
        writeln!(f, "lookup     p50 {:.0} us, p99 {:.0} us", self.lookup_p50_us, self.lookup_p99_us)?;
        let Self { refused_blocks, failed_blocks, mismatched_blocks, .. } = self;
        writeln!(f, "blocks     {refused_blocks} refused, {failed_blocks} failed, {mismatched_blocks} mismatched")?;
        write!(f, "orphans    {:.3} % of the resident blocks", self.orphan_share * 100.0)
    }
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_add_up_and_quantiles_are_nearest_ranks() {
        let engine = |lookups: Vec<f64>| Counts {
            requests: 2,
            blocks: 10,
            hit_blocks: 5,
            tier_hits: [(0, 4), (1, 1)].into(),
            bytes_loaded: 1_000_000_000,
            load_time: Duration::from_secs(1),
            lookups,
            ..Counts::default()
        };
        let mut counts = engine((1..=50).map(f64::from).collect());
        counts.add(engine((51..=100).rev().map(f64::from).collect()));
        let report = Report::new(counts, &["dram".into(), "nvme".into()], 2, 0.0, Duration::from_secs(3));
        assert_eq!((report.requests, report.blocks, report.hit_blocks, report.hit_ratio), (4, 20, 10, 0.5));
        assert_eq!(report.tier_hits, [("dram".to_owned(), 8), ("nvme".to_owned(), 2)].into());
        assert_eq!((report.lookup_p50_us, report.lookup_p99_us), (50.0, 99.0));
        assert_eq!(report.load_gbps, 2.0, "two engines load side by side");
    }

    #[test]
    fn a_report_of_nothing_divides_by_nothing() {
        let report = Report::new(Counts::default(), &[], 1, 0.0, Duration::ZERO);
        assert_eq!((report.hit_ratio, report.load_gbps, report.lookup_p99_us), (0.0, 0.0, 0.0));
    }

    #[test]
    fn the_fields_of_the_json_object_are_those_that_programs_read() {
        let report = Report::new(Counts::default(), &["dram".into()], 1, 0.0, Duration::ZERO);
        let json = serde_json::to_value(&report).unwrap();
        let names = "requests blocks hit_blocks hit_ratio tier_hits bytes_loaded bytes_stored load_gbps store_gbps \
                     lookup_p50_us lookup_p99_us refused_blocks failed_blocks mismatched_blocks orphan_share seconds";
        for name in names.split_whitespace() {
            assert!(json.get(name).is_some(), "{name}");
        }
        assert_eq!(json["tier_hits"]["dram"], 0);
    }
}
