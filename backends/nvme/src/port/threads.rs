//! A port on threads with pread(2) and pwrite(2), for machines that refuse io_uring.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Direction, Done, Port, Request, Wake};
use crate::queue::{Queue, locked};

/// Most threads of one port: as many pieces are at the kernel at one time; the rest of the depth waits its turn.
const THREADS_MAX: u32 = 16;

pub(super) struct Threads {
    orders: Arc<Queue<Request>>,
    results: Arc<Results>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Results {
    state: Mutex<(VecDeque<Done>, bool)>,
    changed: Condvar,
}

impl Wake for Results {
    fn wake(&self) {
        locked(&self.state).1 = true;
        self.changed.notify_all();
    }
}

impl Threads {
    pub(super) fn new(depth: u32) -> io::Result<Self> {
        Self::moving_by(depth, transfer)
    }

    fn moving_by(depth: u32, transfer: fn(&Request) -> i32) -> io::Result<Self> {
        let mut port =
            Self { orders: Arc::new(Queue::new()), results: Arc::new(Results::default()), threads: Vec::new() };
        for number in 0..depth.clamp(1, THREADS_MAX) {
            let (orders, results) = (port.orders.clone(), port.results.clone());
            let body = move || {
                while let Some(request) = orders.pop() {
                    // A panic fails the piece at hand and no other (D5).
                    let result = catch_unwind(AssertUnwindSafe(|| transfer(&request))).unwrap_or(-libc::EIO);
                    locked(&results.state).0.push_back(Done { token: request.token, result });
                    results.changed.notify_all();
                }
            };
            port.threads.push(std::thread::Builder::new().name(format!("nvme-io-{number}")).spawn(body)?);
        }
        Ok(port)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.orders.close();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Port for Threads {
    fn waker(&self) -> Arc<dyn Wake> {
        self.results.clone()
    }

    fn attach(&mut self, _file: RawFd) -> io::Result<()> {
        Ok(())
    }

    unsafe fn register(&mut self, _buffer: u16, _address: *mut u8, _length: usize) -> io::Result<()> {
        Ok(())
    }

    fn unregister(&mut self, _buffer: u16) {}

    unsafe fn push(&mut self, request: Request) {
        if let Err(request) = self.orders.push(request) {
            locked(&self.results.state).0.push_back(Done { token: request.token, result: -libc::EIO });
        }
    }

    fn cancel(&mut self, token: u64) {
        // What a thread has begun cannot be called back.
        if self.orders.remove(|request| request.token == token).is_some() {
            locked(&self.results.state).0.push_back(Done { token, result: -libc::ECANCELED });
        }
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Done>) -> io::Result<()> {
        let mut state = locked(&self.results.state);
        if state.0.is_empty() && !state.1 {
            state = match timeout {
                None => self.results.changed.wait(state).unwrap_or_else(|e| e.into_inner()),
                Some(time) => self.results.changed.wait_timeout(state, time).unwrap_or_else(|e| e.into_inner()).0,
            };
        }
        state.1 = false;
        done.extend(state.0.drain(..));
        Ok(())
    }
}

fn transfer(request: &Request) -> i32 {
    let length = request.length as usize;
    // SAFETY: the driver keeps the file open until all pieces are done.
    let file = unsafe { BorrowedFd::borrow_raw(request.file) };
    let moved = match request.direction {
        Direction::Load => {
            // SAFETY: the memory is valid for writes and this piece's alone until it is done.
            let memory = unsafe { std::slice::from_raw_parts_mut(request.address, length) };
            rustix::io::pread(file, memory, request.offset)
        }
        Direction::Store => {
            // SAFETY: the memory is valid for reads until the piece is done.
            let memory = unsafe { std::slice::from_raw_parts(request.address, length) };
            rustix::io::pwrite(file, memory, request.offset)
        }
    };
    moved.map_or_else(|errno| -errno.raw_os_error(), |count| count as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn move_or_panic(request: &Request) -> i32 {
        assert_ne!(request.token, 500, "a panic, as planned");
        request.length as i32
    }

    #[test]
    fn d5_a_panic_in_one_of_a_thousand_pieces_fails_that_one_and_ends_no_thread() {
        let mut port = Threads::moving_by(4, move_or_panic).expect("threads");
        let direction = Direction::Load;
        for token in 0..1000 {
            let request = Request {
                token,
                direction,
                file: -1,
                address: std::ptr::null_mut(),
                length: 9,
                offset: 0,
                buffer: None,
            };
            // SAFETY: the memory is never touched by the moves of this test.
            unsafe { port.push(request) };
        }
        let mut done = Vec::new();
        while done.len() < 1000 {
            port.wait(Some(Duration::from_secs(30)), &mut done).expect("a wait");
        }
        done.sort_by_key(|done| done.token);
        for (token, piece) in (0..).zip(&done) {
            assert_eq!(*piece, Done { token, result: if token == 500 { -libc::EIO } else { 9 } });
        }
        assert!(port.threads.len() == 4 && port.threads.iter().all(|thread| !thread.is_finished()));
    }
}
