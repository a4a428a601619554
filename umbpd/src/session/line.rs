//! Bytes in and out of one connection.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use tokio::io::Interest;
use tokio::net::UnixStream;
use umbp_protocol::{Decoder, Frame, FrameError, fds};

use super::outbox::Outbox;
use crate::fork::NotInChildren;

/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;

/// A connection and what was read from it.
pub struct Line {
    // Before the stream: fields are dropped in this order.
    _alone: NotInChildren,
    stream: UnixStream,
    decoder: Decoder,
    buffer: Box<[u8]>,
}

/// What one read brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// Bytes, now in the decoder.
    Some,
    /// Nothing yet.
    Nothing,
    /// The other side has closed.
    Closed,
    /// Fds, which the daemon does not take; they are closed.
    Fds(usize),
}

impl Line {
    /// Around a connection.
    pub fn new(stream: UnixStream) -> Self {
        let buffer = vec![0; READ_BYTES].into_boxed_slice();
        Self { _alone: NotInChildren::new(&stream), stream, decoder: Decoder::new(), buffer }
    }

    /// The connection itself.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// The next whole frame among the bytes that were read.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        self.decoder.next_frame()
    }

    /// Bytes were read that were not given out yet.
    pub fn has_more(&self) -> bool {
        self.decoder.buffered() > 0
    }

    /// Waits until the connection is ready for one of these.
    pub async fn ready(&self, interest: Interest) -> io::Result<()> {
        self.stream.ready(interest).await.map(drop)
    }

    /// One read, without waiting.
    pub fn read(&mut self) -> io::Result<Read> {
        let mut none = Vec::new();
        let (stream, buffer) = (&self.stream, &mut self.buffer);
        let received = stream.try_io(Interest::READABLE, || fds::receive(stream.as_fd(), buffer, 0, &mut none));
        match received {
            Ok(received) if received.refused_fds > 0 => Ok(Read::Fds(received.refused_fds)),
            Ok(received) if received.bytes == 0 => Ok(Read::Closed),
            Ok(received) => {
                self.decoder.feed(&self.buffer[..received.bytes]);
                Ok(Read::Some)
            }
            Err(error) if is_transient(&error) => Ok(Read::Nothing),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(Read::Closed),
            Err(error) => Err(error),
        }
    }

    /// Sends as much as goes now. Answers whether anything went.
    pub fn send(&self, outbox: &RefCell<Outbox>) -> io::Result<bool> {
        let mut any = false;
        loop {
            let mut outbox = outbox.borrow_mut();
            let Some((bytes, fds)) = outbox.front() else { return Ok(any) };
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
            match self.stream.try_io(Interest::WRITABLE, || fds::send(self.stream.as_fd(), bytes, &fds)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    outbox.sent(count);
                    any = true;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(any),
                Err(error) => return Err(error),
            }
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
