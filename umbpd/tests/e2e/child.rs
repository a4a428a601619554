//! Clients in processes of their own, so that SIGKILL, SIGSTOP and SIGCONT are real: this program runs itself.
//!
//! A child says where it is in lines on its standard output that begin with `child: `, and takes words, one a line, on
//! its standard input. It ends when that ends.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use rustix::process::{Signal, kill_process};

use crate::common::DEADLINE;
use crate::rig::pid;

const SOCKET: &str = "UMBP_TEST_CHILD_SOCKET";
const TASK: &str = "UMBP_TEST_CHILD_TASK";
const MARK: &str = "child: ";

/// What a child does.
pub(crate) type Task = fn(&Path);

/// Every task by its name.
const TASKS: [(&str, Task); 9] = [
    ("member", crate::embedded::member),
    ("member-that-forks", crate::embedded::member_that_forks),
    ("member-with-limits", crate::embedded::member_with_limits),
    ("churn", crate::killed_clients::churn),
    ("stores-once", crate::stopped::stores_once),
    ("loads-once", crate::stopped::loads_once),
    ("writes-late", crate::stopped::writes_late),
    ("loads-on", crate::daemon_death::loads_on),
    ("crowd", crate::killed_clients::crowd),
];

/// Not a test: what the other process does.
#[test]
fn a_client_process() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let wanted = std::env::var(TASK).expect("a task");
    let (_, task) = TASKS.iter().find(|(name, _)| *name == wanted).expect("a known task");
    task(&PathBuf::from(socket));
}

/// Says something to the parent.
pub(crate) fn say(word: &str) {
    let mut out = std::io::stdout().lock();
    // A parent that is gone ends this process soon enough.
    let _ = writeln!(out, "{MARK}{word}");
    let _ = out.flush();
}

/// The parent's next word; none when it wants no more.
pub(crate) fn hear() -> Option<String> {
    let mut line = String::new();
    let count = std::io::stdin().lock().read_line(&mut line).expect("standard input");
    (count > 0).then(|| line.trim().to_owned())
}

/// A client in a process of its own; killed when a test drops it.
pub(crate) struct Other {
    pub(crate) child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Other {
    pub(crate) fn start(socket: &Path, task: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "child::a_client_process", "--nocapture", "--test-threads=1"]);
        command.env(SOCKET, socket).env(TASK, task).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("started");
        let output = child.stdout.take().expect("piped");
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The first line may share its line with the name that the harness prints.
                if let Some((_, word)) = line.split_once(MARK) {
                    let _ = send.send(word.to_owned());
                }
            }
        });
        let input = child.stdin.take();
        Self { child, input, lines }
    }

    /// What it says next.
    pub(crate) fn next(&self) -> String {
        match self.lines.recv_timeout(DEADLINE) {
            Ok(word) => word,
            Err(RecvTimeoutError::Timeout) => panic!("the child says nothing for {DEADLINE:?}"),
            Err(RecvTimeoutError::Disconnected) => panic!("the child has ended"),
        }
    }

    /// Waits until it says something that begins so; answers the rest.
    pub(crate) fn await_word(&self, start: &str) -> String {
        loop {
            if let Some(rest) = self.next().strip_prefix(start) {
                return rest.trim().to_owned();
            }
        }
    }

    pub(crate) fn tell(&mut self, word: &str) {
        let input = self.input.as_mut().expect("not ended yet");
        writeln!(input, "{word}").expect("told");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid(&self.child), signal).expect("signalled");
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("dead");
    }

    /// Ends its input and waits for its own end.
    pub(crate) fn end(mut self) -> ExitStatus {
        self.input = None;
        // Its output ends with it.
        loop {
            match self.lines.recv_timeout(DEADLINE) {
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => panic!("the child does not end"),
                Err(RecvTimeoutError::Disconnected) => return self.child.wait().expect("ended"),
            }
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended already; then both calls do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
