//! A host of one tier, and memory for it.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use umbp_backend_nvme::Nvme;
use umbp_backend_nvme::port::{Disk, Medium};
use umbp_plugin_api::backend::{HostServices, Level, Recovery};
use umbp_plugin_api::checksum::of_block;
use umbp_plugin_api::types::{Operation, RecoveredBlock, code};
use umbp_plugin_api::{Backend, Completion, Host, OpenConfig, OpenError, Opened, Status, Submitted};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const DIGEST: [u8; 32] = [7; 32];
pub(crate) const NAMESPACE: u32 = 3;
pub(crate) const REGION: u64 = 11;
const DEADLINE: Duration = Duration::from_secs(30);

/// What a host is told.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) completions: Mutex<HashMap<u64, Vec<Completion>>>,
    changed: Condvar,
    pub(crate) counts: Mutex<HashMap<String, u64>>,
    counted: Condvar,
    pub(crate) log: Mutex<Vec<(Level, String)>>,
}

impl HostServices for Told {
    fn log(&self, level: Level, text: &str) {
        self.log.lock().unwrap().push((level, text.to_owned()));
    }

    fn count(&self, name: &str, delta: u64) {
        *self.counts.lock().unwrap().entry(name.to_owned()).or_default() += delta;
        self.counted.notify_all();
    }

    fn complete(&self, completions: &[Completion]) {
        let mut all = self.completions.lock().unwrap();
        for completion in completions {
            all.entry(completion.id).or_default().push(*completion);
        }
        self.changed.notify_all();
    }
}

impl Told {
    pub(crate) fn counted(&self, name: &str) -> u64 {
        self.counts.lock().unwrap().get(name).copied().unwrap_or_default()
    }

    /// Waits until a count has come so far.
    pub(crate) fn await_counted(&self, name: &str, least: u64) {
        let below = |counts: &mut HashMap<String, u64>| counts.get(name).is_none_or(|count| *count < least);
        let (counts, late) = self.counted.wait_timeout_while(self.counts.lock().unwrap(), DEADLINE, below).unwrap();
        assert!(!late.timed_out(), "{name} never comes to {least}: {counts:?}");
    }

    /// The completion of an operation; a second one is a fault.
    pub(crate) fn wait(&self, id: u64) -> Completion {
        let (mut all, end) = (self.completions.lock().unwrap(), Instant::now() + DEADLINE);
        loop {
            if let Some(found) = all.get(&id) {
                assert_eq!(found.len(), 1, "operation {id} completes once");
                return found[0];
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "operation {id} never completes; log: {:?}", self.log.lock().unwrap());
            all = self.changed.wait_timeout(all, left).unwrap().0;
        }
    }
}

/// Memory that starts at a unit.
pub(crate) struct Memory {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: plain memory; the tests know which operation uses which part.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn new(bytes: u64) -> Self {
        let layout = Layout::from_size_align(bytes as usize, 4096).unwrap();
        // SAFETY: the size is not zero.
        Self { start: unsafe { alloc_zeroed(layout) }, layout }
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        assert!(offset as usize + bytes.len() <= self.layout.size());
        // SAFETY: the range was checked, and no operation uses it now.
        unsafe { self.start.add(offset as usize).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub(crate) fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        assert!((offset + length) as usize <= self.layout.size());
        // SAFETY: the range was checked, and no operation writes to it now.
        unsafe { std::slice::from_raw_parts(self.start.add(offset as usize), length as usize) }.to_vec()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.start, self.layout) };
    }
}

/// A block as its host remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) number: u64,
    pub(crate) length: u64,
    pub(crate) location: u64,
}

/// An open tier with one region and one namespace.
pub(crate) struct Tier {
    pub(crate) nvme: Nvme,
    pub(crate) told: Arc<Told>,
    pub(crate) opened: Opened,
    pub(crate) memory: Memory,
    ids: AtomicU64,
}

pub(crate) fn folder() -> TempDir {
    // On the disk of the build, not on a tmpfs.
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Memory instead of a disk, for tests that open a store hundreds of times.
pub(crate) fn quick_folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| folder())
}

pub(crate) fn key(number: u64) -> [u8; 44] {
    let mut key = [0; 44];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key[32] = 32;
    key
}

/// Content is a function of the key.
pub(crate) fn payload(number: u64, length: u64) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(step).collect()
}

pub(crate) fn config(path: &Path, capacity: u64, more: &str) -> OpenConfig {
    let options = format!("paths = [{:?}]\n{more}", path.to_str().unwrap());
    OpenConfig { tier: "nvme".to_owned(), capacity, options, slots: 64 }
}

impl Tier {
    pub(crate) fn open(path: &Path, capacity: u64, more: &str) -> Self {
        Self::open_with(&config(path, capacity, more), Arc::new(Disk)).unwrap()
    }

    pub(crate) fn open_with(config: &OpenConfig, medium: Arc<dyn Medium>) -> Result<Self, OpenError> {
        let told = Arc::new(Told::default());
        let (nvme, opened) = Nvme::open_on(config, Host(told.clone()), medium)?;
        let memory = Memory::new(16 * MIB);
        // SAFETY: `memory` lives as long as the tier, and is dropped after it.
        let status = unsafe { nvme.region_register(REGION, memory.start, 16 * MIB, "") };
        assert_eq!(status, Status::OK);
        Ok(Self { nvme, told, opened, memory, ids: AtomicU64::new(1) })
    }

    /// One more region of this memory, which the caller keeps until the tier is gone.
    pub(crate) fn register(&self, region: u64, memory: &Memory) -> Status {
        // SAFETY: the caller keeps the memory.
        unsafe { self.nvme.region_register(region, memory.start, memory.layout.size() as u64, "") }
    }

    /// Opens, introduces the namespace, and reads everything back in small pages.
    pub(crate) fn recovered(path: &Path, capacity: u64, more: &str) -> (Self, HashMap<u64, Stored>) {
        let tier = Self::open(path, capacity, more);
        tier.introduce();
        let blocks = tier.recover();
        (tier, blocks)
    }

    pub(crate) fn introduce(&self) {
        assert_eq!(self.nvme.namespace_put(NAMESPACE, &DIGEST, b"descriptor"), Status::OK);
    }

    pub(crate) fn recover(&self) -> HashMap<u64, Stored> {
        let (mut cursor, mut blocks) = (0, Vec::new());
        while let Recovery::More(next) = self.nvme.recover(cursor, 7, &mut blocks).unwrap() {
            cursor = next;
        }
        let count = blocks.len();
        let found: HashMap<u64, Stored> = blocks.iter().map(stored).collect();
        assert_eq!(found.len(), count, "each key once");
        found
    }

    pub(crate) fn fresh(path: &Path, capacity: u64, more: &str) -> Self {
        let (tier, blocks) = Self::recovered(path, capacity, more);
        assert_eq!(blocks.len(), 0);
        tier
    }

    pub(crate) fn id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn operation(&self, code: u32, number: u64, length: u64) -> Operation {
        let checksum = of_block(&DIGEST, &key(number), &payload(number, length));
        let (id, namespace_id, region) = (self.id(), NAMESPACE, REGION);
        Operation {
            id,
            code,
            namespace_id,
            key: key(number),
            parent: key(number / 2),
            depth: number as u32,
            recency: number + 1000,
            checksum,
            length,
            region,
            ..Operation::default()
        }
    }

    pub(crate) fn submit(&self, operation: Operation) -> Submitted {
        let mut results = [Submitted::default()];
        self.nvme.submit(&[operation], &mut results);
        results[0]
    }

    pub(crate) fn run(&self, operation: Operation) -> Completion {
        assert_eq!(self.submit(operation), Submitted::ACCEPTED);
        self.told.wait(operation.id)
    }

    pub(crate) fn put_at(&self, number: u64, length: u64, offset: u64) -> Result<Stored, Status> {
        self.memory.write(offset, &payload(number, length));
        let done = self.run(Operation { offset, ..self.operation(code::PUT, number, length) });
        if done.status == Status::OK {
            Ok(Stored { number, length, location: done.location })
        } else {
            Err(done.status)
        }
    }

    pub(crate) fn put(&self, number: u64, length: u64) -> Result<Stored, Status> {
        self.put_at(number, length, 0)
    }

    pub(crate) fn get_at(&self, block: &Stored, offset: u64) -> Result<(), Status> {
        self.memory.write(offset, &vec![0xee; block.length as usize]);
        let operation = self.operation(code::GET, block.number, block.length);
        let done = self.run(Operation { offset, location: block.location, ..operation });
        if done.status != Status::OK {
            return Err(done.status);
        }
        assert_eq!(done.length, block.length);
        let same = self.memory.read(offset, block.length) == payload(block.number, block.length);
        assert!(same, "a load that succeeds has the right bytes: {block:?}");
        Ok(())
    }

    pub(crate) fn get(&self, block: &Stored) -> Result<(), Status> {
        self.get_at(block, 8 * MIB)
    }

    pub(crate) fn delete(&self, block: &Stored) -> Status {
        let operation = self.operation(code::DELETE, block.number, block.length);
        self.run(Operation { location: block.location, ..operation }).status
    }

    pub(crate) fn shutdown(self) {
        self.nvme.shutdown(DEADLINE);
    }
}

fn stored(block: &RecoveredBlock) -> (u64, Stored) {
    let number = u64::from_le_bytes(block.key[..8].try_into().unwrap());
    assert_eq!(block.key, key(number));
    assert_eq!(block.parent, key(number / 2));
    assert_eq!((block.depth, block.recency, block.namespace_id), (number as u32, number + 1000, NAMESPACE));
    assert_eq!(block.checksum, of_block(&DIGEST, &key(number), &payload(number, block.length)));
    (number, Stored { number, length: block.length, location: block.location })
}

/// A copy of a folder of files as it is now: what a kill at this moment would leave.
pub(crate) fn copy_of(path: &Path) -> TempDir {
    let copy = if path.starts_with("/dev/shm") { quick_folder() } else { folder() };
    for entry in std::fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        // A file that a snapshot has just replaced is gone.
        let _ = std::fs::copy(entry.path(), copy.path().join(entry.file_name()));
    }
    copy
}

/// Bytes on disk, as du counts them.
pub(crate) fn disk_bytes(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = std::fs::read_dir(path).unwrap();
    files.filter_map(|entry| entry.unwrap().metadata().ok()).map(|found| found.blocks() * 512).sum()
}

/// The newest file whose name begins so.
pub(crate) fn newest(path: &Path, prefix: &str) -> std::path::PathBuf {
    let names = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|name| name.file_name().unwrap().to_str().unwrap().starts_with(prefix)).max().unwrap()
}
