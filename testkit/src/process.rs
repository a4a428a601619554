//! A child that dies with this process.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};

/// Bytes at the end of a log that a panic shows.
const SHOWN_BYTES: usize = 4000;

/// A running program. Dropped, it is killed; it is killed too when this process ends in any way.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program whose words go to the end of the file `log`. Panics if it cannot be started.
    pub fn start(mut command: Command, log: &Path) -> Self {
        let file = File::options().create(true).append(true).open(log);
        let file = file.unwrap_or_else(|error| panic!("open {}: {error}", log.display()));
        let second = file.try_clone().expect("a second handle of a file");
        command.stdin(Stdio::null()).stdout(file).stderr(second);
        let child = spawn(command).unwrap_or_else(|failed| panic!("start {:?}: {}", failed.1, failed.0));
        Self { child, log: log.to_owned() }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be asked for its end")
    }

    /// What it said so far, the end of it.
    pub fn said(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(SHOWN_BYTES)..]).into_owned()
    }

    /// Stops it where it is (SIGSTOP): its sockets stay open and nobody answers.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on (SIGCONT).
    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// SIGKILL; returns when it is gone.
    pub fn kill(&mut self) {
        // Both fail only if it has been waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap_or_else(|error| panic!("{signal:?} to {pid:?}: {error}\n{}", self.said()));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

type Spawned = Result<Child, Box<(io::Error, Command)>>;

/// Starts a program that is killed when this process ends. The kernel does so when the *thread* that started it ends,
/// and the harness of tests ends a thread with each test; so one thread starts all and lives as long as the process.
fn spawn(mut command: Command) -> Spawned {
    static SPAWNER: OnceLock<Sender<(Command, Sender<Spawned>)>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, receiver) = channel::<(Command, Sender<Spawned>)>();
        let work = move || {
            for (mut command, answer) in receiver {
                let spawned = command.spawn().map_err(|error| Box::new((error, command)));
                // Who asked waits for it.
                let _ = answer.send(spawned);
            }
        };
        std::thread::Builder::new().name("testkit-spawner".to_owned()).spawn(work).expect("a thread");
        sender
    });
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec the closure makes two system calls, and neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have ended before the line above.
            if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
        });
    }
    let (sender, receiver) = channel();
    spawner.send((command, sender)).expect("the spawner lives as long as the process");
    receiver.recv().expect("the spawner answers")
}
