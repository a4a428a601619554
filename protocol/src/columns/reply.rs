//! Replies as bytes.

use super::{Body, Columns, DecodeError, expect_kind, json_frame, read_bool, read_miss};
use crate::frame::{Frame, Kind, opcode};
use crate::message::{Acquired, Extent, Found, LeaseId, Outcome, Reply, Reserved};

/// Bytes of an extent in a column: segment, slot, offset, generation.
const EXTENT_BYTES: usize = 24;

pub(super) fn extent_cell(extent: &Extent) -> [u8; EXTENT_BYTES] {
    let mut cell = [0; EXTENT_BYTES];
    cell[..4].copy_from_slice(&extent.segment.to_le_bytes());
    cell[4..8].copy_from_slice(&extent.slot.to_le_bytes());
    cell[8..16].copy_from_slice(&extent.offset.to_le_bytes());
    cell[16..].copy_from_slice(&extent.generation.to_le_bytes());
    cell
}

pub(super) fn read_extent(cell: &[u8; EXTENT_BYTES]) -> Extent {
    let word = |at: usize| u32::from_le_bytes([cell[at], cell[at + 1], cell[at + 2], cell[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    Extent { segment: word(0), slot: word(4), offset: long(8), generation: long(16) }
}

/// Tags of an acquired block, and of a reserved one.
const READY: u8 = 0;
const PENDING: u8 = 1;
const MISS: u8 = 2;
const RESERVED: [Reserved; 5] =
    [Reserved::Present, Reserved::BeingWritten, Reserved::Refused, Reserved::LengthDiffers, Reserved::Invalid];

/// An acquired block as the cells of its columns: tag, tier or reason, extent, length, checksum.
type AcquiredCells = ([u8; 2], [u8; EXTENT_BYTES], [u8; 8], [u8; 8]);

pub(super) fn acquired_cells(item: &Acquired) -> AcquiredCells {
    match item {
        Acquired::Ready { extent, length, checksum, tier } => {
            ([READY, *tier], extent_cell(extent), length.to_le_bytes(), checksum.to_le_bytes())
        }
        Acquired::Pending => ([PENDING, 0], [0; EXTENT_BYTES], [0; 8], [0; 8]),
        Acquired::Miss(reason) => ([MISS, *reason as u8], [0; EXTENT_BYTES], [0; 8], [0; 8]),
    }
}

pub(super) fn read_acquired((tag, extent, length, checksum): AcquiredCells) -> Result<Acquired, DecodeError> {
    match tag {
        [READY, tier] => Ok(Acquired::Ready {
            extent: read_extent(&extent),
            length: u64::from_le_bytes(length),
            checksum: u64::from_le_bytes(checksum),
            tier,
        }),
        [PENDING, _] => Ok(Acquired::Pending),
        [MISS, reason] => Ok(Acquired::Miss(read_miss(reason))),
        [tag, _] => Err(DecodeError::Value { field: "acquired block's tag", value: u64::from(tag) }),
    }
}

fn reserved_cells(item: &Reserved) -> ([u8; 1], [u8; EXTENT_BYTES]) {
    match item {
        Reserved::Extent(extent) => ([0], extent_cell(extent)),
        other => {
            let tag = RESERVED.iter().position(|r| r == other).map_or(RESERVED.len(), |at| at + 1);
            ([tag as u8], [0; EXTENT_BYTES])
        }
    }
}

fn read_reserved(tag: u8, extent: &[u8; EXTENT_BYTES]) -> Result<Reserved, DecodeError> {
    match tag {
        0 => Ok(Reserved::Extent(read_extent(extent))),
        _ => RESERVED
            .get(usize::from(tag) - 1)
            .copied()
            .ok_or(DecodeError::Value { field: "reserved block's tag", value: u64::from(tag) }),
    }
}

fn found_cell(found: &Found) -> [u8; 2] {
    match found {
        Found::Miss(reason) => [0, *reason as u8],
        Found::Hit { tier, held } => [1 + u8::from(*held), *tier],
    }
}

fn read_found([tag, value]: &[u8; 2]) -> Result<Found, DecodeError> {
    match tag {
        0 => Ok(Found::Miss(read_miss(*value))),
        _ => Ok(Found::Hit { tier: *value, held: read_bool("found block's tag", tag - 1)? }),
    }
}

fn read_outcome([value]: &[u8; 1]) -> Result<Outcome, DecodeError> {
    [Outcome::Done, Outcome::LeaseExpired, Outcome::NotLeased]
        .into_iter()
        .find(|outcome| *outcome as u8 == *value)
        .ok_or(DecodeError::Value { field: "outcome", value: u64::from(*value) })
}

fn outcomes(body: &mut Columns<'_>) -> Result<Vec<Outcome>, DecodeError> {
    body.column("outcomes")?.iter().map(read_outcome).collect()
}

/// A whole frame of a reply. Beside a Welcome with a generation table travels that table's fd.
pub fn encode_reply(request_id: u64, boot_id: u64, reply: &Reply) -> Vec<u8> {
    let ids = (request_id, boot_id);
    let start = |op: u16, count| Body::start(op | opcode::REPLY, 0, request_id, boot_id, count);
    match reply {
        Reply::Welcome(welcome) => {
            let fds = usize::from(welcome.generation_words > 0);
            json_frame(opcode::HELLO | opcode::REPLY, fds, ids, welcome)
        }
        Reply::Lookup { found } => start(opcode::LOOKUP, found.len()).column(found.iter().map(found_cell)).finish(),
        Reply::Reserve { lease, lease_ms, items } => start(opcode::RESERVE, items.len())
            .scalar(lease.0.to_le_bytes())
            .scalar(lease_ms.to_le_bytes())
            .column(items.iter().map(|item| reserved_cells(item).0))
            .column(items.iter().map(|item| reserved_cells(item).1))
            .finish(),
        Reply::Commit { items } => start(opcode::COMMIT, items.len()).column(items.iter().map(|o| [*o as u8])).finish(),
        Reply::Abort { count } => start(opcode::ABORT, 0).scalar(count.to_le_bytes()).finish(),
        Reply::Acquire { lease, lease_ms, items } => start(opcode::ACQUIRE, items.len())
            .scalar(lease.0.to_le_bytes())
            .scalar(lease_ms.to_le_bytes())
            .column(items.iter().map(|item| acquired_cells(item).0))
            .column(items.iter().map(|item| acquired_cells(item).1))
            .column(items.iter().map(|item| acquired_cells(item).2))
            .column(items.iter().map(|item| acquired_cells(item).3))
            .finish(),
        Reply::Renew { lease_ms } => {
            start(opcode::RENEW, lease_ms.len()).column(lease_ms.iter().map(|ms| ms.to_le_bytes())).finish()
        }
        Reply::Release { items } => {
            start(opcode::RELEASE, items.len()).column(items.iter().map(|o| [*o as u8])).finish()
        }
        Reply::Unhold { count } => start(opcode::UNHOLD, 0).scalar(count.to_le_bytes()).finish(),
        Reply::Clear { removed, pinned } => {
            start(opcode::CLEAR, 0).scalar(removed.to_le_bytes()).scalar(pinned.to_le_bytes()).finish()
        }
        Reply::SegmentUnmapped => start(opcode::SEGMENT_UNMAPPED, 0).finish(),
        Reply::Status(value) => json_frame(opcode::STATUS | opcode::REPLY, 0, ids, value),
        Reply::Refused(refusal) => json_frame(opcode::REFUSED, 0, ids, refusal),
    }
}

/// The reply in a frame.
pub fn decode_reply(frame: &Frame) -> Result<Reply, DecodeError> {
    expect_kind(frame, Kind::Reply)?;
    let op = frame.opcode & !opcode::REPLY;
    match op {
        _ if frame.opcode == opcode::REFUSED => return Ok(Reply::Refused(serde_json::from_slice(&frame.body)?)),
        opcode::HELLO => return Ok(Reply::Welcome(serde_json::from_slice(&frame.body)?)),
        opcode::STATUS => return Ok(Reply::Status(serde_json::from_slice(&frame.body)?)),
        _ => {}
    }
    let mut body = Columns::open(frame)?;
    Ok(match op {
        opcode::LOOKUP => {
            Reply::Lookup { found: body.column("found")?.iter().map(read_found).collect::<Result<_, _>>()? }
        }
        opcode::RESERVE => {
            let (lease, lease_ms) = (LeaseId(body.u64("lease")?), body.u32("lease's life")?);
            let (tags, extents) = (body.column("tags")?, body.column("extents")?);
            let items = tags.iter().zip(extents).map(|([tag], extent)| read_reserved(*tag, extent));
            Reply::Reserve { lease, lease_ms, items: items.collect::<Result<_, _>>()? }
        }
        opcode::COMMIT => Reply::Commit { items: outcomes(&mut body)? },
        opcode::ABORT => Reply::Abort { count: body.u32("count")? },
        opcode::ACQUIRE => {
            let (lease, lease_ms) = (LeaseId(body.u64("lease")?), body.u32("lease's life")?);
            Reply::Acquire { lease, lease_ms, items: acquired(&mut body)? }
        }
        opcode::RENEW => {
            let lives = body.column("lives")?;
            Reply::Renew { lease_ms: lives.iter().map(|ms| u32::from_le_bytes(*ms)).collect() }
        }
        opcode::RELEASE => Reply::Release { items: outcomes(&mut body)? },
        opcode::UNHOLD => Reply::Unhold { count: body.u32("count")? },
        opcode::CLEAR => Reply::Clear { removed: body.u64("removed")?, pinned: body.u64("pinned")? },
        opcode::SEGMENT_UNMAPPED => Reply::SegmentUnmapped,
        opcode => return Err(DecodeError::WrongKind { opcode, expected: Kind::Reply }),
    })
}

fn acquired(body: &mut Columns<'_>) -> Result<Vec<Acquired>, DecodeError> {
    let (tags, extents) = (body.column("tags")?, body.column("extents")?);
    let (lengths, checksums) = (body.column("lengths")?, body.column("checksums")?);
    let cells = tags.iter().zip(extents).zip(lengths).zip(checksums);
    cells.map(|(((tag, extent), length), checksum)| read_acquired((*tag, *extent, *length, *checksum))).collect()
}
