//! A message's body: columns of a hot message, JSON of a cold one (Hello, Welcome, Status, TierState, Refused).
//!
//! Body of a hot message, little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | length of the fixed part, from byte 0 on; a longer one is a newer one, and what it adds is skipped |
//! | 2..4 | zero |
//! | 4..8 | count, at most [`KEYS_PER_MESSAGE_MAX`] |
//! | 8.. | scalars of the message |
//! | then | columns of `count` cells each; bytes after the last known column are a newer peer's, and are skipped |
//!
//! The encoders write what they are given; keeping the limits is the caller's part, and the other side refuses.

mod event;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use event::{decode_event, encode_event};
pub use reply::{decode_reply, encode_reply};
pub use request::{decode_request, encode_request};

use crate::frame::{Frame, HEADER_BYTES, Kind, header, seal};
use crate::message::{KEYS_PER_MESSAGE_MAX, MissReason, NamespaceId, WireKey};
use umbp_connector_core::key::LOCAL_KEY_BYTES;

/// Bytes of the fixed part before the scalars.
const FIXED_BYTES: usize = 8;

/// Why a frame's body is not the message that its opcode names. The session ends.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The frame goes the other way.
    #[error("opcode {opcode:#06x} is of another kind: expected {expected:?}")]
    WrongKind {
        /// The frame's.
        opcode: u16,
        /// What was to be read.
        expected: Kind,
    },
    /// More cells than a message may have.
    #[error("count {count}, limit {limit}: split the batch")]
    Count {
        /// What the body says.
        count: usize,
        /// Most that is taken.
        limit: usize,
    },
    /// The body ends before its fields or columns do.
    #[error("body ends early: {what} needs {needed} bytes, {left} are left")]
    Short {
        /// The field or column.
        what: &'static str,
        /// Bytes that it takes.
        needed: usize,
        /// Bytes there.
        left: usize,
    },
    /// A cell holds a number that means nothing.
    #[error("{field} has value {value}, which means nothing here")]
    Value {
        /// The field.
        field: &'static str,
        /// What it says.
        value: u64,
    },
    /// JSON that does not parse, or lacks a field.
    #[error("body is not the JSON of its message")]
    Json(#[from] serde_json::Error),
}

/// A hot message's body under way: scalars first, then columns.
struct Body {
    bytes: Vec<u8>,
}

impl Body {
    fn start(opcode: u16, fds: usize, request_id: u64, boot_id: u64, count: usize) -> Self {
        let mut bytes = header(opcode, fds, request_id, boot_id);
        bytes.extend_from_slice(&(FIXED_BYTES as u16).to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&(count as u32).to_le_bytes());
        Self { bytes }
    }

    fn scalar<const N: usize>(mut self, value: [u8; N]) -> Self {
        self.bytes.extend_from_slice(&value);
        let fixed = (self.bytes.len() - HEADER_BYTES) as u16;
        self.bytes[HEADER_BYTES..HEADER_BYTES + 2].copy_from_slice(&fixed.to_le_bytes());
        self
    }

    fn column<const N: usize>(mut self, cells: impl Iterator<Item = [u8; N]>) -> Self {
        self.bytes.extend(cells.flatten());
        self
    }

    fn keys<'a>(self, keys: impl Iterator<Item = &'a WireKey> + Clone) -> Self {
        self.column(keys.clone().map(|key| key.namespace.0.to_le_bytes())).column(keys.map(|key| key.local))
    }

    fn finish(self) -> Vec<u8> {
        seal(self.bytes)
    }
}

fn json_frame(opcode: u16, fds: usize, ids: (u64, u64), value: &impl serde::Serialize) -> Vec<u8> {
    let mut bytes = header(opcode, fds, ids.0, ids.1);
    // Our own types have string keys and no fallible serializer, so this writes; if it ever fails, the other side
    // sees JSON that does not parse and says so.
    let _ = serde_json::to_writer(&mut bytes, value);
    seal(bytes)
}

/// A hot message's body, read in the order in which it was written.
struct Columns<'a> {
    count: usize,
    scalars: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Columns<'a> {
    fn open(frame: &'a Frame) -> Result<Self, DecodeError> {
        let body = frame.body.as_slice();
        let short = |needed| DecodeError::Short { what: "fixed part", needed, left: body.len() };
        let [l0, l1, _, _, c0, c1, c2, c3] = *body.first_chunk::<FIXED_BYTES>().ok_or_else(|| short(FIXED_BYTES))?;
        let fixed = usize::from(u16::from_le_bytes([l0, l1]));
        if fixed < FIXED_BYTES {
            return Err(DecodeError::Value { field: "fixed part's length", value: fixed as u64 });
        }
        let count = u32::from_le_bytes([c0, c1, c2, c3]) as usize;
        if count > KEYS_PER_MESSAGE_MAX {
            return Err(DecodeError::Count { count, limit: KEYS_PER_MESSAGE_MAX });
        }
        let (fixed, rest) = body.split_at_checked(fixed).ok_or_else(|| short(fixed))?;
        Ok(Self { count, scalars: &fixed[FIXED_BYTES..], rest })
    }

    fn scalar<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let left = self.scalars.len();
        let (value, rest) =
            self.scalars.split_first_chunk::<N>().ok_or(DecodeError::Short { what, needed: N, left })?;
        self.scalars = rest;
        Ok(*value)
    }

    /// The next column. `count` is bounded and compared with the bytes left before anything is allocated for it.
    fn column<const N: usize>(&mut self, what: &'static str) -> Result<&'a [[u8; N]], DecodeError> {
        let needed = self.count * N;
        let left = self.rest.len();
        let (column, rest) = self.rest.split_at_checked(needed).ok_or(DecodeError::Short { what, needed, left })?;
        self.rest = rest;
        Ok(column.as_chunks::<N>().0)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        self.scalar(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        self.scalar(what).map(u64::from_le_bytes)
    }

    fn keys(&mut self) -> Result<Vec<WireKey>, DecodeError> {
        let namespaces = self.column("namespaces")?;
        let locals = self.column::<LOCAL_KEY_BYTES>("keys")?;
        let key = |(namespace, local): (&[u8; 4], &[u8; LOCAL_KEY_BYTES])| WireKey {
            namespace: NamespaceId(u32::from_le_bytes(*namespace)),
            local: *local,
        };
        Ok(namespaces.iter().zip(locals).map(key).collect())
    }
}

fn expect_kind(frame: &Frame, expected: Kind) -> Result<(), DecodeError> {
    if frame.kind == expected { Ok(()) } else { Err(DecodeError::WrongKind { opcode: frame.opcode, expected }) }
}

fn read_bool(field: &'static str, value: u8) -> Result<bool, DecodeError> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::Value { field, value: u64::from(value) }),
    }
}

/// A reason that only a newer daemon knows reads as Absent: the block is a miss in any case.
fn read_miss(value: u8) -> MissReason {
    MissReason::ALL.into_iter().find(|reason| *reason as u8 == value).unwrap_or(MissReason::Absent)
}
