//! What a forked child of this process must not keep open: the lock, the listeners, the clients' connections.
//!
//! The standalone daemon forks never, but an engine that embeds one may, without an exec. A child's copies would
//! outlive the daemon: the lock would keep the next one from starting, and clients would wait on a connection that
//! nobody serves. So every such file is closed in the child, right behind the fork.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::session::CONNECTIONS_MAX;

/// Files that are closed in a child; one beyond it stays open there, and clients notice the daemon's end later, by the
/// time-out of a call.
const KEPT_MAX: usize = CONNECTIONS_MAX + 16;
const FREE: i32 = -1;

static KEPT: [AtomicI32; KEPT_MAX] = [const { AtomicI32::new(FREE) }; KEPT_MAX];
static PREPARED: Once = Once::new();

/// A file is closed in children for as long as this lives; to be dropped before the file is closed here.
#[derive(Debug)]
pub struct NotInChildren {
    slot: Option<usize>,
}

impl NotInChildren {
    /// From now on children close this file.
    pub fn new(file: &impl AsFd) -> Self {
        PREPARED.call_once(|| {
            // SAFETY: the handler only makes calls that are safe in a child of a process with threads.
            let answer = unsafe { libc::pthread_atfork(None, None, Some(close_all)) };
            if answer != 0 {
                tracing::warn!("cannot prepare for forks: {}", std::io::Error::from_raw_os_error(answer));
            }
        });
        let fd = file.as_fd().as_raw_fd();
        let taken = |slot: &AtomicI32| slot.compare_exchange(FREE, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        Self { slot: KEPT.iter().position(taken) }
    }
}

impl Drop for NotInChildren {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            KEPT[slot].store(FREE, Ordering::Release);
        }
    }
}

/// Runs in a forked child, where only the forking thread is left: the threads that own these files do not exist here.
extern "C" fn close_all() {
    for slot in &KEPT {
        let fd = slot.swap(FREE, Ordering::Relaxed);
        if fd != FREE {
            // SAFETY: closes this process's copy; its owner's thread is not in this process.
            unsafe { libc::close(fd) };
        }
    }
}
