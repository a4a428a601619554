//! Large answers go past the client library.
//!
//! The library reads all that comes into one growing buffer, and copies each text out of it once it is whole. A block
//! is copied three times on that way, and half of a load is that. Here the stream itself reads a large text into a
//! piece of its own, puts it on a shelf, and tells the library a number instead. Who asked for the block takes the
//! piece from the shelf by that number. All else passes as it came.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use redis::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::header::HEADER_BYTES;
use crate::options::PART_MAX_BYTES;

/// Texts of at least so many bytes go past; below it the library's copies cost less than a turn of ours.
const LEAST_BYTES: u64 = 32 << 10;
/// No object of ours is longer. What is, is read and thrown away, and stands on the shelf as one byte.
const MOST_BYTES: u64 = PART_MAX_BYTES + HEADER_BYTES as u64;
/// Bytes that are read in search of the next answer's beginning.
const LOOK_BYTES: usize = 4 << 10;
/// Longest first line of an answer that is looked at.
const LINE_MAX_BYTES: usize = 64 << 10;
/// Pieces beyond one for each that waits: those of callers that have gone.
const SPARE_MAX: usize = 2;
const END: &[u8] = b"\r\n";

/// Pieces that have come, until they are taken.
#[derive(Default)]
pub(super) struct Shelf(Mutex<Pieces>);

struct Pieces {
    /// Begins anywhere, so that no number that a server makes up finds a piece.
    next: i64,
    waiting: usize,
    pieces: VecDeque<(i64, Vec<u8>)>,
}

impl Default for Pieces {
    fn default() -> Self {
        let next = (RandomState::new().hash_one(0) >> 2) as i64;
        Self { next, waiting: 0, pieces: VecDeque::new() }
    }
}

impl Shelf {
    fn pieces(&self) -> MutexGuard<'_, Pieces> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody waits for an answer, which may be a piece. Pieces that nobody waits for are dropped.
    pub(super) fn wait(self: &Arc<Self>) -> Waiting {
        self.pieces().waiting += 1;
        Waiting(self.clone())
    }

    fn put(&self, piece: Vec<u8>) -> i64 {
        let mut pieces = self.pieces();
        let number = pieces.next;
        pieces.next += 1;
        pieces.pieces.push_back((number, piece));
        let most = if pieces.waiting == 0 { 0 } else { pieces.waiting + SPARE_MAX };
        while pieces.pieces.len() > most {
            pieces.pieces.pop_front();
        }
        number
    }
}

/// One that waits for an answer.
pub(super) struct Waiting(Arc<Shelf>);

impl Waiting {
    /// The answer as the server sent it.
    pub(super) fn whole(&self, answer: Value) -> Value {
        let Value::Int(number) = answer else { return answer };
        let mut pieces = self.0.pieces();
        match pieces.pieces.iter().position(|(known, _)| *known == number) {
            Some(at) => pieces.pieces.remove(at).map_or(answer, |(_, piece)| Value::BulkString(piece)),
            None => answer,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut pieces = self.0.pieces();
        pieces.waiting -= 1;
        if pieces.waiting == 0 {
            pieces.pieces.clear();
        }
    }
}

/// What comes next from the server.
enum Next {
    /// An answer's first line.
    Line,
    /// So many bytes that pass as they are.
    Pass(u64),
    /// A large text, with its end.
    Take { piece: Vec<u8>, left: usize },
    /// One that is longer than anything of ours.
    Skip(u64),
    /// Everything passes: what came is not looked through here.
    All,
}

/// A stream from a server.
pub(super) struct Bypass<S> {
    stream: S,
    shelf: Arc<Shelf>,
    next: Next,
    /// Items of a list that are still to come.
    items: u64,
    /// Read, and not yet understood: from `at` on.
    seen: Vec<u8>,
    at: usize,
    /// Goes to the reader first.
    told: VecDeque<u8>,
}

impl<S> Bypass<S> {
    /// A stream on which nothing has come yet.
    pub(super) fn new(stream: S, shelf: Arc<Shelf>) -> Self {
        Self { stream, shelf, next: Next::Line, items: 0, seen: Vec::new(), at: 0, told: VecDeque::new() }
    }

    fn unseen(&self) -> &[u8] {
        &self.seen[self.at..]
    }

    /// Takes so many of the bytes that were read.
    fn consumed(&mut self, bytes: usize) {
        self.at += bytes;
        if self.at == self.seen.len() {
            self.seen.clear();
            self.at = 0;
        }
    }

    /// Understands a first line, if it is whole.
    fn line(&mut self) -> bool {
        let unseen = self.unseen();
        let Some(end) = unseen.iter().position(|byte| *byte == b'\n') else {
            if unseen.len() > LINE_MAX_BYTES {
                self.next = Next::All;
                return true;
            }
            return false;
        };
        let length = end + 1;
        let number = || std::str::from_utf8(&unseen[1..end]).ok()?.trim_end().parse::<i64>().ok();
        let (kind, number) = match unseen[0] {
            kind @ (b'$' | b'*') => (kind, number()),
            kind @ (b'+' | b'-' | b':' | b'_') => (kind, Some(-1)),
            kind => (kind, None),
        };
        let Some(text) = number else {
            // No answer that any of our commands has: the library's matter from here on.
            self.next = Next::All;
            return true;
        };
        let in_list = self.items > 0;
        self.items = self.items.saturating_sub(1);
        if kind == b'*' {
            self.items = self.items.saturating_add(u64::try_from(text).unwrap_or(0));
            self.next = Next::Pass(length as u64);
            return true;
        }
        let whole = u64::try_from(text).map_or(0, |text| text.saturating_add(END.len() as u64));
        let text = if in_list { 0 } else { u64::try_from(text).unwrap_or(0) };
        if (LEAST_BYTES..=MOST_BYTES).contains(&text) {
            self.consumed(length);
            let mut piece = Vec::with_capacity(whole as usize);
            let had = self.unseen().len().min(whole as usize);
            piece.extend_from_slice(&self.unseen()[..had]);
            self.consumed(had);
            self.next = Next::Take { piece, left: whole as usize - had };
        } else if text > MOST_BYTES {
            self.consumed(length);
            self.next = Next::Skip(whole);
        } else {
            self.next = Next::Pass(length as u64 + whole);
        }
        true
    }

    fn tell(&mut self, mut piece: Vec<u8>) -> Result<()> {
        if !piece.ends_with(END) {
            return Err(Error::new(ErrorKind::InvalidData, "a text of the server's does not end where it says"));
        }
        piece.truncate(piece.len() - END.len());
        let number = self.shelf.put(piece);
        self.told.extend(format!(":{number}\r\n").into_bytes());
        self.next = Next::Line;
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> Bypass<S> {
    /// Reads some bytes to look at. False at the end of the stream.
    fn look(&mut self, context: &mut Context<'_>) -> Poll<Result<bool>> {
        self.seen.drain(..std::mem::take(&mut self.at));
        self.seen.reserve(LOOK_BYTES);
        let most = self.seen.len() + LOOK_BYTES;
        read_to(&mut self.stream, context, &mut self.seen, most).map_ok(|read| read != 0)
    }

    /// Passes at most so many bytes on. How many; none at the end of the stream.
    fn pass(&mut self, context: &mut Context<'_>, out: &mut ReadBuf<'_>, most: u64) -> Poll<Result<usize>> {
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(out.remaining());
        let had = self.unseen().len().min(most);
        if had > 0 {
            out.put_slice(&self.unseen()[..had]);
            self.consumed(had);
            return Poll::Ready(Ok(had));
        }
        let mut part = ReadBuf::new(out.initialize_unfilled_to(most));
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut part))?;
        let read = part.filled().len();
        out.advance(read);
        Poll::Ready(Ok(read))
    }

    /// Reads on in a large text. False at the end of the stream.
    fn take(&mut self, context: &mut Context<'_>) -> Poll<Result<bool>> {
        let Next::Take { piece, left } = &mut self.next else { return Poll::Ready(Ok(true)) };
        if *left > 0 {
            let most = piece.len() + *left;
            let read = ready!(read_to(&mut self.stream, context, piece, most))?;
            *left -= read;
            return Poll::Ready(Ok(read != 0));
        }
        let piece = std::mem::take(piece);
        Poll::Ready(self.tell(piece).map(|()| true))
    }

    /// Throws away what is too long. False at the end of the stream.
    fn skip(&mut self, context: &mut Context<'_>) -> Poll<Result<bool>> {
        let Next::Skip(left) = self.next else { return Poll::Ready(Ok(true)) };
        if self.unseen().is_empty() {
            let more = ready!(self.look(context))?;
            if !more {
                return Poll::Ready(Ok(false));
            }
        }
        let had = usize::try_from(left).unwrap_or(usize::MAX).min(self.unseen().len());
        self.consumed(had);
        self.next = Next::Skip(left - had as u64);
        if left == had as u64 {
            self.tell([&[0], END].concat())?;
        }
        Poll::Ready(Ok(true))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bypass<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        loop {
            if out.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            if !this.told.is_empty() {
                let (told, _) = this.told.as_slices();
                let some = told.len().min(out.remaining());
                out.put_slice(&told[..some]);
                this.told.drain(..some);
                return Poll::Ready(Ok(()));
            }
            let more = match this.next {
                Next::Line => this.line() || ready!(this.look(context))?,
                Next::Pass(0) => {
                    this.next = Next::Line;
                    true
                }
                Next::Pass(left) => {
                    let passed = ready!(this.pass(context, out, left))?;
                    this.next = Next::Pass(left - passed as u64);
                    return Poll::Ready(Ok(()));
                }
                Next::Take { .. } => ready!(this.take(context))?,
                Next::Skip(_) => ready!(this.skip(context))?,
                Next::All => return this.pass(context, out, u64::MAX).map_ok(drop),
            };
            if !more {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

/// Reads into the room that a buffer has, up to a length of `most`. How many bytes; none at the end of the stream.
fn read_to<S: AsyncRead + Unpin>(
    stream: &mut S,
    context: &mut Context<'_>,
    buffer: &mut Vec<u8>,
    most: usize,
) -> Poll<Result<usize>> {
    let room = most - buffer.len();
    let mut part = ReadBuf::uninit(&mut buffer.spare_capacity_mut()[..room]);
    ready!(Pin::new(stream).poll_read(context, &mut part))?;
    let read = part.filled().len();
    // SAFETY: so many bytes behind the buffer's were filled just now.
    unsafe { buffer.set_len(buffer.len() + read) };
    Poll::Ready(Ok(read))
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bypass<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
