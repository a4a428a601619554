//! Events as bytes.

use serde::{Deserialize, Serialize};

use super::reply::{acquired_cells, read_acquired};
use super::{Body, Columns, DecodeError, expect_kind, json_frame};
use crate::frame::{Frame, Kind, opcode};
use crate::message::{Acquired, Event, LeaseId, RemovedReason, SegmentId};

#[derive(Serialize, Deserialize)]
struct TierState {
    tier: u8,
    state: String,
}

/// A whole frame of an event. Beside SegmentsAdded travels one fd per segment, so at most
/// [`crate::message::FDS_PER_MESSAGE_MAX`] of them.
pub fn encode_event(boot_id: u64, event: &Event) -> Vec<u8> {
    let start = |op, count| Body::start(op, 0, 0, boot_id, count);
    match event {
        Event::Promoted { lease, index, item } => {
            let (tag, extent, length, checksum) = acquired_cells(item);
            start(opcode::PROMOTED, 0)
                .scalar(lease.0.to_le_bytes())
                .scalar(index.to_le_bytes())
                .scalar(tag)
                .scalar(extent)
                .scalar(length)
                .scalar(checksum)
                .finish()
        }
        Event::SegmentsAdded { segments } => {
            Body::start(opcode::SEGMENTS_ADDED, segments.len(), 0, boot_id, segments.len())
                .column(segments.iter().map(|(segment, _)| segment.0.to_le_bytes()))
                .column(segments.iter().map(|(_, length)| length.to_le_bytes()))
                .finish()
        }
        Event::SegmentWithdrawn { segment } => {
            start(opcode::SEGMENT_WITHDRAWN, 0).scalar(segment.0.to_le_bytes()).finish()
        }
        Event::Removed { tier, reason, keys } => {
            start(opcode::REMOVED, keys.len()).scalar([*tier, *reason as u8]).keys(keys.iter()).finish()
        }
        Event::TierState { tier, state } => {
            json_frame(opcode::TIER_STATE, 0, (0, boot_id), &TierState { tier: *tier, state: state.clone() })
        }
        Event::Resync => start(opcode::RESYNC, 0).finish(),
        Event::Draining => start(opcode::DRAINING, 0).finish(),
    }
}

/// The event in a frame.
pub fn decode_event(frame: &Frame) -> Result<Event, DecodeError> {
    expect_kind(frame, Kind::Event)?;
    if frame.opcode == opcode::TIER_STATE {
        let TierState { tier, state } = serde_json::from_slice(&frame.body)?;
        return Ok(Event::TierState { tier, state });
    }
    let mut body = Columns::open(frame)?;
    Ok(match frame.opcode {
        opcode::PROMOTED => promoted(&mut body)?,
        opcode::SEGMENTS_ADDED => {
            let (ids, lengths) = (body.column("segments")?, body.column("lengths")?);
            let segment =
                |(id, length): (&[u8; 4], &[u8; 8])| (SegmentId(u32::from_le_bytes(*id)), u64::from_le_bytes(*length));
            Event::SegmentsAdded { segments: ids.iter().zip(lengths).map(segment).collect() }
        }
        opcode::SEGMENT_WITHDRAWN => Event::SegmentWithdrawn { segment: SegmentId(body.u32("segment")?) },
        opcode::REMOVED => {
            let [tier, reason] = body.scalar("tier and reason")?;
            Event::Removed { tier, reason: read_removed(reason)?, keys: body.keys()?.into() }
        }
        opcode::RESYNC => Event::Resync,
        opcode::DRAINING => Event::Draining,
        opcode => return Err(DecodeError::WrongKind { opcode, expected: Kind::Event }),
    })
}

fn promoted(body: &mut Columns<'_>) -> Result<Event, DecodeError> {
    let (lease, index) = (LeaseId(body.u64("lease")?), body.u32("index")?);
    let cells = (body.scalar("tag")?, body.scalar("extent")?, body.scalar("length")?, body.scalar("checksum")?);
    match read_acquired(cells)? {
        // An answer that promises another would leave the waiter waiting.
        Acquired::Pending => Err(DecodeError::Value { field: "promoted block's tag", value: 1 }),
        item => Ok(Event::Promoted { lease, index, item }),
    }
}

fn read_removed(value: u8) -> Result<RemovedReason, DecodeError> {
    [RemovedReason::Evicted, RemovedReason::Cleared, RemovedReason::Failed]
        .into_iter()
        .find(|reason| *reason as u8 == value)
        .ok_or(DecodeError::Value { field: "reason of a removal", value: u64::from(value) })
}
