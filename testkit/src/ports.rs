//! Ports that no other test takes.
//!
//! A port that a socket was given and has left again is anybody's; servers that are to come back on the same one, and
//! many test processes at a time, need better. So a port is reserved by a lock on a file that all tests of a user
//! share, and lies below those that the system gives to outgoing connections.

use std::fs::{self, File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketType, bind, socket};

use crate::wait::until;

/// First port of ours, and how many there are; those of outgoing connections begin at 32768.
const FIRST: u16 = 20_000;
const COUNT: u16 = 10_000;

/// A port of loopback; another test may have it when this is dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _lock: File,
}

impl Port {
    /// Reserves one. Panics if all are taken.
    pub fn reserve() -> Self {
        let folder = folder();
        // Processes begin at different ports, so that few locks are tried.
        let start = u16::try_from(std::process::id() % u32::from(COUNT)).expect("below the count") / 16 * 16;
        let tried = (0..COUNT).map(|step| FIRST + (start + step) % COUNT);
        let found = tried.into_iter().find_map(|number| {
            let path = folder.join(number.to_string());
            let lock = OpenOptions::new().create(true).truncate(false).write(true).open(path).ok()?;
            flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
            // A program that is no test of ours may listen there.
            is_free(number).then_some(Self { number, _lock: lock })
        });
        found.unwrap_or_else(|| panic!("no free port from {FIRST} on: locks are in {}", folder.display()))
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// `127.0.0.1:<number>`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.number)
    }
}

/// Nobody listens there. Tried without listening: a child that another thread starts at this moment has the socket too,
/// for a moment longer, and must not be in the way of who listens next.
fn is_free(number: u16) -> bool {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    set_socket_reuseaddr(&socket, true).expect("an option that every socket has");
    bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, number))).is_ok()
}

/// Listens on an address that is reserved. A child that is just being started may have the last socket of it still.
pub(crate) fn listen(address: &str) -> TcpListener {
    until(&format!("{address} is free"), || TcpListener::bind(address).ok())
}

fn folder() -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    let folder = std::env::temp_dir().join(format!("umbp-test-ports-{user}"));
    fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("create {}: {error}", folder.display()));
    folder
}
