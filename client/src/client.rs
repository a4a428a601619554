//! The client as its user holds it.

use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use umbp_connector_core::key::LocalKey;
use umbp_protocol::message::{KEYS_PER_MESSAGE_MAX, Reply, Request, Welcome, WireKey};

use crate::clock::{after, now_ns};
use crate::events::ClientEvent;
use crate::job::{Job, Kind};
use crate::load::LoadBlock;
use crate::options::{COPY_QUEUE_BLOCKS_MAX, COPY_THREADS_MAX, Error, JOB_BLOCKS_MAX, JOBS_MAX, Options};
use crate::outcome::{Counter, FailCause, Outcome};
use crate::region::{RegionId, Run};
use crate::session::Session;
use crate::shared::Shared;
use crate::store::StoreBlock;

/// A transfer job of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// How a job ended: one outcome per block, in the order of the job. No thread touches engine memory for it any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobResult {
    /// One per block.
    pub outcomes: Vec<Outcome>,
}

/// What a Clear did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cleared {
    /// Blocks forgotten.
    pub removed: u64,
    /// Blocks left, since they are in use.
    pub pinned: u64,
}

struct Running {
    shared: Arc<Shared>,
    /// None once it is closed. The lock is held while it closes, so that whoever closes it too waits as long.
    threads: Mutex<Option<Threads>>,
}

struct Threads {
    keeper: JoinHandle<()>,
    copiers: Vec<JoinHandle<()>>,
}

/// A client: one session at a time, attached anew by itself whenever it is lost. Every method may be called from any
/// thread. Dropping it stops all jobs and returns when no thread touches engine memory any more.
pub struct Client {
    // Leaked in a forked child, where none of its threads exist and any of its locks may be taken for ever.
    running: ManuallyDrop<Running>,
}

impl Client {
    /// Starts, and waits for the first attempt to attach.
    pub fn connect(options: Options) -> Result<Self, Error> {
        let timeout = options.call_timeout;
        let client = Self::start(options)?;
        // The attempt has the same time-out, and needs a moment to report that it passed.
        client.shared().wait_attempt(timeout + Duration::from_secs(1))?;
        Ok(client)
    }

    /// Starts without a daemon: attaching goes on in the background, with backoff, until it succeeds.
    pub fn start(options: Options) -> Result<Self, Error> {
        let threads = options.copy_threads;
        if !(1..=COPY_THREADS_MAX).contains(&threads) {
            return Err(Error::Argument {
                field: "copy_threads",
                value: threads.to_string(),
                remedy: "choose 1 to 64 threads",
            });
        }
        let shared = Shared::new(options);
        let error = |error: std::io::Error| Error::Threads(error.to_string());
        let copiers = shared.pool.start(threads).inspect_err(|_| shared.pool.close()).map_err(error)?;
        let keeper = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name("umbp-keeper".to_owned()).spawn(move || crate::keeper::run(&shared))
        };
        let keeper = keeper.inspect_err(|_| shared.pool.close()).map_err(error)?;
        let threads = Mutex::new(Some(Threads { keeper, copiers }));
        Ok(Self { running: ManuallyDrop::new(Running { shared, threads }) })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.running.shared
    }

    /// What the daemon said at the start of the current session; none while there is no session.
    pub fn welcome(&self) -> Option<Welcome> {
        self.shared().check_process().ok()?;
        self.shared().session().map(|session| session.welcome.clone())
    }

    /// Why there is no session now; none while there is one.
    pub fn detached(&self) -> Option<Error> {
        self.shared().check_process().and_then(|()| self.shared().require_session()).err()
    }

    /// Waits until there is a session; false when `timeout` passed first.
    pub fn wait_attached(&self, timeout: Duration) -> bool {
        self.shared().check_process().is_ok() && self.shared().wait_session(timeout)
    }

    /// Waits until the page tables of all mapped segments are filled; false when `timeout` passed first.
    pub fn wait_populated(&self, timeout: Duration) -> bool {
        self.shared().check_process().is_ok()
            && self.shared().session().is_some_and(|session| session.populating.wait_none(timeout))
    }

    /// Registers engine memory for the runs of jobs to come.
    ///
    /// # Safety
    /// `length` bytes at `address` stay mapped, readable and writable, until [`Self::unregister`] of the region
    /// answers true or this client is dropped. While a job is open (from `store` or `load` until its result is taken
    /// by `poll` or `wait`), nobody else writes the memory of its runs, and of a load nobody reads it either.
    pub unsafe fn register(&self, address: *mut u8, length: u64) -> Result<RegionId, Error> {
        self.shared().check_process()?;
        self.shared().regions.register(address, length)
    }

    /// Gives a region up: no new job may name it. True once no open job uses it; false when `timeout` passed first,
    /// and then its memory must stay.
    pub fn unregister(&self, region: RegionId, timeout: Duration) -> bool {
        self.shared().check_process().is_ok() && self.shared().regions.unregister(region, timeout)
    }

    /// Begins to store blocks, head of the chain first. The result tells for each how it ended.
    pub fn store(&self, blocks: &[StoreBlock]) -> Result<JobId, Error> {
        let no_key = [0; umbp_connector_core::key::LOCAL_KEY_BYTES];
        let chain = blocks.iter().map(|b| (b.parent.map_or(no_key, |key| key.to_bytes()), b.depth)).collect();
        let keys = blocks.iter().map(|block| block.key.to_bytes()).collect();
        let runs = blocks.iter().map(|block| block.runs.as_slice());
        self.begin(Kind::Store, keys, runs, |job, session| crate::store::begin(job, session, &chain))
    }

    /// Begins to load blocks. The result tells for each how it ended; where it is not
    /// [`Loaded`](Outcome::Loaded), engine memory holds anything.
    pub fn load(&self, blocks: &[LoadBlock]) -> Result<JobId, Error> {
        let keys = blocks.iter().map(|block| block.key.to_bytes()).collect();
        let runs = blocks.iter().map(|block| block.runs.as_slice());
        self.begin(Kind::Load, keys, runs, crate::load::begin)
    }

    fn begin<'a>(
        &self,
        kind: Kind,
        keys: Vec<[u8; 44]>,
        runs: impl Iterator<Item = &'a [Run]>,
        begin: impl FnOnce(&Arc<Job>, &Arc<Session>),
    ) -> Result<JobId, Error> {
        let shared = self.shared();
        shared.check_process()?;
        let blocks = keys.len();
        if blocks > JOB_BLOCKS_MAX {
            let (field, value) = ("blocks of a job", blocks.to_string());
            return Err(Error::Argument { field, value, remedy: "split it into jobs of at most 8192 blocks" });
        }
        let open = shared.open_blocks.fetch_add(blocks as u64, Ordering::AcqRel) as usize + blocks;
        let busy = |what, open, limit| {
            shared.open_blocks.fetch_sub(blocks as u64, Ordering::AcqRel);
            Err(Error::Busy { what, open, limit })
        };
        if open > COPY_QUEUE_BLOCKS_MAX {
            return busy("blocks of open jobs", open, COPY_QUEUE_BLOCKS_MAX);
        }
        let session = shared.require_session();
        let resolved = shared.regions.resolve(runs);
        let deadline_ns = after(now_ns(), shared.options.job_timeout);
        let mut jobs = shared.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.len() >= JOBS_MAX {
            return busy("jobs", jobs.len() + 1, JOBS_MAX);
        }
        let job = Job::new(shared, session.as_ref().ok().cloned(), kind, keys, resolved, deadline_ns);
        let id = JobId(shared.last_job.fetch_add(1, Ordering::Relaxed) + 1);
        jobs.insert(id.0, Arc::clone(&job));
        drop(jobs);
        match session {
            Ok(_) if job.asked.is_empty() => {}
            Ok(session) => {
                shared.keeper.nudge(deadline_ns);
                begin(&job, &session);
            }
            Err(error) => {
                tracing::debug!(%error, "a job fails at once");
                job.request_failed(&Error::Detached {
                    socket: shared.options.socket.clone(),
                    reason: error.to_string(),
                });
            }
        }
        Ok(id)
    }

    fn job(&self, job: JobId) -> Option<Arc<Job>> {
        self.shared().jobs.lock().unwrap_or_else(PoisonError::into_inner).get(&job.0).cloned()
    }

    /// The result of a job that has ended, once; none while it is open, and of an unknown job.
    pub fn poll(&self, job: JobId) -> Option<JobResult> {
        self.wait(job, Duration::ZERO)
    }

    /// The result of a job, once, as soon as it ends; none when `timeout` passed first, and of an unknown job.
    pub fn wait(&self, job: JobId, timeout: Duration) -> Option<JobResult> {
        self.shared().check_process().ok()?;
        let outcomes = self.job(job)?.wait(timeout)?;
        // Whoever removes it takes the result.
        self.shared().jobs.lock().unwrap_or_else(PoisonError::into_inner).remove(&job.0)?;
        Some(JobResult { outcomes })
    }

    /// Ends a job early: blocks that are not done are [`Cancelled`](Outcome::Cancelled), and the result is there as
    /// soon as no thread touches engine memory for it, at most a piece of a block later. A store whose Commit is under
    /// way is left to its answer; its bytes are copied already.
    pub fn cancel(&self, job: JobId) {
        if self.shared().check_process().is_ok()
            && let Some(job) = self.job(job)
        {
            job.stop(Outcome::Cancelled);
        }
    }

    /// Asks in messages of bounded size, all sent before the first answer is awaited.
    fn ask_in_parts(
        &self,
        session: &Arc<Session>,
        keys: &[LocalKey],
        request: impl Fn(Vec<WireKey>) -> Request,
    ) -> Vec<Result<Reply, Error>> {
        let namespace = session.namespace();
        let end = session.answer_due();
        let ask = |part: &[LocalKey]| {
            let (sender, receiver) = mpsc::sync_channel(1);
            let keys = part.iter().map(|key| WireKey { namespace, local: key.to_bytes() }).collect();
            let then = move |answer| {
                let _ = sender.send(answer);
            };
            session.call(&request(keys), Box::new(then));
            receiver
        };
        let receivers: Vec<_> = keys.chunks(KEYS_PER_MESSAGE_MAX).map(ask).collect();
        receivers.iter().map(|receiver| session.receive(receiver, end)).collect()
    }

    /// As [`Self::cancel`], for a job whose time is over: blocks that are not done have failed as
    /// [`JobTimedOut`](FailCause::JobTimedOut).
    pub fn expire(&self, job: JobId) {
        if self.shared().check_process().is_ok()
            && let Some(job) = self.job(job)
        {
            job.stop(Outcome::Failed(FailCause::JobTimedOut));
        }
    }

    /// Gives up this session's holds on keys, or all of them where `keys` is empty; answers how many.
    pub fn unhold(&self, keys: &[LocalKey]) -> Result<u32, Error> {
        self.shared().check_process()?;
        let session = self.shared().require_session()?;
        let answers = match keys {
            [] => vec![session.ask(&Request::Unhold { keys: Vec::new() })],
            _ => self.ask_in_parts(&session, keys, |keys| Request::Unhold { keys }),
        };
        answers.into_iter().try_fold(0, |sum, answer| match answer? {
            Reply::Unhold { count } => Ok(sum + count),
            _ => Err(wrong_answer(&session, "Unhold")),
        })
    }

    /// Gives up this session's holds on keys, without waiting for the answer. None is named: nothing is done.
    pub fn give_up_holds(&self, keys: &[LocalKey]) {
        if self.shared().check_process().is_err() {
            return;
        }
        // Without a session there is no hold.
        let Some(session) = self.shared().session() else { return };
        let namespace = session.namespace();
        for part in keys.chunks(KEYS_PER_MESSAGE_MAX) {
            let keys = part.iter().map(|key| WireKey { namespace, local: key.to_bytes() }).collect();
            session.tell(&Request::Unhold { keys });
        }
    }

    /// Gives up all of this session's holds, without waiting for the answer.
    pub(crate) fn give_up_all_holds(&self) {
        if self.shared().check_process().is_err() {
            return;
        }
        if let Some(session) = self.shared().session() {
            session.tell(&Request::Unhold { keys: Vec::new() });
        }
    }

    /// Forgets all blocks of this client's namespace that are not in use; those in use are counted.
    pub fn clear(&self) -> Result<Cleared, Error> {
        self.shared().check_process()?;
        let session = self.shared().require_session()?;
        match session.ask(&Request::Clear { namespace: session.welcome.namespace })? {
            Reply::Clear { removed, pinned } => Ok(Cleared { removed, pinned }),
            _ => Err(wrong_answer(&session, "Clear")),
        }
    }

    /// The daemon's state.
    pub fn status(&self) -> Result<serde_json::Value, Error> {
        self.shared().check_process()?;
        let session = self.shared().require_session()?;
        match session.ask(&Request::Status)? {
            Reply::Status(value) => Ok(value),
            _ => Err(wrong_answer(&session, "Status")),
        }
    }

    /// Takes the events that wait; with none, waits for the first at most `timeout`.
    pub fn events(&self, timeout: Duration) -> Vec<ClientEvent> {
        if self.shared().check_process().is_err() {
            return Vec::new();
        }
        self.shared().events.take(timeout)
    }

    /// Ends the session and all jobs, for ever; when it returns, no thread touches engine memory any more, whoever else
    /// is in a call of this client. Their results can still be taken; what begins later fails at once.
    pub fn close(&self) {
        if self.shared().check_process().is_err() {
            return;
        }
        let shared = self.shared();
        let mut threads = self.running.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Threads { keeper, copiers }) = threads.take() else { return };
        // First the keeper, so that nobody attaches anew; then the session, which fails all jobs; then its reader, which
        // may copy, and gives the copiers work; last the copiers, which run out of it.
        shared.keeper.close();
        let _ = keeper.join();
        shared.closed();
        if let Some(session) = shared.session() {
            session.lose(Error::SessionLost("the client was closed".to_owned()));
        }
        shared.join_reader();
        shared.pool.close();
        for copier in copiers {
            let _ = copier.join();
        }
    }

    /// One of this client's counters.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.shared().counters.get(counter)
    }
}

fn wrong_answer(session: &Session, request: &str) -> Error {
    let error = Error::SessionLost(format!("{request} was answered with something else"));
    session.lose(error.clone());
    error
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.shared().check_process().is_err() {
            return;
        }
        self.close();
        // SAFETY: taken once, here, and `running` is not used after.
        let Running { shared, .. } = unsafe { ManuallyDrop::take(&mut self.running) };
        // They hold what holds them.
        shared.jobs.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("socket", &self.shared().options.socket).finish_non_exhaustive()
    }
}
