//! A tier at run time: the thread that owns its plugin, what is sent there, and what comes back.
//!
//! Every call into a plugin runs on its tier's thread; the engine's thread only puts commands into a bounded queue and
//! takes messages out of an inbox, and neither ever blocks. A plugin that hangs hangs that thread alone.
//!
//! Modules in reading order: [`queue`] (to the thread), [`inbox`] (back from it), [`services`] (what the plugin may
//! call), [`worker`] (the thread's loop), [`segments`] (how the mappable pool is cut).

pub mod inbox;
pub mod queue;
pub mod segments;
pub mod services;
pub mod worker;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use umbp_plugin_api::backend::{Segment, Stats};
use umbp_plugin_api::{Opened, Operation};

/// A panic while a lock was held leaves plain data behind, which stays usable.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An address in this process, on its way to a plugin.
#[derive(Clone, Copy, Debug)]
pub struct Address(pub *mut u8);

// SAFETY: a number here; who dereferences it keeps the region's rules.
unsafe impl Send for Address {}

/// A segment of the mappable pool.
#[derive(Debug)]
pub struct SegmentInfo {
    /// Its number.
    pub id: u64,
    /// To be sent to clients.
    pub fd: Arc<OwnedFd>,
    /// Where the first tier has it mapped.
    pub address: Address,
    /// Its length, in bytes.
    pub length: u64,
}

impl SegmentInfo {
    /// What the backend made.
    pub fn new(id: u64, segment: Segment) -> Self {
        Self { id, fd: Arc::new(segment.fd), address: Address(segment.address), length: segment.length }
    }
}

/// What a tier's thread is told.
#[derive(Debug)]
pub enum Command {
    /// Operations for the plugin; each is answered by one completion.
    Submit(Vec<Operation>),
    /// Ids of operations to end early.
    Cancel(Vec<u64>),
    /// A namespace, before its first use.
    NamespacePut {
        /// Its number.
        id: u32,
        /// Digest of the descriptor.
        digest: [u8; 32],
        /// The descriptor.
        descriptor: Vec<u8>,
    },
    /// A segment that operations may name from now on.
    RegionRegister {
        /// Its number.
        id: u64,
        /// Where it is mapped.
        address: Address,
        /// Its length, in bytes.
        length: u64,
    },
    /// A segment that no operation names any more; answered by `RegionGone`.
    RegionUnregister(u64),
    /// First tier: one segment goes, another comes; answered by `SegmentCreated`.
    SegmentRecreate {
        /// The one that goes.
        old: u64,
        /// The one that comes.
        new: u64,
        /// Its length, in bytes.
        length: u64,
    },
    /// Answered by `Namespaces`.
    RecoverStart,
    /// Answered by `Recovered`.
    RecoverPage(u64),
    /// Refresh the figures, then say so.
    Stats(tokio::sync::oneshot::Sender<()>),
    /// The last command.
    Shutdown {
        /// Within this time.
        deadline: Duration,
    },
}

/// Figures of a plugin, and when they were taken.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// What the plugin told.
    pub stats: Stats,
    /// Operations that it has.
    pub in_flight: usize,
    /// Operations that it had no room for.
    pub waiting: usize,
    /// When.
    pub at: Instant,
}

#[derive(Default)]
struct SharedInner {
    call: Option<(&'static str, Instant)>,
    figures: Option<Figures>,
    ended: Option<End>,
}

/// How a tier's thread ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// No thread of its plugin runs any more.
    Clean,
    /// Its plugin was left as it is: threads of it may still run.
    Left,
}

/// What others may see of a tier's thread at any time.
pub struct Shared {
    /// Name of the tier.
    pub name: String,
    inner: Mutex<SharedInner>,
    ended: Condvar,
    failed: AtomicBool,
}

impl Shared {
    /// Nothing happened yet.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), inner: Mutex::default(), ended: Condvar::new(), failed: AtomicBool::new(false) }
    }

    /// The thread goes into a call of the plugin.
    pub fn enter(&self, call: &'static str) {
        lock(&self.inner).call = Some((call, Instant::now()));
    }

    /// It came back.
    pub fn leave(&self) {
        lock(&self.inner).call = None;
    }

    /// The call that the thread is in, and for how long.
    pub fn call(&self) -> Option<(&'static str, Duration)> {
        lock(&self.inner).call.map(|(name, since)| (name, since.elapsed()))
    }

    /// Fresh figures.
    pub fn set_stats(&self, stats: Stats, in_flight: usize, waiting: usize) {
        lock(&self.inner).figures = Some(Figures { stats, in_flight, waiting, at: Instant::now() });
    }

    /// The last figures.
    pub fn figures(&self) -> Option<Figures> {
        lock(&self.inner).figures
    }

    /// The tier has failed, whoever found it: its plugin is not called any more, except to shut down.
    pub fn set_failed(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// It has.
    pub fn is_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// The thread is about to end. The first word counts.
    pub fn set_ended(&self, end: End) {
        lock(&self.inner).ended.get_or_insert(end);
        self.ended.notify_all();
    }

    /// Waits for the thread's end; none when it did not come in time.
    pub fn wait_ended(&self, until: Instant) -> Option<End> {
        let mut inner = lock(&self.inner);
        loop {
            if inner.ended.is_some() {
                return inner.ended;
            }
            let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
            inner = self.ended.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// What a tier's thread, its plugin and the engine's thread share.
#[derive(Clone)]
pub struct TierLink {
    /// To the thread.
    pub queue: Arc<queue::Queue<Command>>,
    /// Back from it; one for all tiers.
    pub inbox: Arc<inbox::Inbox>,
    /// What the plugin may call.
    pub services: Arc<services::Services>,
    /// What anybody may see.
    pub shared: Arc<Shared>,
}

impl TierLink {
    /// For a tier that is granted `slots` operations in flight.
    pub fn new(tier: crate::engine::api::TierIndex, name: &str, slots: u32, inbox: Arc<inbox::Inbox>) -> Self {
        let queue = Arc::new(queue::Queue::default());
        let shared = Arc::new(Shared::new(name));
        let services = services::Services::new(tier, slots, inbox.clone(), queue.clone(), shared.clone());
        Self { queue, inbox, services: Arc::new(services), shared }
    }
}

/// What a tier's thread found when it brought its plugin up.
#[derive(Debug)]
pub struct Ready {
    /// From `open`.
    pub opened: Opened,
    /// First tier: its segments.
    pub segments: Vec<SegmentInfo>,
}
