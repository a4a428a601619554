//! `umbp bench scale`: many small blocks in a running daemon. Memory per block, and how long a lookup takes, with the
//! daemon idle and while another client stores what pushes older blocks out. Nine lookups of ten ask for chains that are
//! there: of those in the first tier, the newest three quarters.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, WrapErr, miette};
use serde_json::{Value, json};
use umbp_client::{Client, Options, Outcome, RegionId, Run, StoreBlock};
use umbp_connector_core::key::{BlockHash, GroupId, LocalKey, Rank};
use umbp_connector_core::namespace::NamespaceDescriptor;
use umbp_protocol::message::Found;

use crate::status::ask::ask;

/// Blocks of a chain; a short lookup asks for one chain.
const CHAIN_BLOCKS: u64 = 64;
/// Chains of a long lookup: some ten thousand keys.
const LONG_CHAINS: u64 = 160;
/// Short lookups for each long one.
const SHORT_PER_LONG: u64 = 50;
/// Chains of a store job while the daemon is filled.
const CHAINS_PER_JOB: u64 = 32;
/// One chain of so many that are asked for was never stored.
const ABSENT_EVERY: u64 = 10;
/// A store or an attach that takes longer has failed.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);
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
    /// Chains of 64 blocks in each store while lookups are measured under eviction.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=32))]
    store_chains: u64,
    /// Lookups of 64 keys, idle and under eviction each; and one of 10,240 keys for every 50 of them.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    lookups: u64,
    /// Prints one JSON object, and nothing else, on standard output.
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Scale, socket: &Path) -> miette::Result<()> {
    // Waits for a daemon that is only just starting.
    let filler = Filler::start(socket, arguments.block_bytes)?;
    let empty = ask(socket)?;
    let chains = arguments.blocks.div_ceil(CHAIN_BLOCKS);
    let began = Instant::now();
    let mut from = 0;
    while from < chains {
        from = filler.store(from, CHAINS_PER_JOB.min(chains - from))?;
    }
    let fill = began.elapsed();
    let full = settled(socket)?;
    let asker = attached(socket)?;
    let stored = AtomicU64::new(chains);
    // All that were filled in, or what the first tier holds of them.
    let resident = full["tiers"][0]["resident_blocks"].as_u64().unwrap_or(0) / CHAIN_BLOCKS;
    let resident = resident.min(chains);
    // What a store under way evicts is not asked for, nor the quarter that leaves next.
    let window = (resident * 3 / 4).min(resident.saturating_sub(2 * CHAINS_PER_JOB)).max(1);
    let asked = Asked { stored: &stored, window, count: arguments.lookups };
    let idle = both(&asker, &asked)?;
    let (busy, evicted) = beside_evictions(&filler, &asker, &asked, arguments.store_chains, socket)?;
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

pub(super) fn key(chain: u64, depth: u64) -> miette::Result<LocalKey> {
    let hash = [chain.to_le_bytes(), depth.to_le_bytes()].concat();
    let hash = BlockHash::new(&hash).into_diagnostic()?;
    Ok(LocalKey { hash, group: GroupId(0), rank: Rank::default() })
}

/// Between two questions to a daemon that has other things to do.
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(5);

/// The status once no copy waits for a lower tier any more.
pub(super) fn settled(socket: &Path) -> miette::Result<Value> {
    let end = Instant::now() + DEADLINE;
    loop {
        let status = ask(socket)?;
        let tiers = status["tiers"].as_array().map_or(&[][..], Vec::as_slice);
        let waits = |tier: &Value| tier["queued_blocks"].as_u64() > Some(0) || tier["in_flight"].as_u64() > Some(0);
        if !tiers.iter().any(waits) {
            return Ok(status);
        }
        if Instant::now() > end {
            return Err(miette!("copies still wait for a lower tier after {DEADLINE:?}"));
        }
        std::thread::sleep(BETWEEN_QUESTIONS);
    }
}

/// Which chains lookups ask for.
struct Asked<'a> {
    /// Chains that were stored so far.
    stored: &'a AtomicU64,
    /// Chains before that, which are there.
    window: u64,
    count: u64,
}

impl Asked<'_> {
    /// In an order without a pattern: the factor shares nothing with a power of two.
    fn chain(&self, number: u64) -> u64 {
        if number.is_multiple_of(ABSENT_EVERY) {
            return u64::MAX - number;
        }
        let back = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.window;
        self.stored.load(Ordering::Relaxed).saturating_sub(1 + back)
    }
}

/// Lookups of whole chains.
struct Lookups {
    /// Shortest first.
    times: Vec<Duration>,
    /// Share of the keys that were there.
    hits: f64,
}

/// Short lookups, and then long ones.
fn both(client: &Client, asked: &Asked<'_>) -> miette::Result<[Lookups; 2]> {
    Ok([lookups(client, asked, 1)?, lookups(client, asked, LONG_CHAINS)?])
}

fn lookups(client: &Client, asked: &Asked<'_>, chains: u64) -> miette::Result<Lookups> {
    let count = if chains == 1 { asked.count } else { (asked.count / SHORT_PER_LONG).max(2) };
    let (mut times, mut hits) = (Vec::with_capacity(count as usize), 0);
    for number in 0..count {
        let chains = (number * chains..(number + 1) * chains).map(|number| asked.chain(number));
        let keys: Vec<LocalKey> = chains
            .flat_map(|chain| (0..CHAIN_BLOCKS).map(move |depth| key(chain, depth)))
            .collect::<miette::Result<_>>()?;
        let began = Instant::now();
        let found = client.lookup(&keys, 0);
        times.push(began.elapsed());
        if found.len() != keys.len() {
            return Err(miette!("a lookup was not answered"));
        }
        hits += found.iter().filter(|found| matches!(found, Found::Hit { .. })).count();
    }
    times.sort_unstable();
    Ok(Lookups { hits: hits as f64 / (CHAIN_BLOCKS * chains * count) as f64, times })
}

/// The same lookups while every store evicts; also how many blocks were evicted meanwhile.
fn beside_evictions(
    filler: &Filler,
    asker: &Client,
    asked: &Asked<'_>,
    store_chains: u64,
    socket: &Path,
) -> miette::Result<([Lookups; 2], u64)> {
    let chains = asked.stored.load(Ordering::Relaxed);
    let store = |chains| -> miette::Result<u64> {
        let next = filler.store(asked.stored.load(Ordering::Relaxed), chains)?;
        asked.stored.store(next, Ordering::Relaxed);
        Ok(next)
    };
    while evictions(socket)? == 0 {
        if store(CHAINS_PER_JOB)? > (1 + PRESSURE_MAX) * chains {
            return Err(miette!("nothing is evicted: give the first tier less capacity, or --blocks more blocks"));
        }
    }
    let before = evictions(socket)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let storing = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                store(store_chains)?;
            }
            Ok::<(), miette::Report>(())
        });
        let times = both(asker, asked);
        stop.store(true, Ordering::Relaxed);
        storing.join().map_err(|_| miette!("the storing thread has panicked"))??;
        Ok((times?, evictions(socket)? - before))
    })
}

fn evictions(socket: &Path) -> miette::Result<u64> {
    Ok(ask(socket)?["tiers"][0]["evicted"].as_u64().unwrap_or(0))
}

fn report(empty: &Value, full: &Value, fill: Duration, idle: &[Lookups], busy: &[Lookups], evicted: u64) -> Value {
    let number =
        |status: &Value, path: &[&str]| path.iter().fold(status, |value, name| &value[*name]).as_u64().unwrap_or(0);
    let grown = |path: &[&str]| number(full, path).saturating_sub(number(empty, path));
    let blocks = grown(&["resident_blocks"]).max(1);
    let kinds = idle.iter().zip(busy).zip([CHAIN_BLOCKS, CHAIN_BLOCKS * LONG_CHAINS]);
    json!({
        "blocks": blocks,
        "tier_blocks": full["tiers"].as_array().into_iter().flatten().map(|tier| tier["resident_blocks"].clone())
            .collect::<Vec<_>>(),
        "fill_seconds": fill.as_secs_f64(),
        "index_bytes_per_block": grown(&["index_bytes"]) as f64 / blocks as f64,
        "process_bytes_per_block": grown(&["process", "anonymous_bytes"]) as f64 / blocks as f64,
        "lookups": kinds.map(|((idle, busy), keys)| compared(keys, idle, busy)).collect::<Vec<_>>(),
        "evicted_blocks": evicted,
    })
}

fn compared(keys: u64, idle: &Lookups, busy: &Lookups) -> Value {
    let micros = |times: &[Duration], share: f64| {
        let at = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
        times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    json!({
        "keys": keys,
        "idle_p50_us": micros(&idle.times, 0.5),
        "idle_p99_us": micros(&idle.times, 0.99),
        "idle_hits": idle.hits,
        "evicting_p50_us": micros(&busy.times, 0.5),
        "evicting_p99_us": micros(&busy.times, 0.99),
        "evicting_hits": busy.hits,
        "evicting_over_idle_p99": micros(&busy.times, 0.99) / micros(&idle.times, 0.99).max(f64::MIN_POSITIVE),
    })
}

fn text(report: &Value) -> String {
    let real = |value: &Value, name: &str| value[name].as_f64().unwrap_or(0.0);
    let mut text = format!(
        "{} blocks, filled in {:.1} s; by tier {}\n\
         memory per block  index {:.0} bytes, the whole daemon without its pool {:.0} bytes\n\
         {} blocks evicted beside the second lookups of each kind\n",
        report["blocks"],
        real(report, "fill_seconds"),
        report["tier_blocks"],
        real(report, "index_bytes_per_block"),
        real(report, "process_bytes_per_block"),
        report["evicted_blocks"],
    );
    for kind in report["lookups"].as_array().into_iter().flatten() {
        text += &format!(
            "lookup of {} keys   p50 us   p99 us   hits\n\
             idle            {:>8.0} {:>8.0}   {:.3}\n\
             evicting        {:>8.0} {:>8.0}   {:.3}   p99 {:.1} x idle\n",
            kind["keys"],
            real(kind, "idle_p50_us"),
            real(kind, "idle_p99_us"),
            real(kind, "idle_hits"),
            real(kind, "evicting_p50_us"),
            real(kind, "evicting_p99_us"),
            real(kind, "evicting_hits"),
            real(kind, "evicting_over_idle_p99"),
        );
    }
    text
}
