//! `umbp bench load`: blocks that lie in a lower tier are loaded, alternately by one client, by several at once, and
//! beside a bare O_DIRECT read of as many bytes of a file. Every load is checked to have come from a lower tier.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, WrapErr, miette};
use serde_json::{Value, json};
use umbp_client::{Client, JobId, LoadBlock, Options, Outcome, RegionId, Run, StoreBlock};
use umbp_connector_core::key::LocalKey;
use umbp_connector_core::namespace::NamespaceDescriptor;

use super::scale::{DEADLINE, key, settled};

/// Jobs that a client has under way.
const JOBS_UNDER_WAY: usize = 2;
/// O_DIRECT wants memory, offset and length in whole units of at most this.
const ALIGN_BYTES: usize = 4096;
/// Threads of the bare read, each with one read under way.
const BARE_THREADS: usize = 8;
/// Times that the set is stored at most, each time what was not there after the last.
const FILL_PASSES_MAX: usize = 4;
/// Most clients.
const CLIENTS_MAX: u64 = 16;

/// The options.
#[derive(Debug, clap::Args)]
pub(crate) struct Load {
    /// Bytes of all blocks: several times the daemon's first tier, and less than the second.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = crate::size::parse)]
    set_bytes: u64,
    /// Bytes of a block.
    #[arg(long, value_name = "SIZE", default_value = "2MiB", value_parser = crate::size::parse)]
    block_bytes: u64,
    /// Blocks of a job; a client has two jobs under way.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1024))]
    job_blocks: u64,
    /// Clients that load the set in equal shares, beside one that loads all of it.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=CLIENTS_MAX))]
    clients: u64,
    /// A file with at least as many bytes on the same disk, to be read beside: the tier's own data file, say.
    #[arg(long, value_name = "FILE")]
    beside: Option<PathBuf>,
    /// Measured rounds, of which the median counts.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Prints one JSON object, and nothing else, on standard output.
    #[arg(long)]
    json: bool,
}

/// What the same bytes took.
struct Round {
    one: Duration,
    several: Duration,
    bare: Option<Duration>,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Load, socket: &Path) -> miette::Result<()> {
    let blocks = arguments.set_bytes / arguments.block_bytes.max(1);
    if blocks < arguments.clients * arguments.job_blocks {
        return Err(miette!("--set-bytes {}: fewer blocks than all clients' first jobs", arguments.set_bytes));
    }
    let mut engines =
        (0..arguments.clients).map(|_| Engine::start(socket, arguments)).collect::<miette::Result<Vec<_>>>()?;
    fill(&mut engines[0], blocks, socket)?;
    let mut rounds = Vec::new();
    let mut elsewhere = 0;
    for _ in 0..arguments.rounds {
        let began = Instant::now();
        elsewhere += engines[0].load_all(0..blocks)?.all()?;
        let one = began.elapsed();
        let began = Instant::now();
        elsewhere += together(&mut engines, blocks)?;
        let several = began.elapsed();
        let bare =
            arguments.beside.as_deref().map(|file| bare_read(file, blocks, arguments.block_bytes)).transpose()?;
        rounds.push(Round { one, several, bare });
    }
    let report = report(arguments, blocks, elsewhere, &rounds);
    if arguments.json {
        println!("{report}");
    } else {
        print!("{}", text(&report));
    }
    Ok(())
}

/// Stores all blocks, and again those whose copy below was given up: a disk that is busy with other things may miss the
/// tier's deadline.
fn fill(engine: &mut Engine, blocks: u64, socket: &Path) -> miette::Result<()> {
    let mut missing: Vec<u64> = (0..blocks).collect();
    for _ in 0..FILL_PASSES_MAX {
        for numbers in missing.chunks(engine.job_blocks as usize) {
            engine.store(numbers)?;
            settled(socket)?;
        }
        missing = engine.load_all(0..blocks)?.missed;
        if missing.is_empty() {
            return Ok(());
        }
    }
    Err(miette!(
        help = "the second tier must hold the set, and the first all jobs under way",
        "{} of {blocks} blocks are not there after they were stored {FILL_PASSES_MAX} times",
        missing.len()
    ))
}

/// Each client loads its share. Answers how many blocks came from the first tier.
fn together(engines: &mut [Engine], blocks: u64) -> miette::Result<u64> {
    let share = blocks.div_ceil(engines.len() as u64);
    std::thread::scope(|scope| {
        let loads = engines
            .iter_mut()
            .zip(0..)
            .map(|(engine, at)| scope.spawn(move || engine.load_all(at * share..blocks.min((at + 1) * share))?.all()));
        let loads: Vec<_> = loads.collect();
        loads.into_iter().map(|load| load.join().map_err(|_| miette!("a loading thread has panicked"))?).sum()
    })
}

/// A client with memory for its jobs.
struct Engine {
    // Before the memory: its threads are gone when that is freed.
    client: Client,
    region: RegionId,
    block_bytes: u64,
    job_blocks: u64,
    _memory: Box<[u8]>,
}

impl Engine {
    fn start(socket: &Path, arguments: &Load) -> miette::Result<Self> {
        let namespace = NamespaceDescriptor::default().with("benchmark", "load").with("bytes", arguments.block_bytes);
        let client = Client::start(Options::new(socket, Some(namespace))).into_diagnostic()?;
        if !client.wait_attached(DEADLINE) {
            return Err(miette!("no umbpd answers on {}", socket.display()));
        }
        let bytes = JOBS_UNDER_WAY as u64 * arguments.job_blocks * arguments.block_bytes;
        let mut memory = vec![0x5a; bytes as usize].into_boxed_slice();
        // SAFETY: the memory is freed after the client, and only the client touches it.
        let region = unsafe { client.register(memory.as_mut_ptr(), memory.len() as u64) }.into_diagnostic()?;
        let (block_bytes, job_blocks) = (arguments.block_bytes, arguments.job_blocks);
        Ok(Self { client, region, block_bytes, job_blocks, _memory: memory })
    }

    fn runs(&self, slot: u64) -> Vec<Run> {
        vec![Run { region: self.region, offset: slot * self.block_bytes, length: self.block_bytes }]
    }

    fn store(&self, blocks: &[u64]) -> miette::Result<()> {
        let block = |(slot, number): (u64, &u64)| -> miette::Result<StoreBlock> {
            Ok(StoreBlock { key: block_key(*number)?, parent: None, depth: 0, runs: self.runs(slot) })
        };
        let blocks = (0..).zip(blocks).map(block).collect::<miette::Result<Vec<_>>>()?;
        let job = self.client.store(&blocks).into_diagnostic().wrap_err("store blocks")?;
        let ended = self.client.wait(job, DEADLINE).ok_or_else(|| miette!("a store has not ended in {DEADLINE:?}"))?;
        match ended.outcomes.iter().find(|outcome| !matches!(outcome, Outcome::Stored { .. } | Outcome::Present)) {
            Some(outcome) => Err(miette!("a block was not stored: {outcome:?}")),
            None => Ok(()),
        }
    }

    /// Loads blocks in order.
    fn load_all(&mut self, blocks: std::ops::Range<u64>) -> miette::Result<Loaded> {
        let (mut under_way, mut loaded) = (VecDeque::new(), Loaded::default());
        for (number, from) in (0..).zip(blocks.clone().step_by(self.job_blocks as usize)) {
            if under_way.len() == JOBS_UNDER_WAY {
                self.end(under_way.pop_front(), &mut loaded)?;
            }
            let first_slot = (number % JOBS_UNDER_WAY as u64) * self.job_blocks;
            let load = |(slot, number): (u64, u64)| -> miette::Result<LoadBlock> {
                Ok(LoadBlock { key: block_key(number)?, runs: self.runs(slot) })
            };
            let numbers = from..blocks.end.min(from + self.job_blocks);
            let loads = (first_slot..).zip(numbers).map(load).collect::<miette::Result<Vec<_>>>()?;
            under_way.push_back((from, self.client.load(&loads).into_diagnostic().wrap_err("load blocks")?));
        }
        while !under_way.is_empty() {
            self.end(under_way.pop_front(), &mut loaded)?;
        }
        Ok(loaded)
    }

    fn end(&self, job: Option<(u64, JobId)>, loaded: &mut Loaded) -> miette::Result<()> {
        let Some((from, job)) = job else { return Ok(()) };
        let ended = self.client.wait(job, DEADLINE).ok_or_else(|| miette!("a load has not ended in {DEADLINE:?}"))?;
        for (number, outcome) in (from..).zip(ended.outcomes) {
            match outcome {
                Outcome::Loaded { tier, .. } => loaded.from_first += u64::from(tier == 0),
                other => {
                    loaded.missed.push(number);
                    loaded.why = Some(other);
                }
            }
        }
        Ok(())
    }
}

/// What came of loads.
#[derive(Default)]
struct Loaded {
    from_first: u64,
    missed: Vec<u64>,
    /// Why the last of those was missed.
    why: Option<Outcome>,
}

impl Loaded {
    /// How many came from the first tier; none may be missed.
    fn all(self) -> miette::Result<u64> {
        match self.why {
            None => Ok(self.from_first),
            Some(why) => Err(miette!(
                help = "the second tier must hold the set, and the first all jobs under way",
                "{} blocks were not loaded, the last since {why:?}",
                self.missed.len()
            )),
        }
    }
}

fn block_key(number: u64) -> miette::Result<LocalKey> {
    key(number, 0)
}

#[repr(align(4096))]
#[derive(Clone)]
struct Aligned(#[expect(dead_code, reason = "read and written as bytes")] [u8; ALIGN_BYTES]);

/// Reads as many bytes as the set has, in pieces of a block, past the page cache.
fn bare_read(path: &Path, blocks: u64, block_bytes: u64) -> miette::Result<Duration> {
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let file = File::options().read(true).custom_flags(direct).open(path).into_diagnostic();
    let file = file.wrap_err_with(|| format!("open {} past the page cache", path.display()))?;
    let length = file.metadata().into_diagnostic()?.len();
    if length < blocks * block_bytes {
        return Err(miette!("{} has {length} bytes, and the set {}", path.display(), blocks * block_bytes));
    }
    let next = std::sync::atomic::AtomicU64::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let read = || -> miette::Result<()> {
            let mut buffer = vec![Aligned([0; ALIGN_BYTES]); (block_bytes as usize).div_ceil(ALIGN_BYTES)];
            loop {
                let block = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if block >= blocks {
                    return Ok(());
                }
                let bytes = bytes_of(&mut buffer);
                file.read_exact_at(&mut bytes[..block_bytes as usize], block * block_bytes).into_diagnostic()?;
            }
        };
        let threads: Vec<_> = (0..BARE_THREADS).map(|_| scope.spawn(read)).collect();
        threads.into_iter().try_for_each(|read| read.join().map_err(|_| miette!("a reading thread has panicked"))?)
    })?;
    Ok(began.elapsed())
}

fn bytes_of(buffer: &mut [Aligned]) -> &mut [u8] {
    let length = std::mem::size_of_val(buffer);
    // SAFETY: arrays of bytes side by side, without padding, initialised and borrowed mutably.
    unsafe { std::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast(), length) }
}

fn report(arguments: &Load, blocks: u64, from_first: u64, rounds: &[Round]) -> Value {
    let bytes = (blocks * arguments.block_bytes) as f64;
    let speeds = |times: Vec<Duration>| median(times.iter().map(|time| bytes / time.as_secs_f64() / 1e9).collect());
    let over = |one: Duration, other: Duration| one.as_secs_f64() / other.as_secs_f64();
    json!({
        "blocks": blocks,
        "block_bytes": arguments.block_bytes,
        "rounds": arguments.rounds,
        "clients": arguments.clients,
        "from_first_tier": from_first,
        "one_gbps": speeds(rounds.iter().map(|round| round.one).collect()),
        "clients_gbps": speeds(rounds.iter().map(|round| round.several).collect()),
        "bare_gbps": speeds(rounds.iter().filter_map(|round| round.bare).collect()),
        "clients_over_one": median(rounds.iter().map(|round| over(round.one, round.several)).collect()),
        "one_over_bare": median(rounds.iter().filter_map(|round| Some(over(round.bare?, round.one))).collect()),
    })
}

/// Nothing where nothing was measured.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn text(report: &Value) -> String {
    let real = |name: &str| report[name].as_f64().map_or("-".to_owned(), |value| format!("{value:.2}"));
    format!(
        "{} blocks of {} bytes, median of {} rounds, {} loads of them all from the first tier\n\
         one client     {:>6} GB/s\n\
         {} clients      {:>6} GB/s   {} x one\n\
         bare O_DIRECT  {:>6} GB/s   one client has {} of it\n",
        report["blocks"],
        report["block_bytes"],
        report["rounds"],
        report["from_first_tier"],
        real("one_gbps"),
        report["clients"],
        real("clients_gbps"),
        real("clients_over_one"),
        real("bare_gbps"),
        real("one_over_bare"),
    )
}
