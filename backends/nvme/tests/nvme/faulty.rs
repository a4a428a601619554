//! The machine with faults around it.

use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

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
    /// Errno for so many pieces of a direction.
    pub(crate) fail: Mutex<Option<(Direction, i32, u32)>>,
    /// Pieces wait until this is off.
    pub(crate) hold: AtomicBool,
    /// Each piece is reported twice.
    pub(crate) repeat: AtomicBool,
    /// The driver's wait panics.
    pub(crate) panic: AtomicBool,
    /// Errno of so many appends to metadata; errno 0 stands for a panic.
    pub(crate) append: Mutex<(i32, u32)>,
    /// Errno of syncs.
    pub(crate) sync: AtomicI32,
    /// Errno of growing the data file.
    pub(crate) extend: AtomicI32,
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

impl Faulty {
    pub(crate) fn new() -> (Arc<Self>, Arc<Faults>) {
        let faults = Arc::new(Faults::default());
        (Arc::new(Self(faults.clone())), faults)
    }

    fn wrap(&self, inner: Box<dyn Port>) -> Box<dyn Port> {
        Box::new(FaultyPort { inner, faults: self.0.clone(), held: Vec::new(), failed: Vec::new() })
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

    fn sync(&self, file: &File) -> io::Result<()> {
        errno(&self.0.sync)?;
        Disk.sync(file)
    }

    fn extend(&self, file: &File, length: u64) -> io::Result<()> {
        errno(&self.0.extend)?;
        Disk.extend(file, length)
    }
}

struct FaultyPort {
    inner: Box<dyn Port>,
    faults: Arc<Faults>,
    held: Vec<Request>,
    failed: Vec<Done>,
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
        self.faults.came.notify_all();
        if let Some((direction, errno, left)) = self.faults.fail.lock().unwrap().as_mut()
            && *left > 0
            && *direction == request.direction
        {
            *left -= 1;
            self.failed.push(Done { token: request.token, result: -*errno });
            return;
        }
        let most = self.faults.shorten.load(SeqCst);
        request.length = if most == 0 { request.length } else { request.length.min(most) };
        self.held.push(request);
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Done>) -> io::Result<()> {
        assert!(!self.faults.panic.load(SeqCst), "a panic, as planned");
        if !self.faults.hold.load(SeqCst) {
            for request in self.held.drain(..) {
                // SAFETY: the caller's promise is passed on.
                unsafe { self.inner.push(request) };
            }
        }
        let ready = !self.failed.is_empty();
        done.append(&mut self.failed);
        let tick = Duration::from_millis(if ready { 0 } else { 5 });
        let timeout = if ready || !self.held.is_empty() { Some(tick) } else { timeout };
        let before = done.len();
        self.inner.wait(timeout, done)?;
        if self.faults.repeat.load(SeqCst) {
            done.extend_from_within(before..);
        }
        Ok(())
    }
}
