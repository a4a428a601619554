//! `umbp bench remote`: blocks go to a remote tier's server and come back, alternately through the plugin, as the
//! daemon drives it, and through the server's client library in a bare loop in the same process: same bytes, same
//! connections, same number under way.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, WrapErr, miette};
use serde_json::{Value, json};
use umbp_config::{Config, Source, Tier};
use umbp_plugin_api::backend::{HostServices, Level, OpenConfig};
use umbp_plugin_api::host::{HostedBackend, Plugin};
use umbp_plugin_api::types::{KEY_BYTES, code, extension};
use umbp_plugin_api::{Completion, Operation, Status, Submitted, checksum};

/// Number of the namespace that the blocks are of, and its digest: no deployment's.
const NAMESPACE: u32 = 1;
const DIGEST: [u8; 32] = *b"umbp bench remote: not a digest.";
/// The region of all blocks under way.
const REGION: u64 = 1;
/// Alignment of the region, in bytes.
const ALIGN_BYTES: usize = 4096;
/// An operation, and the end of the backend, may take this long.
const DEADLINE: Duration = Duration::from_secs(60);

/// The options.
#[derive(Debug, clap::Args)]
pub(crate) struct Remote {
    /// The deployment with the remote tier.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The tier [default: the first whose backend other hosts share].
    #[arg(long, value_name = "NAME")]
    tier: Option<String>,
    /// Blocks of a round.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    blocks: u64,
    /// Bytes of a block.
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = crate::size::parse)]
    block_bytes: u64,
    /// Blocks under way.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=128))]
    depth: u64,
    /// Measured rounds, of which the median counts.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Prints one JSON object, and nothing else, on standard output.
    #[arg(long)]
    json: bool,
}

/// What as many bytes took.
#[derive(Clone, Copy)]
struct Round {
    store: Duration,
    bare_store: Duration,
    load: Duration,
    bare_load: Duration,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Remote) -> miette::Result<()> {
    let bench = Bench::open(arguments)?;
    let mut rounds = Vec::new();
    // One round to warm up: memory on both sides is touched for the first time.
    for round in 0..=arguments.rounds {
        let measured = bench.round(arguments, round % 2 == 0);
        // What a failed round left is taken away too.
        bench.all(code::DELETE, arguments)?;
        bench.bare("delete", arguments)?;
        let measured = measured?;
        if round > 0 {
            rounds.push(measured);
        }
    }
    bench.backend.shutdown(DEADLINE);
    let report = report(arguments, &bench.tier, &rounds);
    if arguments.json {
        println!("{report}");
    } else {
        print!("{}", text(&report));
    }
    Ok(())
}

/// Completions come here; what the backend logs goes to standard error.
struct Services(Sender<Completion>);

impl HostServices for Services {
    fn log(&self, level: Level, text: &str) {
        if level <= Level::Warn {
            eprintln!("umbp: {text}");
        }
    }

    fn count(&self, _name: &str, _delta: u64) {}

    fn complete(&self, completions: &[Completion]) {
        for completion in completions {
            // The receiver lives as long as the backend.
            let _ = self.0.send(*completion);
        }
    }
}

struct Bench {
    // Before the memory: it is shut down when that is freed.
    backend: HostedBackend,
    done: Receiver<Completion>,
    tier: String,
    /// What is stored: the same bytes for every block.
    content: Vec<u8>,
    checksums: Vec<u64>,
    locations: std::cell::RefCell<Vec<u64>>,
    _memory: Memory,
}

/// A mapping of whole pages, touched.
struct Memory {
    address: *mut u8,
    layout: std::alloc::Layout,
}

impl Memory {
    fn new(bytes: usize) -> miette::Result<Self> {
        let layout = std::alloc::Layout::from_size_align(bytes, ALIGN_BYTES).into_diagnostic()?;
        // SAFETY: the layout is not empty: both factors are checked to be above 0 by the options.
        let address = unsafe { std::alloc::alloc(layout) };
        if address.is_null() {
            return Err(miette!("no memory for {bytes} bytes of blocks under way"));
        }
        Ok(Self { address, layout })
    }

    fn fill(&mut self, content: &[u8]) {
        for at in (0..self.layout.size()).step_by(content.len()) {
            // SAFETY: inside the allocation, which is a whole number of contents, and nobody else's yet.
            unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), self.address.add(at), content.len()) };
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and the backend that was given it is gone.
        unsafe { std::alloc::dealloc(self.address, self.layout) };
    }
}

impl Bench {
    fn open(arguments: &Remote) -> miette::Result<Self> {
        if arguments.block_bytes == 0 || !arguments.block_bytes.is_multiple_of(ALIGN_BYTES as u64) {
            return Err(miette!("--block-bytes {}: not a multiple of {ALIGN_BYTES}", arguments.block_bytes));
        }
        let config = Config::load(&Source::of_process(Some(arguments.config.clone()), None))?;
        let (tier, plugin) = find(&config, arguments)?;
        let (say, done) = channel();
        let open = OpenConfig {
            tier: tier.name.to_string(),
            capacity: *tier.capacity,
            options: tier.options.text.clone(),
            slots: tier.slots(),
        };
        let opened = plugin.open(&open, Arc::new(Services(say))).into_diagnostic();
        let (backend, opened) = opened.wrap_err_with(|| format!("open the tier {}", *tier.name))?;
        if opened.largest_payload < arguments.block_bytes {
            return Err(miette!(
                "--block-bytes {}: the tier takes at most {}",
                arguments.block_bytes,
                opened.largest_payload
            ));
        }
        let content: Vec<u8> = (0..arguments.block_bytes).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 7) as u8).collect();
        let mut memory = Memory::new((arguments.depth * arguments.block_bytes) as usize)?;
        memory.fill(&content);
        // SAFETY: the memory is freed after the backend, and stays mapped until then.
        let status = unsafe { backend.region_register(REGION, memory.address, memory.layout.size() as u64, "") };
        expect("region_register", status)?;
        expect("namespace_put", backend.namespace_put(NAMESPACE, &DIGEST, b"umbp bench remote"))?;
        let checksums = (0..arguments.blocks).map(|number| checksum::of_block(&DIGEST, &key(number), &content));
        let (checksums, locations) = (checksums.collect(), vec![0; arguments.blocks as usize].into());
        Ok(Self { backend, done, tier: tier.name.to_string(), content, checksums, locations, _memory: memory })
    }

    /// Stores and loads all blocks both ways, one way or the other first.
    fn round(&self, arguments: &Remote, bare_first: bool) -> miette::Result<Round> {
        let both = |code: u32, bare: &str| -> miette::Result<(Duration, Duration)> {
            let early = if bare_first { Some(self.bare(bare, arguments)?) } else { None };
            let plugin = self.all(code, arguments)?;
            Ok((
                plugin,
                match early {
                    Some(time) => time,
                    None => self.bare(bare, arguments)?,
                },
            ))
        };
        let (store, bare_store) = both(code::PUT, "put")?;
        let (load, bare_load) = both(code::GET, "get")?;
        Ok(Round { store, bare_store, load, bare_load })
    }

    /// One operation for each block, so many under way. What has ended by now makes room together, as in the daemon.
    fn all(&self, code: u32, arguments: &Remote) -> miette::Result<Duration> {
        let began = Instant::now();
        let mut idle: Vec<u64> = (0..arguments.depth).collect();
        let mut under_way = vec![0; arguments.depth as usize];
        let (mut next, mut ended) = (0, 0);
        while ended < arguments.blocks {
            let mut operations = Vec::new();
            while next < arguments.blocks
                && let Some(slot) = idle.pop()
            {
                under_way[slot as usize] = next;
                operations.push(self.operation(code, next, slot, began + DEADLINE));
                next += 1;
            }
            self.submit(&operations, began + DEADLINE)?;
            let first = self.done.recv_timeout(DEADLINE).into_diagnostic().wrap_err("wait for the server")?;
            for completion in std::iter::once(first).chain(self.done.try_iter()) {
                let block = under_way[completion.id as usize];
                let gone = code == code::DELETE && completion.status == Status::MISS;
                if completion.status != Status::OK && !gone {
                    return Err(miette!("block {block}: the server's answer is {:?}", completion.status));
                }
                if code == code::PUT {
                    self.locations.borrow_mut()[block as usize] = completion.location;
                }
                idle.push(completion.id);
                ended += 1;
            }
        }
        Ok(began.elapsed())
    }

    fn operation(&self, code: u32, number: u64, slot: u64, deadline: Instant) -> Operation {
        let length = self.content.len() as u64;
        Operation {
            id: slot,
            code,
            namespace_id: NAMESPACE,
            key: key(number),
            checksum: self.checksums[number as usize],
            length,
            region: REGION,
            offset: slot * length,
            location: if code == code::PUT { 0 } else { self.locations.borrow()[number as usize] },
            deadline_ns: monotonic_ns(deadline),
            ..Operation::default()
        }
    }

    fn submit(&self, operations: &[Operation], deadline: Instant) -> miette::Result<()> {
        let mut left = operations;
        while !left.is_empty() {
            let mut results = vec![Submitted::ACCEPTED; left.len()];
            self.backend.submit(left, &mut results);
            if let Some((at, status)) = (0..).zip(&results).find_map(|(at, result)| Some((at, result.rejection()?))) {
                return Err(miette!("the backend refuses operation {at} of {}: {status:?}", left.len()));
            }
            // Who is busy takes none of those behind either: others are under way, or have just ended.
            let taken = results.iter().take_while(|result| **result == Submitted::ACCEPTED).count();
            if taken < left.len() && Instant::now() > deadline {
                return Err(miette!("the backend is busy for {DEADLINE:?}"));
            }
            left = &left[taken..];
            if !left.is_empty() {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// As many bytes by the client library alone.
    fn bare(&self, direction: &str, arguments: &Remote) -> miette::Result<Duration> {
        let order = json!({
            "direction": direction,
            "objects": arguments.blocks,
            "bytes": arguments.block_bytes,
            "depth": arguments.depth,
        });
        let answer = self.backend.extension(extension::BARE_LOOP, order.to_string().as_bytes());
        let answer = answer.map_err(|status| miette!("the backend runs no bare loop: {status:?}"))?;
        let answer: Value =
            serde_json::from_slice(&answer).into_diagnostic().wrap_err("read the bare loop's answer")?;
        match (&answer["nanos"], &answer["error"]) {
            (nanos, Value::Null) if nanos.as_u64() > Some(0) => {
                Ok(Duration::from_nanos(nanos.as_u64().unwrap_or_default()))
            }
            _ => Err(miette!("the bare loop: {answer}")),
        }
    }
}

fn expect(call: &str, status: Status) -> miette::Result<()> {
    if status == Status::OK { Ok(()) } else { Err(miette!("{call}: {status:?}")) }
}

/// Never all zero.
fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[0] = 1;
    key[KEY_BYTES - 8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// An instant as operations carry it.
fn monotonic_ns(at: Instant) -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    now + at.saturating_duration_since(Instant::now()).as_nanos() as u64
}

/// The tier that is named, or the first that other hosts share.
fn find<'a>(config: &'a Config, arguments: &Remote) -> miette::Result<(&'a Tier, Plugin)> {
    let program = std::env::current_exe().ok();
    let folders = umbp_config::plugin_search(&config.daemon.plugin_dirs, program.as_deref());
    let load = |tier: &Tier| -> miette::Result<Plugin> {
        let candidates = tier.backend.candidates(&folders);
        let file = candidates.iter().find(|file| file.exists());
        let file = file.ok_or_else(|| miette!("no plugin for backend \"{}\" ({candidates:?})", *tier.backend))?;
        Plugin::load(file).into_diagnostic()
    };
    if let Some(name) = &arguments.tier {
        let tier = config.tiers.iter().find(|tier| *tier.name == *name);
        let tier = tier.ok_or_else(|| miette!("--tier {name}: {} has no such tier", shown(&arguments.config)))?;
        return Ok((tier, load(tier)?));
    }
    for tier in &config.tiers {
        let plugin = load(tier)?;
        if plugin.info().shared {
            return Ok((tier, plugin));
        }
    }
    Err(miette!(help = "config/deployments/three-tier.toml has one", "{}: no remote tier", shown(&arguments.config)))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn report(arguments: &Remote, tier: &str, rounds: &[Round]) -> Value {
    let bytes = (arguments.blocks * arguments.block_bytes) as f64;
    let of = |time: fn(&Round) -> Duration| {
        super::load::median(rounds.iter().map(|round| bytes / time(round).as_secs_f64() / 1e9).collect())
    };
    let over = |bare: fn(&Round) -> Duration, ours: fn(&Round) -> Duration| {
        let ratio = |round| bare(round).as_secs_f64() / ours(round).as_secs_f64();
        super::load::median(rounds.iter().map(ratio).collect())
    };
    json!({
        "tier": tier,
        "blocks": arguments.blocks,
        "block_bytes": arguments.block_bytes,
        "depth": arguments.depth,
        "rounds": arguments.rounds,
        "store_gbps": of(|round| round.store),
        "bare_store_gbps": of(|round| round.bare_store),
        "store_over_bare": over(|round| round.bare_store, |round| round.store),
        "load_gbps": of(|round| round.load),
        "bare_load_gbps": of(|round| round.bare_load),
        "load_over_bare": over(|round| round.bare_load, |round| round.load),
    })
}

fn text(report: &Value) -> String {
    let real = |name: &str| report[name].as_f64().map_or("-".to_owned(), |value| format!("{value:.2}"));
    format!(
        "tier {}: {} blocks of {} bytes, {} under way, median of {} rounds\n\
         stores  {:>6} GB/s   bare loop {:>6} GB/s   {} of it\n\
         loads   {:>6} GB/s   bare loop {:>6} GB/s   {} of it\n",
        report["tier"].as_str().unwrap_or_default(),
        report["blocks"],
        report["block_bytes"],
        report["depth"],
        report["rounds"],
        real("store_gbps"),
        real("bare_store_gbps"),
        real("store_over_bare"),
        real("load_gbps"),
        real("bare_load_gbps"),
        real("load_over_bare"),
    )
}
