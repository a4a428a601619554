//! Reading an earlier life back, each record once, from the newest to the oldest.
//!
//! Going backwards, the first record met for a unit is the newest, so a block can be handed out as soon as its record
//! is read, and only ids of deletions and one bit per unit have to be remembered.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use umbp_plugin_api::types::RecoveredBlock;

use crate::format::{Kind, Record, UNIT_BYTES, units_of};
use crate::journal::{RECORDS_PER_READ, RecordFile, Tail, piece_before};
use crate::patience::Patience;
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
    /// Down to this record the first file is read in pieces, since so much at once cannot be.
    pieces_to: Option<u64>,
    patience: Patience,
    ended: bool,
    /// One bit per unit: written by a record already seen.
    covered: Vec<u64>,
    units: u64,
    data_bytes: u64,
    /// Generations that a delete record has ended.
    deleted: HashSet<u64>,
    /// Records that did not match their checksum.
    pub(crate) damaged: u64,
    /// Puts beyond the end of the data file.
    pub(crate) beyond_end: u64,
    /// What it went without.
    pub(crate) unread: Option<Unread>,
}

/// Records that recovery went without.
pub(crate) struct Unread {
    /// Those that were read together with one that cannot be, too.
    pub(crate) records: u64,
    /// The file of the first of them.
    pub(crate) path: PathBuf,
    pub(crate) error: io::Error,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is more to read.
    More,
    /// A read has failed and is to be tried again later.
    Stuck,
    /// All was read that can be.
    Ended,
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
    /// Of `files`, newest first, with a data file of `data_bytes`; the end of the newest was read as `tail`. What cannot
    /// be read is tried again for `patience` in all.
    pub(crate) fn new(path: u8, mut files: Vec<RecordFile>, tail: Tail, data_bytes: u64, patience: Duration) -> Self {
        if let Some(newest) = files.first_mut() {
            newest.records = tail.before;
        }
        let units = units_of(data_bytes);
        let covered = vec![0; units.div_ceil(64) as usize];
        Self {
            path,
            files,
            batch: tail.records,
            pieces_to: None,
            patience: Patience::new(patience),
            ended: false,
            covered,
            units,
            data_bytes,
            deleted: HashSet::new(),
            damaged: 0,
            beyond_end: 0,
            unread: None,
        }
    }

    /// All was read that can be.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// A read that failed is not to be tried again yet.
    pub(crate) fn waits(&self, now: Instant) -> bool {
        self.patience.waits(now)
    }

    /// Pushes at most `limit` living blocks.
    pub(crate) fn next(
        &mut self,
        limit: usize,
        medium: &dyn Medium,
        claims: &dyn Claims,
        blocks: &mut Vec<RecoveredBlock>,
    ) -> Step {
        let mut pushed = 0;
        for _ in 0..RECORDS_PER_CALL {
            if pushed >= limit {
                return Step::More;
            }
            if self.batch.is_empty()
                && let Err(step) = self.refill(medium)
            {
                self.ended = step == Step::Ended;
                return step;
            }
            match self.batch.pop() {
                Some(Some(record)) => pushed += usize::from(self.take(&record, claims, blocks)),
                Some(None) => self.damaged += 1,
                None => {}
            }
        }
        Step::More
    }

    /// The next batch. One piece that cannot be read ends the call, since on a real disk each takes its time.
    fn refill(&mut self, medium: &dyn Medium) -> Result<(), Step> {
        loop {
            let Some(file) = self.files.first_mut() else { return Err(Step::Ended) };
            let end = file.records;
            self.pieces_to = self.pieces_to.filter(|to| *to < end);
            if end == 0 {
                self.files.remove(0);
                continue;
            }
            let first = match self.pieces_to {
                Some(to) => piece_before(end).max(to),
                None => end.saturating_sub(RECORDS_PER_READ),
            };
            match file.read(medium, first, end - first) {
                Ok(found) => {
                    self.patience.succeeded();
                    (self.batch, file.records) = (found, first);
                    return Ok(());
                }
                Err(_) if self.pieces_to.is_none() => self.pieces_to = Some(first),
                Err(_) if !self.patience.failed(Instant::now()) => return Err(Step::Stuck),
                Err(error) => {
                    // As damaged records are: a deletion among them brings its block back at most, whose bytes are
                    // checked like any other's.
                    file.records = first;
                    let unread = Unread { records: 0, path: file.path.clone(), error };
                    self.unread.get_or_insert(unread).records += end - first;
                    return Err(Step::More);
                }
            }
        }
    }

    fn take(&mut self, record: &Record, claims: &dyn Claims, blocks: &mut Vec<RecoveredBlock>) -> bool {
        match record.kind {
            Kind::Start => return false,
            Kind::Delete => {
                self.deleted.insert(record.generation);
                return false;
            }
            Kind::Put => {}
        }
        let length = u64::from(record.length);
        let ended = self.deleted.remove(&record.generation);
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
