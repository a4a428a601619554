//! One attached session: requests out, replies and events in, the mappings and the leases.
//!
//! It ends once, by [`Session::lose`], from whatever thread sees the reason first; then every open call is answered
//! with an error, the mappings go (as soon as no copy is inside), and its owner is told.
//!
//! Lock order: no lock of a session is held while a call's continuation runs or while its owner is told.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak, mpsc};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use umbp_protocol::encode_request;
use umbp_protocol::frame::Decoder;
use umbp_protocol::message::{LeaseId, NamespaceId, Reply, Request, SegmentId, Welcome};

use crate::clock::{after, now_ns};
use crate::job::Job;
use crate::mapping::{Count, Generations, Segment};
use crate::options::Error;
use crate::outcome::Counter;
use crate::reader::Reader;
use crate::shared::Shared;

/// Most requests that wait for their answers; a further one is refused as [`Error::Busy`].
pub(crate) const CALLS_MAX: usize = 16_384;
/// The keeper is woken at a call's deadline; after this much more, who waits for the call looks for itself.
const KEEPER_LATE_MS: u64 = 10;
/// Bytes of one read from the socket.
pub(crate) const READ_BYTES: usize = 64 << 10;

/// What runs with the answer, once, on the reader's thread or on the one that loses the session; it never blocks.
pub(crate) type Then = Box<dyn FnOnce(Result<Reply, Error>) + Send>;

pub(crate) struct Call {
    name: &'static str,
    due_ns: u64,
    pub(crate) then: Then,
}

#[derive(Default)]
pub(crate) struct Calls {
    closed: Option<Error>,
    last_id: u64,
    pub(crate) open: HashMap<u64, Call>,
}

/// A read or write lease, as long as its job needs it.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) id: LeaseId,
    /// From the time the request was sent, so never later than the daemon's own.
    pub(crate) deadline_ns: AtomicU64,
    pub(crate) life_ns: u64,
    pub(crate) job: Weak<Job>,
}

impl Lease {
    pub(crate) fn is_over(&self) -> bool {
        now_ns() >= self.deadline_ns.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
pub(crate) struct Maps {
    pub(crate) segments: HashMap<u32, Arc<Segment>>,
    generations: Option<Arc<Generations>>,
}

pub(crate) struct Session {
    pub(crate) welcome: Welcome,
    pub(crate) digest: [u8; 32],
    pub(crate) mapped: Arc<Count>,
    pub(crate) populating: Arc<Count>,
    pub(crate) owner: Weak<Shared>,
    pub(crate) socket: UnixStream,
    sending: Mutex<()>,
    pub(crate) calls: Mutex<Calls>,
    pub(crate) maps: RwLock<Maps>,
    pub(crate) leases: Mutex<HashMap<u64, Arc<Lease>>>,
    lost: AtomicBool,
    call_timeout: Duration,
}

/// What the handshake found, besides the stream itself.
pub(crate) struct Attached {
    pub(crate) socket: UnixStream,
    pub(crate) welcome: Welcome,
    pub(crate) digest: [u8; 32],
    pub(crate) generations: Option<OwnedFd>,
    pub(crate) decoder: Decoder,
    pub(crate) fds: VecDeque<OwnedFd>,
}

impl Session {
    pub(crate) fn new(attached: Attached, owner: &Arc<Shared>) -> Result<(Arc<Self>, Reader), Error> {
        let Attached { socket, welcome, digest, generations, decoder, fds } = attached;
        let mapped = Arc::new(Count::default());
        let map = |fd| Generations::map(fd, welcome.generation_words, &mapped).map(Arc::new);
        let generations = generations.map(map).transpose();
        let generations = generations.map_err(|error| Error::SessionLost(format!("map generation table: {error}")))?;
        let session = Arc::new(Self {
            welcome,
            digest,
            mapped,
            populating: Arc::default(),
            owner: Arc::downgrade(owner),
            socket,
            sending: Mutex::default(),
            calls: Mutex::default(),
            maps: RwLock::new(Maps { segments: HashMap::new(), generations }),
            leases: Mutex::default(),
            lost: AtomicBool::new(false),
            call_timeout: owner.options.call_timeout,
        });
        let reader = Reader::new(Arc::clone(&session), decoder, fds);
        Ok((session, reader))
    }

    pub(crate) fn namespace(&self) -> NamespaceId {
        self.welcome.namespace.unwrap_or(NamespaceId(u32::MAX))
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Sends a request; `then` runs exactly once, possibly before this returns. Blocks at most for the time-out of a
    /// call, when the daemon does not read.
    pub(crate) fn call(&self, request: &Request, then: Then) {
        let name = name_of(request);
        let refused = {
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            let open = calls.open.len();
            if let Some(error) = &calls.closed {
                Err((error.clone(), then))
            } else if open >= CALLS_MAX {
                Err((Error::Busy { what: "requests in flight", open, limit: CALLS_MAX }, then))
            } else {
                calls.last_id += 1;
                let (id, due_ns) = (calls.last_id, after(now_ns(), self.call_timeout));
                calls.open.insert(id, Call { name, due_ns, then });
                Ok((id, due_ns))
            }
        };
        let (id, due_ns) = match refused {
            Ok(registered) => registered,
            Err((error, then)) => return then(Err(error)),
        };
        let bytes = encode_request(id, request);
        match self.send(&bytes, due_ns) {
            Ok(()) => {
                if let Some(owner) = self.owner.upgrade() {
                    owner.keeper.nudge(due_ns);
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                self.lose(Error::TimedOut { request: name, after: self.call_timeout });
            }
            Err(error) => self.lose(Error::SessionLost(format!("send {name}: {error}"))),
        }
    }

    /// Sends all bytes, waiting at most until then for the daemon to read. The socket's own time-out would begin anew
    /// with each part that it takes. An error leaves the stream in doubt.
    fn send(&self, bytes: &[u8], due_ns: u64) -> std::io::Result<()> {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = bytes;
        while !left.is_empty() {
            match rustix::net::send(&self.socket, left, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
                Ok(count) => left = &left[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait_writable(&self.socket, due_ns)?,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Sends a request whose answer changes nothing here.
    pub(crate) fn tell(&self, request: &Request) {
        self.call(request, Box::new(|_| ()));
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn ask(&self, request: &Request) -> Result<Reply, Error> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let end = self.answer_due();
        self.call(
            request,
            Box::new(move |answer| {
                let _ = sender.send(answer);
            }),
        );
        self.receive(&receiver, end)
    }

    /// When whoever asks now stops waiting. The keeper ends the session a moment before; it may itself be held up by a
    /// daemon that does not read.
    pub(crate) fn answer_due(&self) -> Instant {
        Instant::now() + self.call_timeout + Duration::from_millis(KEEPER_LATE_MS)
    }

    /// Waits for an answer until then; one that is not there ends the session.
    pub(crate) fn receive(&self, answer: &mpsc::Receiver<Result<Reply, Error>>, end: Instant) -> Result<Reply, Error> {
        let left = || end.saturating_duration_since(Instant::now());
        let received = answer.recv_timeout(left()).or_else(|_| {
            self.check_calls(now_ns());
            answer.try_recv()
        });
        received.unwrap_or_else(|_| Err(Error::SessionLost("the answer was late, or dropped".to_owned())))
    }

    /// Ends the session. The first cause counts.
    pub(crate) fn lose(&self, cause: Error) {
        if self.lost.swap(true, Ordering::AcqRel) {
            return;
        }
        let others = match &cause {
            Error::TimedOut { .. } => Error::SessionLost(cause.to_string()),
            other => other.clone(),
        };
        let open = {
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            calls.closed = Some(others.clone());
            std::mem::take(&mut calls.open)
        };
        // Wakes the reader, and whoever is stuck in a send. An error means that it is closed already.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        drop(std::mem::take(&mut *self.maps.write().unwrap_or_else(PoisonError::into_inner)));
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let now = now_ns();
        for call in open.into_values() {
            let late = matches!(cause, Error::TimedOut { .. }) && call.due_ns <= now;
            (call.then)(Err(if late { cause.clone() } else { others.clone() }));
        }
        if let Some(owner) = self.owner.upgrade() {
            owner.session_lost(self, &cause);
        }
    }

    /// Gives the session up if a call is past its deadline; answers the earliest deadline of those open.
    pub(crate) fn check_calls(&self, now: u64) -> u64 {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let earliest = calls.open.values().min_by_key(|call| call.due_ns).map(|call| (call.due_ns, call.name));
        drop(calls);
        match earliest {
            Some((due, request)) if due <= now => {
                if let Some(owner) = self.owner.upgrade() {
                    owner.counters.add(Counter::CallsTimedOut, 1);
                }
                self.lose(Error::TimedOut { request, after: self.call_timeout });
                u64::MAX
            }
            Some((due, _)) => due,
            None => u64::MAX,
        }
    }

    pub(crate) fn segment(&self, number: u32) -> Option<Arc<Segment>> {
        self.maps.read().unwrap_or_else(PoisonError::into_inner).segments.get(&number).cloned()
    }

    pub(crate) fn generations(&self) -> Option<Arc<Generations>> {
        self.maps.read().unwrap_or_else(PoisonError::into_inner).generations.clone()
    }

    /// Keeps a lease to be renewed and to receive promotions.
    pub(crate) fn keep_lease(&self, lease: &Arc<Lease>) {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).insert(lease.id.0, Arc::clone(lease));
        if let Some(owner) = self.owner.upgrade() {
            owner.keeper.nudge(lease.deadline_ns.load(Ordering::Relaxed).saturating_sub(lease.life_ns / 2));
        }
    }

    pub(crate) fn drop_lease(&self, lease: LeaseId) {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).remove(&lease.0);
    }

    pub(crate) fn leases(&self) -> Vec<Arc<Lease>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(crate) fn withdraw(self: &Arc<Self>, segment: SegmentId) {
        let taken = self.maps.write().unwrap_or_else(PoisonError::into_inner).segments.remove(&segment.0);
        if let Some(taken) = taken {
            let session = Arc::downgrade(self);
            taken.withdraw(Box::new(move || {
                if let Some(session) = session.upgrade() {
                    session.tell(&Request::SegmentUnmapped { segment });
                }
            }));
        }
    }
}

/// Waits until the socket takes bytes, or is closed.
fn wait_writable(socket: &UnixStream, due_ns: u64) -> std::io::Result<()> {
    let left = Duration::from_nanos(due_ns.saturating_sub(now_ns()));
    if left.is_zero() {
        return Err(std::io::ErrorKind::TimedOut.into());
    }
    let timeout = rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match rustix::event::poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn name_of(request: &Request) -> &'static str {
    match request {
        Request::Hello(_) => "Hello",
        Request::Lookup { .. } => "Lookup",
        Request::Reserve { .. } => "Reserve",
        Request::Commit { .. } => "Commit",
        Request::Abort { .. } => "Abort",
        Request::Acquire { .. } => "Acquire",
        Request::Renew { .. } => "Renew",
        Request::Release { .. } => "Release",
        Request::Unhold { .. } => "Unhold",
        Request::Clear { .. } => "Clear",
        Request::SegmentUnmapped { .. } => "SegmentUnmapped",
        Request::Status => "Status",
    }
}
