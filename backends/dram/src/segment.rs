//! One memfd: created, mapped, placed, pre-faulted, locked, sealed.
//!
//! The first touch of a page runs many times slower than a copy, so all of them are touched here, in parallel.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap, munmap};

use crate::numa::Placement;

/// Bytes of a normal page.
pub const PAGE_BYTES: u64 = 4096;

/// Bytes that a thread pre-faults in one call: long enough to be cheap, short enough to spread evenly.
const CHUNK_BYTES: usize = 32 << 20;

/// Kind of pages behind a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// The kernel's normal pages.
    Normal,
    /// Normal pages, with advice to join them where the system allows it.
    Advised,
    /// Reserved pages of 2 MiB.
    TwoMiB,
    /// Reserved pages of 1 GiB.
    OneGiB,
}

impl Pages {
    /// Size of one page, in bytes: a segment's length is a multiple of it.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Normal | Self::Advised => PAGE_BYTES,
            Self::TwoMiB => 2 << 20,
            Self::OneGiB => 1 << 30,
        }
    }

    /// Whether the pages come from the pool that an administrator reserved.
    pub const fn reserved(self) -> bool {
        matches!(self, Self::TwoMiB | Self::OneGiB)
    }

    /// Words for the report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "4 KiB pages",
            Self::Advised => "4 KiB pages, joined where the system allows",
            Self::TwoMiB => "2 MiB pages",
            Self::OneGiB => "1 GiB pages",
        }
    }

    fn flags(self) -> MemfdFlags {
        match self {
            Self::Normal | Self::Advised => MemfdFlags::empty(),
            Self::TwoMiB => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
            Self::OneGiB => MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
        }
    }
}

/// How a segment is made.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Kind of pages.
    pub pages: Pages,
    /// Where they come from.
    pub placement: Option<Placement>,
    /// Lock them.
    pub lock: bool,
    /// Threads that touch them.
    pub threads: usize,
}

/// Which step failed, and why.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step} a segment of {length} bytes: {cause}")]
pub struct SegmentError {
    step: &'static str,
    length: u64,
    cause: io::Error,
}

/// A mapping of this process; unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: a `Mapping` is an address range; it is read and written through it by nobody in this crate once it is made.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives the address and the length alone.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: &OwnedFd, length: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a fresh range; nothing of ours is replaced.
        let address = unsafe { mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, fd, 0) }?;
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { address, length })
    }

    /// First byte.
    pub fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// Length, in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    fn prefault(&self, threads: usize) -> io::Result<()> {
        let chunks = self.length.div_ceil(CHUNK_BYTES);
        let next = std::sync::atomic::AtomicUsize::new(0);
        let work = || loop {
            let chunk = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if chunk >= chunks {
                return Ok(());
            }
            let start = chunk * CHUNK_BYTES;
            self.touch(start, CHUNK_BYTES.min(self.length - start))?;
        };
        std::thread::scope(|scope| {
            // A thread that cannot be started leaves its share to the others; this one always works.
            let helpers: Vec<_> = (1..threads.clamp(1, chunks.max(1)))
                .filter_map(|_| std::thread::Builder::new().name("umbp-prefault".into()).spawn_scoped(scope, work).ok())
                .collect();
            let mut answer = work();
            for helper in helpers {
                answer = answer.and(helper.join().unwrap_or_else(|_| Err(io::Error::other("a helper panicked"))));
            }
            answer
        })
    }

    fn touch(&self, start: usize, length: usize) -> io::Result<()> {
        // SAFETY: the caller keeps `start + length` inside the mapping.
        let from = unsafe { self.address().add(start) };
        // SAFETY: populating changes no contents, and the range is ours.
        match unsafe { madvise(from.cast(), length, Advice::LinuxPopulateWrite) } {
            Ok(()) => Ok(()),
            // Kernels before 5.14 do not know the advice.
            Err(Errno::INVAL) => {
                for offset in (0..length).step_by(PAGE_BYTES as usize) {
                    // SAFETY: inside the mapping; it is fresh, so nobody else knows it and every byte is zero.
                    unsafe { from.add(offset).write_volatile(0) };
                }
                Ok(())
            }
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and is unmapped once; whoever still uses it broke the contract of
        // `segment_destroy`.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.length) };
    }
}

/// A segment as it was made, and what could not be had.
#[derive(Debug)]
pub struct Made {
    /// For the host.
    pub fd: OwnedFd,
    /// For the backend.
    pub mapping: Mapping,
    /// Why it is not placed as asked.
    pub not_placed: Option<io::Error>,
    /// Why it is not locked.
    pub not_locked: Option<io::Error>,
}

/// Makes one segment of `length` bytes, a multiple of the page size.
pub fn make(name: &str, length: u64, recipe: &Recipe) -> Result<Made, SegmentError> {
    let failed = |step| move |cause: io::Error| SegmentError { step, length, cause };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | recipe.pages.flags();
    let fd = memfd_create(name, flags).map_err(|errno| failed("create the memfd of")(errno.into()))?;
    // A memfd is born 0777, and whoever gets it by /proc could open it.
    fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(|errno| failed("restrict the memfd of")(errno.into()))?;
    ftruncate(&fd, length).map_err(|errno| failed("size the memfd of")(errno.into()))?;
    let bytes = usize::try_from(length).map_err(|_| failed("address")(io::ErrorKind::OutOfMemory.into()))?;
    let mapping = Mapping::new(&fd, bytes).map_err(failed("map"))?;
    if recipe.pages == Pages::Advised {
        // SAFETY: the advice changes no contents, and the range is ours. A refusal costs speed alone.
        let _ = unsafe { madvise(mapping.address().cast(), bytes, Advice::LinuxHugepage) };
    }
    let not_placed = recipe.placement.as_ref().and_then(|place| place.apply(mapping.address().addr(), bytes).err());
    mapping.prefault(recipe.threads).map_err(failed("pre-fault"))?;
    let not_locked = if recipe.lock {
        // SAFETY: locking changes no contents, and the range is ours.
        unsafe { mlock(mapping.address().cast(), bytes) }.err().map(io::Error::from)
    } else {
        None
    };
    // Without SHRINK a client could cut the file, and the daemon would die of SIGBUS.
    fcntl_add_seals(fd.as_fd(), SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|errno| failed("seal the memfd of")(errno.into()))?;
    Ok(Made { fd, mapping, not_placed, not_locked })
}
