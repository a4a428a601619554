//! The thread of a session that reads its socket: answers to their continuations, events to whom they concern.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError, Weak, mpsc};

use umbp_protocol::frame::{Decoder, Frame, Kind};
use umbp_protocol::message::{Event, FDS_PER_MESSAGE_MAX, Reply, SegmentId};
use umbp_protocol::{decode_event, decode_reply, fds};

use crate::mapping::Segment;
use crate::options::Error;
use crate::outcome::Counter;
use crate::session::{READ_BYTES, Session};

/// Most fds that wait for their frame; more ends the session.
const FDS_WAITING_MAX: usize = 2 * FDS_PER_MESSAGE_MAX;
/// Most segments of one session; more ends it.
const SEGMENTS_MAX: usize = 4096;
/// The one thread of a session that reads its socket.
pub(crate) struct Reader {
    session: Arc<Session>,
    decoder: Decoder,
    fds: VecDeque<OwnedFd>,
    populate: Option<mpsc::SyncSender<Weak<Segment>>>,
}

impl Reader {
    pub(crate) fn new(session: Arc<Session>, decoder: Decoder, fds: VecDeque<OwnedFd>) -> Self {
        Self { session, decoder, fds, populate: None }
    }

    /// Reads until the session ends, and sees to it that it does.
    pub(crate) fn run(mut self) {
        let cause = match self.read() {
            Ok(()) => Error::SessionLost("the daemon closed it".to_owned()),
            Err(error) => error,
        };
        self.session.lose(cause);
    }

    fn read(&mut self) -> Result<(), Error> {
        let lost = |what: &str, error: &dyn std::fmt::Display| Error::SessionLost(format!("{what}: {error}"));
        let mut buffer = vec![0; READ_BYTES];
        loop {
            while let Some(frame) = self.decoder.next_frame().map_err(|e| lost("read frame", &e))? {
                self.handle(frame)?;
            }
            let read = fds::receive(&self.session.socket, &mut buffer, FDS_PER_MESSAGE_MAX, &mut self.fds);
            let received = match read {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                other => other.map_err(|e| lost("receive", &e))?,
            };
            if received.bytes == 0 {
                return Ok(());
            }
            if received.refused_fds > 0 || self.fds.len() > FDS_WAITING_MAX {
                return Err(lost("receive", &"fds beyond what this process can take"));
            }
            self.decoder.feed(&buffer[..received.bytes]);
        }
    }

    fn handle(&mut self, frame: Frame) -> Result<(), Error> {
        let lost = |error: &dyn std::fmt::Display| Error::SessionLost(error.to_string());
        let boot_id = self.session.welcome.boot_id;
        if frame.boot_id != boot_id {
            return Err(lost(&format!("boot id {:#x}, attached to {boot_id:#x}", frame.boot_id)));
        }
        if self.fds.len() < usize::from(frame.fds) {
            return Err(lost(&format!("{} fds came beside a frame that has {}", self.fds.len(), frame.fds)));
        }
        let beside: Vec<OwnedFd> = self.fds.drain(..usize::from(frame.fds)).collect();
        match frame.kind {
            Kind::Request => Err(lost(&"the daemon sent a request")),
            Kind::Reply => {
                let reply = decode_reply(&frame).map_err(|e| lost(&e))?;
                let calls = &self.session.calls;
                let call = calls.lock().unwrap_or_else(PoisonError::into_inner).open.remove(&frame.request_id);
                let Some(call) = call else {
                    // Lost meanwhile, or an answer to nothing.
                    return Err(lost(&format!("an answer to request {}, which is not open", frame.request_id)));
                };
                (call.then)(match reply {
                    Reply::Refused(refusal) => Err(Error::Refused(refusal)),
                    reply => Ok(reply),
                });
                Ok(())
            }
            Kind::Event => self.event(decode_event(&frame).map_err(|e| lost(&e))?, beside),
        }
    }

    fn event(&mut self, event: Event, beside: Vec<OwnedFd>) -> Result<(), Error> {
        match event {
            Event::SegmentsAdded { segments } => {
                if segments.len() != beside.len() {
                    let text = format!("{} segments with {} fds", segments.len(), beside.len());
                    return Err(Error::SessionLost(text));
                }
                for ((number, length), fd) in segments.into_iter().zip(beside) {
                    self.map(number, length, fd)?;
                }
            }
            Event::SegmentWithdrawn { segment } => self.session.withdraw(segment),
            Event::Promoted { lease, index, item } => {
                let leases = self.session.leases.lock().unwrap_or_else(PoisonError::into_inner);
                let job = leases.get(&lease.0).and_then(|lease| lease.job.upgrade());
                drop(leases);
                if let Some(job) = job {
                    job.promoted(index, item);
                }
            }
            other => {
                if let Some(owner) = self.session.owner.upgrade() {
                    owner.daemon_event(other, self.session.namespace());
                }
            }
        }
        Ok(())
    }

    fn map(&mut self, number: SegmentId, length: u64, fd: OwnedFd) -> Result<(), Error> {
        let segment = Segment::map(fd, length, &self.session.mapped);
        let segment = Arc::new(segment.map_err(|e| Error::SessionLost(format!("map segment {}: {e}", number.0)))?);
        let wanted = self.session.owner.upgrade().is_some_and(|owner| owner.options.populate);
        if wanted {
            self.populate(&segment);
        }
        let mut maps = self.session.maps.write().unwrap_or_else(PoisonError::into_inner);
        // A session lost meanwhile has dropped its mappings and takes no more.
        if maps.segments.len() >= SEGMENTS_MAX {
            return Err(Error::SessionLost(format!("more than {SEGMENTS_MAX} segments")));
        }
        if !self.session.is_lost() {
            maps.segments.insert(number.0, segment);
        }
        Ok(())
    }

    /// Hands a segment to the thread that fills page tables; without one, copies pay for their first touches.
    fn populate(&mut self, segment: &Arc<Segment>) {
        let session = &self.session;
        let sender = self.populate.get_or_insert_with(|| {
            let (sender, receiver) = mpsc::sync_channel::<Weak<Segment>>(SEGMENTS_MAX);
            let session = Arc::clone(session);
            let run = move || {
                for segment in receiver {
                    let done = segment.upgrade().is_none_or(|s| s.populate(&|| !session.is_lost()).is_ok());
                    if !done && let Some(owner) = session.owner.upgrade() {
                        owner.counters.add(Counter::PopulateFailed, 1);
                    }
                    session.populating.sub();
                }
            };
            // Without the thread the receiver is dropped, and every send below fails.
            let _ = std::thread::Builder::new().name("umbp-populate".to_owned()).spawn(run);
            sender
        });
        session.populating.add();
        if sender.try_send(Arc::downgrade(segment)).is_err() {
            session.populating.sub();
            if let Some(owner) = session.owner.upgrade() {
                owner.counters.add(Counter::PopulateFailed, 1);
            }
        }
    }
}
