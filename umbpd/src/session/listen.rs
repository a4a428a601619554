//! The socket and the lock beside it.
//!
//! The lock file is never removed: a file that is there to be locked must keep its inode, or two daemons could hold
//! "the" lock on two files of one name. It holds the pid of the daemon that has it.

use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use umbp_config::defaults::SOCKET_PATH_MAX_BYTES;

use crate::fork::NotInChildren;

/// Connections that wait for accept.
const BACKLOG: i32 = 128;

/// Why the daemon cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another daemon serves there.
    #[error("another umbpd (pid {pid}) serves on {path}; stop it, or give this one another daemon.socket")]
    Held {
        /// The socket.
        path: PathBuf,
        /// What the lock file says.
        pid: String,
    },
    /// The folder is open to others.
    #[error("folder {path} of the socket {problem}; make it yours with mode 0700, or set daemon.socket elsewhere")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Something that is no socket has the name.
    #[error("{0} exists and is not a socket; move it away, or set daemon.socket elsewhere")]
    NotASocket(PathBuf),
    /// The name does not fit.
    #[error("socket path {path} has {bytes} bytes; at most {max} fit: set a shorter daemon.socket", max = SOCKET_PATH_MAX_BYTES)]
    TooLong {
        /// The socket.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
    /// The system refused.
    #[error("cannot {what} {path}; let this user do that, or set daemon.socket elsewhere")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ListenError {
    let path = path.to_owned();
    move |source| ListenError::Io { what, path, source }
}

/// The exclusive right to serve on a socket, as long as it lives.
#[derive(Debug)]
pub struct SocketLock {
    socket: PathBuf,
    // Before the file: fields are dropped in this order.
    _alone: NotInChildren,
    _file: std::fs::File,
}

impl SocketLock {
    /// Makes or checks the folder and takes the lock beside the socket.
    pub fn take(socket: &Path) -> Result<Self, ListenError> {
        let bytes = socket.as_os_str().len();
        if bytes > SOCKET_PATH_MAX_BYTES {
            return Err(ListenError::TooLong { path: socket.to_owned(), bytes });
        }
        prepare_folder(socket.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
        let mut name = socket.as_os_str().to_owned();
        name.push(".lock");
        let path = PathBuf::from(name);
        let mut file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&path)
            .map_err(io("open lock file", &path))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            let pid = if pid.trim().is_empty() { "unknown".to_owned() } else { pid.trim().to_owned() };
            return Err(ListenError::Held { path: socket.to_owned(), pid });
        }
        let written =
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
        written.map_err(io("write lock file", &path))?;
        Ok(Self { socket: socket.to_owned(), _alone: NotInChildren::new(&file), _file: file })
    }

    /// Binds the socket. One that is left there is of a dead daemon, since the lock is ours.
    pub fn bind(self, mode: u32) -> Result<Bound, ListenError> {
        let path = &self.socket;
        match std::fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => {
                std::fs::remove_file(path).map_err(io("remove stale socket", path))?
            }
            Ok(_) => return Err(ListenError::NotASocket(path.clone())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(io("look at", path)(error)),
        }
        let listener = UnixListener::bind(path).map_err(io("bind", path))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(io("set mode of", path))?;
        rustix::net::listen(&listener, BACKLOG).map_err(|e| io("listen on", path)(e.into()))?;
        listener.set_nonblocking(true).map_err(io("set non-blocking", path))?;
        let found = std::fs::symlink_metadata(path).map_err(io("look at", path))?;
        let alone = NotInChildren::new(&listener);
        Ok(Bound { _alone: alone, listener, identity: (found.dev(), found.ino()), lock: self })
    }
}

/// A bound socket; dropping it removes the socket's name, if it is still this one.
#[derive(Debug)]
pub struct Bound {
    _alone: NotInChildren,
    /// The listener, non-blocking.
    pub listener: UnixListener,
    identity: (u64, u64),
    lock: SocketLock,
}

impl Drop for Bound {
    fn drop(&mut self) {
        let path = &self.lock.socket;
        if std::fs::symlink_metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A missing folder is made with mode 0700; one that is there must belong to this user or root, and only its owner
/// may be able to put names into it.
fn prepare_folder(folder: &Path) -> Result<(), ListenError> {
    match std::fs::metadata(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(io("make folder", folder))
        }
        Err(error) => Err(io("look at folder", folder)(error)),
        Ok(found) => {
            let uid = rustix::process::geteuid().as_raw();
            // Somebody else's link could lead into a folder of ours that is meant for other things.
            let name = std::fs::symlink_metadata(folder).map_err(io("look at folder", folder))?;
            let problem = if name.uid() != uid && name.uid() != 0 {
                format!("is a link of uid {}, not of uid {uid} or root", name.uid())
            } else if !found.is_dir() {
                "is not a folder".to_owned()
            } else if found.uid() != uid && found.uid() != 0 {
                format!("belongs to uid {}, not to uid {uid} or root", found.uid())
            } else if found.mode() & 0o022 != 0 {
                format!("has mode {:04o}: others may put names into it", found.mode() & 0o7777)
            } else {
                return Ok(());
            };
            Err(ListenError::Folder { path: folder.to_owned(), problem })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn k7_a_second_daemon_refuses_and_names_the_pid_of_the_first() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("sub/umbpd.sock");
        let bound = SocketLock::take(&path).expect("lock").bind(0o600).expect("bind");
        assert_eq!(std::fs::metadata(path.parent().expect("parent")).expect("stat").mode() & 0o777, 0o700);
        assert_eq!(std::fs::metadata(&path).expect("stat").mode() & 0o777, 0o600);
        let refused = SocketLock::take(&path).expect_err("held").to_string();
        assert!(refused.contains(&format!("pid {}", std::process::id())), "{refused}");
        assert!(UnixStream::connect(&path).is_ok(), "the first still serves");
        drop(bound);
        assert!(!path.exists(), "its own socket is removed at exit");
        assert!(SocketLock::take(&path).is_ok(), "the lock is free again");
    }

    #[test]
    fn j2_a_place_that_refuses_a_socket_is_told_with_the_key_and_a_remedy() {
        let folder = tempfile::tempdir().expect("folder");
        let file = folder.path().join("file");
        std::fs::write(&file, "").expect("written");
        let refused = SocketLock::take(&file.join("sub/s")).expect_err("no folder can be made below a file");
        let text = refused.to_string();
        for words in ["file/sub", "let this user", "daemon.socket"] {
            assert!(text.contains(words), "no {words} in: {text}");
        }
        assert!(std::error::Error::source(&refused).is_some(), "and the cause");
    }

    #[test]
    fn the_longest_path_that_config_takes_can_be_served_on() {
        let folder = tempfile::tempdir().expect("folder");
        let fill = |bytes: usize| folder.path().join("x".repeat(bytes - folder.path().as_os_str().len() - 1));
        let bound = SocketLock::take(&fill(SOCKET_PATH_MAX_BYTES)).expect("lock").bind(0o600);
        assert!(bound.is_ok(), "{bound:?}");
        let refused = SocketLock::take(&fill(SOCKET_PATH_MAX_BYTES + 1)).expect_err("too long").to_string();
        assert!(refused.contains("has 108 bytes; at most 107 fit"), "{refused}");
    }

    #[test]
    fn a_stale_socket_is_replaced_and_anything_else_is_left_alone() {
        let folder = tempfile::tempdir().expect("folder");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).expect("mode");
        let path = folder.path().join("s");
        drop(UnixListener::bind(&path).expect("bind"));
        let bound = SocketLock::take(&path).expect("lock").bind(0o600).expect("replaces the stale one");
        std::fs::remove_file(&path).expect("remove");
        std::fs::write(&path, "mine").expect("write");
        drop(bound);
        assert_eq!(std::fs::read(&path).expect("still there"), b"mine");
        let refused = SocketLock::take(&path).expect("lock").bind(0o600).expect_err("no socket");
        assert!(matches!(refused, ListenError::NotASocket(_)), "{refused}");
    }

    #[test]
    fn a_folder_open_to_others_is_refused() {
        let folder = tempfile::tempdir().expect("folder");
        for mode in [0o777, 0o770, 0o1777] {
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).expect("mode");
            let refused = SocketLock::take(&folder.path().join("s")).expect_err("refused").to_string();
            assert!(refused.contains("others may put names into it"), "{refused}");
        }
    }
}
