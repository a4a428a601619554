//! What is asked, answered and pushed. Hot messages travel as columns, cold ones (Hello, Status, errors) as JSON.
//!
//! A key on the wire is the namespace's number (given by the daemon in its answer to Hello) and the local key in
//! binary form. Batches only: a message's keys, and every other column, have one length.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use umbp_connector_core::key::LOCAL_KEY_BYTES;

mod hello;

pub use hello::{Hello, Limits, Refusal, TierName, Welcome};

/// The protocol versions that this build speaks, oldest and newest. 1: the first.
pub const PROTOCOL_VERSIONS: (u16, u16) = (1, 1);
/// Most keys in one message; more ends the session.
pub const KEYS_PER_MESSAGE_MAX: usize = 8192;
/// Most bytes of one frame after its length word; more ends the session.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
/// Most fds beside one message (the kernel's SCM_MAX_FD).
pub const FDS_PER_MESSAGE_MAX: usize = 253;

/// A namespace's number, valid in the daemon's life (boot id) that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NamespaceId(pub u32);
/// A session, numbered by the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId(pub u64);
/// A lease, numbered by the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeaseId(pub u64);
/// A segment of the mappable pool, numbered by the daemon, never reused in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SegmentId(pub u32);

/// A key as it travels and as the tier engine indexes it: namespace number and local key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WireKey {
    /// Number of the namespace.
    pub namespace: NamespaceId,
    /// Local key in binary form; all zero means "no key".
    pub local: [u8; LOCAL_KEY_BYTES],
}

/// Where a block's bytes lie in the mappable pool, and how a reader tells that they are still that block's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Segment's number.
    pub segment: u32,
    /// Index of this extent's word in the tenant's generation table.
    pub slot: u32,
    /// Start in the segment, in bytes.
    pub offset: u64,
    /// The generation that was leased.
    pub generation: u64,
}

/// What a client asks. One answer each, in the order of the requests of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// See [`Hello`].
    Hello(Hello),
    /// Which keys are there? With `hold_ms` > 0 hits are held, within the session's budget.
    Lookup {
        /// 0 = do not hold.
        hold_ms: u32,
        /// Keys, head of the chain first.
        keys: Vec<WireKey>,
    },
    /// Room for blocks to be written, head of the chain first.
    Reserve {
        /// One per block.
        items: Vec<ReserveItem>,
    },
    /// Blocks of a write lease are written; they become visible. (index in the Reserve, checksum).
    Commit {
        /// The write lease.
        lease: LeaseId,
        /// Index in the Reserve, and checksum.
        items: Vec<(u32, u64)>,
    },
    /// Blocks of a write lease will not be written, and no thread of the client writes to them any more. It also
    /// acknowledges a lease that has expired: its quarantine ends.
    Abort {
        /// The write lease.
        lease: LeaseId,
        /// Indices in the Reserve; empty = all that are left.
        items: Vec<u32>,
    },
    /// Extents to read from. Adopts this session's holds, and those of its tenant's other sessions.
    Acquire {
        /// Keys.
        keys: Vec<WireKey>,
    },
    /// More time for leases, read or write.
    Renew {
        /// The leases.
        leases: Vec<LeaseId>,
    },
    /// Blocks of a read lease are done with. (index in the Acquire, loaded well); false drops that DRAM copy.
    Release {
        /// The read lease.
        lease: LeaseId,
        /// Index in the Acquire, and whether the bytes were good; empty = all that are left, good.
        items: Vec<(u32, bool)>,
    },
    /// Gives up this session's holds on keys (all of them if empty).
    Unhold {
        /// Keys.
        keys: Vec<WireKey>,
    },
    /// Forgets all unpinned blocks of one namespace, or of the session's tenant.
    Clear {
        /// None = every namespace of the tenant.
        namespace: Option<NamespaceId>,
    },
    /// The client has unmapped a withdrawn segment.
    SegmentUnmapped {
        /// The segment.
        segment: SegmentId,
    },
    /// The daemon's state as JSON.
    Status,
}

/// One block of a Reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveItem {
    /// Its key.
    pub key: WireKey,
    /// Its parent's local key in binary form; all zero for a root.
    pub parent: [u8; LOCAL_KEY_BYTES],
    /// Distance from the root.
    pub depth: u32,
    /// Payload, in bytes.
    pub length: u64,
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// See [`Welcome`].
    Welcome(Welcome),
    /// To Lookup.
    Lookup {
        /// One per key.
        found: Vec<Found>,
    },
    /// To Reserve.
    Reserve {
        /// The write lease; 0 if nothing was reserved.
        lease: LeaseId,
        /// Its life from now on, in milliseconds.
        lease_ms: u32,
        /// One per block.
        items: Vec<Reserved>,
    },
    /// To Commit.
    Commit {
        /// One per block.
        items: Vec<Outcome>,
    },
    /// To Abort.
    Abort {
        /// Blocks let go.
        count: u32,
    },
    /// To Acquire.
    Acquire {
        /// The read lease; 0 if nothing was acquired.
        lease: LeaseId,
        /// Its life from now on, in milliseconds.
        lease_ms: u32,
        /// One per key.
        items: Vec<Acquired>,
    },
    /// To Renew: life of each lease from now on, in milliseconds; 0 = it is no more.
    Renew {
        /// One per lease.
        lease_ms: Vec<u32>,
    },
    /// To Release.
    Release {
        /// One per block (all, if the request named none).
        items: Vec<Outcome>,
    },
    /// To Unhold: holds given up.
    Unhold {
        /// Number of holds.
        count: u32,
    },
    /// To Clear: blocks forgotten, and blocks left because they were pinned.
    Clear {
        /// Blocks forgotten.
        removed: u64,
        /// Blocks in use.
        pinned: u64,
    },
    /// To SegmentUnmapped.
    SegmentUnmapped,
    /// To Status: one JSON object.
    Status(serde_json::Value),
    /// The request as a whole is refused.
    Refused(Refusal),
}

/// One answer of a Lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Not there, and why.
    Miss(MissReason),
    /// There, in this tier (0 = first), with or without a hold.
    Hit {
        /// Index of the fastest tier that has it.
        tier: u8,
        /// A hold was taken.
        held: bool,
    },
}

/// Why a key is a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum MissReason {
    /// Never stored, or evicted.
    Absent = 1,
    /// Being written; not visible yet.
    Writing = 2,
    /// Its tier is degraded, failed or not running.
    TierDown = 3,
    /// No promotion budget, or no room, to bring it up now.
    NoRoom = 4,
    /// Its last copy turned out unreadable.
    Failed = 5,
    /// The daemon is shutting down.
    Draining = 6,
    /// The key itself is malformed or of an unknown namespace.
    BadKey = 7,
    /// The bytes of its last copy are not those that were stored: their checksum differs, or part of them is gone.
    Corrupt = 8,
}

impl MissReason {
    /// All of them, in the order of their numbers, which begin at 1.
    pub const ALL: [Self; 8] = [
        Self::Absent,
        Self::Writing,
        Self::TierDown,
        Self::NoRoom,
        Self::Failed,
        Self::Draining,
        Self::BadKey,
        Self::Corrupt,
    ];
}

/// One answer of a Reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// Write the block here.
    Extent(Extent),
    /// Already there; nothing to do.
    Present,
    /// Another session is writing it; nothing to do.
    BeingWritten,
    /// No room; nothing to do.
    Refused,
    /// There with another length: an error of the caller; the old copy stays.
    LengthDiffers,
    /// Length 0, or beyond the largest block, or a malformed key.
    Invalid,
}

/// One answer of an Acquire, or of a promotion that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// Read the block here.
    Ready {
        /// Where.
        extent: Extent,
        /// Payload, in bytes.
        length: u64,
        /// Its checksum.
        checksum: u64,
        /// The tier that served it: 0, or the one it was promoted from.
        tier: u8,
    },
    /// Being brought up; an event [`Event::Promoted`] of this lease and index follows.
    Pending,
    /// Not there.
    Miss(MissReason),
}

/// How one block of a Commit or Release went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// Done.
    Done = 0,
    /// The lease is not this session's, is over, or has been given back already; nothing changed.
    LeaseExpired = 1,
    /// The index is not in the lease, or was settled before; nothing changed.
    NotLeased = 2,
}

/// What the daemon pushes.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A pending block of an Acquire has its answer (never Pending).
    Promoted {
        /// The read lease.
        lease: LeaseId,
        /// Index in the Acquire.
        index: u32,
        /// Ready or Miss.
        item: Acquired,
    },
    /// Segments to map: number and length; one fd each beside the frame.
    SegmentsAdded {
        /// Number and length in bytes.
        segments: Vec<(SegmentId, u64)>,
    },
    /// Unmap this segment, then say SegmentUnmapped.
    SegmentWithdrawn {
        /// The segment.
        segment: SegmentId,
    },
    /// Copies left a tier. Bounded: see `Resync`.
    Removed {
        /// Index of the tier.
        tier: u8,
        /// Why.
        reason: RemovedReason,
        /// The keys; shared, since all sessions of a tenant are told of the same.
        keys: Arc<[WireKey]>,
    },
    /// A tier changed its state.
    TierState {
        /// Index of the tier.
        tier: u8,
        /// Name of the new state.
        state: String,
    },
    /// Events were dropped since the queue was full: forget beliefs about residency.
    Resync,
    /// The daemon shuts down and takes no more requests.
    Draining,
}

/// Why a copy left a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RemovedReason {
    /// Room was needed.
    Evicted = 1,
    /// Clear was asked.
    Cleared = 2,
    /// The bytes were found bad, or the medium failed.
    Failed = 3,
}
