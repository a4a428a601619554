//! A path's folder: created if missing, locked, its superblock read or written, its files listed.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use umbp_plugin_api::OpenError;

use crate::format::{FORMAT_VERSION, FormatError, Superblock, decode_superblock};

/// A locked folder. The lock ends with the value.
pub(crate) struct Folder {
    path: PathBuf,
    handle: File,
    _lock: File,
    uuid: [u8; 16],
    /// The superblock was damaged, and the store begins anew.
    pub(crate) renewed: bool,
}

/// What the names of a folder's journals and snapshots say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    /// The newest snapshot.
    pub(crate) snapshot: Option<u64>,
    /// Journals that count, oldest first.
    pub(crate) journals: Vec<u64>,
    /// Journals and snapshots that a newer snapshot covers, and temporary files.
    pub(crate) leftovers: Vec<PathBuf>,
}

impl Folder {
    /// Takes the folder for this process.
    pub(crate) fn open(path: &Path, index: usize, count: usize, capacity: u64) -> Result<Self, OpenError> {
        let failed = |what: &str, error: io::Error| environment(path, what, &error);
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|e| failed("create the folder", e))?;
        let handle = File::open(path).map_err(|e| failed("open the folder", e))?;
        let lock = lock(path)?;
        let known = match std::fs::read(path.join("superblock")) {
            Ok(bytes) => Some(decode_superblock(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed("read the superblock", error)),
        };
        let (uuid, renewed) = match known {
            Some(Ok(known)) => (known.uuid, false),
            Some(Err(fault @ (FormatError::Magic | FormatError::Version(_)))) => {
                let path = path.display();
                return Err(OpenError::Environment(format!(
                    "path {path}: its superblock is refused: {fault}. Name another folder in `paths`, or empty this one \
                     if nothing else needs it (this backend writes format version {FORMAT_VERSION})"
                )));
            }
            Some(Err(_)) => (random_uuid(), true),
            None => (random_uuid(), false),
        };
        let folder = Self { path: path.to_owned(), handle, _lock: lock, uuid, renewed };
        folder.write_superblock(index, count, capacity).map_err(|e| failed("write the superblock", e))?;
        Ok(folder)
    }

    /// Begins the store anew: nothing that it holds is trusted any more.
    pub(crate) fn renew(&mut self, index: usize, count: usize, capacity: u64) -> io::Result<()> {
        (self.uuid, self.renewed) = (random_uuid(), true);
        self.write_superblock(index, count, capacity)
    }

    fn write_superblock(&self, index: usize, count: usize, capacity: u64) -> io::Result<()> {
        let (path_index, path_count) = (index as u32, count as u32);
        self.replace("superblock", &Superblock { uuid: self.uuid, path_index, path_count, capacity }.encode())
    }

    /// Random at creation of the store.
    pub(crate) fn uuid(&self) -> &[u8; 16] {
        &self.uuid
    }

    /// Where it lies.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A file of the folder, by name.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a file of the folder, created if missing, 0600. `flags` as open(2) has them.
    pub(crate) fn open_file(&self, name: &str, flags: i32) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(flags | libc::O_CLOEXEC | libc::O_NOFOLLOW).open(self.file(name))
    }

    /// Replaces a file as a whole: a reader finds the old or the new one, also after a power loss.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = format!("{name}.tmp");
        let mut file = self.open_file(&temporary, libc::O_TRUNC)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        self.adopt(&temporary, name)
    }

    /// Gives a finished temporary file its name.
    pub(crate) fn adopt(&self, temporary: &str, name: &str) -> io::Result<()> {
        std::fs::rename(self.file(temporary), self.file(name))?;
        self.sync()
    }

    /// Makes names durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    /// Journals, snapshots and leftovers. After a damaged superblock all of them are leftovers.
    pub(crate) fn list(&self) -> io::Result<Listing> {
        let (mut snapshots, mut journals, mut listing) = (Vec::new(), Vec::new(), Listing::default());
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if let Some(sequence) = sequence_of(name, "journal.") {
                journals.push(sequence);
            } else if let Some(sequence) = sequence_of(name, "snapshot.") {
                snapshots.push(sequence);
            } else if is_temporary(name) || (self.renewed && matches!(name, "data" | "namespaces")) {
                listing.leftovers.push(entry.path());
            }
        }
        listing.snapshot = if self.renewed { None } else { snapshots.iter().copied().max() };
        let first = if self.renewed { u64::MAX } else { listing.snapshot.unwrap_or(0) };
        let old = |&sequence: &u64| sequence < first;
        listing.leftovers.extend(snapshots.iter().copied().filter(old).map(|s| self.file(&snapshot_name(s))));
        listing.leftovers.extend(journals.iter().copied().filter(old).map(|s| self.file(&journal_name(s))));
        listing.journals = journals.into_iter().filter(|sequence| !old(sequence)).collect();
        listing.journals.sort_unstable();
        Ok(listing)
    }
}

/// Name of a journal.
pub(crate) fn journal_name(sequence: u64) -> String {
    format!("journal.{sequence:016x}")
}

/// Name of a snapshot.
pub(crate) fn snapshot_name(sequence: u64) -> String {
    format!("snapshot.{sequence:016x}")
}

/// A failure of the machine, in words.
pub(crate) fn environment(path: &Path, what: &str, error: &io::Error) -> OpenError {
    OpenError::Environment(format!("path {}: cannot {what}: {error}", path.display()))
}

fn sequence_of(name: &str, prefix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

fn is_temporary(name: &str) -> bool {
    name.strip_suffix(".tmp").is_some_and(|stem| {
        matches!(stem, "superblock" | "namespaces" | "probe") || sequence_of(stem, "snapshot.").is_some()
    })
}

fn lock(path: &Path) -> Result<File, OpenError> {
    let name = path.join("lock");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let mut file = options.open(&name).map_err(|e| environment(path, "open the lock file", &e))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let holder = std::fs::read_to_string(&name).unwrap_or_default();
            let holder =
                holder.trim().parse::<u32>().map_or("another process".to_owned(), |pid| format!("process {pid}"));
            let path = path.display();
            return Err(OpenError::Locked(format!(
                "path {path} is in use by {holder}: stop it, or name another folder in `paths`"
            )));
        }
        Err(TryLockError::Error(error)) => return Err(environment(path, "lock the folder", &error)),
    }
    let written = file.set_len(0).and_then(|()| file.write_all(format!("{}\n", std::process::id()).as_bytes()));
    written.map_err(|e| environment(path, "write the lock file", &e))?;
    Ok(file)
}

fn random_uuid() -> [u8; 16] {
    let mut uuid = [0; 16];
    for half in uuid.chunks_exact_mut(8) {
        // Each RandomState holds fresh random keys of this process.
        let random = std::hash::RandomState::new().build_hasher().finish();
        half.copy_from_slice(&random.to_le_bytes());
    }
    uuid
}
