//! The journal of one path: records appended, the torn tail cut, the next file begun.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::folder::{Folder, Listing, journal_name, snapshot_name};
use crate::format::{Kind, RECORD_BYTES, Record, Salt, decode_record};
use crate::live::GENERATIONS_END;
use crate::port::Medium;

/// Records read from a file at one time.
pub(crate) const RECORDS_PER_READ: u64 = 430;

/// A file of records, as one reads it.
#[derive(Clone)]
pub(crate) struct RecordFile {
    pub(crate) file: Arc<File>,
    pub(crate) salt: Salt,
    pub(crate) records: u64,
    pub(crate) path: PathBuf,
}

impl RecordFile {
    /// Opens what is there.
    pub(crate) fn open(folder: &Folder, name: &str, salt: Salt) -> io::Result<Self> {
        let file = Arc::new(folder.open_file(name, 0)?);
        let records = file.metadata()?.len() / RECORD_BYTES as u64;
        Ok(Self { file, salt, records, path: folder.file(name) })
    }

    /// The valid records among `first..first + count`, with their indices; count is at most [`RECORDS_PER_READ`].
    pub(crate) fn read(&self, medium: &dyn Medium, first: u64, count: u64) -> io::Result<Vec<Option<Record>>> {
        let mut bytes = vec![0; count as usize * RECORD_BYTES];
        medium.read(&self.file, &mut bytes, first * RECORD_BYTES as u64)?;
        Ok(bytes.chunks_exact(RECORD_BYTES).map(|chunk| decode_record(chunk, &self.salt).ok()).collect())
    }

    /// The last batch that has a valid record, up to that record: the index of its first record, and all of it.
    fn last_valid(&self, medium: &dyn Medium) -> io::Result<(u64, Vec<Option<Record>>)> {
        let mut end = self.records;
        while end > 0 {
            let first = end.saturating_sub(RECORDS_PER_READ);
            let mut found = self.read(medium, first, end - first)?;
            if let Some(index) = found.iter().rposition(Option::is_some) {
                found.truncate(index + 1);
                return Ok((first, found));
            }
            end = first;
        }
        Ok((0, Vec::new()))
    }
}

/// The end of the newest journal as opening it has read it, so that recovery need not read it again.
pub(crate) struct Tail {
    /// Records of the journal before these.
    pub(crate) before: u64,
    /// Oldest first.
    pub(crate) records: Vec<Option<Record>>,
}

/// The open journal, and what precedes it.
pub(crate) struct Journal {
    current: RecordFile,
    number: u64,
    next_sequence: u64,
    /// Journals that no snapshot covers yet, oldest first.
    closed: Vec<RecordFile>,
    snapshot: Option<RecordFile>,
    /// Files that the newest snapshot replaced, until they are removed.
    replaced: Vec<RecordFile>,
    /// Bytes beyond the end may be left of an append that failed; they are cut before the next one.
    torn: bool,
    /// Bytes of all of these, for who reckons with them without the lock.
    bytes: Arc<AtomicU64>,
}

impl Journal {
    /// Opens the newest journal, cuts its torn tail, and goes on there; begins the first one in a new store.
    pub(crate) fn open(folder: &Folder, listing: &Listing, medium: &dyn Medium) -> io::Result<(Self, Tail)> {
        let open = |number: u64| RecordFile::open(folder, &journal_name(number), Salt::journal(folder.uuid(), number));
        let snapshot = match listing.snapshot {
            Some(n) => Some(RecordFile::open(folder, &snapshot_name(n), Salt::snapshot(folder.uuid(), n))?),
            None => None,
        };
        let number = listing.journals.last().copied().unwrap_or(listing.snapshot.unwrap_or(1));
        let closed = listing.journals.iter().rev().skip(1).rev().map(|&n| open(n)).collect::<io::Result<Vec<_>>>()?;
        let mut current = open(number)?;
        let (before, records) = current.last_valid(medium)?;
        let tail = Tail { before, records };
        current.records = before + tail.records.len() as u64;
        current.file.set_len(current.records * RECORD_BYTES as u64)?;
        let mut newest = tail.records.last().copied().flatten();
        for file in closed.iter().rev().chain(&snapshot) {
            if newest.is_some() {
                break;
            }
            newest = file.last_valid(medium)?.1.last().copied().flatten();
        }
        let next_sequence = newest.map_or(1, |record| record.sequence.saturating_add(1));
        let bytes = Arc::new(AtomicU64::new(0));
        let mut journal =
            Self { current, number, next_sequence, closed, snapshot, replaced: Vec::new(), torn: false, bytes };
        if journal.current.records == 0 {
            journal.append(medium, &mut [Record::start()])?;
        }
        journal.count_bytes();
        Ok((journal, tail))
    }

    /// Appends records in order, giving each its sequence, and a put its generation. All or none: after an error the
    /// journal ends where it ended before.
    pub(crate) fn append(&mut self, medium: &dyn Medium, records: &mut [Record]) -> io::Result<()> {
        if self.next_sequence.saturating_add(records.len() as u64) > GENERATIONS_END {
            return Err(io::Error::other("the folder's record numbers are used up; remove it, so that it begins anew"));
        }
        let mut bytes = Vec::with_capacity(records.len() * RECORD_BYTES);
        for (record, sequence) in records.iter_mut().zip(self.next_sequence..) {
            record.sequence = sequence;
            if record.kind == Kind::Put {
                record.generation = sequence;
            }
            bytes.extend_from_slice(&record.encode(&self.current.salt));
        }
        let end = self.current.records * RECORD_BYTES as u64;
        if self.torn {
            self.current.file.set_len(end)?;
        }
        // Also stays set when the medium panics: what was written must not be read back as if it had been completed.
        self.torn = true;
        if let Err(error) = medium.append(&self.current.file, &bytes, end) {
            self.torn = self.current.file.set_len(end).is_err();
            return Err(error);
        }
        self.torn = false;
        self.next_sequence += records.len() as u64;
        self.current.records += records.len() as u64;
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Begins the next journal; everything before it is what the next snapshot covers.
    pub(crate) fn rotate(&mut self, folder: &Folder, medium: &dyn Medium) -> io::Result<()> {
        let number = self.number + 1;
        let (name, salt) = (journal_name(number), Salt::journal(folder.uuid(), number));
        let begun = RecordFile { records: 0, ..RecordFile::open(folder, &name, salt)? };
        begun.file.set_len(0)?;
        if self.torn {
            self.current.file.set_len(self.current.records * RECORD_BYTES as u64)?;
            self.torn = false;
        }
        let old = std::mem::replace(&mut self.current, begun);
        if let Err(error) = self.append(medium, &mut [Record::start()]) {
            let failed = std::mem::replace(&mut self.current, old);
            let _ = std::fs::remove_file(&failed.path);
            return Err(error);
        }
        self.closed.push(old);
        self.number = number;
        Ok(())
    }

    /// What a snapshot has to cover, oldest first: the older snapshot, then the closed journals.
    pub(crate) fn covered(&self) -> Vec<RecordFile> {
        self.snapshot.iter().chain(&self.closed).cloned().collect()
    }

    /// Number of the open journal, and so of the snapshot that covers what is before it.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// There are closed journals that no snapshot covers.
    pub(crate) fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// A snapshot of everything before the open journal is durable; answers the files that are to be removed now: those
    /// that it replaces, and those whose removal has failed before.
    pub(crate) fn adopt(&mut self, snapshot: RecordFile) -> Vec<RecordFile> {
        self.replaced.append(&mut self.closed);
        self.replaced.extend(self.snapshot.replace(snapshot));
        self.count_bytes();
        self.replaced.clone()
    }

    /// What was replaced is removed.
    pub(crate) fn removed(&mut self) {
        self.replaced.clear();
    }

    /// All files that take up room on the disk.
    pub(crate) fn present(&self) -> Vec<RecordFile> {
        self.files().into_iter().chain(self.replaced.iter().cloned()).collect()
    }

    /// All files with what they hold now, newest first.
    pub(crate) fn files(&self) -> Vec<RecordFile> {
        let older = self.closed.iter().rev().chain(&self.snapshot);
        std::iter::once(&self.current).chain(older).cloned().collect()
    }

    /// Records of the open journal, and of closed ones that no snapshot covers.
    pub(crate) fn uncovered(&self) -> u64 {
        self.current.records + self.closed.iter().map(|file| file.records).sum::<u64>()
    }

    /// Bytes of all files, kept up to date.
    pub(crate) fn bytes(&self) -> Arc<AtomicU64> {
        self.bytes.clone()
    }

    fn count_bytes(&self) {
        let records: u64 = self.files().iter().map(|file| file.records).sum();
        self.bytes.store(records * RECORD_BYTES as u64, Ordering::Relaxed);
    }
}
