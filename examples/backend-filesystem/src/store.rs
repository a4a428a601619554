//! A directory of blocks: `<namespace digest>/<key>`, each beside the namespace's `descriptor`, and a `lock`.
//!
//! Everything here blocks on the file system, so it is called from the pool's threads, or from calls that may block.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use umbp_plugin_api::backend::{RecoveredNamespace, Stats};
use umbp_plugin_api::checksum::Checksum;
use umbp_plugin_api::types::KEY_BYTES;
use umbp_plugin_api::{OpenError, Status};

use crate::file::{HEADER_BYTES, Header, open, write_whole};

/// Ending of a file that is being written; those that a dead process left are removed at start.
const TEMPORARY: &str = "tmp";

/// Name of the file that holds a namespace's descriptor.
const DESCRIPTOR: &str = "descriptor";

/// Files are charged in whole units of the file system.
const UNIT_BYTES: u64 = 4096;

/// Why an operation failed: the status, and the errno if there was one.
pub type Failure = (Status, i32);

#[derive(Default)]
struct Accounts {
    blocks: u64,
    payload_bytes: u64,
    file_bytes: u64,
    next_location: u64,
}

/// An open directory; it is locked as long as this lives.
pub struct Store {
    root: PathBuf,
    capacity: u64,
    accounts: Mutex<Accounts>,
    _lock: File,
}

impl Store {
    /// Locks the directory, clears up, and reads the header of every block: those that are whole come back.
    pub fn open(root: &Path, capacity: u64) -> Result<(Self, Vec<Header>), OpenError> {
        let cannot = |error: io::Error| OpenError::Environment(format!("path {}: {error}", root.display()));
        fs::create_dir_all(root).map_err(cannot)?;
        let lock = take_lock(root)?;
        let mut accounts = Accounts { next_location: 1, ..Accounts::default() };
        let mut found = Vec::new();
        for folder in namespace_folders(root).map_err(cannot)? {
            for entry in fs::read_dir(&folder).map_err(cannot)? {
                let path = entry.map_err(cannot)?.path();
                if path.ends_with(DESCRIPTOR) {
                    continue;
                }
                match whole(&path) {
                    Some(header) => {
                        accounts.add(header.length);
                        accounts.next_location = accounts.next_location.max(header.location + 1);
                        found.push(header);
                    }
                    // Torn by a crash, or damaged: a miss.
                    None => fs::remove_file(&path).map_err(cannot)?,
                }
            }
        }
        let store = Self { root: root.to_owned(), capacity, accounts: Mutex::new(accounts), _lock: lock };
        Ok((store, found))
    }

    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn folder(&self, namespace: &[u8; 32]) -> PathBuf {
        self.root.join(hex(namespace))
    }

    fn path(&self, namespace: &[u8; 32], key: &[u8; KEY_BYTES]) -> PathBuf {
        self.folder(namespace).join(hex(key))
    }

    /// Keeps a namespace's descriptor, for the next life.
    pub fn put_namespace(&self, digest: &[u8; 32], descriptor: &[u8]) -> io::Result<()> {
        let folder = self.folder(digest);
        fs::create_dir_all(&folder)?;
        let path = folder.join(DESCRIPTOR);
        write_whole(&path, &path.with_extension(TEMPORARY), &[descriptor])
    }

    /// The namespaces of earlier lives.
    pub fn namespaces(&self) -> io::Result<Vec<RecoveredNamespace>> {
        let mut namespaces = Vec::new();
        for folder in namespace_folders(&self.root)? {
            let digest = folder.file_name().and_then(|name| unhex(name.to_str()?));
            if let (Some(digest), Ok(descriptor)) = (digest, fs::read(folder.join(DESCRIPTOR))) {
                namespaces.push(RecoveredNamespace { digest, descriptor });
            }
        }
        Ok(namespaces)
    }

    /// Stores a block, and answers its location. The header's own location is ignored.
    pub fn put(&self, header: &Header, payload: &[u8]) -> Result<u64, Failure> {
        let path = self.path(&header.namespace, &header.key);
        let before = open(&path).ok().and_then(|(_, header)| header);
        let location = {
            let mut accounts = self.accounts();
            let room = self.capacity.saturating_sub(accounts.file_bytes);
            if file_bytes(header.length) > room {
                return Err((Status::NO_SPACE, 0));
            }
            // Charged before it is written, so that threads together cannot overrun the capacity.
            accounts.add(header.length);
            accounts.next_location += 1;
            accounts.next_location - 1
        };
        let header = Header { location, ..*header };
        let temporary = path.with_extension(format!("{location}.{TEMPORARY}"));
        match write_whole(&path, &temporary, &[&header.encode(), payload]) {
            Ok(()) => {
                if let Some(before) = before {
                    self.accounts().remove(before.length);
                }
                Ok(location)
            }
            Err(error) => {
                self.accounts().remove(header.length);
                Err(failure(&error))
            }
        }
    }

    /// Reads a block into `buffer`, which is as long as the payload, and checks it against `checksum`.
    pub fn get(&self, wanted: &Wanted, checksum: u64, buffer: &mut [u8]) -> Result<(), Failure> {
        let (mut file, header) = self.find(wanted)?;
        if header.length != buffer.len() as u64 {
            return Err((Status::MISS, 0));
        }
        file.read_exact(buffer).map_err(|error| failure(&error))?;
        let mut found = Checksum::new(&wanted.namespace, &wanted.key, header.length);
        found.update(buffer);
        if found.finish() == checksum { Ok(()) } else { Err((Status::CORRUPT, 0)) }
    }

    /// The header of a block that is there.
    pub fn exists(&self, wanted: &Wanted) -> Result<Header, Failure> {
        Ok(self.find(wanted)?.1)
    }

    /// Forgets a block.
    pub fn delete(&self, wanted: &Wanted) -> Result<(), Failure> {
        let (_, header) = self.find(wanted)?;
        fs::remove_file(self.path(&wanted.namespace, &wanted.key)).map_err(|error| failure(&error))?;
        self.accounts().remove(header.length);
        Ok(())
    }

    /// The file of a block, behind its header. Whatever does not fit is a miss: the key may have been put again.
    fn find(&self, wanted: &Wanted) -> Result<(File, Header), Failure> {
        let (file, header) = open(&self.path(&wanted.namespace, &wanted.key)).map_err(|error| failure(&error))?;
        let header = header.ok_or((Status::CORRUPT, 0))?;
        let same = (header.namespace, header.key, header.location) == (wanted.namespace, wanted.key, wanted.location);
        if same { Ok((file, header)) } else { Err((Status::MISS, 0)) }
    }

    /// Makes names durable; the contents are already.
    pub fn flush(&self) -> io::Result<()> {
        for folder in namespace_folders(&self.root)? {
            File::open(folder)?.sync_all()?;
        }
        File::open(&self.root)?.sync_all()
    }

    /// Figures of now.
    pub fn stats(&self) -> Stats {
        let accounts = self.accounts();
        Stats { resident_bytes: accounts.payload_bytes, medium_bytes: accounts.file_bytes, blocks: accounts.blocks }
    }
}

/// Which block an operation means.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Digest of its namespace.
    pub namespace: [u8; 32],
    /// Its key.
    pub key: [u8; KEY_BYTES],
    /// What its put answered.
    pub location: u64,
}

impl Accounts {
    fn add(&mut self, length: u64) {
        self.blocks += 1;
        self.payload_bytes += length;
        self.file_bytes += file_bytes(length);
    }

    fn remove(&mut self, length: u64) {
        self.blocks -= 1;
        self.payload_bytes -= length;
        self.file_bytes -= file_bytes(length);
    }
}

fn file_bytes(length: u64) -> u64 {
    length.saturating_add(HEADER_BYTES as u64).checked_next_multiple_of(UNIT_BYTES).unwrap_or(u64::MAX)
}

/// The header of a file that is a whole block under its right name.
fn whole(path: &Path) -> Option<Header> {
    let (mut file, header) = open(path).ok()?;
    let header = header?;
    let end = file.seek(io::SeekFrom::End(0)).ok()?;
    let named = path.file_name()?.to_str()? == hex(&header.key);
    let placed = path.parent()?.file_name()?.to_str()? == hex(&header.namespace);
    (named && placed && end == header.length + HEADER_BYTES as u64).then_some(header)
}

fn take_lock(root: &Path) -> Result<File, OpenError> {
    let path = root.join("lock");
    let cannot = |error: io::Error| OpenError::Environment(format!("{}: {error}", path.display()));
    // Not truncated: until the lock is ours, the text is the holder's.
    let mut options = File::options();
    let mut file = options.read(true).write(true).create(true).truncate(false).open(&path).map_err(cannot)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder = holder.trim();
            return Err(OpenError::Locked(format!("path {} is in use by process {holder}", root.display())));
        }
        Err(TryLockError::Error(error)) => return Err(cannot(error)),
    }
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(cannot)?;
    Ok(file)
}

/// Folders whose name is a digest; what else lies in the directory is not ours, and is left alone.
fn namespace_folders(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        let digest: Option<[u8; 32]> = path.file_name().and_then(|name| unhex(name.to_str()?));
        if digest.is_some() && path.is_dir() {
            folders.push(path);
        }
    }
    Ok(folders)
}

fn failure(error: &io::Error) -> Failure {
    let status = match error.kind() {
        io::ErrorKind::NotFound => Status::MISS,
        // A payload that ends too early.
        io::ErrorKind::UnexpectedEof => Status::CORRUPT,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Status::NO_SPACE,
        _ => Status::IO,
    };
    (status, error.raw_os_error().unwrap_or(0))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let lower = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if text.len() != 2 * N || !lower {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}
