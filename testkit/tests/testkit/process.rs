//! A child ends with who started it, and not before.

use std::io::Read;
use std::process::{Command, Stdio};

use umbp_testkit::process::Process;
use umbp_testkit::wait::until;

/// Names the folder of a test process that is there to be killed.
const CHILD: &str = "UMBP_TESTKIT_CHILD";

fn sleeper(folder: &std::path::Path) -> Process {
    let mut command = Command::new("sleep");
    command.arg("600");
    Process::start(command, &folder.join("log"))
}

/// A process that nobody has waited for yet is dead all the same.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

#[test]
fn a_child_outlives_the_thread_that_started_it_and_dies_when_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let mut process = std::thread::spawn(move || sleeper(&path)).join().unwrap();
    assert_eq!(process.ended(), None);
    assert!(is_alive(process.pid()));
    let pid = process.pid();
    drop(process);
    assert!(!is_alive(pid));
}

/// The other half of the next test; by itself it does nothing.
#[test]
fn child_that_is_killed() {
    let Some(folder) = std::env::var_os(CHILD).map(std::path::PathBuf::from) else { return };
    let process = sleeper(&folder);
    std::fs::write(folder.join("pid.new"), process.pid().to_string()).unwrap();
    std::fs::rename(folder.join("pid.new"), folder.join("pid")).unwrap();
    // Until the parent ends this process, or its own end closes the pipe.
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn a_child_dies_with_a_test_process_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "process::child_that_is_killed", "--nocapture"]).env(CHILD, folder.path());
    let mut test = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let pid: u32 =
        until("the child tells its child", || std::fs::read_to_string(folder.path().join("pid")).ok()?.parse().ok());
    assert!(is_alive(pid));
    test.kill().unwrap();
    test.wait().unwrap();
    until("the child's child is gone", || (!is_alive(pid)).then_some(()));
}
