//! Who is on the other side of a connection, and when that process is gone.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

/// getsockopt(SOL_SOCKET): a pidfd of the process that connected. Linux 6.5; asm-generic number.
const SO_PEERPIDFD: libc::c_int = 77;

/// Connections whose pidfd came from pidfd_open by number, since the kernel has no SO_PEERPIDFD. Between connect and
/// that call the number may have been given to another process.
pub static PIDFD_FALLBACKS: AtomicU64 = AtomicU64::new(0);

/// The process that connected.
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its pid in our pid namespace; 0 if it has none there.
    pub pid: i32,
    gone: AsyncFd<OwnedFd>,
}

impl Peer {
    /// Asks the kernel. An error means that the peer is gone already, or that nothing can tell when it will be.
    pub fn of(stream: &UnixStream) -> std::io::Result<Self> {
        let credentials = stream.peer_cred()?;
        let pid = credentials.pid().unwrap_or(0);
        let pidfd = match peer_pidfd(stream) {
            Ok(fd) => fd,
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                PIDFD_FALLBACKS.fetch_add(1, Ordering::Relaxed);
                let pid =
                    Pid::from_raw(pid).ok_or_else(|| std::io::Error::other("peer has no pid in this namespace"))?;
                pidfd_open(pid, PidfdFlags::empty())?
            }
            Err(error) => return Err(error),
        };
        // SAFETY: an owned fd stays open, and the same, for as long as the AsyncFd owns it.
        let gone = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }?;
        Ok(Self { uid: credentials.uid(), pid, gone })
    }

    /// Ends when the process has ended. The fd is readable for good from then on.
    pub async fn gone(&self) {
        // Readiness is not cleared, so every later call ends at once too. An error means the runtime is over.
        drop(self.gone.readable().await);
    }
}

fn peer_pidfd(stream: &UnixStream) -> std::io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option writes one int to `fd`, whose size is in `length`; the socket is open.
    let answer = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut fd).cast(), &raw mut length)
    };
    if answer != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel made this fd for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
