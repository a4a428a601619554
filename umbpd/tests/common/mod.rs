//! A daemon of a test's own (the real program, real shared objects), and a client of the bare protocol.

#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod client;
pub(crate) mod daemon;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use umbp_plugin_api::built::built;

/// A test that waits longer than this for anything has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").to_owned()
}

/// The dram backend.
pub(crate) fn dram() -> PathBuf {
    built(workspace().join("backends/dram/plugin"), &[])
}

/// The backend with every fault.
pub(crate) fn fixture() -> PathBuf {
    built(workspace().join("plugin-api/fixtures/backend"), &[])
}

/// The same, which hosts share.
pub(crate) fn shared_fixture() -> PathBuf {
    built(workspace().join("plugin-api/fixtures/backend"), &["shared"])
}

/// Asks until the answer is one; each question must take its own time (a round trip, a system call that waits).
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "{what}: not within {DEADLINE:?}");
    }
}
