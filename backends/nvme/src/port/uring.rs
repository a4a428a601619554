//! A port on io_uring.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use rustix::event::EventfdFlags;

use super::{BUFFERS_MAX, Direction, Done, Port, Request, Wake};

/// Token of the wake-up poll; pieces never have it.
const WAKE_TOKEN: u64 = u64::MAX;
/// Token of requests to cancel; pieces never have it.
const CANCEL_TOKEN: u64 = u64::MAX - 1;
const FIXED_FILE: Fixed = Fixed(0);

pub(super) struct Ring {
    ring: IoUring,
    waker: Arc<EventWake>,
    /// The wake-up poll is in the ring.
    armed: bool,
    /// The file in slot 0.
    attached: Option<RawFd>,
    buffers: bool,
    /// Pieces that the ring had no room for; reported as "try again".
    refused: Vec<Done>,
}

struct EventWake(OwnedFd);

impl Wake for EventWake {
    fn wake(&self) {
        // EAGAIN says that the counter is full, and so the wake-up is pending already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl Ring {
    /// Must be called on the thread that uses it: the ring takes submissions of its maker alone.
    pub(super) fn new(depth: u32) -> io::Result<Self> {
        let entries = (depth + 2).next_power_of_two();
        let modern = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries);
        let ring = match modern {
            // Kernels before 6.1 know neither flag.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::new(entries)?,
            other => other?,
        };
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let waker = Arc::new(EventWake(event));
        Ok(Self { ring, waker, armed: false, attached: None, buffers: false, refused: Vec::new() })
    }

    fn push_entry(&mut self, entry: &squeue::Entry) -> bool {
        for _ in 0..2 {
            // SAFETY: memory and files of the entry stay valid until its completion, as `push` demands of its caller;
            // the wake-up poll names no memory, and its fd lives as long as the ring.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return true;
            }
            if self.ring.submit().is_err() {
                return false;
            }
        }
        false
    }

    fn arm(&mut self) {
        if !self.armed {
            let poll = opcode::PollAdd::new(Fd(self.waker.0.as_raw_fd()), libc::POLLIN as u32).build();
            self.armed = self.push_entry(&poll.user_data(WAKE_TOKEN));
        }
    }
}

impl Port for Ring {
    fn waker(&self) -> Arc<dyn Wake> {
        self.waker.clone()
    }

    fn attach(&mut self, file: RawFd) -> io::Result<()> {
        self.ring.submitter().register_files(&[file])?;
        self.attached = Some(file);
        Ok(())
    }

    unsafe fn register(&mut self, buffer: u16, address: *mut u8, length: usize) -> io::Result<()> {
        let submitter = self.ring.submitter();
        if !self.buffers {
            submitter.register_buffers_sparse(u32::from(BUFFERS_MAX))?;
            self.buffers = true;
        }
        let memory = libc::iovec { iov_base: address.cast(), iov_len: length };
        // SAFETY: the caller promises that the memory stays mapped until `unregister`.
        unsafe { submitter.register_buffers_update(u32::from(buffer), &[memory], None) }
    }

    fn unregister(&mut self, buffer: u16) {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: an empty entry names no memory.
        let _ = unsafe { self.ring.submitter().register_buffers_update(u32::from(buffer), &[none], None) };
    }

    unsafe fn push(&mut self, request: Request) {
        let Request { token, direction, file, address, length, offset, buffer } = request;
        let entry = match (direction, buffer, self.attached == Some(file)) {
            (Direction::Load, Some(index), true) => {
                opcode::ReadFixed::new(FIXED_FILE, address, length, index).offset(offset).build()
            }
            (Direction::Load, Some(index), false) => {
                opcode::ReadFixed::new(Fd(file), address, length, index).offset(offset).build()
            }
            (Direction::Load, None, true) => opcode::Read::new(FIXED_FILE, address, length).offset(offset).build(),
            (Direction::Load, None, false) => opcode::Read::new(Fd(file), address, length).offset(offset).build(),
            (Direction::Store, Some(index), true) => {
                opcode::WriteFixed::new(FIXED_FILE, address, length, index).offset(offset).build()
            }
            (Direction::Store, Some(index), false) => {
                opcode::WriteFixed::new(Fd(file), address, length, index).offset(offset).build()
            }
            (Direction::Store, None, true) => opcode::Write::new(FIXED_FILE, address, length).offset(offset).build(),
            (Direction::Store, None, false) => opcode::Write::new(Fd(file), address, length).offset(offset).build(),
        };
        if !self.push_entry(&entry.user_data(token)) {
            self.refused.push(Done { token, result: -libc::EAGAIN });
        }
    }

    fn cancel(&mut self, token: u64) {
        let entry = opcode::AsyncCancel::new(token).build().user_data(CANCEL_TOKEN);
        // Without room the piece ends in its own time.
        let _ = self.push_entry(&entry);
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Done>) -> io::Result<()> {
        self.arm();
        let timeout = if self.refused.is_empty() { timeout } else { Some(Duration::from_millis(1)) };
        done.append(&mut self.refused);
        let waited = match timeout {
            None => self.ring.submit_and_wait(1),
            Some(timeout) => {
                let time = Timespec::from(timeout);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        };
        match waited.map_err(|error| error.raw_os_error().unwrap_or(0)) {
            // Time passed, a signal came, or completions have to be taken first: look at what there is.
            Ok(_) | Err(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => {}
            Err(errno) => return Err(io::Error::from_raw_os_error(errno)),
        }
        for entry in self.ring.completion() {
            if entry.user_data() == WAKE_TOKEN {
                self.armed = false;
                let _ = rustix::io::read(&self.waker.0, &mut [0u8; 8]);
            } else if entry.user_data() != CANCEL_TOKEN {
                done.push(Done { token: entry.user_data(), result: entry.result() });
            }
        }
        Ok(())
    }
}
