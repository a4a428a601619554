//! The daemon's shared memory in this process: segments of the pool, and the generation table.
//!
//! Every mapping is counted from mmap to munmap, so that a client can say truthfully that it has unmapped all.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

/// Bytes whose page tables are filled by one call, so that a lost session stops the filling soon.
const POPULATE_STEP_BYTES: usize = 16 << 20;

/// A number that goes up and down, and can be awaited to be none.
#[derive(Debug, Default)]
pub(crate) struct Count {
    count: Mutex<usize>,
    fewer: Condvar,
}

impl Count {
    pub(crate) fn add(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    pub(crate) fn sub(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.fewer.notify_all();
    }

    /// True once it is none, false when `timeout` passed first.
    pub(crate) fn wait_none(&self, timeout: Duration) -> bool {
        let end = Instant::now() + timeout;
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        while *count > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            count = self.fewer.wait_timeout(count, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// One shared mapping; unmapped when dropped.
#[derive(Debug)]
struct Map {
    address: NonNull<u8>,
    length: usize,
    mapped: Arc<Count>,
}

// SAFETY: a Map is an address range that it owns until its drop; it hands out the address only as a raw pointer, and
// the rules for touching it are those of its users, on whatever thread they run.
unsafe impl Send for Map {}
// SAFETY: as above; no method changes it through a shared reference.
unsafe impl Sync for Map {}

impl Map {
    /// Maps without any right first, keeps it out of children, and only then opens it.
    fn new(fd: &OwnedFd, length: usize, rights: MprotectFlags, mapped: &Arc<Count>) -> rustix::io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory that exists.
        let address =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, ProtFlags::empty(), MapFlags::SHARED, fd, 0)? };
        let address = NonNull::new(address.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        mapped.add();
        let map = Self { address, length, mapped: Arc::clone(mapped) };
        // SAFETY: the range is this Map's own, whole.
        unsafe {
            rustix::mm::madvise(map.address.as_ptr().cast(), length, Advice::LinuxDontFork)?;
            rustix::mm::mprotect(map.address.as_ptr().cast(), length, rights)?;
        }
        Ok(map)
    }

    fn populate(&self, advice: Advice, go_on: &dyn Fn() -> bool) -> rustix::io::Result<()> {
        for start in (0..self.length).step_by(POPULATE_STEP_BYTES) {
            if !go_on() {
                return Ok(());
            }
            let length = POPULATE_STEP_BYTES.min(self.length - start);
            // SAFETY: the range lies inside this Map; populating only fills page tables and changes no byte.
            unsafe { rustix::mm::madvise(self.address.as_ptr().add(start).cast(), length, advice)? };
        }
        Ok(())
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is this Map's own, whole, and nobody holds it any more. An error leaves it mapped, which
        // harms nobody; it stays counted then.
        if unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.length) }.is_ok() {
            self.mapped.sub();
        }
    }
}

/// A segment, mapped twice: to be written by stores, and to be read by loads, whose mapping is read-only as a guard
/// against accidents.
#[derive(Debug)]
pub(crate) struct Segment {
    maps: Option<(Map, Map)>,
    notice: Notice,
}

/// What is to be done once a withdrawn segment is unmapped.
struct Notice(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl std::fmt::Debug for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Notice")
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.maps = None;
        if let Some(notice) = self.notice.0.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            notice();
        }
    }
}

impl Segment {
    pub(crate) fn map(fd: OwnedFd, length: u64, mapped: &Arc<Count>) -> std::io::Result<Self> {
        let length = checked_length(&fd, length)?;
        let write = Map::new(&fd, length, MprotectFlags::READ | MprotectFlags::WRITE, mapped)?;
        let read = Map::new(&fd, length, MprotectFlags::READ, mapped)?;
        Ok(Self { maps: Some((write, read)), notice: Notice(Mutex::default()) })
    }

    /// The daemon wants it back: `notice` runs once the last copy has left and it is unmapped, on whatever thread.
    pub(crate) fn withdraw(&self, notice: Box<dyn FnOnce() + Send>) {
        *self.notice.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(notice);
    }

    /// Fills the page tables, as long as `go_on` says so; may take long. Needs Linux 5.14.
    pub(crate) fn populate(&self, go_on: &dyn Fn() -> bool) -> rustix::io::Result<()> {
        let Some((write, read)) = &self.maps else { return Ok(()) };
        write.populate(Advice::LinuxPopulateWrite, go_on)?;
        read.populate(Advice::LinuxPopulateRead, go_on)
    }

    /// Where to write an extent; none where it reaches beyond the segment.
    pub(crate) fn writable(&self, offset: u64, length: u64) -> Option<*mut u8> {
        self.maps.as_ref()?.0.at(offset, length)
    }

    /// Where to read an extent; none where it reaches beyond the segment.
    pub(crate) fn readable(&self, offset: u64, length: u64) -> Option<*const u8> {
        self.maps.as_ref()?.1.at(offset, length).map(<*mut u8>::cast_const)
    }
}

impl Map {
    fn at(&self, offset: u64, length: u64) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        if end > self.length as u64 {
            return None;
        }
        // SAFETY: offset is at most the mapping's length.
        Some(unsafe { self.address.as_ptr().add(offset as usize) })
    }
}

/// The fd must hold at least the bytes that the daemon speaks of: a read beyond its end would be a signal.
fn checked_length(fd: &OwnedFd, length: u64) -> std::io::Result<usize> {
    let size = rustix::fs::fstat(fd)?.st_size as u64;
    if length == 0 || size < length {
        let text = format!("shared memory of {size} bytes, said to be {length}");
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, text));
    }
    usize::try_from(length).map_err(|_| std::io::ErrorKind::OutOfMemory.into())
}

/// The generation table of the session's tenant.
#[derive(Debug)]
pub(crate) struct Generations {
    map: Map,
    words: u64,
}

impl Generations {
    pub(crate) fn map(fd: OwnedFd, words: u64, mapped: &Arc<Count>) -> std::io::Result<Self> {
        let bytes = words.saturating_mul(8);
        let length = checked_length(&fd, bytes)?;
        Ok(Self { map: Map::new(&fd, length, MprotectFlags::READ, mapped)?, words })
    }

    /// The word of a slot; none where there is no such slot.
    pub(crate) fn get(&self, slot: u32) -> Option<u64> {
        if u64::from(slot) >= self.words {
            return None;
        }
        // SAFETY: the word lies inside the mapping, is aligned (a mapping begins on a page), and is only ever
        // accessed atomically; the mapping is readable, and a load needs no more.
        let word = unsafe { &*self.map.address.as_ptr().cast::<AtomicU64>().add(slot as usize) };
        Some(word.load(Ordering::Acquire))
    }
}
