//! The life of a transfer job: one asynchronous load or store of many blocks, with a result per key.
//!
//! Each key is pending until it is settled, once. The job is finished when every key is settled and no thread touches
//! engine memory for it any more; from then on it never changes. A key that is settled early (cancelled, or the daemon
//! is gone) while a thread still copies it keeps the job unfinished until that thread has let go.

/// How one key of a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyResult {
    /// Load: the bytes are in engine memory, checked. Store: the block is visible.
    Done,
    /// Store: the block was there already, or another is writing it. As good as done.
    Present,
    /// Store: no room. Nothing is lost but the copy.
    Refused,
    /// Load: not there.
    Missed,
    /// Load: the bytes did not match their checksum.
    Corrupt,
    /// The lease's deadline passed, or its generation is over.
    Late,
    /// Ended by its owner.
    Cancelled,
    /// The daemon went away.
    Disconnected,
    /// The request itself is wrong: length, key, or runs outside a region.
    Invalid,
}

impl KeyResult {
    /// Every one.
    pub const ALL: [Self; 9] = [
        Self::Done,
        Self::Present,
        Self::Refused,
        Self::Missed,
        Self::Corrupt,
        Self::Late,
        Self::Cancelled,
        Self::Disconnected,
        Self::Invalid,
    ];

    /// The block is where it should be.
    pub fn is_good(self) -> bool {
        matches!(self, Self::Done | Self::Present)
    }

    /// The key failed. A refused store did not: the engine keeps its block.
    pub fn is_failure(self) -> bool {
        !self.is_good() && self != Self::Refused
    }

    /// A word for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Present => "present",
            Self::Refused => "refused",
            Self::Missed => "missed",
            Self::Corrupt => "corrupt",
            Self::Late => "late",
            Self::Cancelled => "cancelled",
            Self::Disconnected => "disconnected",
            Self::Invalid => "invalid",
        }
    }
}

/// Why a call changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// The key has its result, and keeps it.
    #[error("key {index} of the job is settled already: {}", .result.name())]
    AlreadySettled {
        /// The key's index.
        index: usize,
        /// Its result.
        result: KeyResult,
    },
    /// The job has fewer keys.
    #[error("key {index} is not in the job, which has {keys}")]
    NoSuchKey {
        /// The index.
        index: usize,
        /// Number of keys.
        keys: usize,
    },
}

/// The right to touch engine memory for one key; given back with [`TransferJob::release`]. A token that is lost keeps
/// its job unfinished for ever, so its holder gives it back also when a copy panics.
#[must_use = "a token that is not released keeps its job unfinished"]
#[derive(Debug, PartialEq, Eq)]
pub struct Touch {
    index: usize,
}

impl Touch {
    /// The key's index.
    pub fn index(&self) -> usize {
        self.index
    }
}

/// A transfer job. Pure: whoever shares it between threads locks it.
#[derive(Clone, Debug)]
pub struct TransferJob {
    results: Vec<Option<KeyResult>>,
    pending: usize,
    touching: usize,
}

impl TransferJob {
    /// A job of `keys` keys, all pending; one of no keys is finished.
    pub fn new(keys: usize) -> Self {
        Self { results: vec![None; keys], pending: keys, touching: 0 }
    }

    /// Settles one key. A second result is refused and changes nothing.
    pub fn settle(&mut self, index: usize, result: KeyResult) -> Result<(), JobError> {
        let keys = self.results.len();
        match self.results.get_mut(index) {
            None => Err(JobError::NoSuchKey { index, keys }),
            Some(Some(result)) => Err(JobError::AlreadySettled { index, result: *result }),
            Some(cell) => {
                *cell = Some(result);
                self.pending -= 1;
                Ok(())
            }
        }
    }

    /// Settles every key that is still pending; answers how many. What is settled stays.
    pub fn settle_rest(&mut self, result: KeyResult) -> usize {
        for cell in self.results.iter_mut().filter(|cell| cell.is_none()) {
            *cell = Some(result);
        }
        std::mem::take(&mut self.pending)
    }

    /// Before a thread touches engine memory for a key. Refused once the key is settled: its memory may be the
    /// engine's own again.
    pub fn touch(&mut self, index: usize) -> Result<Touch, JobError> {
        match self.results.get(index) {
            None => Err(JobError::NoSuchKey { index, keys: self.results.len() }),
            Some(Some(result)) => Err(JobError::AlreadySettled { index, result: *result }),
            Some(None) => {
                self.touching += 1;
                Ok(Touch { index })
            }
        }
    }

    /// The thread touches that key's memory no more.
    pub fn release(&mut self, touch: Touch) {
        let Touch { .. } = touch;
        self.touching = self.touching.saturating_sub(1);
    }

    /// Every key is settled, and no thread touches engine memory for the job: it may be reported.
    pub fn is_finished(&self) -> bool {
        self.pending == 0 && self.touching == 0
    }

    /// Keys without a result.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Threads, or pieces of their work, that touch engine memory now.
    pub fn touching(&self) -> usize {
        self.touching
    }

    /// One result per key, in the order of the job's keys; none = pending.
    pub fn results(&self) -> &[Option<KeyResult>] {
        &self.results
    }

    /// Indices of exactly the keys that failed, in order.
    pub fn failed(&self) -> Vec<usize> {
        self.indices(KeyResult::is_failure)
    }

    /// Indices of the keys whose block is not where it should be: failed or refused.
    pub fn not_good(&self) -> Vec<usize> {
        self.indices(|result| !result.is_good())
    }

    fn indices(&self, wanted: impl Fn(KeyResult) -> bool) -> Vec<usize> {
        let wanted = |(index, result): (usize, &Option<KeyResult>)| result.filter(|r| wanted(*r)).map(|_| index);
        self.results.iter().enumerate().filter_map(wanted).collect()
    }
}
