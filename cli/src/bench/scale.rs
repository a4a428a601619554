//! `umbp bench scale`: many small blocks in a running daemon. Memory per block, and how long a lookup takes, with the
//! daemon idle and while another client stores what pushes older blocks out.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, WrapErr, miette};
use serde_json::{Value, json};
use umbp_client::{Client, Options, Outcome, RegionId, Run, StoreBlock};
use umbp_connector_core::key::{BlockHash, GroupId, LocalKey, Rank};
use umbp_connector_core::namespace::NamespaceDescriptor;

use crate::status::ask::ask;

/// Blocks of a chain; a lookup asks for one chain.
const CHAIN_BLOCKS: u64 = 64;
/// Chains of a store job.
const CHAINS_PER_JOB: u64 = 32;
/// A store or an attach that takes longer has failed.
const DEADLINE: Duration = Duration::from_secs(60);
/// Chains stored at most until the first block is evicted, as a multiple of those that were filled in.
const PRESSURE_MAX: u64 = 4;

/// The options.
#[derive(Debug, clap::Args)]
pub(crate) struct Scale {
    /// Blocks to fill in.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(64..=100_000_000))]
    blocks: u64,
    /// Bytes of a block.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = crate::size::parse)]
    block_bytes: u64,
    /// Lookups of 64 keys, idle and under eviction each.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    lookups: u64,
    /// Prints one JSON object, and nothing else, on standard output.
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Scale, socket: &Path) -> miette::Result<()> {
    let empty = ask(socket)?;
    let filler = Filler::start(socket, arguments.block_bytes)?;
    let chains = arguments.blocks.div_ceil(CHAIN_BLOCKS);
    let began = Instant::now();
    let mut from = 0;
    while from < chains {
        from = filler.store(from, CHAINS_PER_JOB.min(chains - from))?;
    }
    let fill = began.elapsed();
    let full = ask(socket)?;
    let asker = attached(socket)?;
    let idle = lookups(&asker, arguments.lookups, chains)?;
    let (busy, evicted) = beside_evictions(&filler, &asker, arguments.lookups, chains, socket)?;
    let report = report(&empty, &full, fill, &idle, &busy, evicted);
    if arguments.json {
        println!("{report}");
    } else {
        print!("{}", text(&report));
    }
    Ok(())
}

/// A client that stores chains of blocks whose bytes say nothing.
struct Filler {
    // Before the memory: its threads are gone when that is freed.
    client: Client,
    region: RegionId,
    block_bytes: u64,
    _memory: Box<[u8]>,
}

impl Filler {
    fn start(socket: &Path, block_bytes: u64) -> miette::Result<Self> {
        let client = attached(socket)?;
        let mut memory = vec![0x5a; (CHAIN_BLOCKS * block_bytes) as usize].into_boxed_slice();
        // SAFETY: the memory is freed after the client, and nobody writes to it.
        let region = unsafe { client.register(memory.as_mut_ptr(), memory.len() as u64) }.into_diagnostic()?;
        Ok(Self { client, region, block_bytes, _memory: memory })
    }

    /// Stores chains and waits; answers the number of the next one.
    fn store(&self, from: u64, chains: u64) -> miette::Result<u64> {
        let blocks: miette::Result<Vec<StoreBlock>> = (from..from + chains)
            .flat_map(|chain| (0..CHAIN_BLOCKS).map(move |depth| self.block(chain, depth)))
            .collect();
        let job = self.client.store(&blocks?).into_diagnostic().wrap_err("store blocks")?;
        let ended = self.client.wait(job, DEADLINE).ok_or_else(|| miette!("a store has not ended in {DEADLINE:?}"))?;
        match ended.outcomes.iter().find(|outcome| !matches!(outcome, Outcome::Stored { .. } | Outcome::Present)) {
            Some(outcome) => Err(miette!("a block was not stored: {outcome:?}")),
            None => Ok(from + chains),
        }
    }

    fn block(&self, chain: u64, depth: u64) -> miette::Result<StoreBlock> {
        Ok(StoreBlock {
            key: key(chain, depth)?,
            parent: depth.checked_sub(1).map(|above| key(chain, above)).transpose()?,
            depth: depth as u32,
            runs: vec![Run { region: self.region, offset: depth * self.block_bytes, length: self.block_bytes }],
        })
    }
}

fn attached(socket: &Path) -> miette::Result<Client> {
    let namespace = NamespaceDescriptor::default().with("model", "umbp bench scale");
    let client = Client::start(Options::new(socket, Some(namespace))).into_diagnostic()?;
    match client.wait_attached(DEADLINE) {
        true => Ok(client),
        false => Err(miette!("no umbpd answers on {}", socket.display())),
    }
}

fn key(chain: u64, depth: u64) -> miette::Result<LocalKey> {
    let hash = [chain.to_le_bytes(), depth.to_le_bytes()].concat();
    let hash = BlockHash::new(&hash).into_diagnostic()?;
    Ok(LocalKey { hash, group: GroupId(0), rank: Rank::default() })
}

/// Times of lookups of whole chains, shortest first.
fn lookups(client: &Client, count: u64, chains: u64) -> miette::Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(count as usize);
    for number in 0..count {
        // All chains in an order without a pattern: the factor shares nothing with a power of two.
        let chain = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % chains;
        let keys: Vec<LocalKey> = (0..CHAIN_BLOCKS).map(|depth| key(chain, depth)).collect::<miette::Result<_>>()?;
        let began = Instant::now();
        let found = client.lookup(&keys, 0);
        times.push(began.elapsed());
        if found.len() != keys.len() {
            return Err(miette!("a lookup was not answered"));
        }
    }
    times.sort_unstable();
    Ok(times)
}

/// The same lookups while every store evicts; also how many blocks were evicted meanwhile.
fn beside_evictions(
    filler: &Filler,
    asker: &Client,
    count: u64,
    chains: u64,
    socket: &Path,
) -> miette::Result<(Vec<Duration>, u64)> {
    let mut next = chains;
    while evictions(socket)? == 0 {
        if next > (1 + PRESSURE_MAX) * chains {
            return Err(miette!("nothing is evicted: give the first tier less capacity, or --blocks more blocks"));
        }
        next = filler.store(next, CHAINS_PER_JOB)?;
    }
    let before = evictions(socket)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let storing = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                next = filler.store(next, CHAINS_PER_JOB)?;
            }
            Ok::<(), miette::Report>(())
        });
        let times = lookups(asker, count, chains);
        stop.store(true, Ordering::Relaxed);
        storing.join().map_err(|_| miette!("the storing thread has panicked"))??;
        Ok((times?, evictions(socket)? - before))
    })
}

fn evictions(socket: &Path) -> miette::Result<u64> {
    Ok(ask(socket)?["tiers"][0]["evicted"].as_u64().unwrap_or(0))
}

fn report(empty: &Value, full: &Value, fill: Duration, idle: &[Duration], busy: &[Duration], evicted: u64) -> Value {
    let number =
        |status: &Value, path: &[&str]| path.iter().fold(status, |value, name| &value[*name]).as_u64().unwrap_or(0);
    let grown = |path: &[&str]| number(full, path).saturating_sub(number(empty, path));
    let blocks = grown(&["resident_blocks"]).max(1);
    let micros = |times: &[Duration], share: f64| {
        let at = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
        times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    json!({
        "blocks": blocks,
        "fill_seconds": fill.as_secs_f64(),
        "index_bytes_per_block": grown(&["index_bytes"]) as f64 / blocks as f64,
        "process_bytes_per_block": grown(&["process", "anonymous_bytes"]) as f64 / blocks as f64,
        "lookup_keys": CHAIN_BLOCKS,
        "idle_p50_us": micros(idle, 0.5),
        "idle_p99_us": micros(idle, 0.99),
        "evicting_p50_us": micros(busy, 0.5),
        "evicting_p99_us": micros(busy, 0.99),
        "evicting_over_idle_p99": micros(busy, 0.99) / micros(idle, 0.99).max(f64::MIN_POSITIVE),
        "evicted_blocks": evicted,
    })
}

fn text(report: &Value) -> String {
    let real = |name: &str| report[name].as_f64().unwrap_or(0.0);
    format!(
        "{} blocks, filled in {:.1} s\n\
         memory per block  index {:.0} bytes, the whole daemon without its pool {:.0} bytes\n\
         lookup of {} keys   p50 us   p99 us\n\
         idle            {:>8.0} {:>8.0}\n\
         evicting        {:>8.0} {:>8.0}   p99 {:.1} x idle, {} blocks evicted meanwhile\n",
        report["blocks"],
        real("fill_seconds"),
        real("index_bytes_per_block"),
        real("process_bytes_per_block"),
        report["lookup_keys"],
        real("idle_p50_us"),
        real("idle_p99_us"),
        real("evicting_p50_us"),
        real("evicting_p99_us"),
        real("evicting_over_idle_p99"),
        report["evicted_blocks"],
    )
}
