//! Requests as bytes.

use super::{Body, Columns, DecodeError, expect_kind, json_frame, read_bool};
use crate::frame::{Frame, Kind, opcode};
use crate::message::{LeaseId, NamespaceId, Request, ReserveItem, SegmentId};
use umbp_connector_core::key::LOCAL_KEY_BYTES;

/// A whole frame of a request. At most [`crate::message::KEYS_PER_MESSAGE_MAX`] items, which the caller keeps.
pub fn encode_request(request_id: u64, request: &Request) -> Vec<u8> {
    let start = |opcode, count| Body::start(opcode, 0, request_id, 0, count);
    match request {
        Request::Hello(hello) => json_frame(opcode::HELLO, 0, (request_id, 0), hello),
        Request::Lookup { hold_ms, keys } => {
            start(opcode::LOOKUP, keys.len()).scalar(hold_ms.to_le_bytes()).keys(keys.iter()).finish()
        }
        Request::Reserve { items } => start(opcode::RESERVE, items.len())
            .keys(items.iter().map(|item| &item.key))
            .column(items.iter().map(|item| item.parent))
            .column(items.iter().map(|item| item.depth.to_le_bytes()))
            .column(items.iter().map(|item| item.length.to_le_bytes()))
            .finish(),
        Request::Commit { lease, items } => start(opcode::COMMIT, items.len())
            .scalar(lease.0.to_le_bytes())
            .column(items.iter().map(|(index, _)| index.to_le_bytes()))
            .column(items.iter().map(|(_, checksum)| checksum.to_le_bytes()))
            .finish(),
        Request::Abort { lease, items } => start(opcode::ABORT, items.len())
            .scalar(lease.0.to_le_bytes())
            .column(items.iter().map(|index| index.to_le_bytes()))
            .finish(),
        Request::Acquire { keys } => start(opcode::ACQUIRE, keys.len()).keys(keys.iter()).finish(),
        Request::Renew { leases } => {
            start(opcode::RENEW, leases.len()).column(leases.iter().map(|lease| lease.0.to_le_bytes())).finish()
        }
        Request::Release { lease, items } => start(opcode::RELEASE, items.len())
            .scalar(lease.0.to_le_bytes())
            .column(items.iter().map(|(index, _)| index.to_le_bytes()))
            .column(items.iter().map(|(_, good)| [u8::from(*good)]))
            .finish(),
        Request::Unhold { keys } => start(opcode::UNHOLD, keys.len()).keys(keys.iter()).finish(),
        Request::Clear { namespace } => start(opcode::CLEAR, 0)
            .scalar(u32::from(namespace.is_some()).to_le_bytes())
            .scalar(namespace.map_or(0, |id| id.0).to_le_bytes())
            .finish(),
        Request::SegmentUnmapped { segment } => {
            start(opcode::SEGMENT_UNMAPPED, 0).scalar(segment.0.to_le_bytes()).finish()
        }
        Request::Status => start(opcode::STATUS, 0).finish(),
    }
}

/// The request in a frame.
pub fn decode_request(frame: &Frame) -> Result<Request, DecodeError> {
    expect_kind(frame, Kind::Request)?;
    if frame.opcode == opcode::HELLO {
        return Ok(Request::Hello(serde_json::from_slice(&frame.body)?));
    }
    let mut body = Columns::open(frame)?;
    Ok(match frame.opcode {
        opcode::LOOKUP => Request::Lookup { hold_ms: body.u32("hold")?, keys: body.keys()? },
        opcode::RESERVE => Request::Reserve { items: reserve_items(&mut body)? },
        opcode::COMMIT => {
            let lease = LeaseId(body.u64("lease")?);
            let indices = indices(&mut body)?;
            let checksums = body.column("checksums")?;
            Request::Commit { lease, items: indices.zip(checksums.iter().map(|c| u64::from_le_bytes(*c))).collect() }
        }
        opcode::ABORT => Request::Abort { lease: LeaseId(body.u64("lease")?), items: indices(&mut body)?.collect() },
        opcode::ACQUIRE => Request::Acquire { keys: body.keys()? },
        opcode::RENEW => {
            let leases = body.column("leases")?;
            Request::Renew { leases: leases.iter().map(|lease| LeaseId(u64::from_le_bytes(*lease))).collect() }
        }
        opcode::RELEASE => {
            let lease = LeaseId(body.u64("lease")?);
            let indices = indices(&mut body)?;
            let good = body.column("goodness")?;
            let item = |(index, [good]): (u32, &[u8; 1])| Ok((index, read_bool("goodness", *good)?));
            Request::Release { lease, items: indices.zip(good).map(item).collect::<Result<_, DecodeError>>()? }
        }
        opcode::UNHOLD => Request::Unhold { keys: body.keys()? },
        opcode::CLEAR => {
            let (some, id) = (body.u32("namespace's presence")?, body.u32("namespace")?);
            Request::Clear { namespace: (some != 0).then_some(NamespaceId(id)) }
        }
        opcode::SEGMENT_UNMAPPED => Request::SegmentUnmapped { segment: SegmentId(body.u32("segment")?) },
        opcode::STATUS => Request::Status,
        opcode => return Err(DecodeError::WrongKind { opcode, expected: Kind::Request }),
    })
}

fn indices<'a>(body: &mut Columns<'a>) -> Result<impl Iterator<Item = u32> + use<'a>, DecodeError> {
    Ok(body.column("indices")?.iter().map(|index| u32::from_le_bytes(*index)))
}

fn reserve_items(body: &mut Columns<'_>) -> Result<Vec<ReserveItem>, DecodeError> {
    let keys = body.keys()?;
    let parents = body.column::<LOCAL_KEY_BYTES>("parents")?;
    let depths = body.column("depths")?;
    let lengths = body.column("lengths")?;
    let cells = keys.into_iter().zip(parents).zip(depths).zip(lengths);
    Ok(cells
        .map(|(((key, parent), depth), length)| ReserveItem {
            key,
            parent: *parent,
            depth: u32::from_le_bytes(*depth),
            length: u64::from_le_bytes(*length),
        })
        .collect())
}
