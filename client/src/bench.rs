//! How fast the copy path is: stores and loads through a daemon, as a ratio to a plain scattered memcpy of the same
//! runs, by as many threads, alternating in one run.
//!
//! Engine memory is laid out as an engine does it, one region per layer, so that no two runs of a block touch. All
//! memory is filled before anything is measured, and the set is larger than the last cache. The whole way of a job
//! counts, its requests included. The daemon should have no lower tier: its background copies would be measured too.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use umbp_connector_core::key::{BlockHash, GroupId, LocalKey, Rank};
use umbp_connector_core::namespace::NamespaceDescriptor;

use crate::{Checksums, Client, Error, LoadBlock, Options, Outcome, RegionId, Run, StoreBlock};

/// The longest that one pass over the set may take.
const PASS_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of the last cache where the system does not tell.
const CACHE_BYTES_GUESS: u64 = 64 << 20;
/// Least and most bytes of a set that is chosen here.
const SET_BYTES: (u64, u64) = (64 << 20, 512 << 20);

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySettings {
    /// Runs of a block.
    pub runs: usize,
    /// Bytes of a run.
    pub run_bytes: usize,
    /// Bytes of the whole set; none = four times the last cache, within 64 to 512 MiB.
    pub set_bytes: Option<u64>,
    /// Measured rounds; the medians count.
    pub rounds: usize,
    /// Copy threads, and threads of the plain memcpy.
    pub threads: usize,
}

impl CopySettings {
    /// The two shapes to watch: 2 MiB in 64 runs, and 640 KiB in 160 runs of 4 KiB.
    #[must_use]
    pub fn shapes(rounds: usize, threads: usize) -> [Self; 2] {
        [(64, 32 << 10), (160, 4 << 10)].map(|(runs, run_bytes)| Self {
            runs,
            run_bytes,
            set_bytes: None,
            rounds,
            threads,
        })
    }
}

/// Why nothing could be measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BenchError {
    /// The client could not do it.
    #[error(transparent)]
    Client(#[from] Error),
    /// A block did not go as it must.
    #[error(
        "block {index} of a {direction} ended as {outcome:?}: give the daemon more memory than the set, and no other work"
    )]
    Block {
        /// Index in its job.
        index: usize,
        /// "store" or "load".
        direction: &'static str,
        /// How it ended.
        outcome: Outcome,
    },
    /// A job took longer than any should.
    #[error("a {0} took longer than a minute")]
    TimedOut(&'static str),
    /// The loaded bytes are not the stored ones.
    #[error("the loaded bytes are not those that were stored")]
    Mismatch,
}

/// One line of the report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// "store" or "load".
    pub direction: &'static str,
    /// With the checksum computed (and, in a load, compared).
    pub checksum: bool,
    /// Median speed, in GB/s (1e9 bytes).
    pub gbps: f64,
    /// Median speed of the plain memcpy in the same rounds, in GB/s.
    pub memcpy_gbps: f64,
    /// Median over the rounds of the one by the other.
    pub ratio: f64,
    /// The fastest round of the one by the fastest of the other: what is left when other work on the machine, which
    /// only ever slows down, is taken out.
    pub best_ratio: f64,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct CopyReport {
    /// As asked, the set's size filled in.
    pub settings: CopySettings,
    /// Blocks in the set.
    pub blocks: usize,
    /// The last cache, as the system tells.
    pub cache_bytes: u64,
    /// Store and load, checksum off and on.
    pub lines: Vec<Measured>,
}

impl CopyReport {
    /// The report as one JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let line = |line: &Measured| {
            json!({
                "direction": line.direction, "checksum": line.checksum, "gbps": line.gbps,
                "memcpy_gbps": line.memcpy_gbps, "ratio": line.ratio, "best_ratio": line.best_ratio,
            })
        };
        json!({
            "runs": self.settings.runs, "run_bytes": self.settings.run_bytes, "threads": self.settings.threads,
            "rounds": self.settings.rounds, "blocks": self.blocks, "cache_bytes": self.cache_bytes,
            "set_bytes": self.settings.set_bytes, "lines": self.lines.iter().map(line).collect::<Vec<_>>(),
        })
    }
}

/// Bytes of the largest cache, as /sys tells; a guess where it does not.
#[must_use]
pub fn last_cache_bytes() -> u64 {
    let size = |index: u32| {
        let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
        let text = text.trim();
        let (digits, unit) = text.split_at(text.len() - usize::from(text.ends_with(['K', 'M'])));
        let factor = match unit {
            "K" => 1 << 10,
            "M" => 1 << 20,
            _ => 1,
        };
        Some(digits.parse::<u64>().ok()? * factor)
    };
    (0..5).filter_map(size).max().unwrap_or(CACHE_BYTES_GUESS)
}

/// Measures one shape through the daemon that `options` names, in namespaces of its own, which it clears. The
/// options' namespace, threads and checksums are set here.
pub fn copy(options: &Options, settings: &CopySettings) -> Result<CopyReport, BenchError> {
    let cache_bytes = last_cache_bytes();
    let set_bytes = settings.set_bytes.unwrap_or((4 * cache_bytes).clamp(SET_BYTES.0, SET_BYTES.1));
    let block_bytes = settings.runs * settings.run_bytes;
    let argument = |field, remedy| Err(Error::Argument { field, value: "0".to_owned(), remedy }.into());
    if block_bytes == 0 || settings.rounds == 0 {
        return argument("runs, run_bytes or rounds", "choose 1 or more of each");
    }
    let blocks = usize::try_from(set_bytes).unwrap_or(usize::MAX) / block_bytes;
    let blocks = blocks.clamp(1, crate::JOB_BLOCKS_MAX);
    // The memory outlives the clients, which are dropped first: it is declared before them.
    let mut memory = Memory::new(blocks, settings);
    let off = Side::new(options, settings, Checksums::Off, &mut memory)?;
    let on = Side::new(options, settings, Checksums::Always, &mut memory)?;
    let mut rounds = Vec::new();
    // Two rounds first that do not count: the pool's and the client's page tables are filled, and the bytes compared.
    for round in 0..settings.rounds + 2 {
        for side in [&off, &on] {
            let measured = memory.round(side, round, round < 2)?;
            rounds.extend((round >= 2).then_some(measured));
        }
    }
    let bytes = (blocks * block_bytes) as f64;
    let lines = [("store", false), ("load", false), ("store", true), ("load", true)].map(|(direction, checksum)| {
        let passes = rounds.iter().filter(|round| round.checksum == checksum);
        let passes = passes.map(|round| if direction == "store" { round.store } else { round.load });
        let (own, plain): (Vec<f64>, Vec<f64>) = passes.map(|p| (p.own.as_secs_f64(), p.plain.as_secs_f64())).unzip();
        let ratios = own.iter().zip(&plain).map(|(own, plain)| plain / own).collect();
        let fastest = |seconds: &[f64]| seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let best_ratio = fastest(&plain) / fastest(&own);
        let speed = |seconds: Vec<f64>| bytes / median(seconds) / 1e9;
        let (gbps, memcpy_gbps) = (speed(own), speed(plain));
        Measured { direction, checksum, ratio: median(ratios), best_ratio, gbps, memcpy_gbps }
    });
    let settings = CopySettings { set_bytes: Some(bytes as u64), ..*settings };
    Ok(CopyReport { settings, blocks, cache_bytes, lines: lines.to_vec() })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[derive(Clone, Copy)]
struct Pass {
    own: Duration,
    plain: Duration,
}

struct Round {
    checksum: bool,
    store: Pass,
    load: Pass,
}

/// A client, and the engine memory as it knows it.
struct Side {
    client: Client,
    region: RegionId,
    checksum: bool,
}

impl Side {
    fn new(
        options: &Options,
        settings: &CopySettings,
        checksums: Checksums,
        memory: &mut Memory,
    ) -> Result<Self, BenchError> {
        let checksum = checksums == Checksums::Always;
        let namespace = NamespaceDescriptor::default()
            .with("benchmark", "copy")
            .with("checksum", checksum)
            .with("process", std::process::id());
        let mut options = options.clone();
        options.namespace = Some(namespace);
        options.copy_threads = settings.threads;
        options.checksums = checksums;
        let client = Client::connect(options)?;
        // SAFETY: the memory is neither moved nor dropped before the client, and is touched by the benchmark only
        // between jobs.
        let region = unsafe { client.register(memory.engine.bytes().as_mut_ptr(), memory.engine.length as u64)? };
        Ok(Self { client, region, checksum })
    }

    fn run(
        &self,
        direction: &'static str,
        begin: impl FnOnce() -> Result<crate::JobId, Error>,
    ) -> Result<(), BenchError> {
        let result = self.client.wait(begin()?, PASS_TIMEOUT).ok_or(BenchError::TimedOut(direction))?;
        let wrong = |outcome: &Outcome| !matches!(outcome, Outcome::Stored { .. } | Outcome::Loaded { .. });
        match result.outcomes.iter().position(wrong) {
            Some(index) => Err(BenchError::Block { index, direction, outcome: result.outcomes[index] }),
            None => Ok(()),
        }
    }
}

/// Memory that begins on a page, as engines allocate it: how fast a processor copies depends on how the two sides lie
/// to each other.
struct Aligned {
    pages: Vec<Page>,
    length: usize,
}

#[repr(align(4096))]
#[derive(Clone)]
struct Page(#[expect(dead_code, reason = "read and written as bytes")] [u8; 4096]);

impl Aligned {
    fn new(length: usize) -> Self {
        Self { pages: vec![Page([0; 4096]); length.div_ceil(4096)], length }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the pages are at least so many bytes, initialised, without padding, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), self.length) }
    }
}

/// Engine memory, and the plain memory that the memcpy copies to and from.
struct Memory {
    engine: Aligned,
    plain: Aligned,
    blocks: usize,
    runs: usize,
    run_bytes: usize,
    threads: usize,
}

/// Where a plain copy goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Gather,
    Scatter,
}

impl Memory {
    fn new(blocks: usize, settings: &CopySettings) -> Self {
        let CopySettings { runs, run_bytes, threads, .. } = *settings;
        let bytes = blocks * runs * run_bytes;
        let (mut engine, mut plain) = (Aligned::new(bytes), Aligned::new(bytes));
        engine.bytes().iter_mut().enumerate().for_each(|(at, b)| *b = (at.wrapping_mul(0x9e37_79b9) >> 15) as u8);
        plain.bytes().fill(1);
        Self { engine, plain, blocks, runs, run_bytes, threads: threads.max(1) }
    }

    /// Start of a run in engine memory: layer after layer, each with all blocks.
    fn at(&self, block: usize, run: usize) -> usize {
        (run * self.blocks + block) * self.run_bytes
    }

    fn runs_of(&self, region: RegionId, block: usize) -> Vec<Run> {
        let run = |run| Run { region, offset: self.at(block, run) as u64, length: self.run_bytes as u64 };
        (0..self.runs).map(run).collect()
    }

    /// A plain scattered memcpy of all runs, by as many threads as the client's, each with its share of the blocks.
    fn plain_copy(&mut self, way: Way) -> Duration {
        let begin = Instant::now();
        let (engine, plain) =
            (self.engine.bytes().as_mut_ptr().expose_provenance(), self.plain.bytes().as_mut_ptr().expose_provenance());
        let this = &*self;
        std::thread::scope(|scope| {
            for thread in 1..this.threads {
                scope.spawn(move || this.plain_share(way, thread, engine, plain));
            }
            this.plain_share(way, 0, engine, plain);
        });
        begin.elapsed()
    }

    fn plain_share(&self, way: Way, thread: usize, engine: usize, plain: usize) {
        for block in (thread..self.blocks).step_by(self.threads) {
            for run in 0..self.runs {
                let scattered = engine + self.at(block, run);
                let packed = plain + (block * self.runs + run) * self.run_bytes;
                let (from, to) = if way == Way::Gather { (scattered, packed) } else { (packed, scattered) };
                // SAFETY: both lie inside the two vectors, which are borrowed mutably by the caller; every run is
                // copied by one thread alone, and the vectors do not overlap.
                unsafe {
                    std::ptr::copy_nonoverlapping::<u8>(
                        std::ptr::with_exposed_provenance(from),
                        std::ptr::with_exposed_provenance_mut(to),
                        self.run_bytes,
                    );
                }
            }
        }
    }

    fn round(&mut self, side: &Side, round: usize, compare: bool) -> Result<Round, BenchError> {
        let key = |block: usize| -> Result<LocalKey, BenchError> {
            let hash = [round as u64, block as u64].map(u64::to_le_bytes).concat();
            let hash = BlockHash::new(&hash).map_err(|_| BenchError::Mismatch)?;
            Ok(LocalKey { hash, group: GroupId(0), rank: Rank::default() })
        };
        let keys = (0..self.blocks).map(key).collect::<Result<Vec<_>, _>>()?;
        let runs = |block| self.runs_of(side.region, block);
        let stores: Vec<_> = keys
            .iter()
            .enumerate()
            .map(|(block, key)| StoreBlock { key: *key, parent: None, depth: 0, runs: runs(block) })
            .collect();
        let loads: Vec<_> =
            keys.iter().enumerate().map(|(block, key)| LoadBlock { key: *key, runs: runs(block) }).collect();
        let plain_store = self.plain_copy(Way::Gather);
        let begin = Instant::now();
        side.run("store", || side.client.store(&stores))?;
        let store = Pass { own: begin.elapsed(), plain: plain_store };
        let plain_load = self.plain_copy(Way::Scatter);
        if compare {
            self.engine.bytes().fill(0);
        }
        let begin = Instant::now();
        side.run("load", || side.client.load(&loads))?;
        let load = Pass { own: begin.elapsed(), plain: plain_load };
        if compare && !self.is_as_plain() {
            return Err(BenchError::Mismatch);
        }
        side.client.clear()?;
        Ok(Round { checksum: side.checksum, store, load })
    }

    fn is_as_plain(&mut self) -> bool {
        let runs = (0..self.blocks).flat_map(|block| (0..self.runs).map(move |run| (block, run)));
        let starts: Vec<usize> = runs.map(|(block, run)| self.at(block, run)).collect();
        let engine = self.engine.bytes();
        let same = |(at, packed): (&usize, &[u8])| engine[*at..][..self.run_bytes] == *packed;
        starts.iter().zip(self.plain.bytes().chunks(self.run_bytes)).all(same)
    }
}
