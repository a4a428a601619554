//! `demo`: a daemon of its own, a generated workload through it, a report.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::build;
use crate::shell::{self, Result};

/// Conversations of the generated workload: a few seconds of work on two cores.
pub(crate) const CONVERSATIONS: u32 = 200;
/// A daemon that pre-faults its pool may take this long until it listens.
const START_MS: u64 = 30_000;
/// And this long to end after SIGTERM.
const STOP_MS: u64 = 15_000;
/// How often a child is looked at.
const POLL_MS: u64 = 20;

/// Serves on a temporary socket with a state folder of its own, replays, and stops.
pub(crate) fn demo(conversations: u32) -> Result {
    let dist = build::build()?;
    let folder = tempfile::tempdir().map_err(|e| format!("create a temporary folder: {e}"))?;
    let socket = folder.path().join("umbpd.sock");
    let mut command = Command::new(&dist.umbpd);
    command.env("UMBP_SOCKET", &socket).env("UMBP_DAEMON__ADMIN", "off").env("XDG_STATE_HOME", folder.path());
    shell::say(&format!("{} (on {})", shell::line(&command), socket.display()));
    let mut daemon = Daemon(command.spawn().map_err(|e| format!("start umbpd: {e}"))?);
    daemon.await_socket(&socket)?;
    let mut replay = Command::new(&dist.umbp);
    replay.arg("--socket").arg(&socket).args(["replay", "--generate", &conversations.to_string()]);
    let replayed = shell::run(&mut replay);
    let stopped = daemon.stop();
    replayed.and(stopped)
}

/// A daemon that is killed when the demo ends early.
struct Daemon(Child);

impl Daemon {
    fn await_socket(&mut self, socket: &Path) -> Result {
        let deadline = Instant::now() + Duration::from_millis(START_MS);
        while UnixStream::connect(socket).is_err() {
            if let Ok(Some(status)) = self.0.try_wait() {
                return Err(format!("umbpd ended before it listened ({status})"));
            }
            if Instant::now() > deadline {
                return Err(format!("umbpd does not listen on {} after {START_MS} ms", socket.display()));
            }
            std::thread::sleep(Duration::from_millis(POLL_MS));
        }
        Ok(())
    }

    /// SIGTERM, then a bounded wait.
    fn stop(&mut self) -> Result {
        shell::say("stop umbpd");
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).map_err(|e| format!("stop umbpd: {e}"))?;
        let deadline = Instant::now() + Duration::from_millis(STOP_MS);
        while Instant::now() < deadline {
            match self.0.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("umbpd ended badly ({status})")),
                Ok(None) => std::thread::sleep(Duration::from_millis(POLL_MS)),
                Err(e) => return Err(format!("wait for umbpd: {e}")),
            }
        }
        Err(format!("umbpd still runs {STOP_MS} ms after SIGTERM"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already; then both calls do nothing.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
