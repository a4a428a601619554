//! One path: its folder, its tables, and its threads.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::SeekFrom;
use umbp_plugin_api::backend::Level;
use umbp_plugin_api::{Host, OpenError};

use crate::folder::{Folder, environment, snapshot_name};
use crate::format::{RECORD_BYTES, UNIT_BYTES};
use crate::inbox::Inbox;
use crate::journal::{Journal, Present};
use crate::keeper::Keeper;
use crate::namespaces::Namespaces;
use crate::port::Medium;
use crate::queue::locked;
use crate::ranges::holes;
use crate::recovery::{Claims, Recovery};
use crate::space::{Live, Room, Space};
use crate::transfer::{Awaited, Place, Reserved};
use crate::verify::Verifier;

/// Least capacity of one path: below it metadata leaves hardly any room for data.
pub(crate) const CAPACITY_MIN_BYTES: u64 = 1 << 20;
/// The data file grows in steps, so that writes do not extend it one by one: a sixteenth of the capacity, within these.
const STEP_MIN_BYTES: u64 = 1 << 20;
const STEP_MAX_BYTES: u64 = 64 << 20;
/// A journal shorter than this is not worth a snapshot: a 128th of the capacity, within these.
const JOURNAL_FLOOR_MIN_BYTES: u64 = 16 << 10;
const JOURNAL_FLOOR_MAX_BYTES: u64 = 32 << 20;
/// How long the keeper waits for a snapshot that is being written; then it goes on, and the capacity check in
/// `reserve` refuses stores where metadata has grown too long.
const COMPACTION_WAIT: Duration = Duration::from_secs(10);
/// What the housekeeping thread is asked.
#[derive(Default)]
pub(crate) struct Chores {
    pub(crate) compact: bool,
    pub(crate) punch: bool,
    pub(crate) stop: bool,
}

/// One path. Lock order: `syncing`, `recovery`, `namespaces`, `journal`, then `space` or `record_files`; `chores` alone.
pub(crate) struct Store {
    pub(crate) index: u8,
    pub(crate) host: Host,
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) folder: Arc<Folder>,
    pub(crate) data: File,
    pub(crate) capacity: u64,
    pub(crate) space: Mutex<Space>,
    pub(crate) journal: Mutex<Journal>,
    pub(crate) namespaces: Mutex<Namespaces>,
    pub(crate) recovery: Mutex<Recovery>,
    pub(crate) inbox: Inbox,
    pub(crate) keeper: Keeper,
    pub(crate) verifier: Arc<Verifier>,
    pub(crate) chores: Mutex<Chores>,
    pub(crate) chores_changed: Condvar,
    pub(crate) compaction_failed: AtomicBool,
    metadata_bytes: Arc<AtomicU64>,
    record_files: Arc<Mutex<Present>>,
    data_length: AtomicU64,
    dirty: AtomicBool,
    /// One sync at a time, so that a flush never returns while another thread is still at what it asks for.
    syncing: Mutex<()>,
}

/// What a path is opened with.
pub(crate) struct Opening {
    pub(crate) index: usize,
    pub(crate) count: usize,
    pub(crate) capacity: u64,
    pub(crate) host: Host,
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) verifier: Arc<Verifier>,
}

impl Opening {
    /// Takes and prepares the folder; nothing is moved yet.
    pub(crate) fn folder(&self, path: &std::path::Path) -> Result<(Folder, Namespaces), OpenError> {
        let failed = |what: &str, error: io::Error| environment(path, what, &error);
        let mut folder = Folder::open(path, self.index, self.count, self.capacity)?;
        let mut known = if folder.renewed {
            None
        } else {
            Namespaces::load(&folder).map_err(|e| failed("read the namespaces", e))?
        };
        let listing = folder.list().map_err(|e| failed("list the folder", e))?;
        let stored = !listing.journals.is_empty() || listing.snapshot.is_some();
        if known.is_none() && stored {
            folder.renew(self.index, self.count, self.capacity).map_err(|e| failed("write the superblock", e))?;
        }
        if folder.renewed {
            known = None;
            let path = path.display();
            let text = format!("path {path}: superblock or namespaces are damaged; the store begins anew, empty");
            self.host.log(Level::Warn, &text);
            self.host.count("fallback.renewed", 1);
        }
        let listing = folder.list().map_err(|e| failed("list the folder", e))?;
        for stranger in &listing.strangers {
            self.medium.remove(stranger).map_err(|error| {
                let (path, name) = (path.display(), stranger.display());
                OpenError::Environment(format!(
                    "path {path}: cannot remove {name}: {error}. It is of the damaged store that was here, and could be \
                     taken for this one's own: remove it by hand, or name another folder in the tier's `paths`"
                ))
            })?;
        }
        // A leftover is overwritten before it is used. What was replaced counts as taken, and is tried again.
        for file in listing.leftovers.iter().chain(&listing.replaced) {
            if self.medium.remove(file).is_err() {
                self.host.count("removal_errors", 1);
            }
        }
        let known = match known {
            Some(known) => known,
            None => Namespaces::create(&folder).map_err(|e| failed("write the namespaces", e))?,
        };
        Ok((folder, known))
    }

    /// The store, once it is known whether O_DIRECT works.
    pub(crate) fn store(self, folder: Arc<Folder>, namespaces: Namespaces, direct: bool) -> Result<Store, OpenError> {
        let path = folder.path().to_owned();
        let failed = |what: &str, error: io::Error| environment(&path, what, &error);
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let data = folder.open_file("data", flags).map_err(|e| failed("open the data file", e))?;
        let step = step(self.capacity);
        let length = trim(&data, self.capacity, step).map_err(|e| failed("measure the data file", e))?;
        let listing = folder.list().map_err(|e| failed("list the folder", e))?;
        let (journal, tail) =
            Journal::open(&folder, &listing, &*self.medium).map_err(|e| failed("open the journal", e))?;
        let patience = self.medium.read_patience();
        let recovery = Recovery::new(self.index as u8, journal.files(), tail, length, patience);
        let floor = (self.capacity / 128).clamp(JOURNAL_FLOOR_MIN_BYTES, JOURNAL_FLOOR_MAX_BYTES);
        let mut space = Space::new(self.capacity, length.div_ceil(UNIT_BYTES), holes(&data, length), floor);
        space.left_behind(listing.replaced.iter().map(|path| bytes_on_disk(path.symlink_metadata())).sum());
        if let Ok(found) = data.metadata() {
            space.measured(found.blocks() * 512);
        }
        // A smaller punch than the file system's own block zeroes, and frees nothing.
        if rustix::fs::fstatvfs(&data).is_ok_and(|found| found.f_frsize > UNIT_BYTES) {
            space.never_punch();
            self.host.count("fallback.no_punch", 1);
        }
        if length == 0 {
            space.end_recovery(1);
        }
        Ok(Store {
            index: self.index as u8,
            host: self.host,
            medium: self.medium,
            folder,
            data,
            capacity: self.capacity,
            space: Mutex::new(space),
            metadata_bytes: journal.bytes(),
            record_files: journal.present(),
            journal: Mutex::new(journal),
            namespaces: Mutex::new(namespaces),
            recovery: Mutex::new(recovery),
            inbox: Inbox::new(),
            keeper: Keeper::new(),
            verifier: self.verifier,
            chores: Mutex::new(Chores::default()),
            chores_changed: Condvar::new(),
            compaction_failed: AtomicBool::new(false),
            data_length: AtomicU64::new(length),
            dirty: AtomicBool::new(false),
            syncing: Mutex::new(()),
        })
    }
}

fn step(capacity: u64) -> u64 {
    (capacity / 16).clamp(STEP_MIN_BYTES, STEP_MAX_BYTES) / UNIT_BYTES * UNIT_BYTES
}

/// Cuts what was never written off the end of the data file, and what is beyond the capacity; answers its length.
fn trim(data: &File, capacity: u64, step: u64) -> io::Result<u64> {
    let length = data.metadata()?.len();
    let mut end = length;
    if let Ok(mut at) = rustix::fs::seek(data, SeekFrom::Data(length.saturating_sub(step))) {
        // Bounded by the number of holes within one step.
        while let Ok(hole) = rustix::fs::seek(data, SeekFrom::Hole(at)) {
            end = hole;
            match rustix::fs::seek(data, SeekFrom::Data(hole)) {
                Ok(next) if next > hole => at = next,
                _ => break,
            }
        }
    } else if length > 0 && rustix::fs::seek(data, SeekFrom::Hole(0)).is_ok() {
        end = length.saturating_sub(step);
    }
    // Rounded up where the file reaches that far, so that O_DIRECT reads of the last block stay whole.
    let kept = end.next_multiple_of(UNIT_BYTES).min(length).min(capacity / UNIT_BYTES * UNIT_BYTES);
    if kept < length {
        data.set_len(kept)?;
    }
    Ok(kept)
}

impl Store {
    /// Takes units for a payload of so many bytes, or a place among those that wait for room.
    pub(crate) fn reserve(self: &Arc<Self>, length: u64) -> Option<Place> {
        let mut space = locked(&self.space);
        let room = space.reserve(length, self.metadata_bytes.load(Ordering::Relaxed));
        let failures = space.punch_failures();
        drop(space);
        let store = self.clone();
        let place = match room {
            Room::At(unit) => return Some(Place::Store(Reserved { store, unit, length, kept: false })),
            Room::Awaited => Some(Place::Await(Awaited { store, length, since: Instant::now(), failures })),
            Room::Full => None,
        };
        self.ask_relief();
        place
    }

    /// Takes units for the first of those that wait.
    pub(crate) fn reserve_awaited(&self, awaited: &Awaited) -> Room {
        let metadata = self.metadata_bytes.load(Ordering::Relaxed);
        let room = locked(&self.space).reserve_awaited(awaited.length, metadata, awaited.failures);
        match room {
            Room::Awaited if awaited.since.elapsed() >= self.medium.room_wait() => Room::Full,
            Room::Awaited => {
                self.ask_relief();
                Room::Awaited
            }
            decided => decided,
        }
    }

    /// There may be room now for stores that wait.
    pub(crate) fn room_made(&self) {
        if locked(&self.space).waited_for() {
            self.inbox.wake();
        }
    }

    /// Has the page cache used for the data file from now on (F1). Called by the driver thread alone.
    pub(crate) fn leave_direct(&self) -> bool {
        let cleared = rustix::fs::fcntl_getfl(&self.data)
            .and_then(|flags| rustix::fs::fcntl_setfl(&self.data, flags - rustix::fs::OFlags::DIRECT));
        let path = self.folder.path().display();
        match cleared {
            Ok(()) => {
                self.host.count("fallback.direct", 1);
                let text = "O_DIRECT has passed its probe and is refused now (EINVAL): the page cache is used";
                self.host.log(Level::Warn, &format!("path {path}: {text}"));
                true
            }
            Err(error) => {
                self.host.log(Level::Error, &format!("path {path}: O_DIRECT is refused, and cannot be left: {error}"));
                false
            }
        }
    }

    /// Makes the data file reach `end`. Called by the driver thread alone.
    pub(crate) fn ensure_length(&self, end: u64) -> io::Result<()> {
        if end <= self.data_length.load(Ordering::Relaxed) {
            return Ok(());
        }
        let limit = (self.capacity / UNIT_BYTES * UNIT_BYTES).max(end);
        let length = end.next_multiple_of(step(self.capacity)).min(limit);
        self.medium.extend(&self.data, length)?;
        self.data_length.store(length, Ordering::Relaxed);
        Ok(())
    }

    /// Records were appended.
    pub(crate) fn written(&self) {
        self.dirty.store(true, Ordering::Release);
        if locked(&self.journal).uncovered() > self.trigger_records() && locked(&self.space).recovered() {
            locked(&self.chores).compact = true;
            self.chores_changed.notify_all();
        }
    }

    fn trigger_records(&self) -> u64 {
        let floor = (self.capacity / 128).clamp(JOURNAL_FLOOR_MIN_BYTES, JOURNAL_FLOOR_MAX_BYTES);
        (floor / RECORD_BYTES as u64).max(locked(&self.space).resident().0 / 2)
    }

    /// Holds the keeper back while a snapshot is due and the journal has grown to twice what makes it due.
    pub(crate) fn await_compaction(&self) {
        let deadline = Instant::now() + COMPACTION_WAIT;
        loop {
            let over = locked(&self.journal).uncovered() > 2 * self.trigger_records();
            let chores = locked(&self.chores);
            let left = deadline.saturating_duration_since(Instant::now());
            let hopeless = self.compaction_failed.load(Ordering::Relaxed) || chores.stop;
            if !over || !chores.compact || hopeless || left.is_zero() {
                return;
            }
            drop(self.chores_changed.wait_timeout(chores, left));
        }
    }

    /// Makes what was completed durable: data first, so that a durable record seldom lacks its data.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let _one = locked(&self.syncing);
        if !self.dirty.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let result = self.medium.sync(&self.data).and_then(|()| {
            let files = locked(&self.journal).files();
            files.iter().try_for_each(|file| self.medium.sync(&file.file))
        });
        if result.is_err() {
            self.dirty.store(true, Ordering::Release);
            self.host.count("sync_errors", 1);
        }
        result
    }

    /// Bytes of all files on the disk, as du counts them. Waits for no lock under which the disk is waited for.
    pub(crate) fn medium_bytes(&self) -> u64 {
        let of = bytes_on_disk;
        let (files, replaced, number) = {
            let present = locked(&self.record_files);
            (present.files.clone(), present.replaced.clone(), present.number)
        };
        // The next snapshot, while it is written.
        let next = of(std::fs::metadata(self.folder.file(&format!("{}.tmp", snapshot_name(number)))));
        let replaced = replaced.iter().map(|path| of(path.symlink_metadata()));
        let records: u64 = files.iter().map(|file| of(file.file.metadata())).chain(replaced).sum();
        let small = ["superblock", "namespaces", "lock"].map(|name| of(std::fs::metadata(self.folder.file(name))));
        of(self.data.metadata()) + records + next + small.iter().sum::<u64>()
    }
}

impl Claims for Store {
    fn host_id(&self, local: u32) -> Option<u32> {
        locked(&self.namespaces).host_id(local)
    }

    fn claim(&self, unit: u64, block: Live) -> bool {
        locked(&self.space).recover(unit, block)
    }

    fn reclaim(&self, unit: u64, length: u64) {
        if locked(&self.namespaces).strangers_gone() {
            locked(&self.space).reclaim(unit, length);
        }
    }
}

/// What a file takes up; nothing where it cannot be told.
pub(crate) fn bytes_on_disk(file: io::Result<std::fs::Metadata>) -> u64 {
    file.map_or(0, |found| found.blocks() * 512)
}

/// CLOCK_MONOTONIC, as deadlines have it.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
