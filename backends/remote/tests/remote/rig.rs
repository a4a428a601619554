//! A host of one tier, and memory for it.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use umbp_backend_remote::Remote;
use umbp_plugin_api::backend::Level;
use umbp_plugin_api::checksum::of_block;
use umbp_plugin_api::types::{KEY_BYTES, code};
use umbp_plugin_api::{Backend, Completion, Host, HostServices, OpenConfig, OpenError, Operation, Status, Submitted};
use umbp_testkit::s3::{BUCKET, REGION, S3, WRITER};

/// A test that waits longer than this for anything has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const NAMESPACE: u32 = 7;
pub(crate) const DIGEST: [u8; 32] = [0x6b; 32];
const REGION_ID: u64 = 1;
const REGION_BYTES: usize = 8 << 20;

pub(crate) fn single(address: &str) -> String {
    format!("engine = \"redis\"\naddresses = [{address:?}]\n")
}

/// The bucket, with credentials in a file of the folder.
pub(crate) fn s3(server: &S3, folder: &Path) -> String {
    let file = folder.join("credentials");
    let (key, secret) = (WRITER.access_key, WRITER.secret);
    std::fs::write(&file, format!("[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"))
        .expect("credentials");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("mode");
    format!(
        "engine = \"s3\"\nendpoint = \"{}\"\nregion = \"{REGION}\"\nbucket = \"{BUCKET}\"\nallow_http = true\n\
         credentials = \"file\"\ncredentials_file = {file:?}\ntimeout = \"10s\"\n",
        server.endpoint()
    )
}

struct Services {
    done: Sender<Completion>,
    counters: Mutex<BTreeMap<String, u64>>,
    lines: Mutex<Vec<String>>,
}

impl HostServices for Services {
    fn log(&self, _level: Level, text: &str) {
        self.lines.lock().unwrap().push(text.to_owned());
    }

    fn count(&self, name: &str, delta: u64) {
        *self.counters.lock().unwrap().entry(name.to_owned()).or_default() += delta;
    }

    fn complete(&self, completions: &[Completion]) {
        for completion in completions {
            // The receiver goes with the tier.
            let _ = self.done.send(*completion);
        }
    }
}

/// A tier that is open, and its host.
pub(crate) struct Tier {
    // Before the memory: it is shut down when that is freed.
    backend: Remote,
    services: Arc<Services>,
    done: Mutex<Receiver<Completion>>,
    memory: Box<[u8]>,
    next: std::cell::Cell<u64>,
}

fn services() -> (Arc<Services>, Receiver<Completion>) {
    let (say, done) = channel();
    (Arc::new(Services { done: say, counters: Mutex::default(), lines: Mutex::default() }), done)
}

fn config(options: &str) -> OpenConfig {
    OpenConfig { tier: "remote".to_owned(), capacity: 1 << 30, options: options.to_owned(), slots: 256 }
}

/// Why a tier does not open.
pub(crate) fn refused(options: &str) -> OpenError {
    match Remote::open(&config(options), Host(services().0)) {
        Ok(_) => panic!("it opens: {options}"),
        Err(error) => error,
    }
}

/// A block as the host knows it.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    pub(crate) number: u64,
    pub(crate) length: u64,
    pub(crate) checksum: u64,
    pub(crate) location: u64,
}

pub(crate) fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [1; KEY_BYTES];
    key[8..16].copy_from_slice(&number.to_be_bytes());
    key
}

pub(crate) fn content(number: u64, length: u64) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(number * 2 + 1) >> 5) as u8).collect()
}

impl Tier {
    pub(crate) fn open(options: &str) -> Self {
        let (services, done) = services();
        let (backend, _) = Remote::open(&config(options), Host(services.clone())).expect("it opens");
        let mut memory = vec![0; REGION_BYTES].into_boxed_slice();
        // SAFETY: the memory is freed after the backend, and nobody else touches it while operations run.
        let status = unsafe { backend.region_register(REGION_ID, memory.as_mut_ptr(), REGION_BYTES as u64, "") };
        assert_eq!((status, backend.namespace_put(NAMESPACE, &DIGEST, b"a test")), (Status::OK, Status::OK));
        Self { backend, services, done: Mutex::new(done), memory, next: std::cell::Cell::new(1) }
    }

    pub(crate) fn counted(&self, name: &str) -> u64 {
        self.services.counters.lock().unwrap().get(name).copied().unwrap_or(0)
    }

    pub(crate) fn counters(&self) -> BTreeMap<String, u64> {
        self.services.counters.lock().unwrap().clone()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.services.lines.lock().unwrap().clone()
    }

    pub(crate) fn operation(&self, code: u32, known: &Known) -> Operation {
        let id = self.next.replace(self.next.get() + 1);
        Operation {
            id,
            code,
            namespace_id: NAMESPACE,
            key: key(known.number),
            parent: if known.number == 0 { [0; KEY_BYTES] } else { key(known.number - 1) },
            depth: known.number as u32,
            checksum: known.checksum,
            length: known.length,
            location: known.location,
            region: REGION_ID,
            offset: 0,
            ..Operation::default()
        }
    }

    pub(crate) fn submit(&self, operation: Operation) -> Submitted {
        let mut result = [Submitted::default()];
        self.backend.submit(&[operation], &mut result);
        result[0]
    }

    pub(crate) fn wait(&self) -> Completion {
        self.done.lock().unwrap().recv_timeout(PATIENCE).expect("a completion")
    }

    pub(crate) fn run(&self, code: u32, known: &Known) -> Completion {
        let operation = self.operation(code, known);
        assert_eq!(self.submit(operation), Submitted::ACCEPTED);
        let done = self.wait();
        assert_eq!(done.id, operation.id);
        done
    }

    pub(crate) fn known(number: u64, length: u64) -> Known {
        let checksum = of_block(&DIGEST, &key(number), &content(number, length));
        Known { number, length, checksum, location: 0 }
    }

    pub(crate) fn put(&mut self, number: u64, length: u64) -> (Known, Completion) {
        let known = Self::known(number, length);
        self.memory[..length as usize].copy_from_slice(&content(number, length));
        let done = self.run(code::PUT, &known);
        (Known { location: done.location, ..known }, done)
    }

    pub(crate) fn put_ok(&mut self, number: u64, length: u64) -> Known {
        let (known, done) = self.put(number, length);
        assert_eq!(done.status, Status::OK, "{:?}", self.counters());
        known
    }

    /// The status; bytes that come with OK are compared.
    pub(crate) fn get(&mut self, known: &Known) -> Status {
        self.memory.fill(0xee);
        let done = self.run(code::GET, known);
        if done.status == Status::OK {
            let wanted = content(known.number, known.length);
            assert!(self.memory[..known.length as usize] == wanted[..], "wrong bytes for block {}", known.number);
        }
        done.status
    }

    pub(crate) fn cancel(&self, ids: &[u64]) {
        self.backend.cancel(ids);
    }

    pub(crate) fn shutdown(&self, deadline: Duration) -> Duration {
        let began = Instant::now();
        self.backend.shutdown(deadline);
        began.elapsed()
    }

    /// Asks until it is so; each question takes a round trip of its own.
    pub(crate) fn until(&mut self, what: &str, mut come: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !come(self) {
            assert!(Instant::now() < end, "{what}: never; {:?}", self.counters());
        }
    }
}
