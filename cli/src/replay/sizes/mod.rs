//! `umbp replay --sizes`: the hit ratio of an eviction policy by the size of the tier. The real engine runs in this
//! process, over counts alone: no daemon, no bytes.
//!
//! Modules in reading order: [`harness`] (an engine and its one client), [`optimum`] (what no policy exceeds),
//! [`known`] (figures of others for the traces we know), [`table`] and [`plot`] (what comes out).

mod harness;
mod known;
mod optimum;
mod plot;
mod table;

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use clap::ValueEnum;
use miette::{IntoDiagnostic, WrapErr, miette};
use serde::Serialize;
use umbp_config::Share;
use umbp_config::units::parse_share;
use umbpd::engine::api::EvictionPolicy;

use crate::replay::orphans;
use crate::replay::trace::Request;

/// Most sizes of one run.
const SIZES_MAX: usize = 100;
/// Most of a tier that may be headroom, or of a trace that may be warm-up.
const PART_MAX_PERCENT: u32 = 90;

/// What decides what leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// The deepest of the least recently used chains first.
    PrefixLru,
    /// First in, first out, in two queues, tails before heads.
    S3Fifo,
    /// The end of the chain whose next use is the least likely, as learned.
    ChainHazard,
    /// No policy but a bound: who knows the future, and may refuse to take a block.
    Optimum,
}

impl Policy {
    fn engine(self) -> Option<EvictionPolicy> {
        match self {
            Self::PrefixLru => Some(EvictionPolicy::PrefixLru),
            Self::S3Fifo => Some(EvictionPolicy::S3Fifo),
            Self::ChainHazard => Some(EvictionPolicy::ChainHazard),
            Self::Optimum => None,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PrefixLru => "prefix-lru",
            Self::S3Fifo => "s3-fifo",
            Self::ChainHazard => "chain-hazard",
            Self::Optimum => "optimum",
        })
    }
}

/// The options of `umbp replay` that belong to `--sizes`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Runs the engine in this process at these sizes, each a share of the trace's unique blocks such as 5%, and
    /// prints the hit ratios. No daemon is asked and no byte is moved.
    #[arg(long, value_name = "SHARE,...", value_delimiter = ',')]
    sizes: Vec<String>,
    /// What leaves first; several for a column each.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "prefix-lru", requires = "sizes")]
    policy: Vec<Policy>,
    /// Part of the tier that reclaim keeps free.
    #[arg(long, value_name = "SHARE", default_value = "0%", requires = "sizes")]
    headroom: String,
    /// Part of the requests at the beginning that only fill the tier: hits count from there on.
    #[arg(long, value_name = "SHARE", default_value = "0%", requires = "sizes")]
    warm_up: String,
    /// Writes the hit ratios as a plot.
    #[arg(long, value_name = "FILE", requires = "sizes")]
    svg: Option<PathBuf>,
}

impl Options {
    /// They are meant.
    pub(crate) fn are_given(&self) -> bool {
        !self.sizes.is_empty()
    }
}

/// One policy at one size. Its fields are an interface: programs read them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Point {
    /// As asked for.
    pub(crate) size: String,
    pub(crate) blocks: u64,
    pub(crate) policy: String,
    pub(crate) hit_ratio: f64,
    /// The largest share of resident blocks seen that no prompt can reach.
    pub(crate) orphan_share: f64,
}

/// What is to be run: all that the points have in common.
pub(crate) struct Case<'a> {
    pub(crate) requests: &'a [Request],
    pub(crate) unique: u64,
    pub(crate) headroom: Share,
    /// Requests whose hits do not count.
    pub(crate) warm_up: usize,
    /// Blocks in the engine's own prefix cache.
    pub(crate) gpu_blocks: usize,
}

fn share(flag: &str, text: &str, most_percent: u32) -> miette::Result<Share> {
    let share = parse_share(text)
        .map_err(|(problem, remedy)| miette!(help = remedy.to_string(), "{flag} {text}: {problem}"))?;
    match share {
        Share::Part(part) if part <= most_percent * 100 => Ok(share),
        _ => Err(miette!("{flag} {text}: give a share from 0% to {most_percent}%")),
    }
}

/// Runs all policies at all sizes, and prints what came out.
pub(crate) fn run(
    options: &Options,
    name: &str,
    requests: &[Request],
    gpu_blocks: usize,
    json: bool,
) -> miette::Result<()> {
    if options.sizes.len() > SIZES_MAX {
        return Err(miette!("--sizes: {} of them, at most {SIZES_MAX}", options.sizes.len()));
    }
    let unique = orphans::unique_blocks(requests).len() as u64;
    let warm_up = share("--warm-up", &options.warm_up, PART_MAX_PERCENT)?.of(requests.len() as u64) as usize;
    let headroom = share("--headroom", &options.headroom, PART_MAX_PERCENT)?;
    let case = Case { requests, unique, headroom, warm_up, gpu_blocks };
    let mut jobs = Vec::new();
    for policy in &options.policy {
        for size in &options.sizes {
            let blocks = share("--sizes", size, 100)?.of(unique);
            if blocks == 0 {
                return Err(miette!("--sizes {size}: less than one of {unique} blocks"));
            }
            jobs.push((*policy, size.clone(), blocks));
        }
    }
    let points = measure(&case, &jobs)?;
    let known = known::of(&case);
    if let Some(file) = &options.svg {
        let plot = plot::svg(name, &options.policy, &points, known);
        std::fs::write(file, plot).into_diagnostic().wrap_err_with(|| format!("write {}", file.display()))?;
    }
    if json {
        println!("{}", serde_json::to_string(&points).into_diagnostic()?);
    } else {
        print!("{}", table::text(name, &case, &options.policy, &options.sizes, &points, known));
    }
    Ok(())
}

/// Each point by itself, several at a time.
fn measure(case: &Case<'_>, jobs: &[(Policy, String, u64)]) -> miette::Result<Vec<Point>> {
    let next = AtomicUsize::new(0);
    let (send, receive) = mpsc::channel();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores.min(jobs.len()) {
            let send = send.clone();
            let next = &next;
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((policy, size, blocks)) = jobs.get(at) else { return };
                    let found = point(case, *policy, size, *blocks);
                    if send.send((at, found)).is_err() {
                        return;
                    }
                }
            });
        }
    });
    drop(send);
    let mut points: Vec<(usize, miette::Result<Point>)> = receive.into_iter().collect();
    points.sort_by_key(|(at, _)| *at);
    points.into_iter().map(|(_, point)| point).collect()
}

fn point(case: &Case<'_>, policy: Policy, size: &str, blocks: u64) -> miette::Result<Point> {
    let (hit_ratio, orphan_share) = match policy.engine() {
        None => (optimum::hit_ratio(case, blocks as usize), 0.0),
        Some(policy) => harness::replay(case, policy, blocks)?,
    };
    Ok(Point { size: size.to_owned(), blocks, policy: policy.to_string(), hit_ratio, orphan_share })
}
