//! How each block of a job ended, and the counters that tell the same story in sum.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use umbp_connector_core::job::KeyResult;
use umbp_protocol::message::MissReason;

use crate::options::Error;

/// How one block of a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Stored, and visible to others.
    Stored {
        /// Payload.
        bytes: u64,
    },
    /// Not stored, since it is there already.
    Present,
    /// Not stored, since another session is storing it.
    BeingWritten,
    /// Not stored, since there is no room for it.
    Refused,
    /// Loaded: the bytes in engine memory are the block's.
    Loaded {
        /// Index of the tier that served it.
        tier: u8,
        /// Payload.
        bytes: u64,
    },
    /// Not there; nothing was written to engine memory.
    Missed(MissReason),
    /// Failed. Of a load, engine memory holds anything now.
    Failed(FailCause),
    /// Cancelled before it was done. Of a load, engine memory holds anything now.
    Cancelled,
}

/// Why a block failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailCause {
    /// No session when the job was asked for.
    Detached,
    /// The session ended before the block was done.
    SessionLost,
    /// The daemon did not answer in time.
    TimedOut,
    /// The job's own deadline passed.
    JobTimedOut,
    /// The lease ended before the block was done.
    LeaseExpired,
    /// The extent was given to another block while it was read.
    GenerationChanged,
    /// The bytes are not those that were stored.
    ChecksumMismatch,
    /// The runs' length is not the stored block's.
    LengthDiffers,
    /// A run lies outside its region, or names none, or the block has no bytes.
    BadRuns,
    /// The daemon takes no block of this length or key.
    Invalid,
    /// The daemon's answer names memory that this client does not have.
    BadExtent,
    /// The daemon refused the request as a whole.
    RequestRefused,
    /// This process was forked off the one that attached.
    Forked,
    /// A copy thread panicked on it.
    Panicked,
}

impl From<&Error> for FailCause {
    fn from(error: &Error) -> Self {
        match error {
            Error::Detached { .. } => Self::Detached,
            Error::TimedOut { .. } => Self::TimedOut,
            Error::Refused(_) | Error::Busy { .. } => Self::RequestRefused,
            Error::Forked => Self::Forked,
            Error::SessionLost(_) | Error::Argument { .. } | Error::Threads(_) => Self::SessionLost,
        }
    }
}

impl Outcome {
    /// In the words of connector-core.
    pub fn key_result(self) -> KeyResult {
        use FailCause::*;
        match self {
            Self::Stored { .. } | Self::Loaded { .. } => KeyResult::Done,
            Self::Present | Self::BeingWritten => KeyResult::Present,
            Self::Refused => KeyResult::Refused,
            Self::Missed(MissReason::Corrupt) => KeyResult::Corrupt,
            Self::Missed(_) => KeyResult::Missed,
            Self::Cancelled => KeyResult::Cancelled,
            Self::Failed(ChecksumMismatch) => KeyResult::Corrupt,
            Self::Failed(LeaseExpired | GenerationChanged | JobTimedOut) => KeyResult::Late,
            Self::Failed(Detached | SessionLost | TimedOut | Forked | RequestRefused) => KeyResult::Disconnected,
            Self::Failed(LengthDiffers | BadRuns | Invalid | BadExtent | Panicked) => KeyResult::Invalid,
        }
    }
}

/// Counters of one client. None ever decreases.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    cells: [AtomicU64; Counter::ALL.len()],
}

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident $name:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter { $($(#[$doc])* $variant,)* }

        impl Counter {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Its name in reports.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

counters! {
    /// Blocks stored.
    BlocksStored "blocks_stored",
    /// Bytes stored.
    BytesStored "bytes_stored",
    /// Blocks not stored since they were there, or being written.
    BlocksPresent "blocks_present",
    /// Blocks not stored for lack of room.
    BlocksRefused "blocks_refused",
    /// Blocks loaded.
    BlocksLoaded "blocks_loaded",
    /// Bytes loaded.
    BytesLoaded "bytes_loaded",
    /// Blocks of loads that were not there.
    BlocksMissed "blocks_missed",
    /// Blocks of loads whose bytes were found corrupt below the first tier; none was copied.
    BlocksCorrupt "blocks_corrupt",
    /// Blocks whose load failed.
    LoadErrors "load_errors",
    /// Blocks whose store failed.
    StoreErrors "store_errors",
    /// Blocks cancelled.
    BlocksCancelled "blocks_cancelled",
    /// Keys looked up.
    KeysLookedUp "keys_looked_up",
    /// Keys looked up and found.
    KeysFound "keys_found",
    /// Keys whose lookup was a miss since the daemon did not answer.
    LookupsUnanswered "lookups_unanswered",
    /// Sessions attached.
    Attached "attached",
    /// Attempts to attach that failed.
    AttachFailed "attach_failed",
    /// Sessions lost, for any reason.
    SessionsLost "sessions_lost",
    /// Requests that were not answered in time.
    CallsTimedOut "calls_timed_out",
    /// Events dropped since nobody took them.
    EventsDropped "events_dropped",
    /// Leases renewed.
    LeasesRenewed "leases_renewed",
    /// Panics caught in copy threads.
    Panics "panics",
    /// Re-attaches that had to say that something is still mapped.
    UnmapTimedOut "unmap_timed_out",
    /// Segments whose page tables could not be filled ahead; their copies pay for first touches.
    PopulateFailed "fallback.populate",
}

impl Counters {
    pub(crate) fn add(&self, counter: Counter, delta: u64) {
        self.cells[counter as usize].fetch_add(delta, Relaxed);
    }

    pub(crate) fn get(&self, counter: Counter) -> u64 {
        self.cells[counter as usize].load(Relaxed)
    }

    /// Counts one block of an ended job, under exactly one name.
    pub(crate) fn add_outcome(&self, outcome: Outcome, is_load: bool) {
        match outcome {
            Outcome::Stored { bytes } => {
                self.add(Counter::BlocksStored, 1);
                self.add(Counter::BytesStored, bytes);
            }
            Outcome::Loaded { bytes, .. } => {
                self.add(Counter::BlocksLoaded, 1);
                self.add(Counter::BytesLoaded, bytes);
            }
            Outcome::Present | Outcome::BeingWritten => self.add(Counter::BlocksPresent, 1),
            Outcome::Refused => self.add(Counter::BlocksRefused, 1),
            Outcome::Missed(MissReason::Corrupt) => self.add(Counter::BlocksCorrupt, 1),
            Outcome::Missed(_) => self.add(Counter::BlocksMissed, 1),
            Outcome::Cancelled => self.add(Counter::BlocksCancelled, 1),
            Outcome::Failed(_) if is_load => self.add(Counter::LoadErrors, 1),
            Outcome::Failed(_) => self.add(Counter::StoreErrors, 1),
        }
    }
}
