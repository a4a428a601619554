//! Reading an earlier life back, each record once, from the newest to the oldest.
//!
//! Going backwards, the first record met for a unit is the newest, so a block can be handed out as soon as its record
//! is read, and only ids of deletions and one bit per unit have to be remembered.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;

use umbp_plugin_api::types::RecoveredBlock;

use crate::format::{Kind, Record, UNIT_BYTES, units_of};
use crate::journal::{RECORDS_PER_READ, RecordFile, Tail};
use crate::port::Medium;
use crate::space::{Live, location};

/// Records looked at in one call at most, so that a call stays short when most of them are dead.
const RECORDS_PER_CALL: u64 = 64 * RECORDS_PER_READ;

/// How far one path has been read.
pub(crate) struct Recovery {
    path: u8,
    /// What is left, newest first; of each file the first `records` records.
    files: Vec<RecordFile>,
    /// Read from the file, not looked at yet; the next one is the last.
    batch: Vec<Option<Record>>,
    /// One bit per unit: written by a record already seen.
    covered: Vec<u64>,
    units: u64,
    data_bytes: u64,
    /// Generations that a delete record has ended.
    ended: HashSet<u64>,
    /// Records that did not match their checksum.
    pub(crate) damaged: u64,
    /// Puts beyond the end of the data file.
    pub(crate) beyond_end: u64,
    /// Where it ended before its time.
    pub(crate) unread: Option<Unread>,
}

/// Records that recovery went without.
pub(crate) struct Unread {
    /// Those that cannot be read, and all before them.
    pub(crate) records: u64,
    /// The file that cannot be read.
    pub(crate) path: PathBuf,
    pub(crate) error: io::Error,
}

/// What the store does for recovery.
pub(crate) trait Claims {
    /// The host's number of a namespace that was introduced in this life.
    fn host_id(&self, local: u32) -> Option<u32>;
    /// Takes the block's units; false if they are not free to take.
    fn claim(&self, unit: u64, block: Live) -> bool;
    /// The block is nobody's in this life: its units are free at once.
    fn reclaim(&self, unit: u64, length: u64);
}

impl Recovery {
    /// Of `files`, newest first, with a data file of `data_bytes`; the end of the newest was read as `tail`.
    pub(crate) fn new(path: u8, mut files: Vec<RecordFile>, tail: Tail, data_bytes: u64) -> Self {
        if let Some(newest) = files.first_mut() {
            newest.records = tail.before;
        }
        let units = units_of(data_bytes);
        let covered = vec![0; units.div_ceil(64) as usize];
        Self {
            path,
            files,
            batch: tail.records,
            covered,
            units,
            data_bytes,
            ended: HashSet::new(),
            damaged: 0,
            beyond_end: 0,
            unread: None,
        }
    }

    /// Pushes at most `limit` living blocks; true when all records were read that are to be.
    pub(crate) fn next(
        &mut self,
        limit: usize,
        medium: &dyn Medium,
        claims: &dyn Claims,
        blocks: &mut Vec<RecoveredBlock>,
    ) -> bool {
        let mut pushed = 0;
        for _ in 0..RECORDS_PER_CALL {
            if pushed >= limit {
                return false;
            }
            if self.batch.is_empty() && !self.refill(medium) {
                return true;
            }
            match self.batch.pop() {
                Some(Some(record)) => pushed += usize::from(self.take(&record, claims, blocks)),
                Some(None) => self.damaged += 1,
                None => {}
            }
        }
        false
    }

    fn refill(&mut self, medium: &dyn Medium) -> bool {
        while let Some(file) = self.files.first_mut() {
            if file.records == 0 {
                self.files.remove(0);
                continue;
            }
            let first = file.records.saturating_sub(RECORDS_PER_READ);
            let (start, found, fault) = file.read_back(medium, first, file.records - first);
            (self.batch, file.records) = (found, start);
            if let Some(error) = fault {
                // What cannot be read may be the deletion of any block before it, so none of those is believed.
                let records = self.files.iter().map(|file| file.records).sum();
                self.unread = self.files.drain(..).next().map(|file| Unread { records, path: file.path, error });
            }
            if !self.batch.is_empty() {
                return true;
            }
        }
        false
    }

    fn take(&mut self, record: &Record, claims: &dyn Claims, blocks: &mut Vec<RecoveredBlock>) -> bool {
        match record.kind {
            Kind::Start => return false,
            Kind::Delete => {
                self.ended.insert(record.generation);
                return false;
            }
            Kind::Put => {}
        }
        let length = u64::from(record.length);
        let ended = self.ended.remove(&record.generation);
        let fits = record.unit + units_of(length) <= self.units && record.unit * UNIT_BYTES + length <= self.data_bytes;
        if !fits {
            self.beyond_end += u64::from(!ended);
        }
        let overwritten = self.cover(record.unit, units_of(length));
        if ended || overwritten || !fits {
            return false;
        }
        let Some(namespace_id) = claims.host_id(record.namespace) else {
            claims.reclaim(record.unit, length);
            return false;
        };
        let block = Live::of(record);
        if !claims.claim(record.unit, block) {
            return false;
        }
        blocks.push(RecoveredBlock {
            key: record.key,
            namespace_id,
            parent: record.parent,
            depth: record.depth,
            length,
            checksum: record.checksum,
            location: location(self.path, record.unit, record.generation),
            recency: record.recency,
        });
        true
    }

    /// Marks units as written; true if any was already.
    fn cover(&mut self, start: u64, count: u64) -> bool {
        let mut before = false;
        for unit in start.min(self.units)..(start + count).min(self.units) {
            let (word, bit) = ((unit / 64) as usize, 1 << (unit % 64));
            before |= self.covered[word] & bit != 0;
            self.covered[word] |= bit;
        }
        before
    }
}
