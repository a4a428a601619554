//! The real program, on a folder of its own.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::client::Client;
use super::{DEADLINE, dram};

/// A folder with a config, for one daemon after another.
pub(crate) struct Place {
    folder: Arc<tempfile::TempDir>,
}

/// A daemon that serves; killed when a test drops it.
pub(crate) struct Daemon {
    child: Child,
    pub(crate) socket: PathBuf,
    /// The line that it said when it served.
    pub(crate) greeting: String,
    /// What it had said before.
    pub(crate) said: String,
    lines: Receiver<String>,
    _folder: Arc<tempfile::TempDir>,
}

/// What a daemon said and how it ended.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) status: ExitStatus,
    pub(crate) text: String,
}

impl Place {
    /// A DRAM tier of this capacity, and `more` of TOML.
    pub(crate) fn new(capacity: &str, more: &str) -> Self {
        let place = Self { folder: Arc::new(tempfile::tempdir().expect("a folder")) };
        let mode = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(place.folder.path(), mode).expect("mode of the folder");
        place.write(&format!(
            "[daemon]\nsocket = \"{}\"\nadmin = \"off\"\ndrain = \"2s\"\n\n[[tier]]\nname = \"dram\"\n\
             backend = \"{}\"\ncapacity = \"{capacity}\"\n[tier.options]\nhugepages = \"off\"\n\n{more}\n",
            place.socket().display(),
            dram().display()
        ));
        place
    }

    pub(crate) fn write(&self, toml: &str) {
        std::fs::write(self.config(), toml).expect("config written");
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.path().join("umbpd.toml")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path().join("umbpd.sock")
    }

    /// The command that serves.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_umbpd"));
        command.arg("--config").arg(self.config());
        command
    }

    /// Starts it and waits until it serves.
    pub(crate) fn serve(&self) -> Daemon {
        self.try_serve(self.command()).unwrap_or_else(|refused| panic!("it serves: {refused:?}"))
    }

    /// Starts it and waits until it refuses.
    pub(crate) fn refused(&self) -> Refused {
        match self.try_serve(self.command()) {
            Ok(daemon) => panic!("it is refused, but: {}", daemon.greeting),
            Err(refused) => refused,
        }
    }

    /// Starts a command and waits until it serves or ends.
    pub(crate) fn try_serve(&self, mut command: Command) -> Result<Daemon, Refused> {
        command.env("UMBP_LOG", "info").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // What this process has is not the test's; what the command was given is.
        let given: Vec<_> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
        for (name, _) in std::env::vars_os().filter(|(name, _)| !given.contains(name)) {
            let text = name.to_string_lossy();
            if text == "UMBP_SOCKET" || (text.starts_with("UMBP_") && text.contains("__")) {
                command.env_remove(name);
            }
        }
        let mut child = command.spawn().expect("umbpd starts");
        let stderr = child.stderr.take().expect("piped");
        let (say, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                eprintln!("umbpd: {line}");
                let _ = say.send(line);
            }
        });
        let (end, mut text) = (Instant::now() + DEADLINE, String::new());
        let _folder = self.folder.clone();
        loop {
            match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if line.starts_with("umbpd serves on") => {
                    return Ok(Daemon { child, socket: self.socket(), greeting: line, said: text, lines, _folder });
                }
                Ok(line) => {
                    text.push_str(&line);
                    text.push('\n');
                }
                Err(_) => {
                    assert!(Instant::now() < end, "it neither serves nor ends: {text}");
                    return Err(Refused { status: child.wait().expect("ended"), text });
                }
            }
        }
    }
}

impl Daemon {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its status, by a session of its own.
    pub(crate) fn status(&self) -> Value {
        Client::status_only(&self.socket).status()
    }

    /// Asks for the status until it is as wanted.
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut client = Client::status_only(&self.socket);
        let end = Instant::now() + DEADLINE;
        loop {
            let status = client.status();
            if wanted(&status) {
                return status;
            }
            assert!(Instant::now() < end, "{what}: not within {DEADLINE:?}: {status:#}");
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signalled");
    }

    /// Waits for its end; answers the exit status and what it had said.
    pub(crate) fn wait(mut self) -> Refused {
        let (end, mut text) = (Instant::now() + DEADLINE, std::mem::take(&mut self.said));
        while let Ok(line) = self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            text.push_str(&line);
            text.push('\n');
        }
        assert!(Instant::now() < end, "it does not end: {text}");
        Refused { status: self.child.wait().expect("ended"), text }
    }

    /// SIGTERM, and the way it ended.
    pub(crate) fn stop(self) -> Refused {
        self.signal(Signal::TERM);
        self.wait()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already; then both calls do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
