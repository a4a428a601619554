//! Two hosts and a cable: network namespaces joined by a pair of virtual devices. Needs root and iproute2.
//!
//! What runs in them shares files, and so Unix sockets, with everything else; only their networks are their own.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::servers::or_skip;

/// Where this is set, a test that needs root and skips itself has failed.
pub const REQUIRE_ROOT: &str = "UMBP_REQUIRE_ROOT_TESTS";
/// What the names of all our namespaces begin with; the process that made them comes next.
const PREFIX: &str = "umbp";
/// The device of each host.
const DEVICE: &str = "cable";
/// A neighbour that nobody is: what is sent there is lost without a word.
const NOBODY: &str = "02:00:00:00:00:ff";

/// A host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Where, say, the daemon runs.
    Near,
    /// Where the server runs.
    Far,
}

impl Side {
    const BOTH: [Self; 2] = [Self::Near, Self::Far];

    /// Its address on the cable.
    pub fn address(self) -> &'static str {
        match self {
            Self::Near => "10.0.0.1",
            Self::Far => "10.0.0.2",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }
}

/// Two hosts; both go when this is dropped.
#[derive(Debug)]
pub struct Network {
    name: String,
}

impl Network {
    /// Makes them. `None` where this process may not, or `ip` is missing: then the test says why it ends and ends;
    /// with [`REQUIRE_ROOT`] set it panics instead.
    pub fn new() -> Option<Self> {
        static SEQUENCE: AtomicU32 = AtomicU32::new(0);
        let name = format!("{PREFIX}-{}-{}", std::process::id(), SEQUENCE.fetch_add(1, Ordering::Relaxed));
        or_skip(possible().map(|()| Self::made(name)), std::env::var_os(REQUIRE_ROOT).is_some())
    }

    fn made(name: String) -> Self {
        let network = Self { name };
        for side in Side::BOTH {
            sure(&["netns", "add", &network.space(side)]);
        }
        let (near, far) = (network.space(Side::Near), network.space(Side::Far));
        sure(&["-n", &near, "link", "add", DEVICE, "type", "veth", "peer", "name", DEVICE, "netns", &far]);
        for side in Side::BOTH {
            let (space, address) = (network.space(side), format!("{}/24", side.address()));
            sure(&["-n", &space, "address", "add", &address, "dev", DEVICE]);
            sure(&["-n", &space, "link", "set", "lo", "up"]);
            sure(&["-n", &space, "link", "set", DEVICE, "up"]);
        }
        network
    }

    /// A program that runs on one host. What it starts is killed with this process if it is started by
    /// [`Process`](crate::process::Process).
    pub fn command(&self, side: Side, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let prefix = self.prefix(side);
        let mut command = Command::new(&prefix[0]);
        command.args(&prefix[1..]).arg(program);
        command
    }

    /// What stands before a command line that runs on one host.
    pub(crate) fn prefix(&self, side: Side) -> Vec<String> {
        ["ip", "netns", "exec", &self.space(side)].map(str::to_owned).to_vec()
    }

    /// Loses all that is sent, in both directions and without a word, as a network does whose middle is gone: open
    /// connections stay open and silent, new ones are not answered.
    pub fn lose(&self) {
        for side in Side::BOTH {
            let (space, other) = (self.space(side), side.other().address());
            sure(&["-n", &space, "neighbour", "replace", other, "lladdr", NOBODY, "nud", "permanent", "dev", DEVICE]);
        }
    }

    /// Delivers again.
    pub fn deliver(&self) {
        for side in Side::BOTH {
            sure(&["-n", &self.space(side), "neighbour", "del", side.other().address(), "dev", DEVICE]);
        }
    }

    /// Pulls the cable out of the near host, which knows it at once.
    pub fn pull(&self) {
        sure(&["-n", &self.space(Side::Near), "link", "set", DEVICE, "down"]);
    }

    /// Puts it back.
    pub fn plug(&self) {
        sure(&["-n", &self.space(Side::Near), "link", "set", DEVICE, "up"]);
    }

    fn space(&self, side: Side) -> String {
        format!("{}-{}", self.name, if side == Side::Near { "near" } else { "far" })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for side in Side::BOTH {
            // The device goes with its namespace.
            let _ = ip(&["netns", "del", &self.space(side)]);
        }
    }
}

/// Whether namespaces and such devices can be made here; tried once.
fn possible() -> Result<(), String> {
    static PROBED: OnceLock<Result<(), String>> = OnceLock::new();
    let probe = || {
        if !rustix::process::geteuid().is_root() {
            return Err("network namespaces need root".to_owned());
        }
        sweep();
        let name = format!("{PREFIX}-{}-probe", std::process::id());
        ip(&["netns", "add", &name])?;
        let made = ip(&["-n", &name, "link", "add", DEVICE, "type", "veth", "peer", "name", "other"]);
        ip(&["netns", "del", &name]).and(made).map(drop)
    };
    PROBED.get_or_init(probe).clone()
}

/// Removes what processes that are gone have left: a killed one cannot.
fn sweep() {
    let Ok(listed) = ip(&["netns", "list"]) else { return };
    for name in listed.lines().filter_map(|line| line.split_whitespace().next()) {
        let Some(process) = name.strip_prefix(&format!("{PREFIX}-")).and_then(|rest| rest.split('-').next()) else {
            continue;
        };
        if process.parse::<u32>().is_ok() && !Path::new("/proc").join(process).exists() {
            // Another test may have been faster.
            let _ = ip(&["netns", "del", name]);
        }
    }
}

/// Runs `ip`; what it said.
fn ip(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| format!("ip: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("ip {}: {}", arguments.join(" "), text(&output.stderr)))
    }
}

fn sure(arguments: &[&str]) {
    ip(arguments).unwrap_or_else(|error| panic!("{error}"));
}
