//! What a client's threads share: the current session, the open jobs, the counters.

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use umbp_protocol::message::{Event, NamespaceId, SessionId, Welcome, WireKey};

use crate::attach::Before;
use crate::events::{ClientEvent, EventQueue};
use crate::job::Job;
use crate::keeper::Keeper;
use crate::mapping::Count;
use crate::options::{Error, Options};
use crate::outcome::{Counter, Counters, FailCause, Outcome};
use crate::pool::Pool;
use crate::region::Regions;
use crate::session::Session;

/// Attempts to attach, as far as a caller may wait for them.
#[derive(Default)]
struct Attempts {
    failed: u64,
    last_error: Option<Error>,
}

/// The session before, to be named in the next Hello.
#[derive(Clone)]
struct Previous {
    session: SessionId,
    boot_id: u64,
    mapped: Arc<Count>,
}

pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) counters: Counters,
    pub(crate) regions: Arc<Regions>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) keeper: Keeper,
    pub(crate) events: EventQueue,
    /// Blocks of jobs that have not ended.
    pub(crate) open_blocks: AtomicU64,
    pub(crate) jobs: Mutex<HashMap<u64, Arc<Job>>>,
    pub(crate) last_job: AtomicU64,
    current: RwLock<Option<Arc<Session>>>,
    previous: Mutex<Option<Previous>>,
    reader: Mutex<Option<JoinHandle<()>>>,
    attempts: Mutex<Attempts>,
    attempted: Condvar,
    process: u32,
    /// The current socket, for a forked child, which must not wait for a lock that another thread held at the fork.
    socket: AtomicI32,
    socket_inode: AtomicU64,
}

impl Shared {
    pub(crate) fn new(options: Options) -> Arc<Self> {
        Arc::new(Self {
            options,
            counters: Counters::default(),
            regions: Arc::default(),
            pool: Arc::default(),
            keeper: Keeper::default(),
            events: EventQueue::default(),
            open_blocks: AtomicU64::new(0),
            jobs: Mutex::default(),
            last_job: AtomicU64::new(0),
            current: RwLock::default(),
            previous: Mutex::default(),
            reader: Mutex::default(),
            attempts: Mutex::default(),
            attempted: Condvar::new(),
            process: std::process::id(),
            socket: AtomicI32::new(-1),
            socket_inode: AtomicU64::new(0),
        })
    }

    /// The current session, if there is one.
    pub(crate) fn session(&self) -> Option<Arc<Session>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The current session, or why there is none.
    pub(crate) fn require_session(&self) -> Result<Arc<Session>, Error> {
        self.session().ok_or_else(|| {
            let attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
            attempts.last_error.clone().unwrap_or_else(|| Error::Detached {
                socket: self.options.socket.clone(),
                reason: "attaching".to_owned(),
            })
        })
    }

    pub(crate) fn open_jobs(&self) -> Vec<Arc<Job>> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.values().filter(|job| !job.has_ended()).cloned().collect()
    }

    /// One attempt to attach, after the old session's mappings have gone or `unmap_wait` has passed.
    pub(crate) fn attach(self: &Arc<Self>, unmap_wait: Duration) -> bool {
        if let Some(reader) = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // It ends by itself once its session is lost; a panic of it has ended it too.
            let _ = reader.join();
        }
        // Not held while attaching: a session that is lost at once takes this lock too.
        let previous = self.previous.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let previous = previous.map(|p| Before {
            session: p.session,
            boot_id: p.boot_id,
            unmapped: p.mapped.wait_none(unmap_wait),
        });
        if previous.is_some_and(|before| !before.unmapped) {
            self.counters.add(Counter::UnmapTimedOut, 1);
        }
        let attached =
            crate::attach::attach(&self.options, previous, &|| !self.keeper.is_closing()).and_then(|attached| {
                let stat = rustix::fs::fstat(&attached.socket);
                self.socket_inode.store(stat.map_or(0, |stat| stat.st_ino), Ordering::Relaxed);
                self.socket.store(attached.socket.as_raw_fd(), Ordering::Relaxed);
                Session::new(attached, self)
            });
        let result = attached.and_then(|(session, reader)| {
            let event = ClientEvent::Attached { session: session.welcome.session, boot_id: session.welcome.boot_id };
            *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&session));
            self.event(event);
            let thread = std::thread::Builder::new().name("umbp-reader".to_owned()).spawn(move || reader.run());
            match thread {
                Ok(thread) => *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread),
                Err(error) => {
                    session.lose(Error::Threads(error.to_string()));
                    return Err(Error::Threads(error.to_string()));
                }
            }
            Ok(())
        });
        self.counters.add(if result.is_ok() { Counter::Attached } else { Counter::AttachFailed }, 1);
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let ok = result.is_ok();
        attempts.last_error = result.err();
        attempts.failed += u64::from(!ok);
        self.attempted.notify_all();
        ok
    }

    /// Waits until a session is there, or an attempt has failed.
    pub(crate) fn wait_attempt(&self, timeout: Duration) -> Result<(), Error> {
        let end = Instant::now() + timeout;
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if self.session().is_some() {
                return Ok(());
            }
            if let (true, Some(error)) = (attempts.failed > 0, &attempts.last_error) {
                return Err(error.clone());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::TimedOut { request: "Hello", after: timeout });
            }
            attempts = self.attempted.wait_timeout(attempts, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The keeper has ended: nobody need wait for a session any more.
    pub(crate) fn closed(&self) {
        let _attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        self.attempted.notify_all();
    }

    /// Waits until a session is there.
    pub(crate) fn wait_session(&self, timeout: Duration) -> bool {
        let end = Instant::now() + timeout;
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        while self.session().is_none() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.keeper.is_closing() {
                return false;
            }
            attempts = self.attempted.wait_timeout(attempts, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// A session has ended: its jobs fail, and a new one is attached in the background.
    pub(crate) fn session_lost(&self, session: &Session, cause: &Error) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|own| std::ptr::eq(Arc::as_ptr(own), session)) {
            *current = None;
        }
        drop(current);
        let Welcome { session: number, boot_id, .. } = session.welcome;
        let previous = Previous { session: number, boot_id, mapped: Arc::clone(&session.mapped) };
        *self.previous.lock().unwrap_or_else(PoisonError::into_inner) = Some(previous);
        self.counters.add(Counter::SessionsLost, 1);
        tracing::warn!(%cause, session = session.welcome.session.0, "the session with the daemon ended");
        for job in self.open_jobs() {
            if job.belongs_to(session) {
                job.stop(Outcome::Failed(FailCause::SessionLost));
            }
        }
        self.event(ClientEvent::Detached { reason: cause.to_string() });
        self.keeper.nudge(0);
    }

    /// News of a session of this namespace. Two models may hash the same prompt alike: what left the other one's
    /// namespace is no news here.
    pub(crate) fn daemon_event(&self, event: Event, namespace: NamespaceId) {
        self.event(match event {
            Event::Removed { tier, reason, keys } => {
                let keys: Vec<WireKey> = keys.iter().filter(|key| key.namespace == namespace).copied().collect();
                if keys.is_empty() {
                    return;
                }
                ClientEvent::Removed { tier, reason, keys }
            }
            Event::TierState { tier, state } => ClientEvent::TierState { tier, state },
            Event::Draining => ClientEvent::Draining,
            _ => ClientEvent::Resync,
        });
    }

    fn event(&self, event: ClientEvent) {
        let dropped = self.events.push(event);
        self.counters.add(Counter::EventsDropped, dropped as u64);
    }

    /// Joins the reader, once the session is lost and the keeper has ended.
    pub(crate) fn join_reader(&self) {
        if let Some(reader) = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = reader.join();
        }
    }

    /// True in a child that was forked off the process that made this client.
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    /// In a forked child the client is unusable. Its copy of the socket is let go, without a word on it: otherwise it
    /// would keep the parent's session open after the parent's death.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if !self.is_forked() {
            return Ok(());
        }
        let socket = self.socket.swap(-1, Ordering::Relaxed);
        if socket >= 0 {
            let null = std::fs::File::open("/dev/null");
            // SAFETY: fstat and dup2 take any number; the number is only replaced while it still is that socket (the
            // child may have closed it and used the number anew), and it stays open, as its owner in this child's copy
            // of memory expects.
            unsafe {
                let mut stat: libc::stat = std::mem::zeroed();
                let same = libc::fstat(socket, &mut stat) == 0
                    && stat.st_mode & libc::S_IFMT == libc::S_IFSOCK
                    && stat.st_ino == self.socket_inode.load(Ordering::Relaxed);
                if let (true, Ok(null)) = (same, &null) {
                    libc::dup2(null.as_raw_fd(), socket);
                }
            }
        }
        Err(Error::Forked)
    }
}
