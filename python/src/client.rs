//! The client of the block store, as Python holds it.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use umbp_client::runtime::{Block, Published, Transfer};
use umbp_client::{ClientEvent, JOBS_MAX, JobId, Options, Run};
use umbp_connector_core::key::LocalKey;
use umbp_connector_core::namespace::NamespaceDescriptor;
use umbp_protocol::message::Found;

use crate::keys::Names;
use crate::layout::Layout;
use crate::memory::Memory;
use crate::without_interpreter;

/// Where umbpd listens, and its clients look, if they are told nothing.
#[pyfunction]
pub(crate) fn default_socket() -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    umbp_config::default_socket(&|name| std::env::var(name).ok(), uid)
}

/// How a job ended: per key a word and the bytes that were moved, in the order of the keys.
#[pyclass(frozen, get_all, module = "umbp._umbp")]
pub(crate) struct JobResult {
    results: Vec<&'static str>,
    bytes: Vec<u64>,
    error: Option<String>,
}

/// A job, and those of the client's jobs that it is made of.
struct Job {
    ids: Vec<JobId>,
    transfer: Mutex<Transfer>,
}

/// One session with umbpd at a time, attached anew by itself. Any thread may call it.
///
/// A failure is a miss, or the result of exactly the keys that it concerns; exceptions are for wrong arguments and
/// for a client that is closed.
#[pyclass(frozen, module = "umbp._umbp")]
pub(crate) struct Client {
    inner: umbp_client::Client,
    closed: AtomicBool,
    job_timeout: Duration,
    names: Names,
    memory: Mutex<Memory>,
    jobs: Mutex<HashMap<u64, Arc<Job>>>,
    published: Mutex<Published>,
    last_job: AtomicU64,
    /// The process that made it; in a forked child no thread of it exists.
    process: u32,
}

#[pymethods]
impl Client {
    /// Starts without waiting for a daemon. `namespace` is what must match for bytes to mean the same; `key_namespace`
    /// is the name that stands for it in text keys.
    #[new]
    #[pyo3(signature = (socket, namespace, key_namespace, *, name=None, tenant=None, copy_threads=None,
                        timeout_ms=None, job_timeout_ms=None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        py: Python<'_>,
        socket: PathBuf,
        namespace: BTreeMap<String, String>,
        key_namespace: String,
        name: Option<String>,
        tenant: Option<String>,
        copy_threads: Option<usize>,
        timeout_ms: Option<u64>,
        job_timeout_ms: Option<u64>,
    ) -> PyResult<Self> {
        let mut options = Options::new(socket, Some(NamespaceDescriptor(namespace)));
        options.tenant = tenant;
        options.name = name.unwrap_or(options.name);
        options.copy_threads = copy_threads.unwrap_or(options.copy_threads);
        options.call_timeout = timeout_ms.map_or(options.call_timeout, Duration::from_millis);
        options.job_timeout = options.job_timeout.max(options.call_timeout);
        options.job_timeout = job_timeout_ms.map_or(options.job_timeout, Duration::from_millis);
        let job_timeout = options.job_timeout;
        let client = py.detach(|| umbp_client::Client::start(options));
        let client = client.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self {
            inner: client,
            closed: AtomicBool::new(false),
            job_timeout,
            names: Names::new(key_namespace),
            memory: Mutex::default(),
            jobs: Mutex::default(),
            published: Mutex::default(),
            last_job: AtomicU64::new(0),
            process: std::process::id(),
        })
    }

    /// The longest that a job may take.
    #[getter]
    fn job_timeout_ms(&self) -> u64 {
        u64::try_from(self.job_timeout.as_millis()).unwrap_or(u64::MAX)
    }

    /// There is a session now.
    #[getter]
    fn attached(&self) -> bool {
        self.open().is_ok_and(|client| client.wait_attached(Duration::ZERO))
    }

    /// Waits for a session; false when the time passed first.
    fn wait_attached(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<bool> {
        let client = self.open()?;
        Ok(py.detach(|| client.wait_attached(Duration::from_millis(timeout_ms))))
    }

    /// Registers engine memory; it stays mapped until `unregister` answers true or the client is closed.
    fn register(&self, address: u64, length: u64) -> PyResult<()> {
        let client = self.open()?;
        let mut memory = lock(&self.memory);
        if let Some((start, known)) = memory.overlapping(address, length) {
            let text = format!("{length} bytes at {address:#x} overlap {known} registered bytes at {start:#x}");
            return Err(PyValueError::new_err(text));
        }
        // SAFETY: the caller of this method promises what `register` asks for; see its documentation in the stubs.
        let region = unsafe { client.register(address as *mut u8, length) };
        let region = region.map_err(|error| PyValueError::new_err(error.to_string()))?;
        memory.insert(address, length, region);
        Ok(())
    }

    /// Gives registered memory up; false = a job still uses it, and it must stay.
    fn unregister(&self, py: Python<'_>, address: u64, timeout_ms: u64) -> PyResult<bool> {
        let client = self.open()?;
        let Some(region) = lock(&self.memory).get(address) else { return Ok(true) };
        let gone = py.detach(|| client.unregister(region, Duration::from_millis(timeout_ms)));
        if gone {
            lock(&self.memory).remove(address);
        }
        Ok(gone)
    }

    /// Which keys are there? Without a daemon: none. Hits are held for `hold_ms`.
    #[pyo3(signature = (keys, hold_ms=0))]
    fn lookup(&self, py: Python<'_>, keys: Vec<String>, hold_ms: u32) -> PyResult<Vec<bool>> {
        let client = self.open()?;
        Ok(py.detach(|| {
            let parsed: Vec<Option<LocalKey>> = keys.iter().map(|key| self.names.parse(key)).collect();
            let known: Vec<LocalKey> = parsed.iter().flatten().copied().collect();
            let mut found = client.lookup(&known, hold_ms).into_iter();
            let hit = |key: &Option<LocalKey>| key.is_some() && matches!(found.next(), Some(Found::Hit { .. }));
            parsed.iter().map(hit).collect()
        }))
    }

    /// Begins to load; `ranges` are (address, length) pairs per key, in the order of its bytes.
    fn load(&self, py: Python<'_>, keys: Vec<String>, ranges: Vec<Vec<(u64, u64)>>) -> PyResult<u64> {
        same_length(keys.len(), &[("ranges", ranges.len())])?;
        self.begin_load(py, &keys, |index| ranges[index].clone())
    }

    /// Begins to load whole blocks of a layout.
    fn load_blocks(
        &self,
        py: Python<'_>,
        layout: &Layout,
        keys: Vec<String>,
        block_ids: Vec<i64>,
        groups: Vec<u16>,
    ) -> PyResult<u64> {
        same_length(keys.len(), &[("block_ids", block_ids.len()), ("groups", groups.len())])?;
        self.begin_load(py, &keys, |index| layout.ranges(block_ids[index], groups[index]))
    }

    /// Begins to store; per key its parent's key (none for a root) and its depth in the chain.
    fn store(
        &self,
        py: Python<'_>,
        keys: Vec<String>,
        ranges: Vec<Vec<(u64, u64)>>,
        parents: Vec<Option<String>>,
        depths: Vec<u32>,
    ) -> PyResult<u64> {
        same_length(keys.len(), &[("ranges", ranges.len()), ("parents", parents.len()), ("depths", depths.len())])?;
        self.begin_store(py, &keys, &parents, &depths, |index| ranges[index].clone())
    }

    /// Begins to store whole blocks of a layout.
    #[allow(clippy::too_many_arguments, reason = "columns")]
    fn store_blocks(
        &self,
        py: Python<'_>,
        layout: &Layout,
        keys: Vec<String>,
        block_ids: Vec<i64>,
        groups: Vec<u16>,
        parents: Vec<Option<String>>,
        depths: Vec<u32>,
    ) -> PyResult<u64> {
        let columns = [
            ("block_ids", block_ids.len()),
            ("groups", groups.len()),
            ("parents", parents.len()),
            ("depths", depths.len()),
        ];
        same_length(keys.len(), &columns)?;
        self.begin_store(py, &keys, &parents, &depths, |index| layout.ranges(block_ids[index], groups[index]))
    }

    /// The result of a job that has ended, once; `None` while it is open.
    fn poll(&self, py: Python<'_>, job: u64) -> PyResult<Option<JobResult>> {
        self.wait(py, job, 0)
    }

    /// The result of a job, once, as soon as it ends; `None` when the time passed first.
    fn wait(&self, py: Python<'_>, job: u64, timeout_ms: u64) -> PyResult<Option<JobResult>> {
        let client = self.open()?;
        let found = lock(&self.jobs).get(&job).cloned();
        let found = found.ok_or_else(|| PyValueError::new_err(format!("job {job} is unknown, or its result taken")))?;
        let forked = self.process != std::process::id();
        let end = Instant::now() + Duration::from_millis(timeout_ms);
        let ended = py.detach(|| {
            let mut transfer = lock(&found.transfer);
            let ended = transfer.wait(client, end) || forked;
            // Whoever removes it takes the result.
            (ended && lock(&self.jobs).remove(&job).is_some()).then(|| transfer.state())
        });
        let Some(ended) = ended else { return Ok(None) };
        let (results, bytes) = ended.blocks.into_iter().map(|block| (block.result.name(), block.bytes)).unzip();
        Ok(Some(JobResult { results, bytes, error: ended.error }))
    }

    /// Ends a job early; its result follows as soon as no thread touches its memory.
    fn cancel(&self, py: Python<'_>, job: u64) -> PyResult<()> {
        let client = self.open()?;
        if let Some(found) = lock(&self.jobs).get(&job).cloned() {
            py.detach(|| found.ids.iter().for_each(|id| client.cancel(*id)));
        }
        Ok(())
    }

    /// Gives up the holds on keys, or all of them where none is named; answers how many there were.
    #[pyo3(signature = (keys=Vec::new()))]
    fn unhold(&self, py: Python<'_>, keys: Vec<String>) -> PyResult<u32> {
        let client = self.open()?;
        let known: Vec<LocalKey> = keys.iter().filter_map(|key| self.names.parse(key)).collect();
        if known.is_empty() && !keys.is_empty() {
            return Ok(0);
        }
        Ok(py.detach(|| client.unhold(&known)).unwrap_or(0))
    }

    /// Forgets the namespace's blocks: (forgotten, left since they are in use).
    fn clear(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let client = self.open()?;
        let cleared = py.detach(|| client.clear()).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        Ok((cleared.removed, cleared.pinned))
    }

    /// The daemon's state, as JSON text.
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        let client = self.open()?;
        let status = py.detach(|| client.status()).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        Ok(status.to_string())
    }

    /// This client's counters, by name. None ever decreases.
    fn counters(&self) -> PyResult<HashMap<&'static str, u64>> {
        let client = self.open()?;
        Ok(umbp_client::Counter::ALL.iter().map(|counter| (counter.name(), client.counter(*counter))).collect())
    }

    /// Keys that left a tier since the last call (another may have them), and whether others may be missing here.
    fn take_removed(&self) -> PyResult<(Vec<String>, bool)> {
        let (mut removed, mut unsure) = (Vec::new(), false);
        for event in self.open()?.events(Duration::ZERO) {
            match event {
                ClientEvent::Removed { keys, .. } => {
                    let local = keys.iter().filter_map(|key| LocalKey::from_bytes(&key.local).ok().flatten());
                    removed.extend(local.map(|key| self.names.text(key)));
                }
                ClientEvent::Resync | ClientEvent::Attached { .. } | ClientEvent::Detached { .. } => unsure = true,
                ClientEvent::TierState { .. } | ClientEvent::Draining => {}
            }
        }
        Ok((removed, unsure))
    }

    /// These keys' blocks are there now: when they are gone, `take_evicted` tells.
    fn publish(&self, keys: Vec<String>) {
        self.published(keys.iter().filter_map(|key| self.names.parse(key)));
    }

    /// Published keys that no tier has any more, as far as is known: never waits. It takes what `take_removed` takes.
    fn take_evicted(&self) -> Vec<String> {
        self.evicted().into_iter().map(|key| self.names.text(key)).collect()
    }

    /// Ends the session; when it returns, no thread touches registered memory any more.
    pub(crate) fn close(&self, py: Python<'_>) {
        self.closed.store(true, Ordering::Release);
        py.detach(|| self.inner.close());
    }
}

/// Closes it, if nobody has.
impl Drop for Client {
    fn drop(&mut self) {
        without_interpreter(|| self.inner.close());
    }
}

impl Client {
    fn open(&self) -> PyResult<&umbp_client::Client> {
        let closed = self.closed.load(Ordering::Acquire);
        if closed { Err(PyRuntimeError::new_err("the client is closed")) } else { Ok(&self.inner) }
    }

    pub(crate) fn published(&self, keys: impl IntoIterator<Item = LocalKey>) {
        lock(&self.published).add(keys);
    }

    pub(crate) fn evicted(&self) -> Vec<LocalKey> {
        lock(&self.published).take_evicted(&self.inner)
    }

    fn begin_load(
        &self,
        py: Python<'_>,
        keys: &[String],
        ranges: impl Fn(usize) -> Vec<(u64, u64)> + Send + Sync,
    ) -> PyResult<u64> {
        let client = self.open()?;
        self.check_jobs()?;
        py.detach(|| {
            let block = |(index, key): (usize, &String)| {
                let (key, runs) = (self.names.parse(key), self.runs(ranges(index)));
                Block { key, parent: None, depth: 0, runs }
            };
            Ok(self.keep(Transfer::load(client, keys.iter().enumerate().map(block).collect())))
        })
    }

    fn begin_store(
        &self,
        py: Python<'_>,
        keys: &[String],
        parents: &[Option<String>],
        depths: &[u32],
        ranges: impl Fn(usize) -> Vec<(u64, u64)> + Send + Sync,
    ) -> PyResult<u64> {
        let client = self.open()?;
        self.check_jobs()?;
        py.detach(|| {
            let block = |(index, key): (usize, &String)| {
                let parent = parents[index].as_deref().and_then(|parent| self.names.parse(parent));
                let (key, runs) = (self.names.parse(key), self.runs(ranges(index)));
                Block { key, parent, depth: depths[index], runs }
            };
            Ok(self.keep(Transfer::store(client, keys.iter().enumerate().map(block).collect())))
        })
    }

    fn runs(&self, ranges: Vec<(u64, u64)>) -> Vec<Run> {
        let memory = lock(&self.memory);
        ranges.into_iter().map(|(address, length)| memory.run(address, length)).collect()
    }

    fn keep(&self, transfer: Transfer) -> u64 {
        let number = self.last_job.fetch_add(1, Ordering::Relaxed) + 1;
        let job = Job { ids: transfer.open().collect(), transfer: Mutex::new(transfer) };
        lock(&self.jobs).insert(number, Arc::new(job));
        number
    }

    /// There is room for one more job.
    fn check_jobs(&self) -> PyResult<()> {
        let jobs = lock(&self.jobs).len();
        let text = || format!("{jobs} jobs are open, or their results not taken, limit {JOBS_MAX}: wait for them");
        if jobs < JOBS_MAX { Ok(()) } else { Err(PyRuntimeError::new_err(text())) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn same_length(keys: usize, columns: &[(&str, usize)]) -> PyResult<()> {
    match columns.iter().find(|(_, length)| *length != keys) {
        Some((name, length)) => {
            Err(PyValueError::new_err(format!("{name} has {length} entries for {keys} keys: give one for each")))
        }
        None => Ok(()),
    }
}
