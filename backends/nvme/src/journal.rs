//! The journal of one path: records appended, the torn tail cut, the next file begun.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::folder::{Folder, Listing, journal_name, snapshot_name};
use crate::format::{Kind, RECORD_BYTES, Record, Salt, decode_record};
use crate::live::GENERATIONS_END;
use crate::port::Medium;
use crate::queue::locked;

/// Records read from a file at one time.
pub(crate) const RECORDS_PER_READ: u64 = 430;
/// Records read at one time where so many cannot be, from a multiple of it on: few, so that a bad sector costs not many
/// more than it holds, and always the same.
const RECORDS_PER_RETRY: u64 = 10;

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

    /// The valid records among `first..first + count`, each at its place; count is at most [`RECORDS_PER_READ`].
    pub(crate) fn read(&self, medium: &dyn Medium, first: u64, count: u64) -> io::Result<Vec<Option<Record>>> {
        let mut bytes = vec![0; count as usize * RECORD_BYTES];
        medium.read(&self.file, &mut bytes, first * RECORD_BYTES as u64)?;
        Ok(bytes.chunks_exact(RECORD_BYTES).map(|chunk| decode_record(chunk, &self.salt).ok()).collect())
    }

    /// The same where some of it cannot be read, which is as if it were not valid; also how many records that is.
    pub(crate) fn read_around(&self, medium: &dyn Medium, first: u64, count: u64) -> (Vec<Option<Record>>, u64) {
        let (mut found, mut unreadable) = (Vec::new(), 0);
        let (mut start, end) = (first, first + count);
        while start < end {
            let piece = ((start / RECORDS_PER_RETRY + 1) * RECORDS_PER_RETRY).min(end) - start;
            found.extend(self.read(medium, start, piece).unwrap_or_else(|_| {
                unreadable += piece;
                vec![None; piece as usize]
            }));
            start += piece;
        }
        (found, unreadable)
    }

    /// The last batch that has a valid record, up to that record: the index of its first record, and all of it. An
    /// error where something cannot be read behind the last valid record that can.
    fn last_valid(&self, medium: &dyn Medium) -> io::Result<(u64, Vec<Option<Record>>)> {
        let (mut end, mut pieces_to) = (self.records, None);
        while end > 0 {
            pieces_to = pieces_to.filter(|to| *to < end);
            let first = match pieces_to {
                Some(to) => piece_before(end).max(to),
                None => end.saturating_sub(RECORDS_PER_READ),
            };
            let mut found = match self.read(medium, first, end - first) {
                Err(_) if pieces_to.is_none() => {
                    pieces_to = Some(first);
                    continue;
                }
                found => found?,
            };
            if let Some(index) = found.iter().rposition(Option::is_some) {
                found.truncate(index + 1);
                return Ok((first, found));
            }
            end = first;
        }
        Ok((0, Vec::new()))
    }
}

/// Where the piece begins that ends before record `end`.
pub(crate) fn piece_before(end: u64) -> u64 {
    end.saturating_sub(1) / RECORDS_PER_RETRY * RECORDS_PER_RETRY
}

/// A sequence that no record has had, where the newest journal's end does not tell. Its name does: no record before it
/// has had that number, and none in it one that is higher by its length. The others are asked for the sake of folders
/// whose journals were counted; those that cannot be read, or not at their end, as if each of their records were one.
fn sequence_after(
    medium: &dyn Medium,
    (number, current): (u64, &RecordFile),
    closed: &[RecordFile],
    snapshot: Option<&RecordFile>,
) -> u64 {
    let (named, mut later) = (number.saturating_add(current.records), current.records);
    for file in closed.iter().rev().chain(snapshot) {
        let end = file.last_valid(medium).ok().and_then(|(_, found)| found.last().copied().flatten());
        if let Some(record) = end {
            return named.max(record.sequence.saturating_add(1 + later));
        }
        later += file.records;
    }
    named
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
    /// Files that a snapshot replaced, until they are removed.
    replaced: Vec<PathBuf>,
    /// Bytes beyond the end may be left of an append that failed; they are cut before the next one.
    torn: bool,
    /// Bytes of these but the replaced, for who reckons with them without the lock.
    bytes: Arc<AtomicU64>,
    present: Arc<Mutex<Present>>,
}

/// What takes up room on the disk, for who must not wait for the journal's lock, under which the disk is waited for.
pub(crate) struct Present {
    pub(crate) files: Vec<RecordFile>,
    /// Not removed yet.
    pub(crate) replaced: Vec<PathBuf>,
    /// Of the open journal, and so of a snapshot that is being written.
    pub(crate) number: u64,
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
        let end = current.last_valid(medium);
        let mut newest = None;
        if let Ok((before, records)) = &end {
            current.records = before + records.len() as u64;
            current.file.set_len(current.records * RECORD_BYTES as u64)?;
            newest = records.last().copied().flatten().map(|record| record.sequence);
        }
        let next_sequence = match newest {
            Some(newest) => newest.saturating_add(1).max(number),
            None => sequence_after(medium, (number, &current), &closed, snapshot.as_ref()),
        };
        let mut journal = Self {
            present: Arc::new(Mutex::new(Present { files: Vec::new(), replaced: Vec::new(), number })),
            bytes: Arc::new(AtomicU64::new(0)),
            replaced: listing.replaced.clone(),
            torn: false,
            current,
            number,
            next_sequence,
            closed,
            snapshot,
        };
        // Where the end cannot be read, nobody can tell what to append to, and the place may take no write either.
        let tail = match end {
            Ok((before, records)) => Tail { before, records },
            Err(_) => {
                journal.rotate(folder, medium)?;
                Tail { before: 0, records: Vec::new() }
            }
        };
        if journal.current.records == 0 {
            journal.append(medium, &mut [Record::start()])?;
        }
        journal.tell();
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

    /// Begins the next journal, named by its first record's sequence; everything before it is what the next snapshot
    /// covers.
    pub(crate) fn rotate(&mut self, folder: &Folder, medium: &dyn Medium) -> io::Result<()> {
        let number = self.next_sequence.max(self.number.saturating_add(1));
        let (name, salt) = (journal_name(number), Salt::journal(folder.uuid(), number));
        let begun = RecordFile { records: 0, ..RecordFile::open(folder, &name, salt)? };
        begun.file.set_len(0)?;
        if self.torn {
            self.current.file.set_len(self.current.records * RECORD_BYTES as u64)?;
            self.torn = false;
        }
        let old = std::mem::replace(&mut self.current, begun);
        self.next_sequence = number;
        if let Err(error) = self.append(medium, &mut [Record::start()]) {
            let failed = std::mem::replace(&mut self.current, old);
            let _ = std::fs::remove_file(&failed.path);
            return Err(error);
        }
        self.closed.push(old);
        self.number = number;
        self.tell();
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

    /// A snapshot of everything before the open journal is durable: what it replaces is to be removed.
    pub(crate) fn adopt(&mut self, snapshot: RecordFile) {
        let older = self.closed.drain(..).chain(self.snapshot.replace(snapshot));
        self.replaced.extend(older.map(|file| file.path));
        self.tell();
    }

    /// Files that are to be removed.
    pub(crate) fn to_remove(&self) -> Vec<PathBuf> {
        self.replaced.clone()
    }

    /// Of those files, all but `left` are removed.
    pub(crate) fn removed(&mut self, left: Vec<PathBuf>) {
        self.replaced = left;
        self.tell();
    }

    /// The files that take up room on the disk, kept up to date.
    pub(crate) fn present(&self) -> Arc<Mutex<Present>> {
        self.present.clone()
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

    /// Bytes of all files but those that a snapshot has replaced, kept up to date.
    pub(crate) fn bytes(&self) -> Arc<AtomicU64> {
        self.bytes.clone()
    }

    /// Tells those without the lock which files there are.
    fn tell(&self) {
        let files = self.files();
        let records: u64 = files.iter().map(|file| file.records).sum();
        self.bytes.store(records * RECORD_BYTES as u64, Ordering::Relaxed);
        *locked(&self.present) = Present { files, replaced: self.replaced.clone(), number: self.number };
    }
}
