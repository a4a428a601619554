//! A path's folder: created if missing, locked, its superblock read or written, its files listed.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use umbp_plugin_api::{OpenError, Status};

use crate::format::{FORMAT_VERSION, FormatError, Superblock, decode_superblock};
use crate::piece::failure_of;

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
    /// Journals and snapshots that a newer snapshot has replaced, and unfinished snapshots.
    pub(crate) replaced: Vec<PathBuf>,
    /// Small files that would be replaced as a whole, or that no record leads to.
    pub(crate) leftovers: Vec<PathBuf>,
    /// Journals and snapshots of a damaged store, which could be mistaken for those of the one begun in its place.
    pub(crate) strangers: Vec<PathBuf>,
}

impl Folder {
    /// Takes the folder for this process.
    pub(crate) fn open(path: &Path, index: usize, count: usize, capacity: u64) -> Result<Self, OpenError> {
        let failed = |what: &str, error: io::Error| environment(path, what, &error);
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|e| failed("create the folder", e))?;
        let handle = File::open(path).map_err(|e| failed("open the folder", e))?;
        trusted(path, &handle)?;
        let lock = lock(path)?;
        let known = match std::fs::read(path.join("superblock")) {
            Ok(bytes) => Some(decode_superblock(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed("read the superblock", error)),
        };
        let stored = matches!(known, Some(Ok(_)));
        let (uuid, renewed) = match known {
            Some(Ok(known)) => (known.uuid, false),
            Some(Err(fault @ (FormatError::Magic | FormatError::Version(_)))) => {
                let path = path.display();
                return Err(OpenError::Environment(format!(
                    "path {path}: its superblock is refused: {fault}. Name another folder in `paths`, or empty this \
                     one if nothing else needs it (this backend writes format version {FORMAT_VERSION})"
                )));
            }
            Some(Err(_)) => (random_uuid(), true),
            None => (random_uuid(), false),
        };
        let folder = Self { path: path.to_owned(), handle, _lock: lock, uuid, renewed };
        match folder.write_superblock(index, count, capacity) {
            // On a full disk the old one will do: what differs is for people to read.
            Err(error) if !(stored && failure_of(&error).0 == Status::NO_SPACE) => {
                Err(failed("write the superblock", error))
            }
            _ => Ok(folder),
        }
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
        let write = || {
            let mut file = self.open_file(&temporary, libc::O_TRUNC)?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        let written = write();
        if written.is_err() {
            // On a full disk it would take up room that others need.
            let _ = std::fs::remove_file(self.file(&temporary));
        }
        written?;
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

    /// Journals, snapshots and leftovers. After a damaged superblock none of them counts.
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
            } else if name.strip_suffix(".tmp").is_some_and(|stem| sequence_of(stem, "snapshot.").is_some()) {
                listing.replaced.push(entry.path());
            } else if matches!(name, "superblock.tmp" | "namespaces.tmp" | "probe.tmp")
                || (self.renewed && matches!(name, "data" | "namespaces"))
            {
                listing.leftovers.push(entry.path());
            }
        }
        listing.snapshot = if self.renewed { None } else { snapshots.iter().copied().max() };
        let first = if self.renewed { u64::MAX } else { listing.snapshot.unwrap_or(0) };
        let old = |&sequence: &u64| sequence < first;
        let older = if self.renewed { &mut listing.strangers } else { &mut listing.replaced };
        older.extend(snapshots.iter().copied().filter(old).map(|s| self.file(&snapshot_name(s))));
        older.extend(journals.iter().copied().filter(old).map(|s| self.file(&journal_name(s))));
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
    let path = path.display();
    OpenError::Environment(format!(
        "path {path}: cannot {what}: {error}. Let this user read and write there, or name another folder in the tier's \
         `paths`"
    ))
}

/// What lies in the folder is believed at the next start: it must belong to this user or root, as a link to it must,
/// and nobody else may be able to put names into it. The sticky bit does not help: it keeps names from being removed.
fn trusted(path: &Path, handle: &File) -> Result<(), OpenError> {
    let failed = |error: io::Error| environment(path, "look at the folder", &error);
    let uid = rustix::process::geteuid().as_raw();
    let name = std::fs::symlink_metadata(path).map_err(failed)?;
    let folder = handle.metadata().map_err(failed)?;
    let stranger = |owner: u32| owner != uid && owner != 0;
    let problem = if stranger(name.uid()) && name.is_symlink() {
        format!("is a link of uid {}, not of uid {uid} or root", name.uid())
    } else if stranger(folder.uid()) {
        format!("belongs to uid {}, not to uid {uid} or root", folder.uid())
    } else if folder.mode() & 0o022 != 0 {
        format!("has mode {:04o}: others may put names into it", folder.mode() & 0o7777)
    } else {
        return Ok(());
    };
    let path = path.display();
    Err(OpenError::Environment(format!(
        "path {path} {problem}. Make it yours with mode 0700 (chmod 0700 {path}), or name another folder in the tier's \
         `paths`"
    )))
}

fn sequence_of(name: &str, prefix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

fn lock(path: &Path) -> Result<File, OpenError> {
    let name = path.join("lock");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(&name).map_err(|e| environment(path, "open the lock file", &e))?;
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
    let text = format!("{}\n", std::process::id());
    match file.write_all_at(text.as_bytes(), 0).and_then(|()| file.set_len(text.len() as u64)) {
        // On a full disk the lock holds without the holder's name.
        Err(error) if failure_of(&error).0 != Status::NO_SPACE => Err(environment(path, "write the lock file", &error)),
        _ => Ok(file),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    const STRANGER_UID: u32 = 54_321;

    /// Why the folder is not taken; nothing if it is.
    fn refusal(path: &Path) -> Option<String> {
        Folder::open(path, 0, 1, 1 << 20).err().map(|error| error.to_string())
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused_and_left_as_it_is() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("blocks");
        std::fs::create_dir(&path).expect("made");
        for mode in [0o777, 0o1777, 0o770, 0o702] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("mode");
            let text = refusal(&path).expect("refused");
            for words in [&*path.display().to_string(), &format!("mode {mode:04o}"), "chmod 0700", "`paths`"] {
                assert!(text.contains(words), "no {words} in: {text}");
            }
            assert_eq!(std::fs::read_dir(&path).expect("listed").count(), 0, "mode {mode:o}");
        }
        for mode in [0o700, 0o755] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("mode");
            assert_eq!(refusal(&path), None, "mode {mode:o}");
        }
    }

    #[test]
    fn a_folder_or_link_of_another_user_is_refused() {
        let place = tempfile::tempdir().expect("a folder");
        let (path, link) = (place.path().join("blocks"), place.path().join("link"));
        std::fs::create_dir(&path).expect("made");
        symlink(&path, &link).expect("linked");
        assert_eq!(refusal(&link), None, "a link of our own may lead there");
        // Only root can give a name away.
        if lchown(&link, Some(STRANGER_UID), None).is_err() {
            return;
        }
        let text = refusal(&link).expect("refused");
        assert!(text.contains("is a link of uid 54321") && text.contains("`paths`"), "{text}");
        assert_eq!(refusal(&path), None, "the folder itself is ours");
        chown(&path, Some(STRANGER_UID), None).expect("given away");
        let text = refusal(&path).expect("refused");
        assert!(text.contains("belongs to uid 54321") && text.contains("chmod 0700"), "{text}");
    }

    #[test]
    fn j2_a_folder_that_cannot_be_made_is_told_with_the_option_and_a_remedy() {
        let place = tempfile::tempdir().expect("a folder");
        let file = place.path().join("file");
        std::fs::write(&file, "").expect("written");
        let text = refusal(&file.join("blocks")).expect("refused");
        for words in ["cannot create the folder", "file/blocks", "`paths`", "Let this user read and write"] {
            assert!(text.contains(words), "no {words} in: {text}");
        }
    }
}
