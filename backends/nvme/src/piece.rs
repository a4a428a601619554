//! One transfer in pieces: which memory, which part next, and what the result of a piece means.

use umbp_plugin_api::Status;

use crate::format::UNIT_BYTES;
use crate::port::Direction;
use crate::regions::CHUNK_BYTES;
use crate::store::Store;
use crate::transfer::{Bounce, Transfer};

/// Longest piece: long enough for a disk's full speed, short enough that a large block does not hold up the others.
pub(crate) const PIECE_BYTES: u64 = 256 << 10;
/// How often one piece is tried again after EINTR, EAGAIN or a transfer that made no progress.
const RETRIES_MAX: u8 = 16;

/// Where a transfer's memory is, while pieces of it are out.
pub(crate) struct Active {
    pub(crate) transfer: Transfer,
    pub(crate) address: *mut u8,
    /// Bytes to move: the payload, rounded up to a unit where O_DIRECT wants it.
    pub(crate) span: u64,
    pub(crate) issued: u64,
    pub(crate) outstanding: u32,
    pub(crate) started: bool,
    pub(crate) failure: Option<(Status, i32)>,
    pub(crate) bounce: Option<Bounce>,
}

#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) active: usize,
    pub(crate) address: *mut u8,
    /// In the file, in bytes.
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) buffer: Option<u16>,
    pub(crate) retries: u8,
    /// It was sent while O_DIRECT was in use.
    pub(crate) direct: bool,
}

/// Chooses the memory, and makes room in the file.
pub(crate) fn start(active: &mut Active, store: &Store, direct: bool) {
    active.started = true;
    let (length, buffer) = (active.transfer.operation.length, &active.transfer.buffer);
    if direct {
        active.span = length.next_multiple_of(UNIT_BYTES);
        if buffer.room < active.span || !(buffer.address as u64).is_multiple_of(UNIT_BYTES) {
            store.host.count("bounce", 1);
            let mut bounce = Bounce::new(active.span as usize);
            if active.transfer.direction == Direction::Store {
                // SAFETY: the host grants `length` readable bytes at the buffer until the completion.
                let payload = unsafe { std::slice::from_raw_parts(buffer.address, length as usize) };
                bounce.bytes_mut()[..length as usize].copy_from_slice(payload);
            }
            active.address = bounce.bytes_mut().as_mut_ptr();
            active.bounce = Some(bounce);
        }
    }
    if active.transfer.direction == Direction::Store {
        let end = active.transfer.unit * UNIT_BYTES + active.span;
        active.failure = store.ensure_length(end).err().map(|error| failure_of(&error));
    }
}

pub(crate) fn next_piece(index: usize, active: &mut Active, direct: bool) -> Piece {
    let buffer = &active.transfer.buffer;
    let start = active.issued;
    let length = PIECE_BYTES.min(active.span - start);
    active.issued += length;
    let (first, last) = ((buffer.offset + start) / CHUNK_BYTES, (buffer.offset + start + length - 1) / CHUNK_BYTES);
    let own = active.bounce.is_some() || first != last;
    Piece {
        active: index,
        // SAFETY: `start < span`, and the memory has `span` bytes.
        address: unsafe { active.address.add(start as usize) },
        offset: active.transfer.unit * UNIT_BYTES + start,
        length: length as u32,
        buffer: if own { None } else { buffer.registered.get(first as usize).copied() },
        retries: 0,
        direct,
    }
}

pub(crate) enum Verdict {
    Done,
    Again,
    /// As a file system answers that does not take O_DIRECT for this.
    Undirect,
    Failed(Status, i32),
}

pub(crate) fn judge(active: &Active, piece: &mut Piece, result: i32, direct: bool) -> Verdict {
    let payload_end = active.transfer.unit * UNIT_BYTES + active.transfer.operation.length;
    let moved = u32::try_from(result).unwrap_or(0);
    match result {
        _ if result == -libc::EINTR || result == -libc::EAGAIN => {}
        _ if result == -libc::EINVAL => return Verdict::Undirect,
        _ if result < 0 => {
            let (status, errno) = failure_of(&std::io::Error::from_raw_os_error(-result));
            return Verdict::Failed(status, errno);
        }
        _ if moved > piece.length => return Verdict::Failed(Status::FAILED, 0),
        _ if moved == piece.length => return Verdict::Done,
        _ => {}
    }
    // Short. Padding beyond the payload may be missing from the file; payload may not.
    let load = active.transfer.direction == Direction::Load;
    if load && result >= 0 && piece.offset + u64::from(moved) >= payload_end {
        return Verdict::Done;
    }
    if load && result == 0 {
        // The file ends before the block does: it was cut.
        return Verdict::Failed(Status::CORRUPT, 0);
    }
    // With O_DIRECT the rest has to begin at a unit again.
    let progress = if direct { moved - moved % UNIT_BYTES as u32 } else { moved };
    if progress == 0 {
        piece.retries += 1;
        if piece.retries > RETRIES_MAX {
            let status = if load && result >= 0 { Status::CORRUPT } else { Status::IO };
            return Verdict::Failed(status, if result < 0 { -result } else { 0 });
        }
    }
    // SAFETY: `progress` is less than the piece's length.
    piece.address = unsafe { piece.address.add(progress as usize) };
    piece.offset += u64::from(progress);
    piece.length -= progress;
    Verdict::Again
}

/// Status and errno of a failed call.
pub(crate) fn failure_of(error: &std::io::Error) -> (Status, i32) {
    let errno = error.raw_os_error().unwrap_or(0);
    let full = matches!(errno, libc::ENOSPC | libc::EDQUOT | libc::EFBIG);
    (if full { Status::NO_SPACE } else { Status::IO }, errno)
}
