//! `umbp replay`: requests of a trace go through the store as an inference engine would send them, and every byte
//! that comes back is verified.
//!
//! Modules in reading order: [`trace`] (requests), [`content`] (what a block's bytes are), [`memory`] (where an
//! engine has them), [`prefix_cache`] (what an engine has itself), [`tiers`] (what it asks of the store),
//! [`attached`] (the store of a daemon), [`engine`] (one engine), [`orphans`], [`report`]; [`sizes`] (no daemon at all,
//! but hit ratios by size).

mod attached;
mod content;
mod engine;
mod memory;
mod orphans;
mod prefix_cache;
mod random;
mod report;
mod sizes;
mod tiers;
mod trace;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use miette::{IntoDiagnostic, miette};
use umbp_client::JOB_BLOCKS_MAX;
use umbp_config::defaults::LARGEST_BLOCK_BYTES;

use attached::{Attached, Store};
use engine::Engine;
use memory::Shape;
use prefix_cache::PrefixCache;
use report::{Counts, Report};
use trace::Request;

/// Most engines of one replay.
const ENGINES_MAX: usize = 64;
/// Most bytes of one engine's memory; longer prompts pass through it in windows.
const ENGINE_BYTES_MAX: u64 = 64 << 20;
/// Pieces of a block, where none are asked for: of at least this many bytes, and at most so many.
const RUN_BYTES_LEAST: u64 = 4096;
const RUNS_DEFAULT_MAX: u64 = 16;
/// Runs are filled and checked in words.
const WORD_BYTES: u64 = 8;
/// Times a second that the progress bar is drawn anew.
const DRAWS_PER_SECOND: u8 = 10;

/// `umbp replay`
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A trace in Mooncake's format: a JSON object with hash_ids a line. Its blocks are shared by traces of its name.
    #[arg(required_unless_present = "generate")]
    trace: Option<PathBuf>,
    /// Replays this many generated multi-turn conversations in place of a trace.
    #[arg(long, value_name = "CONVERSATIONS", conflicts_with = "trace")]
    generate: Option<u32>,
    /// Ends after this many requests.
    #[arg(long, value_name = "N")]
    requests: Option<usize>,
    /// Bytes of one block, such as 4KiB.
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = crate::size::parse)]
    block_bytes: u64,
    /// Engines side by side; with 1 the requests run strictly in order.
    #[arg(long, value_name = "N", default_value_t = 1)]
    engines: usize,
    /// Pieces in which a block lies in engine memory [default: as many of 4 KiB as it has, at most 16].
    #[arg(long, value_name = "N")]
    runs_per_block: Option<u64>,
    /// Blocks in each engine's own prefix cache, which are not asked of the store.
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu_blocks: usize,
    /// Prints the report as JSON (an object; with --sizes a list of them), and nothing else, on standard output.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    by_size: sizes::Options,
}

impl Arguments {
    /// What tells the hash ids of this workload from those of another: the file's name, whatever its folder.
    fn name(&self) -> String {
        match (&self.trace, self.generate) {
            (Some(path), None) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            _ => "generated conversations".to_owned(),
        }
    }
}

/// Runs the replay and prints its report. False where a byte that came back was wrong.
pub(crate) fn run(arguments: &Arguments, socket: PathBuf) -> miette::Result<bool> {
    let requests = match (arguments.generate, &arguments.trace) {
        (Some(conversations), _) => {
            let mut requests = trace::generate(conversations);
            requests.truncate(arguments.requests.unwrap_or(usize::MAX));
            requests
        }
        (None, Some(path)) => trace::read(path, arguments.requests)?,
        (None, None) => return Err(miette!("name a trace, or --generate CONVERSATIONS")),
    };
    if arguments.by_size.are_given() {
        let name = arguments.trace.as_deref().and_then(Path::file_name).map(OsStr::to_string_lossy);
        let name = name.unwrap_or("generated conversations".into());
        sizes::run(&arguments.by_size, &name, &requests, arguments.gpu_blocks, arguments.json)?;
        return Ok(true);
    }
    let shape = shape(arguments, &requests)?;
    let store = Store::new(socket, arguments.name(), arguments.block_bytes, arguments.engines);
    let report = replay(arguments, &requests, shape, &store)?;
    if arguments.json {
        println!("{}", serde_json::to_string(&report).into_diagnostic()?);
    } else {
        println!("{report}");
    }
    Ok(report.mismatched_blocks == 0)
}

/// Checks the sizes, and gives an engine memory for its longest prompt or for [`ENGINE_BYTES_MAX`].
fn shape(arguments: &Arguments, requests: &[Request]) -> miette::Result<Shape> {
    let (bytes, engines) = (arguments.block_bytes, arguments.engines);
    if !(1..=ENGINES_MAX).contains(&engines) {
        return Err(miette!("--engines {engines}: give 1 to {ENGINES_MAX}"));
    }
    if bytes > LARGEST_BLOCK_BYTES {
        return Err(miette!("--block-bytes {bytes}: no umbpd takes blocks above {LARGEST_BLOCK_BYTES} bytes"));
    }
    let runs = arguments.runs_per_block.unwrap_or((bytes / RUN_BYTES_LEAST).clamp(1, RUNS_DEFAULT_MAX));
    if runs == 0 || bytes == 0 || !bytes.is_multiple_of(runs.saturating_mul(WORD_BYTES)) {
        let help = "give a block size that is a multiple of 8 bytes times the number of runs";
        return Err(miette!(help = help, "{bytes} bytes are not {runs} equal runs of whole 8-byte words"));
    }
    let longest = requests.iter().map(|request| request.ids.len()).max().unwrap_or(1).max(1);
    let slots = longest.min((ENGINE_BYTES_MAX / bytes).max(1) as usize).min(JOB_BLOCKS_MAX);
    Ok(Shape { slots, runs: runs as usize, run_bytes: (bytes / runs) as usize })
}

/// All engines, each on its own thread, take requests from one queue.
fn replay(arguments: &Arguments, requests: &[Request], shape: Shape, store: &Store) -> miette::Result<Report> {
    let bar = progress(requests.len() as u64, arguments.json);
    let (next, start) = (AtomicUsize::new(0), Instant::now());
    let attached = (0..arguments.engines).map(|_| store.attach(shape)).collect::<Result<Vec<_>, _>>()?;
    let tiers = attached.first().map(Attached::tier_names).unwrap_or_default();
    let serve = |tiers: Attached| {
        let mut engine = Engine::new(tiers, PrefixCache::new(arguments.gpu_blocks));
        while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = engine.run(&request.ids) {
                // The other engines stop too: the report would not be of this trace.
                next.store(requests.len(), Ordering::Relaxed);
                return Err(error);
            }
            bar.inc(1);
        }
        Ok(engine.counts)
    };
    let counts = std::thread::scope(|scope| -> miette::Result<Counts> {
        let engines: Vec<_> = attached.into_iter().map(|tiers| scope.spawn(|| serve(tiers))).collect();
        let mut counts = Counts::default();
        for engine in engines {
            counts.add(engine.join().map_err(|_| miette!("an engine's thread panicked (see above)"))??);
        }
        Ok(counts)
    })?;
    let time = start.elapsed();
    bar.finish_and_clear();
    let blocks = orphans::unique_blocks(requests);
    let orphan_share = orphans::orphan_share(&blocks, &store.residents(&blocks)?);
    Ok(Report::new(counts, &tiers, arguments.engines, orphan_share, time))
}

/// A bar on standard error; hidden where that is no terminal, or where a program reads the report.
fn progress(requests: u64, is_hidden: bool) -> ProgressBar {
    let target =
        if is_hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr_with_hz(DRAWS_PER_SECOND) };
    let bar = ProgressBar::with_draw_target(Some(requests), target);
    let template = "{bar:40} {pos}/{len} requests, {per_sec}, {eta} left";
    bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
}
