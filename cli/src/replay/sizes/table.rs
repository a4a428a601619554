//! What came out, as a table in Markdown: for people, and for docs/eviction.md.

use std::fmt::Write as _;

use super::known::Known;
use super::{Case, Point, Policy};

pub(crate) fn text(
    name: &str,
    case: &Case<'_>,
    policies: &[Policy],
    sizes: &[String],
    points: &[Point],
    known: Option<&Known>,
) -> String {
    let blocks: usize = case.requests.iter().map(|request| request.ids.len()).sum();
    let mut out = format!("{name}: {} requests, {blocks} blocks, {} unique", case.requests.len(), case.unique);
    // Writing to a String cannot fail.
    let _ = write!(out, "; headroom {}", case.headroom);
    if case.warm_up > 0 {
        let _ = write!(out, "; hits counted from request {} on", case.warm_up + 1);
    }
    if case.gpu_blocks > 0 {
        let _ = write!(out, "; behind an engine's own cache of {} blocks", case.gpu_blocks);
    }
    let at = |policy: usize, size: usize| &points[policy * sizes.len() + size];
    let find = |wanted: Policy| policies.iter().position(|policy| *policy == wanted);
    let base = find(Policy::PrefixLru).zip(find(Policy::Optimum));
    let is_rated = |policy: Policy| base.is_some() && !matches!(policy, Policy::PrefixLru | Policy::Optimum);

    let mut columns = vec!["size".to_owned(), "blocks".to_owned()];
    for policy in policies {
        columns.push(policy.to_string());
        if is_rated(*policy) {
            columns.push("gap closed".to_owned());
        }
    }
    if known.is_some() {
        columns.extend(["LRU_t", "S3FIFO_t", "Belady"].map(str::to_owned));
    }
    let mut rows = vec![columns];
    for (row, size) in sizes.iter().enumerate() {
        let mut cells = vec![size.clone(), at(0, row).blocks.to_string()];
        for (column, policy) in policies.iter().enumerate() {
            let ratio = at(column, row).hit_ratio;
            cells.push(format!("{ratio:.4}"));
            if let Some((lru, optimum)) = base.filter(|_| is_rated(*policy)) {
                let (lru, optimum) = (at(lru, row).hit_ratio, at(optimum, row).hit_ratio);
                let gap = optimum - lru;
                cells.push(if gap > 0.0 { format!("{:.1} %", 100.0 * (ratio - lru) / gap) } else { "-".to_owned() });
            }
        }
        if let Some(known) = known {
            let figures = known.at(size).map(|row| [row.lru, row.s3_fifo, row.belady]);
            cells.extend(figures.map_or(["-"; 3].map(str::to_owned), |figures| figures.map(|x| format!("{x:.4}"))));
        }
        rows.push(cells);
    }
    let orphans = points.iter().map(|point| point.orphan_share).fold(0.0, f64::max);
    let _ = write!(out, "\n\n{}\nOrphans: at most {:.4} % of the resident blocks.\n", markdown(&rows), orphans * 100.0);
    out
}

/// The first row is the header.
fn markdown(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0).max(3);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut out = String::new();
    for (at, row) in rows.iter().enumerate() {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        let _ = writeln!(out, "| {} |", cells.join(" | "));
        if at == 0 {
            let rules: Vec<String> = widths.iter().map(|width| format!("{}:", "-".repeat(width - 1))).collect();
            let _ = writeln!(out, "| {} |", rules.join(" | "));
        }
    }
    out
}
