//! The seam to the host.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::time::Instant;
use umbp_plugin_api::backend::Stats;
use umbp_plugin_api::types::{Operation, code, extension};
use umbp_plugin_api::{
    Backend, Completion, Host, Info, OpenConfig, OpenError, Opened, OptionsError, Role, Status, Submitted,
};

use crate::bare;
use crate::calls::Calls;
use crate::engine::Engine;
use crate::flight::{Flight, Flights, NotNow};
use crate::header::BLOCK_MAX_BYTES;
use crate::options::{self, Options};
use crate::store::{Block, Buffer, Store};
use crate::words::Words;

/// Threads of the runtime: one waits for the network while another copies and checks.
const THREADS_MAX: usize = 4;
/// Threads that look up names of servers.
const RESOLVING_MAX: usize = 4;
/// Namespaces at one time; more are answered with `NO_SPACE`.
const NAMESPACES_MAX: usize = 65_536;
/// Keys that are asked for together.
const BATCH_MAX: usize = 256;
/// How long a drop without shutdown waits for what is in flight.
const DROP_DEADLINE: Duration = Duration::from_secs(2);

/// A stretch of the host's memory.
#[derive(Clone, Copy)]
struct Region {
    address: usize,
    length: u64,
}

/// The remote tier. One value per tier of the config.
pub struct Remote {
    store: Arc<Store<Engine>>,
    options: Options,
    flights: Arc<Flights>,
    regions: RwLock<HashMap<u64, Region>>,
    namespaces: RwLock<HashMap<u32, [u8; 32]>>,
    runtime: Mutex<Option<Runtime>>,
    handle: tokio::runtime::Handle,
}

impl Remote {
    fn block(&self, operation: &Operation) -> Result<Block, Status> {
        let namespaces = self.namespaces.read().unwrap_or_else(PoisonError::into_inner);
        let namespace = *namespaces.get(&operation.namespace_id).ok_or(Status::INVALID)?;
        Ok(Block { namespace, operation: Operation { runs: 0, runs_count: 0, ..*operation } })
    }

    fn buffer(&self, operation: &Operation) -> Result<Buffer, Status> {
        if operation.length == 0 || operation.length > BLOCK_MAX_BYTES {
            return Err(Status::INVALID);
        }
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let region = regions.get(&operation.region).ok_or(Status::INVALID)?;
        let end = operation.offset.checked_add(operation.length).ok_or(Status::INVALID)?;
        if end > region.length {
            return Err(Status::INVALID);
        }
        let address = (region.address + operation.offset as usize) as *mut u8;
        // SAFETY: inside a region that the host keeps mapped while operations name it, and lends to this one until
        // its completion; the flight that completes it goes after all that use the buffer.
        Ok(unsafe { Buffer::new(address, operation.length as usize) })
    }

    /// Begins a put, get or delete.
    fn begin(&self, operation: &Operation) -> Submitted {
        let begun = || -> Result<Submitted, Status> {
            let block = self.block(operation)?;
            let buffer = match operation.code {
                code::PUT | code::GET => Some(self.buffer(operation)?),
                _ => None,
            };
            let bytes = if buffer.is_some() { operation.length } else { 0 };
            let flight = match self.flights.begin(operation.id, bytes) {
                Ok(flight) => flight,
                Err(NotNow::Busy) => return Ok(Submitted::BUSY),
                Err(NotNow::Closed) => return Err(Status::INVALID),
            };
            let until = until(operation.deadline_ns);
            let task = self.handle.spawn(run(self.store.clone(), block, buffer, until, flight));
            self.flights.done_by(operation.id, task.abort_handle());
            Ok(Submitted::ACCEPTED)
        };
        begun().unwrap_or_else(Submitted::rejected)
    }

    /// Begins questions: those of one endpoint together, so that one that hangs holds up no other's.
    fn ask(&self, asked: &mut Vec<(Flight, Block)>) {
        let mut by_endpoint: HashMap<usize, Vec<(Flight, Block)>> = HashMap::new();
        for (flight, block) in asked.drain(..) {
            by_endpoint.entry(self.store.endpoint(&block)).or_default().push((flight, block));
        }
        by_endpoint.into_values().for_each(|asked| self.ask_one(asked));
    }

    fn ask_one(&self, asked: Vec<(Flight, Block)>) {
        let store = self.store.clone();
        let deadline = asked.iter().map(|(_, block)| block.operation.deadline_ns).filter(|ns| *ns != 0).min();
        let until = until(deadline.unwrap_or(0));
        self.handle.spawn(async move {
            let blocks: Vec<Block> = asked.iter().map(|(_, block)| *block).collect();
            let answers = store.exist(&blocks, until).await;
            asked.into_iter().zip(answers).for_each(|((flight, _), answer)| flight.end(answer));
        });
    }

    fn end(&self, deadline: Duration) {
        let end = Instant::now() + deadline;
        if self.runtime.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return;
        }
        self.flights.close();
        // Half of the time for what is on its way, the rest for ending it.
        if !self.flights.wait_landed(deadline / 2) {
            self.flights.cancel_all();
        }
        let runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(runtime) = runtime {
            // Every task is dropped, and with it each flight that is left ends as cancelled.
            runtime.shutdown_timeout(end.saturating_duration_since(Instant::now()));
        }
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX)
}

/// Does one operation. The flight is the last to go.
async fn run(store: Arc<Store<Engine>>, block: Block, buffer: Option<Buffer>, until: Instant, flight: Flight) {
    let done = async {
        match (block.operation.code, buffer) {
            (code::PUT, Some(buffer)) => store.put(&block, buffer, until).await,
            (code::GET, Some(buffer)) => store.get(&block, buffer, until).await,
            _ => store.delete(&block, until).await,
        }
    };
    let late = Completion { status: Status::TIMED_OUT, ..Completion::default() };
    // What comes too late is not begun: the server would do it for nobody.
    let in_time = Instant::now() < until;
    let done = if in_time { tokio::time::timeout_at(until, done).await.unwrap_or(late) } else { late };
    flight.end(done);
}

/// A deadline of the host's, as the runtime counts, and a little before it: the host hears of it in time.
fn until(deadline_ns: u64) -> Instant {
    /// Where the host names none.
    const NONE: Duration = Duration::from_secs(60);
    const EARLIER: Duration = Duration::from_millis(20);
    let left = match deadline_ns {
        0 => NONE,
        _ => {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let now = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
            let left = Duration::from_nanos(deadline_ns.saturating_sub(now)).min(NONE * 60);
            left - (left / 20).min(EARLIER)
        }
    };
    Instant::now() + left
}

impl Backend for Remote {
    const INFO: Info = Info {
        name: "remote",
        version: env!("CARGO_PKG_VERSION"),
        role: Role::Storage,
        mappable: false,
        persistent: false,
        shared: true,
    };

    fn check_options(text: &str) -> Result<String, OptionsError> {
        Ok(Options::parse(text)?.resolved())
    }

    fn open(config: &OpenConfig, host: Host) -> Result<(Self, Opened), OpenError> {
        let options = Options::parse(&config.options)?;
        let counting = host.clone();
        let engine = Engine::open(&options, Arc::new(move |name, delta| counting.count(name, delta)))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads())
            .thread_name("remote-tier")
            .max_blocking_threads(RESOLVING_MAX)
            .enable_all()
            .build()
            .map_err(|error| OpenError::Environment(format!("start threads: {error}")))?;
        let words = Arc::new(Words::new(host.clone()));
        let calls = Calls::new(engine, &options, words);
        let calls = Arc::new(calls);
        let store = Arc::new(Store { calls, names: Engine::names(&options), part_bytes: options.part_bytes });
        let handle = runtime.handle().clone();
        // Its first word goes to the log: whether the server can be reached, and lets us in.
        let first = store.clone();
        handle.spawn(async move { first.calls.greet().await });
        let report = report(&options);
        let tier = Self {
            store,
            flights: Flights::new(host, options.in_flight_bytes),
            options,
            regions: RwLock::default(),
            namespaces: RwLock::default(),
            runtime: Mutex::new(Some(runtime)),
            handle,
        };
        Ok((tier, Opened { alignment: 1, largest_payload: BLOCK_MAX_BYTES, file_extent: false, report }))
    }

    unsafe fn region_register(&self, id: u64, address: *mut u8, length: u64, device: &str) -> Status {
        if !device.is_empty() {
            return Status::UNSUPPORTED;
        }
        let region = Region { address: address as usize, length };
        self.regions.write().unwrap_or_else(PoisonError::into_inner).insert(id, region);
        Status::OK
    }

    fn region_unregister(&self, id: u64) {
        self.regions.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    fn namespace_put(&self, id: u32, digest: &[u8; 32], _descriptor: &[u8]) -> Status {
        let mut namespaces = self.namespaces.write().unwrap_or_else(PoisonError::into_inner);
        if namespaces.len() >= NAMESPACES_MAX && !namespaces.contains_key(&id) {
            return Status::NO_SPACE;
        }
        namespaces.insert(id, *digest);
        Status::OK
    }

    fn namespace_drop(&self, id: u32) {
        // What it has stored is other hosts' too: it stays, until its lifetime is over or the server evicts it.
        self.namespaces.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    fn submit(&self, operations: &[Operation], results: &mut [Submitted]) {
        let (mut asked, mut busy) = (Vec::new(), false);
        for (operation, result) in operations.iter().zip(results) {
            *result = match operation.code {
                // Nobody overtakes a large block that waits for its turn, or it would wait for ever.
                code::PUT | code::GET if busy => Submitted::BUSY,
                code::PUT | code::GET | code::DELETE => self.begin(operation),
                code::EXISTS => match self.block(operation) {
                    Err(status) => Submitted::rejected(status),
                    Ok(block) => match self.flights.begin(operation.id, 0) {
                        Ok(flight) => {
                            asked.push((flight, block));
                            Submitted::ACCEPTED
                        }
                        Err(_) => Submitted::rejected(Status::INVALID),
                    },
                },
                _ => Submitted::rejected(Status::UNSUPPORTED),
            };
            busy |= *result == Submitted::BUSY;
            if asked.len() == BATCH_MAX {
                self.ask(&mut asked);
            }
        }
        self.ask(&mut asked);
    }

    fn cancel(&self, ids: &[u64]) {
        self.flights.cancel(ids);
    }

    fn stats(&self) -> Stats {
        // What lies there is other hosts' too, and counting it would be listing it.
        Stats::default()
    }

    fn extension(&self, id: u64, input: &[u8]) -> Option<Vec<u8>> {
        let run = || bare::run(&self.handle, threads(), self.store.calls.objects(), &self.options, input);
        (id == extension::BARE_LOOP).then(run)
    }

    fn shutdown(&self, deadline: Duration) {
        self.end(deadline);
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.end(DROP_DEADLINE);
    }
}

/// One line: which engine, where, and what a person should know of it.
fn report(options: &Options) -> String {
    let prefix = &options.prefix;
    let ttl = options.ttl.map_or("no lifetime".to_owned(), |ttl| format!("lifetime {} s", ttl.as_secs()));
    match &options.engine {
        options::Engine::Redis(redis) => {
            let tls = if redis.tls.is_some() { "TLS" } else { "no TLS" };
            let mode = format!("{:?}", redis.mode).to_lowercase();
            let addresses: Vec<String> = redis.addresses.iter().map(ToString::to_string).collect();
            format!("redis, {mode}, {}, {tls}, prefix {prefix}, {ttl}", addresses.join(" "))
        }
        options::Engine::S3(s3) => {
            let endpoint = s3.endpoint.as_deref().unwrap_or("AWS");
            format!("s3, {endpoint}, bucket {}, prefix {prefix}, no lifetime (see the bucket's rules)", s3.bucket)
        }
    }
}
