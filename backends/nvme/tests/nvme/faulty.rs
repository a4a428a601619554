//! The machine with faults around it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use umbp_backend_nvme::port::{Direction, Disk, Done, Medium, Port, Request, Wake};

/// What goes wrong. All off at first.
#[derive(Default)]
pub(crate) struct Faults {
    /// Errno of setting up io_uring.
    pub(crate) ring: AtomicI32,
    /// Errno of registering memory.
    pub(crate) register: AtomicI32,
    /// Pieces move at most this many bytes; 0 for no limit.
    pub(crate) shorten: AtomicU32,
    /// Errno for so many pieces of a direction; errno 0 stands for a panic.
    pub(crate) fail: Mutex<Option<(Direction, i32, u32)>>,
    /// Pieces of files that have O_DIRECT fail with EINVAL.
    pub(crate) undirect: AtomicBool,
    /// Pieces wait until this is off.
    pub(crate) hold: AtomicBool,
    /// So many of the coming pieces hang until `thaw`.
    pub(crate) hang: AtomicU32,
    /// Lets go of the pieces that hang, once.
    pub(crate) thaw: AtomicBool,
    /// Pieces that hang or are held go on so when they are cancelled.
    pub(crate) deaf: AtomicBool,
    /// The driver asked to cancel a piece.
    pub(crate) asked: Condvar,
    /// Tokens of pieces that the driver asked to cancel.
    pub(crate) cancelled: Mutex<Vec<u64>>,
    /// Completions are kept, and let go one at a time in the order of this number's dice; 0 for the order of the disk.
    pub(crate) shuffle: AtomicU64,
    /// Completions that nobody asked for, to be told with the next wait.
    pub(crate) forged: Mutex<Vec<Done>>,
    /// Tokens of all pieces in the order in which they came.
    pub(crate) tokens: Mutex<Vec<u64>>,
    /// Pieces out now, and the most that were.
    pub(crate) out: (AtomicUsize, AtomicUsize),
    /// Each piece is reported twice.
    pub(crate) repeat: AtomicBool,
    /// The driver's wait panics.
    pub(crate) panic: AtomicBool,
    /// Errno of so many appends to metadata; errno 0 stands for a panic.
    pub(crate) append: Mutex<(i32, u32)>,
    /// Errno of syncs.
    pub(crate) sync: AtomicI32,
    /// Errno of growing the data file; -1 stands for a panic.
    pub(crate) extend: AtomicI32,
    /// Errno of so many reads of metadata.
    pub(crate) fail_read: Mutex<(i32, u32)>,
    /// Bytes of files, by the end of their name, that cannot be read.
    pub(crate) unreadable: Mutex<Vec<(String, Range<u64>)>>,
    /// Files whose path has this in it cannot be removed.
    pub(crate) unremovable: Mutex<Option<String>>,
    /// The next sync of an unfinished snapshot fails, and the two reads of metadata that come after it.
    pub(crate) fail_snapshot: AtomicBool,
    /// Reads of metadata that failed.
    pub(crate) failed_reads: AtomicUsize,
    /// Recovery tries again without an end; else not at all.
    pub(crate) stubborn: AtomicBool,
    /// Stores wait for room without an end.
    pub(crate) patient: AtomicBool,
    /// Offset and bytes of each read of metadata.
    pub(crate) reads: Mutex<Vec<(u64, usize)>>,
    /// Directions of pieces in the order in which they came.
    pub(crate) seen: Mutex<Vec<Direction>>,
    /// A piece came.
    pub(crate) came: Condvar,
}

pub(crate) struct Faulty(pub(crate) Arc<Faults>);

fn errno(cell: &AtomicI32) -> io::Result<()> {
    match cell.load(SeqCst) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

impl Faults {
    /// Waits until so many pieces came since `seen` was cleared.
    pub(crate) fn await_seen(&self, pieces: usize) {
        let seen = self.seen.lock().unwrap();
        let (_seen, late) =
            self.came.wait_timeout_while(seen, Duration::from_secs(30), |seen| seen.len() < pieces).unwrap();
        assert!(!late.timed_out(), "{pieces} pieces never came");
    }
}

impl Faults {
    /// The errno that the piece is to fail with.
    fn planned(&self, request: &Request) -> Option<i32> {
        // SAFETY: the driver keeps the file open.
        let file = unsafe { std::os::fd::BorrowedFd::borrow_raw(request.file) };
        let direct = || rustix::fs::fcntl_getfl(file).unwrap().contains(rustix::fs::OFlags::DIRECT);
        if self.undirect.load(SeqCst) && direct() {
            return Some(libc::EINVAL);
        }
        let mut fail = self.fail.lock().unwrap();
        let (direction, errno, left) = fail.as_mut()?;
        if *left == 0 || *direction != request.direction {
            return None;
        }
        *left -= 1;
        Some(*errno)
    }

    /// Waits until the driver has asked to cancel so many pieces.
    pub(crate) fn await_cancelled(&self, pieces: usize) {
        let mut cancelled = self.cancelled.lock().unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        while cancelled.len() < pieces {
            assert!(Instant::now() < end, "{pieces} pieces are never cancelled");
            cancelled = self.asked.wait_timeout(cancelled, Duration::from_secs(1)).unwrap().0;
        }
    }
}

impl Faulty {
    pub(crate) fn new() -> (Arc<Self>, Arc<Faults>) {
        let faults = Arc::new(Faults::default());
        (Arc::new(Self(faults.clone())), faults)
    }

    fn wrap(&self, inner: Box<dyn Port>) -> Box<dyn Port> {
        Box::new(FaultyPort {
            inner,
            faults: self.0.clone(),
            held: Vec::new(),
            failed: Vec::new(),
            kept: Vec::new(),
            hung: Vec::new(),
        })
    }
}

impl Medium for Faulty {
    fn ring(&self, depth: u32) -> io::Result<Box<dyn Port>> {
        errno(&self.0.ring)?;
        Ok(self.wrap(Disk.ring(depth)?))
    }

    fn threads(&self, depth: u32) -> io::Result<Box<dyn Port>> {
        Ok(self.wrap(Disk.threads(depth)?))
    }

    fn append(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut plan = self.0.append.lock().unwrap_or_else(|e| e.into_inner());
        if plan.1 > 0 {
            plan.1 -= 1;
            // A part is written first, as a full disk would have it.
            Disk.append(file, &bytes[..bytes.len() / 2], offset)?;
            assert_ne!(plan.0, 0, "a panic, as planned");
            return Err(io::Error::from_raw_os_error(plan.0));
        }
        Disk.append(file, bytes, offset)
    }

    fn read(&self, file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let mut plan = self.0.fail_read.lock().unwrap();
        if plan.1 > 0 {
            plan.1 -= 1;
            self.0.failed_reads.fetch_add(1, SeqCst);
            return Err(io::Error::from_raw_os_error(plan.0));
        }
        let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?.to_string_lossy().into_owned();
        let end = offset + bytes.len() as u64;
        let hit = |(of, bad): &(String, Range<u64>)| name.ends_with(of) && bad.start < end && offset < bad.end;
        if self.0.unreadable.lock().unwrap().iter().any(hit) {
            self.0.failed_reads.fetch_add(1, SeqCst);
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.0.reads.lock().unwrap().push((offset, bytes.len()));
        Disk.read(file, bytes, offset)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        errno(&self.0.sync)?;
        let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?.to_string_lossy().into_owned();
        if name.ends_with(".tmp") && self.0.fail_snapshot.swap(false, SeqCst) {
            *self.0.fail_read.lock().unwrap() = (libc::EIO, 2);
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        Disk.sync(file)
    }

    fn room_wait(&self) -> Duration {
        if self.0.patient.load(SeqCst) { Duration::from_secs(3600) } else { Disk.room_wait() }
    }

    fn read_patience(&self) -> Duration {
        Duration::from_secs(if self.0.stubborn.load(SeqCst) { 3600 } else { 0 })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let plan = self.0.unremovable.lock().unwrap();
        if plan.as_ref().is_some_and(|part| path.to_str().unwrap().contains(part)) {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        Disk.remove(path)
    }

    fn extend(&self, file: &File, length: u64) -> io::Result<()> {
        assert_ne!(self.0.extend.load(SeqCst), -1, "a panic, as planned");
        errno(&self.0.extend)?;
        Disk.extend(file, length)
    }
}

struct FaultyPort {
    inner: Box<dyn Port>,
    faults: Arc<Faults>,
    held: Vec<Request>,
    failed: Vec<Done>,
    kept: Vec<Done>,
    hung: Vec<Request>,
}

/// The next number of a row that `state` begins; never 0.
pub(crate) fn dice(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

impl FaultyPort {
    /// Lets one of the kept completions go.
    fn reorder(&mut self, done: &mut Vec<Done>, before: usize) {
        let mut state = self.faults.shuffle.load(SeqCst);
        if state != 0 {
            self.kept.extend(done.drain(before..));
        }
        while !self.kept.is_empty() {
            let at = if state == 0 { 0 } else { dice(&mut state) as usize % self.kept.len() };
            done.push(self.kept.swap_remove(at));
            if state != 0 {
                return self.faults.shuffle.store(state, SeqCst);
            }
        }
    }
}

impl Port for FaultyPort {
    fn waker(&self) -> Arc<dyn Wake> {
        self.inner.waker()
    }

    fn attach(&mut self, file: RawFd) -> io::Result<()> {
        self.inner.attach(file)
    }

    unsafe fn register(&mut self, buffer: u16, address: *mut u8, length: usize) -> io::Result<()> {
        errno(&self.faults.register)?;
        // SAFETY: the caller's promise is passed on.
        unsafe { self.inner.register(buffer, address, length) }
    }

    fn unregister(&mut self, buffer: u16) {
        self.inner.unregister(buffer);
    }

    unsafe fn push(&mut self, mut request: Request) {
        self.faults.seen.lock().unwrap().push(request.direction);
        self.faults.tokens.lock().unwrap().push(request.token);
        let out = self.faults.out.0.fetch_add(1, SeqCst) + 1;
        self.faults.out.1.fetch_max(out, SeqCst);
        self.faults.came.notify_all();
        if let Some(errno) = self.faults.planned(&request) {
            assert_ne!(errno, 0, "a panic, as planned");
            return self.failed.push(Done { token: request.token, result: -errno });
        }
        if self.faults.hang.load(SeqCst) > 0 {
            self.faults.hang.fetch_sub(1, SeqCst);
            return self.hung.push(request);
        }
        let most = self.faults.shorten.load(SeqCst);
        request.length = if most == 0 { request.length } else { request.length.min(most) };
        self.held.push(request);
    }

    fn cancel(&mut self, token: u64) {
        self.faults.cancelled.lock().unwrap().push(token);
        self.faults.asked.notify_all();
        if self.faults.deaf.load(SeqCst) {
            return;
        }
        let before = self.held.len() + self.hung.len();
        self.held.retain(|request| request.token != token);
        self.hung.retain(|request| request.token != token);
        if self.held.len() + self.hung.len() < before {
            self.failed.push(Done { token, result: -libc::ECANCELED });
        } else {
            self.inner.cancel(token);
        }
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Done>) -> io::Result<()> {
        assert!(!self.faults.panic.load(SeqCst), "a panic, as planned");
        if self.faults.thaw.swap(false, SeqCst) {
            self.held.append(&mut self.hung);
        }
        if !self.faults.hold.load(SeqCst) {
            for request in self.held.drain(..) {
                // SAFETY: the caller's promise is passed on.
                unsafe { self.inner.push(request) };
            }
        }
        let forged = std::mem::take(&mut *self.faults.forged.lock().unwrap());
        let ready = !self.failed.is_empty() || !forged.is_empty() || !self.kept.is_empty();
        let before = done.len();
        done.append(&mut self.failed);
        let tick = Duration::from_millis(if ready { 0 } else { 5 });
        let timeout = if ready || !self.held.is_empty() || !self.hung.is_empty() { Some(tick) } else { timeout };
        self.inner.wait(timeout, done)?;
        self.reorder(done, before);
        self.faults.out.0.fetch_sub(done.len() - before, SeqCst);
        done.extend(forged);
        if self.faults.repeat.load(SeqCst) {
            done.extend_from_within(before..);
        }
        Ok(())
    }
}
