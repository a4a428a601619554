//! File descriptors beside a frame (SCM_RIGHTS), over a stream socket that may block or not.
//!
//! The kernel ties fds to the first byte that was sent with them and never merges two such sends in one read: by the
//! time a frame is whole, its fds are here, in the order of their frames. A frame says how many are its own.
//!
//! One call is one system call, so that tokio's `try_io` can wrap it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use crate::message::FDS_PER_MESSAGE_MAX;

/// Room for as many fds as one message can carry, whatever is allowed: what arrives must be seen to be refused.
const SPACE_BYTES: usize = rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE_MAX));

/// What one read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes written to the start of the buffer; 0 = the other side has closed.
    pub bytes: usize,
    /// Fds that came beyond what was allowed; they are closed already. Above 0 the session is to end.
    pub refused_fds: usize,
}

/// Sends bytes, and fds with the first of them; answers how many bytes went. Fewer than all may go: then the rest is
/// sent without the fds. Never raises SIGPIPE. At most [`FDS_PER_MESSAGE_MAX`] fds, and none without bytes.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    if fds.len() > FDS_PER_MESSAGE_MAX || (bytes.is_empty() && !fds.is_empty()) {
        let text = format!("{} fds beside {} bytes, limit {FDS_PER_MESSAGE_MAX}", fds.len(), bytes.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut space = [MaybeUninit::uninit(); SPACE_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "fds do not fit beside the message"));
    }
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Sends all bytes over a blocking socket, and the fds with the first of them. An error leaves the stream in doubt.
pub fn send_all(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes.len() {
        match send(&socket, &bytes[sent..], if sent == 0 { fds } else { &[] }) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Receives bytes into `buffer`, and appends at most `fds_allowed` fds (close-on-exec) to `fds`; the others are closed
/// and counted.
pub fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    fds_allowed: usize,
    fds: &mut impl Extend<OwnedFd>,
) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); SPACE_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut received = Received { bytes: message.bytes, refused_fds: 0 };
    let mut allowed = fds_allowed;
    let rights = control.drain().filter_map(|item| match item {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    for fd in rights.flatten() {
        if allowed == 0 {
            received.refused_fds += 1;
        } else {
            allowed -= 1;
            fds.extend([fd]);
        }
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        // The kernel has dropped some that did not fit, or for which this process has no number left (EMFILE).
        received.refused_fds += 1;
    }
    Ok(received)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::io::{Read, Seek, Write};
    use std::os::unix::net::UnixStream;

    fn file_with(text: &str) -> std::fs::File {
        let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        let mut file = std::fs::File::from(fd);
        file.write_all(text.as_bytes()).expect("written");
        file
    }

    fn text_of(fd: OwnedFd) -> String {
        let mut file = std::fs::File::from(fd);
        file.rewind().expect("rewound");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("read");
        text
    }

    #[test]
    fn fds_arrive_in_the_order_of_their_frames_and_are_close_on_exec() {
        let (here, there) = UnixStream::pair().expect("pair");
        let files = ["one", "two", "three"].map(file_with);
        send_all(&here, b"first", &[files[0].as_fd(), files[1].as_fd()]).expect("sent");
        send_all(&here, b"plain", &[]).expect("sent");
        send_all(&here, b"second", &[files[2].as_fd()]).expect("sent");
        let (mut bytes, mut fds, mut buffer) = (Vec::new(), VecDeque::new(), [0; 64]);
        while bytes.len() < 16 {
            let received = receive(&there, &mut buffer, FDS_PER_MESSAGE_MAX, &mut fds).expect("received");
            assert_eq!(received.refused_fds, 0);
            bytes.extend_from_slice(&buffer[..received.bytes]);
        }
        assert_eq!(bytes, b"firstplainsecond");
        let flags = rustix::io::fcntl_getfd(&fds[0]).expect("flags");
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        assert_eq!(fds.into_iter().map(text_of).collect::<Vec<_>>(), ["one", "two", "three"]);
    }

    #[test]
    fn k6_an_fd_that_is_not_allowed_is_closed_and_reported() {
        let (here, there) = UnixStream::pair().expect("pair");
        let (reader, writer) = std::io::pipe().expect("pipe");
        send_all(&here, b"take this", &[writer.as_fd()]).expect("sent");
        drop(writer);
        let (mut fds, mut buffer) = (Vec::new(), [0; 64]);
        let received = receive(&there, &mut buffer, 0, &mut fds).expect("received");
        assert_eq!((received, fds.len()), (Received { bytes: 9, refused_fds: 1 }, 0));
        // The pipe has no writer left, so reading it ends at once: the received copy is closed.
        assert_eq!((&reader).read(&mut buffer).expect("read"), 0);
    }

    #[test]
    fn as_many_fds_as_the_kernel_takes_pass_and_one_more_is_refused_here() {
        let (here, there) = UnixStream::pair().expect("pair");
        let file = file_with("same");
        let many = vec![file.as_fd(); FDS_PER_MESSAGE_MAX + 1];
        assert_eq!(send(&here, b"x", &many).expect_err("too many").kind(), io::ErrorKind::InvalidInput);
        assert_eq!(send(&here, b"x", &many[1..]).expect("sent"), 1);
        let mut fds = Vec::new();
        let received = receive(&there, &mut [0; 4], FDS_PER_MESSAGE_MAX, &mut fds).expect("received");
        assert_eq!((received.refused_fds, fds.len()), (0, FDS_PER_MESSAGE_MAX));
    }

    #[test]
    fn a_closed_peer_is_an_error_not_a_signal() {
        let (here, there) = UnixStream::pair().expect("pair");
        drop(there);
        assert_eq!(send_all(&here, b"x", &[]).expect_err("closed").kind(), io::ErrorKind::BrokenPipe);
    }
}
