//! A message's envelope, and frames out of a stream of bytes.
//!
//! Header, little-endian, [`HEADER_BYTES`] bytes:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | length: bytes of the frame after this word, at most [`FRAME_BYTES_MAX`] |
//! | 4 | version of the envelope, [`ENVELOPE_VERSION`]; the protocol's version is agreed on in Hello |
//! | 5 | flags, zero |
//! | 6..8 | opcode, see [`opcode`] |
//! | 8..10 | header length, from byte 0 on; a longer header is a newer one, and what it adds is skipped |
//! | 10..12 | number of fds beside this frame |
//! | 12..16 | zero |
//! | 16..24 | request id: the client's number, given back in the reply; 0 in an event |
//! | 24..32 | boot id: the daemon's life, in every reply and event; 0 from a client |

use crate::message::{FDS_PER_MESSAGE_MAX, FRAME_BYTES_MAX};

/// Bytes of the header that this build writes, and the least that it reads.
pub const HEADER_BYTES: usize = 32;
/// Version of the envelope.
pub const ENVELOPE_VERSION: u8 = 1;
/// Bytes of the length word, which the length does not count.
const LENGTH_BYTES: usize = 4;

/// Numbers of the messages.
pub mod opcode {
    /// [`crate::message::Request::Hello`]
    pub const HELLO: u16 = 1;
    /// [`crate::message::Request::Lookup`]
    pub const LOOKUP: u16 = 2;
    /// [`crate::message::Request::Reserve`]
    pub const RESERVE: u16 = 3;
    /// [`crate::message::Request::Commit`]
    pub const COMMIT: u16 = 4;
    /// [`crate::message::Request::Abort`]
    pub const ABORT: u16 = 5;
    /// [`crate::message::Request::Acquire`]
    pub const ACQUIRE: u16 = 6;
    /// [`crate::message::Request::Renew`]
    pub const RENEW: u16 = 7;
    /// [`crate::message::Request::Release`]
    pub const RELEASE: u16 = 8;
    /// [`crate::message::Request::Unhold`]
    pub const UNHOLD: u16 = 9;
    /// [`crate::message::Request::Clear`]
    pub const CLEAR: u16 = 10;
    /// [`crate::message::Request::SegmentUnmapped`]
    pub const SEGMENT_UNMAPPED: u16 = 11;
    /// [`crate::message::Request::Status`]
    pub const STATUS: u16 = 12;
    /// The last request.
    pub(crate) const REQUEST_LAST: u16 = STATUS;

    /// A reply is its request's number and this bit.
    pub const REPLY: u16 = 0x100;
    /// [`crate::message::Reply::Refused`], to any request.
    pub const REFUSED: u16 = 0x1ff;

    /// [`crate::message::Event::Promoted`]
    pub const PROMOTED: u16 = 0x201;
    /// [`crate::message::Event::SegmentsAdded`]
    pub const SEGMENTS_ADDED: u16 = 0x202;
    /// [`crate::message::Event::SegmentWithdrawn`]
    pub const SEGMENT_WITHDRAWN: u16 = 0x203;
    /// [`crate::message::Event::Removed`]
    pub const REMOVED: u16 = 0x204;
    /// [`crate::message::Event::TierState`]
    pub const TIER_STATE: u16 = 0x205;
    /// [`crate::message::Event::Resync`]
    pub const RESYNC: u16 = 0x206;
    /// [`crate::message::Event::Draining`]
    pub const DRAINING: u16 = 0x207;
    /// The last event.
    pub(crate) const EVENT_LAST: u16 = DRAINING;
}

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From the client.
    Request,
    /// From the daemon, to a request.
    Reply,
    /// From the daemon, unasked.
    Event,
}

impl Kind {
    /// The kind of an opcode; none where this build does not know it.
    pub fn of(opcode: u16) -> Option<Self> {
        match opcode {
            1..=opcode::REQUEST_LAST => Some(Self::Request),
            opcode::REFUSED => Some(Self::Reply),
            _ if (1..=opcode::REQUEST_LAST).contains(&(opcode ^ opcode::REPLY)) => Some(Self::Reply),
            opcode::PROMOTED..=opcode::EVENT_LAST => Some(Self::Event),
            _ => None,
        }
    }
}

/// One frame off the stream; its opcode is known, its body is not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is, see [`opcode`].
    pub opcode: u16,
    /// Which way it goes.
    pub kind: Kind,
    /// Number of fds that travel beside it.
    pub fds: u16,
    /// The request's number.
    pub request_id: u64,
    /// The daemon's life.
    pub boot_id: u64,
    /// What follows the header.
    pub body: Vec<u8>,
}

/// Why bytes are no frame. The stream is in doubt from here on, so the session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length is beyond the limit.
    #[error("frame length {length} bytes, limit {limit}: send fewer keys per message")]
    TooLong {
        /// What the frame says.
        length: usize,
        /// Most that is taken.
        limit: usize,
    },
    /// The length, or the header length, does not even cover the header.
    #[error("frame header of {header} bytes, expected at least {least}")]
    ShortHeader {
        /// What the frame says.
        header: usize,
        /// Bytes of the oldest header.
        least: usize,
    },
    /// The header length reaches beyond the frame.
    #[error("frame header of {header} bytes in a frame of {frame} bytes")]
    HeaderBeyondFrame {
        /// What the header says.
        header: usize,
        /// The whole frame.
        frame: usize,
    },
    /// Another envelope.
    #[error("frame version {version}, this side speaks {known}: bring both sides to one release")]
    UnknownVersion {
        /// What the frame says.
        version: u8,
        /// What this build knows.
        known: u8,
    },
    /// A message that this build does not know.
    #[error("unknown opcode {opcode:#06x}")]
    UnknownOpcode {
        /// What the frame says.
        opcode: u16,
    },
    /// More fds than a message can carry.
    #[error("{fds} fds beside one frame, limit {limit}")]
    TooManyFds {
        /// What the frame says.
        fds: usize,
        /// The kernel's limit.
        limit: usize,
    },
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// Frames out of a stream of bytes. Feed it what one read brought (a bounded piece), then take frames until there is
/// none: what it holds then is less than one frame of at most [`FRAME_BYTES_MAX`] bytes.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    taken: usize,
}

impl Decoder {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes of the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes fed and not yet given out as frames.
    pub fn buffered(&self) -> usize {
        self.buffer.len() - self.taken
    }

    /// The next whole frame; none until more bytes are fed. After an error every call answers the same error.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let bytes = &self.buffer[self.taken..];
        if bytes.len() < LENGTH_BYTES {
            return Ok(None);
        }
        let length = u32::from_le_bytes(word(bytes, 0)) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(FrameError::TooLong { length, limit: FRAME_BYTES_MAX });
        }
        let whole = LENGTH_BYTES + length;
        if whole < HEADER_BYTES {
            return Err(FrameError::ShortHeader { header: whole, least: HEADER_BYTES });
        }
        if bytes.len() < HEADER_BYTES {
            return Ok(None);
        }
        let (header, mut frame) = read_header(bytes, whole)?;
        if bytes.len() < whole {
            return Ok(None);
        }
        frame.body = bytes[header..whole].to_vec();
        self.taken += whole;
        Ok(Some(frame))
    }
}

/// The header's length, and the frame without its body.
fn read_header(bytes: &[u8], whole: usize) -> Result<(usize, Frame), FrameError> {
    if bytes[4] != ENVELOPE_VERSION {
        return Err(FrameError::UnknownVersion { version: bytes[4], known: ENVELOPE_VERSION });
    }
    let header = usize::from(u16::from_le_bytes(word(bytes, 8)));
    if header < HEADER_BYTES {
        return Err(FrameError::ShortHeader { header, least: HEADER_BYTES });
    }
    if header > whole {
        return Err(FrameError::HeaderBeyondFrame { header, frame: whole });
    }
    let opcode = u16::from_le_bytes(word(bytes, 6));
    let Some(kind) = Kind::of(opcode) else { return Err(FrameError::UnknownOpcode { opcode }) };
    let fds = u16::from_le_bytes(word(bytes, 10));
    if usize::from(fds) > FDS_PER_MESSAGE_MAX {
        return Err(FrameError::TooManyFds { fds: usize::from(fds), limit: FDS_PER_MESSAGE_MAX });
    }
    let request_id = u64::from_le_bytes(word(bytes, 16));
    let boot_id = u64::from_le_bytes(word(bytes, 24));
    Ok((header, Frame { opcode, kind, fds, request_id, boot_id, body: Vec::new() }))
}

/// A header with its length still to be written by [`seal`].
pub(crate) fn header(opcode: u16, fds: usize, request_id: u64, boot_id: u64) -> Vec<u8> {
    let mut out = vec![0; HEADER_BYTES];
    out[4] = ENVELOPE_VERSION;
    out[6..8].copy_from_slice(&opcode.to_le_bytes());
    out[8..10].copy_from_slice(&(HEADER_BYTES as u16).to_le_bytes());
    out[10..12].copy_from_slice(&(fds as u16).to_le_bytes());
    out[16..24].copy_from_slice(&request_id.to_le_bytes());
    out[24..32].copy_from_slice(&boot_id.to_le_bytes());
    out
}

/// Writes the length into a whole frame.
pub(crate) fn seal(mut frame: Vec<u8>) -> Vec<u8> {
    let length = (frame.len() - LENGTH_BYTES) as u32;
    frame[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame_with(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = seal(header(opcode::STATUS, 0, 7, 0));
        change(&mut bytes);
        bytes
    }

    fn check(bytes: &[u8], expected: Result<Option<u64>, FrameError>) {
        let mut decoder = Decoder::new();
        decoder.feed(bytes);
        assert_eq!(decoder.next_frame().map(|f| f.map(|f| f.request_id)), expected);
    }

    #[test]
    fn a_frame_that_breaks_a_limit_is_refused_before_its_body_arrives() {
        let too_long = FRAME_BYTES_MAX + 1;
        check(&(too_long as u32).to_le_bytes(), Err(FrameError::TooLong { length: too_long, limit: FRAME_BYTES_MAX }));
        check(&27u32.to_le_bytes(), Err(FrameError::ShortHeader { header: 31, least: HEADER_BYTES }));
        check(&frame_with(|b| b[4] = 9), Err(FrameError::UnknownVersion { version: 9, known: 1 }));
        check(&frame_with(|b| b[8] = 31), Err(FrameError::ShortHeader { header: 31, least: HEADER_BYTES }));
        check(&frame_with(|b| b[8] = 33), Err(FrameError::HeaderBeyondFrame { header: 33, frame: 32 }));
        check(&frame_with(|b| b[6] = 13), Err(FrameError::UnknownOpcode { opcode: 13 }));
        check(&frame_with(|b| b[10] = 254), Err(FrameError::TooManyFds { fds: 254, limit: FDS_PER_MESSAGE_MAX }));
        check(&frame_with(|_| ()), Ok(Some(7)));
        check(&frame_with(|b| b.truncate(31)), Ok(None));
    }

    #[test]
    fn a_longer_header_of_a_newer_peer_is_skipped() {
        let mut bytes = header(opcode::STATUS, 0, 7, 0);
        bytes[8] = 40;
        bytes.extend_from_slice(&[0xee; 8]);
        bytes.extend_from_slice(b"body");
        let mut decoder = Decoder::new();
        decoder.feed(&seal(bytes));
        let frame = decoder.next_frame().expect("a frame").expect("whole");
        assert_eq!((frame.request_id, frame.body.as_slice()), (7, b"body".as_slice()));
    }

    #[test]
    fn an_error_stays_and_frames_before_it_are_given_out() {
        let mut decoder = Decoder::new();
        decoder.feed(&frame_with(|_| ()));
        decoder.feed(&frame_with(|b| b[4] = 0));
        assert!(matches!(decoder.next_frame(), Ok(Some(_))));
        assert_eq!(decoder.next_frame(), decoder.next_frame());
        assert!(decoder.next_frame().is_err());
    }
}
