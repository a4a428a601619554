//! Shared by the tests that open shared objects.

#![allow(dead_code, reason = "each test program uses a part")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use umbp_plugin_api::backend::Level;
use umbp_plugin_api::built::built;
use umbp_plugin_api::host::{HostOpenError, HostedBackend, Plugin};
use umbp_plugin_api::types::code;
use umbp_plugin_api::{Completion, HostServices, OpenConfig, Opened, Operation, Status, Submitted};

/// A test that waits longer than this has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);
/// Bytes of a test's block.
pub(crate) const BLOCK_BYTES: usize = 4096;
pub(crate) const DIGEST: [u8; 32] = [3; 32];

/// The crate of a fixture.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

pub(crate) fn backend_path() -> PathBuf {
    built(fixture("backend"), &[])
}

pub(crate) fn plugin() -> Plugin {
    Plugin::load(&backend_path()).expect("the fixture loads")
}

/// All that a plugin told its host.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    heard: Mutex<Heard>,
    changed: Condvar,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Heard {
    pub(crate) completions: Vec<Completion>,
    pub(crate) log: Vec<String>,
    pub(crate) counts: Vec<(String, u64)>,
}

impl Desk {
    /// Waits until `enough`, or fails the test.
    pub(crate) fn wait(&self, enough: impl Fn(&Heard) -> bool) -> Heard {
        let end = Instant::now() + DEADLINE;
        let mut heard = self.heard.lock().expect("not poisoned");
        while !enough(&heard) {
            let left = end.checked_duration_since(Instant::now()).expect("heard in time");
            heard = self.changed.wait_timeout(heard, left).expect("not poisoned").0;
        }
        heard.clone()
    }

    pub(crate) fn now(&self) -> Heard {
        self.wait(|_| true)
    }

    fn note(&self, note: impl FnOnce(&mut Heard)) {
        note(&mut self.heard.lock().expect("not poisoned"));
        self.changed.notify_all();
    }
}

impl HostServices for Desk {
    fn log(&self, _level: Level, text: &str) {
        self.note(|heard| heard.log.push(text.to_owned()));
    }

    fn count(&self, name: &str, delta: u64) {
        self.note(|heard| heard.counts.push((name.to_owned(), delta)));
    }

    fn complete(&self, completions: &[Completion]) {
        self.note(|heard| heard.completions.extend_from_slice(completions));
    }
}

/// Memory that outlives every backend of a test, as P9 asks for.
pub(crate) fn memory() -> &'static mut [u8] {
    Box::leak(vec![7; BLOCK_BYTES].into_boxed_slice())
}

pub(crate) fn config(behaviour: &str) -> OpenConfig {
    let options = format!("behaviour = \"{behaviour}\"\n");
    OpenConfig { tier: "t".to_owned(), capacity: 1 << 20, options, slots: 8 }
}

pub(crate) fn open(behaviour: &str) -> Result<(HostedBackend, Opened, Arc<Desk>), HostOpenError> {
    let desk = Arc::new(Desk::default());
    let (backend, opened) = plugin().open(&config(behaviour), Arc::clone(&desk) as Arc<dyn HostServices>)?;
    Ok((backend, opened, desk))
}

/// An open backend with region 1 and namespace 1.
pub(crate) fn ready(behaviour: &str) -> (HostedBackend, Arc<Desk>) {
    let (backend, _, desk) = open(behaviour).expect("opens");
    let memory = memory();
    // SAFETY: the memory is leaked.
    let status = unsafe { backend.region_register(1, memory.as_mut_ptr(), memory.len() as u64, "") };
    assert_eq!(status, Status::OK);
    assert_eq!(backend.namespace_put(1, &DIGEST, b"descriptor"), Status::OK);
    (backend, desk)
}

pub(crate) fn put(id: u64) -> Operation {
    let mut operation = Operation {
        id,
        code: code::PUT,
        namespace_id: 1,
        length: BLOCK_BYTES as u64,
        region: 1,
        ..Operation::default()
    };
    operation.key[..8].copy_from_slice(&id.to_le_bytes());
    operation
}

pub(crate) fn submit(backend: &HostedBackend, operations: &[Operation]) -> Vec<Submitted> {
    let mut results = vec![Submitted::BUSY; operations.len()];
    backend.submit(operations, &mut results);
    results
}
