//! One direction of one connection.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use super::Mode;

/// Bytes that one direction keeps at most; then it takes no more until some have gone on.
const KEPT_BYTES_MAX: usize = 4 << 20;
/// Bytes that are read at once.
const PIECE_BYTES: usize = 64 << 10;

/// Bytes on their way.
pub(super) struct Flow {
    pieces: VecDeque<Piece>,
    kept: usize,
    /// When the next drop of [`Mode::Drip`] may fall.
    next_drop: Instant,
    /// The sender has said that nothing more comes.
    has_ended: bool,
    /// And the receiver was told.
    has_told: bool,
}

struct Piece {
    came: Instant,
    bytes: Vec<u8>,
    at: usize,
}

/// The connection has failed, or a cut is due: both sides are to be reset.
pub(super) struct Broken;

impl Flow {
    pub(super) fn new(now: Instant) -> Self {
        Self { pieces: VecDeque::new(), kept: 0, next_drop: now, has_ended: false, has_told: false }
    }

    /// Both ends know that nothing more comes.
    pub(super) fn is_over(&self) -> bool {
        self.has_told
    }

    pub(super) fn wants_read(&self, mode: Mode) -> bool {
        !self.has_ended && mode != Mode::Stall && self.kept < KEPT_BYTES_MAX
    }

    /// When the first piece may go on; `None` if there is none or it waits for no time.
    pub(super) fn due(&self, mode: Mode) -> Option<Instant> {
        let first = self.pieces.front()?;
        match mode {
            Mode::Pass => Some(first.came),
            Mode::Delay(time) => Some(first.came + time),
            Mode::Drip { .. } => Some(self.next_drop),
            Mode::Swallow | Mode::Stall => None,
        }
    }

    /// Takes what the sender has sent; how many bytes.
    pub(super) fn take(&mut self, mut from: &TcpStream, mode: Mode, now: Instant) -> Result<u64, Broken> {
        let mut taken = 0;
        while self.wants_read(mode) {
            let mut bytes = vec![0; PIECE_BYTES];
            match from.read(&mut bytes) {
                Ok(0) => self.has_ended = true,
                Ok(count) => {
                    taken += count as u64;
                    bytes.truncate(count);
                    if mode != Mode::Swallow {
                        self.kept += count;
                        self.pieces.push_back(Piece { came: now, bytes, at: 0 });
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Broken),
            }
        }
        Ok(taken)
    }

    /// Gives on what is due, at most `left` bytes where a cut is to follow. True if the receiver takes no more now.
    pub(super) fn give(
        &mut self,
        mut to: &TcpStream,
        mode: Mode,
        now: Instant,
        left: &mut Option<u64>,
    ) -> Result<bool, Broken> {
        if mode == Mode::Swallow {
            self.pieces.clear();
            self.kept = 0;
        }
        let mut drop_bytes = if let Mode::Drip { bytes, .. } = mode { bytes } else { usize::MAX };
        while drop_bytes > 0 && self.due(mode).is_some_and(|due| due <= now) {
            let piece = self.pieces.front_mut().expect("what is due is there");
            let rest = &piece.bytes[piece.at..];
            let cut = left.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX));
            match to.write(&rest[..rest.len().min(drop_bytes).min(cut)]) {
                Ok(count) => {
                    piece.at += count;
                    self.kept -= count;
                    drop_bytes -= count;
                    if piece.at == piece.bytes.len() {
                        self.pieces.pop_front();
                    }
                    if let Some(left) = left {
                        *left -= count as u64;
                        if *left == 0 {
                            return Err(Broken);
                        }
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Broken),
            }
        }
        if let Mode::Drip { bytes, every } = mode
            && drop_bytes < bytes
        {
            self.next_drop = now + every;
        }
        let holds_back = matches!(mode, Mode::Swallow | Mode::Stall);
        if self.has_ended && self.pieces.is_empty() && !self.has_told && !holds_back {
            self.has_told = true;
            // A receiver that is gone already needs no word.
            let _ = to.shutdown(Shutdown::Write);
        }
        Ok(false)
    }
}
