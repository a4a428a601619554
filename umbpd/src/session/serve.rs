//! The life of a connection.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Instant;
use umbp_protocol::message::{Refusal, Reply, Request, SessionId};
use umbp_protocol::{Frame, decode_request, encode_reply};

use super::hello::{Who, welcome};
use super::line::{Line, Read};
use super::outbox::Outgoing;
use super::peer::Peer;
use super::{CONNECTIONS_MAX, answer, refusal};
use crate::core::Hub;
use crate::core::seat::SessionSeat;

/// A connection that has not said Hello by then ends.
const HELLO_MS: u64 = 5_000;
/// A client that takes nothing for this long, though something waits for it, has its session ended.
const STALL_MS: u64 = 10_000;
/// Time for the last words to an ended session.
const FAREWELL_MS: u64 = 1_000;
/// With this much waiting to be sent no further request is read. More than the answers that a client has outstanding at
/// its own bound (65,536 blocks, 42 bytes each): the thread that would read them may itself wait until it can send.
const PIPELINE_BYTES_MAX: usize = 4 << 20;
/// After an error of accept, such as too many open files, the next try comes this much later.
const ACCEPT_RETRY_MS: u64 = 100;
/// How often a session that has ended is looked at, whether its process still has to be watched.
const WATCH_MS: u64 = 1_000;

/// Takes connections for as long as it is polled.
pub async fn accept(hub: Rc<Hub>, listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) if hub.connections.get() < CONNECTIONS_MAX => {
                // Counted from here on, or a burst of them would pass the limit before the first task runs.
                tokio::task::spawn_local(connection(Counted::new(hub.clone()), stream));
            }
            Ok((stream, _)) => {
                let message = format!("{CONNECTIONS_MAX} connections are open already; end some, or try later");
                hub.turn_away(stream, "connections", message);
            }
            Err(error) => {
                hub.count_lost("accept", &format!("cannot accept a connection: {error}"));
                tokio::time::sleep(Duration::from_millis(ACCEPT_RETRY_MS)).await;
            }
        }
    }
}

/// Counts a connection for as long as it lives.
struct Counted(Rc<Hub>);

impl Counted {
    fn new(hub: Rc<Hub>) -> Self {
        hub.connections.set(hub.connections.get() + 1);
        Self(hub)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.set(self.0.connections.get() - 1);
    }
}

/// How a connection ends.
enum End {
    /// The client closed, or nothing can be sent to it any more.
    Closed,
    /// Its process has ended.
    Gone,
    /// For a reason of ours, which the client is told under this request id.
    Refused(u64, Refusal),
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        Self::Closed
    }
}

struct Connection {
    hub: Rc<Hub>,
    line: Line,
    peer: Peer,
    seat: Rc<SessionSeat>,
    session: Option<SessionId>,
    /// Somebody must take what waits by then.
    stalled_at: Option<Instant>,
}

async fn connection(counted: Counted, stream: UnixStream) {
    let hub = counted.0.clone();
    let peer = match Peer::of(&stream) {
        Ok(peer) => peer,
        Err(error) => {
            // Without it nobody would know when the process is gone and its memory free to be written by others.
            let message = format!(
                "umbpd cannot watch the process that connected ({error}); raise its RLIMIT_NOFILE if it is out of \
                 files, and run client and daemon in one pid namespace on kernels before 6.5"
            );
            return hub.turn_away(stream, "peer", message);
        }
    };
    let seat = Rc::new(SessionSeat::new(peer.uid, peer.pid));
    let mut connection = Connection { hub, line: Line::new(stream), peer, seat, session: None, stalled_at: None };
    let end = match connection.live().await {
        Err(end) => end,
        Ok(never) => match never {},
    };
    connection.close(end).await;
}

impl Connection {
    async fn live(&mut self) -> Result<std::convert::Infallible, End> {
        let first = tokio::time::timeout(Duration::from_millis(HELLO_MS), self.next_frame()).await;
        let frame = first.map_err(|_| {
            let message = format!("no Hello within {HELLO_MS} ms of connecting");
            End::Refused(0, refusal("frame", message))
        })??;
        let id = frame.request_id;
        match request(&frame)? {
            Request::Hello(hello) => {
                let who = Who { uid: self.peer.uid, pid: self.peer.pid };
                let welcomed = welcome(&self.hub, &self.seat, who, id, &hello);
                self.session = welcomed.map_err(|refusal| End::Refused(id, refusal))?;
            }
            _ => return Err(End::Refused(id, refusal("frame", "the first message must be Hello"))),
        }
        loop {
            let frame = self.next_frame().await?;
            let request = request(&frame)?;
            self.seat.outbox.borrow_mut().begin_answer();
            let reply = match (self.session, request) {
                (Some(session), request) => {
                    answer::answer(&self.hub, &self.seat, (session, frame.request_id), request).await
                }
                (None, Request::Status) => Some(Reply::Status(self.hub.status().await)),
                (None, _) => Some(Reply::Refused(refusal("tenant", "this connection may only ask for status"))),
            };
            self.seat.requests.set(self.seat.requests.get() + 1);
            if let Some(reply) = reply {
                let bytes = encode_reply(frame.request_id, self.hub.facts.boot_id, &reply);
                self.seat.outbox.borrow_mut().push_reply(Outgoing { bytes, fds: Vec::new() });
            } else {
                self.seat.outbox.borrow_mut().end_answer();
            }
            if self.line.has_more() {
                // Who sends many requests at once waits for its turn like anybody else.
                tokio::task::yield_now().await;
            }
        }
    }

    /// Sends what waits and reads, until a whole frame is here.
    async fn next_frame(&mut self) -> Result<Frame, End> {
        loop {
            self.send()?;
            let waiting = self.seat.outbox.borrow().waiting_bytes();
            let may_read = waiting < PIPELINE_BYTES_MAX;
            if may_read {
                let frame = self.line.next_frame();
                if let Some(frame) = frame.map_err(|error| End::Refused(0, refusal("frame", error.to_string())))? {
                    return Ok(frame);
                }
            }
            let interest = match (may_read, waiting > 0) {
                (true, true) => Interest::READABLE | Interest::WRITABLE,
                (true, false) => Interest::READABLE,
                (false, _) => Interest::WRITABLE,
            };
            let stalled_at = self.stalled_at;
            tokio::select! {
                biased;
                () = self.peer.gone() => return Err(End::Gone),
                () = self.seat.wake.notified() => continue,
                ready = self.line.ready(interest) => ready?,
                () = until(stalled_at) => {
                    let message = format!("the client has read nothing for {STALL_MS} ms while {waiting} bytes wait");
                    return Err(End::Refused(0, refusal("limit", message)));
                }
            }
            if may_read {
                self.read()?;
            }
        }
    }

    fn read(&mut self) -> Result<(), End> {
        match self.line.read()? {
            Read::Some | Read::Nothing => Ok(()),
            Read::Closed => Err(End::Closed),
            Read::Fds(count) => {
                let message = format!("{count} fds came with a message; umbpd takes none from a client");
                Err(End::Refused(0, refusal("frame", message)))
            }
        }
    }

    fn send(&mut self) -> Result<(), End> {
        if let Some(why) = self.seat.end.borrow().clone() {
            return Err(End::Refused(0, refusal("argument", why)));
        }
        let any = self.line.send(&self.seat.outbox)?;
        let outbox = self.seat.outbox.borrow();
        if outbox.is_over() {
            let message = format!("{} bytes wait for a client that does not read", outbox.waiting_bytes());
            return Err(End::Refused(0, refusal("limit", message)));
        }
        if outbox.is_empty() {
            self.stalled_at = None;
        } else if any || self.stalled_at.is_none() {
            self.stalled_at = Some(Instant::now() + Duration::from_millis(STALL_MS));
        }
        Ok(())
    }

    /// Lets go of the session, then says why, if there is somebody to say it to.
    async fn close(self, end: End) {
        let Self { hub, line, peer, seat, session, .. } = self;
        let gone = matches!(end, End::Gone);
        if let Some(session) = session {
            hub.sessions.borrow_mut().remove(&session);
            hub.with(|engine, now| engine.session_close(session, gone, now));
        }
        if let End::Refused(id, refusal) = end {
            tracing::info!("session of pid {} ends: {}", peer.pid, refusal.message);
            hub.count_end(&refusal.code);
            let bytes = encode_reply(id, hub.facts.boot_id, &Reply::Refused(refusal));
            seat.outbox.borrow_mut().push_reply(Outgoing { bytes, fds: Vec::new() });
            let farewell = async {
                while line.send(&seat.outbox).is_ok() && !seat.outbox.borrow().is_empty() {
                    if line.ready(Interest::WRITABLE).await.is_err() {
                        break;
                    }
                }
            };
            // Whoever does not read it in time goes without.
            let _ = tokio::time::timeout(Duration::from_millis(FAREWELL_MS), farewell).await;
        }
        drop(line);
        if let Some(session) = session.filter(|_| !gone) {
            watch(&hub, session, peer).await;
        }
    }
}

/// What a session was writing stays quarantined until its process is gone: waits for that, as long as it matters.
async fn watch(hub: &Hub, session: SessionId, peer: Peer) {
    while hub.ask(|engine| engine.session_lingers(session)) {
        tokio::select! {
            () = peer.gone() => {
                hub.with(|engine, now| engine.process_gone(session, now));
                return;
            }
            () = tokio::time::sleep(Duration::from_millis(WATCH_MS)) => {}
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn request(frame: &Frame) -> Result<Request, End> {
    decode_request(frame).map_err(|error| {
        // Of JSON the cause names the field and the place.
        let cause = std::error::Error::source(&error).map_or(String::new(), |cause| format!(": {cause}"));
        End::Refused(frame.request_id, refusal("frame", format!("{error}{cause}")))
    })
}
