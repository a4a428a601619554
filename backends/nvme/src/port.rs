//! How pieces of payload reach the disk: the seam at which tests inject faults.
//!
//! A [`Port`] belongs to one driver thread. It moves at most one piece per request, in any order, and reports each
//! exactly once with what read(2) or write(2) would return: bytes moved, maybe fewer than asked, or a negative errno.

mod probe;
mod threads;
mod uring;

use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use probe::{Probed, probe};

/// Which way a piece goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Disk to memory.
    Load,
    /// Memory to disk.
    Store,
}

/// One piece.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Comes back in [`Done`].
    pub token: u64,
    /// Which way.
    pub direction: Direction,
    /// The file.
    pub file: RawFd,
    /// Start of the memory, which stays valid and unmoved until the piece is done.
    pub address: *mut u8,
    /// Bytes.
    pub length: u32,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The registered buffer that holds all of the memory, if any.
    pub buffer: Option<u16>,
}

// SAFETY: a request is an order to touch memory; whoever makes it promises that the memory outlives the piece, on
// whatever thread it is moved.
unsafe impl Send for Request {}

/// How a piece ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The request's.
    pub token: u64,
    /// Bytes moved, or a negative errno.
    pub result: i32,
}

/// Ends another thread's [`Port::wait`], now or the next.
pub trait Wake: Send + Sync {
    /// Never waits.
    fn wake(&self);
}

/// A way to the disk. Used by the thread that made it alone. Dropping it while pieces are in flight is not allowed.
pub trait Port {
    /// Ends a wait from another thread.
    fn waker(&self) -> Arc<dyn Wake>;

    /// Names the file that most requests go to, so that the port can prepare it. An error costs speed alone.
    fn attach(&mut self, file: RawFd) -> io::Result<()>;

    /// Prepares memory under a number below [`BUFFERS_MAX`]. An error costs speed alone.
    ///
    /// # Safety
    /// The memory stays mapped until [`Self::unregister`] of the number has returned.
    unsafe fn register(&mut self, buffer: u16, address: *mut u8, length: usize) -> io::Result<()>;

    /// Lets go of the memory; no piece in flight names it.
    fn unregister(&mut self, buffer: u16);

    /// Takes a piece; the driver keeps to the depth that the port was made for. A port that panics here has not taken
    /// it.
    ///
    /// # Safety
    /// The request's memory stays valid until the piece is done; for a load nobody else touches it.
    unsafe fn push(&mut self, request: Request);

    /// Asks for an early end of a piece in flight, and never waits. The piece is still reported exactly once, as done
    /// or with `-ECANCELED`; until then its memory stays in use. Doing nothing is allowed.
    fn cancel(&mut self, token: u64) {
        let _ = token;
    }

    /// Waits until a piece is done, `timeout` has passed, or the waker was called; appends what is done. An error means
    /// that the port works no longer.
    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Done>) -> io::Result<()>;
}

/// Most registered buffers of a port; memory beyond goes unregistered.
pub const BUFFERS_MAX: u16 = 1024;
/// How long a store waits for room at most, whatever its deadline.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(5);
/// How long recovery tries again to read what cannot be read, in one path.
const READ_PATIENCE: Duration = Duration::from_secs(5);

/// The machine, as far as this backend needs it. [`Disk`] is the real one; tests put faults around it.
pub trait Medium: Send + Sync + 'static {
    /// A port on io_uring for `depth` pieces in flight.
    fn ring(&self, depth: u32) -> io::Result<Box<dyn Port>> {
        Ok(Box::new(uring::Ring::new(depth)?))
    }

    /// A port on threads for `depth` pieces in flight.
    fn threads(&self, depth: u32) -> io::Result<Box<dyn Port>> {
        Ok(Box::new(threads::Threads::new(depth)?))
    }

    /// Writes all of `bytes` to a metadata file.
    fn append(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    /// Fills all of `bytes` from a metadata file.
    fn read(&self, file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        file.read_exact_at(bytes, offset)
    }

    /// Makes a file's content durable.
    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    /// Gives a range of the data file back to the file system; it reads as zeros then.
    fn punch(&self, file: &File, offset: u64, length: u64) -> io::Result<()> {
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(file, flags, offset, length)?)
    }

    /// Takes a file that nothing needs any more out of the folder.
    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    /// How long a store waits for room that is under way, at most.
    fn room_wait(&self) -> Duration {
        ROOM_WAIT_MAX
    }

    /// How long recovery tries again to read what cannot be read, in one path and in all; then it goes without.
    fn read_patience(&self) -> Duration {
        READ_PATIENCE
    }

    /// Sets the length of the data file.
    fn extend(&self, file: &File, length: u64) -> io::Result<()> {
        file.set_len(length)
    }
}

/// The machine as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Medium for Disk {}
