//! Plain structs and numbers that cross the boundary.
//!
//! Structs cross as (pointer, stride, count) of bytes: the reader takes min(stride, its own size) and the rest is
//! zero, so a struct may grow at its end within one major version. Fields are never removed or given a new meaning.

/// Bytes of a key inside a namespace, in binary form.
pub const KEY_BYTES: usize = 44;

/// Operation codes. A code that a backend does not know is answered with [`Status::UNSUPPORTED`].
pub mod code {
    /// Store `length` bytes of the buffer; the completion carries the location.
    pub const PUT: u32 = 1;
    /// Fetch `length` bytes at `location` into the buffer, after checking the checksum.
    pub const GET: u32 = 2;
    /// Forget the block at `location`; its space may be reused at once.
    pub const DELETE: u32 = 3;
    /// Ask whether the block is there: `OK` with location and length, or `MISS`.
    pub const EXISTS: u32 = 4;
    /// Ask where the block's payload lies: the completion carries fd, offset and length.
    pub const FILE_EXTENT: u32 = 5;
    /// Copy runs from host memory (the buffer) to device regions. Movers only.
    pub const COPY_TO_DEVICE: u32 = 6;
    /// Copy runs from device regions to host memory (the buffer). Movers only.
    pub const COPY_FROM_DEVICE: u32 = 7;
}

/// Extension numbers, see [`crate::Backend::extension`].
pub mod extension {
    /// Backends over a network: runs the client library alone in a bare loop, as the limit that a benchmark compares the
    /// backend with; blocks until it is done. Input: a JSON object with `direction` ("put", "get", "delete"), `objects`,
    /// `bytes` of each, and `depth`, how many are under way. Output: one with `nanos`, or `error`.
    pub const BARE_LOOP: u64 = 1;
}

/// How an operation, or a call, ended. A newtype over a number, since the list may grow.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Status(pub u32);

impl Status {
    /// Done, whole.
    pub const OK: Self = Self(0);
    /// The block is not there.
    pub const MISS: Self = Self(1);
    /// The bytes do not match their checksum; the copy is lost.
    pub const CORRUPT: Self = Self(2);
    /// The tier's limit, or the file system's, is reached.
    pub const NO_SPACE: Self = Self(3);
    /// The medium failed (EIO, EACCES, a cut connection); the block may still be there.
    pub const IO: Self = Self(4);
    /// Ended by `cancel` or by shutdown.
    pub const CANCELLED: Self = Self(5);
    /// The operation's deadline passed inside the backend.
    pub const TIMED_OUT: Self = Self(6);
    /// The backend does not know this operation or extension.
    pub const UNSUPPORTED: Self = Self(7);
    /// An argument is wrong (unknown region, range outside it, unknown namespace).
    pub const INVALID: Self = Self(8);
    /// The backend panicked; it is not called again.
    pub const PANICKED: Self = Self(9);
    /// The backend could not do it for a reason of its own.
    pub const FAILED: Self = Self(10);

    /// A word for logs and status pages.
    pub fn name(self) -> &'static str {
        match self.0 {
            0 => "ok",
            1 => "miss",
            2 => "corrupt",
            3 => "no space",
            4 => "i/o error",
            5 => "cancelled",
            6 => "timed out",
            7 => "unsupported",
            8 => "invalid argument",
            9 => "panicked",
            10 => "failed",
            _ => "unknown status",
        }
    }
}

impl std::fmt::Debug for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What `submit` did with one operation.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Submitted(pub u32);

impl Submitted {
    /// Taken: exactly one completion will follow.
    pub const ACCEPTED: Self = Self(0);
    /// No room now; no completion follows; the host may try again after a completion.
    pub const BUSY: Self = Self(1);

    /// Refused for good with this status; no completion follows.
    pub const fn rejected(status: Status) -> Self {
        Self(0x100 + status.0)
    }

    /// The results as the numbers that cross the boundary.
    pub fn words_mut(results: &mut [Self]) -> &mut [u32] {
        // SAFETY: a transparent newtype of `u32`; the borrow is the same, and every number is a value of it.
        unsafe { std::slice::from_raw_parts_mut(results.as_mut_ptr().cast(), results.len()) }
    }

    /// The numbers that cross the boundary as results.
    pub fn of_words_mut(words: &mut [u32]) -> &mut [Self] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len()) }
    }

    /// The status of a refusal.
    pub fn rejection(self) -> Option<Status> {
        (self.0 >= 0x100).then(|| Status(self.0 - 0x100))
    }
}

/// One operation on one block. The buffer is `length` bytes at `offset` of `region`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// Given by the host; unique among operations in flight of this tier.
    pub id: u64,
    /// One of [`code`].
    pub code: u32,
    /// A number that an earlier `namespace_put` introduced.
    pub namespace_id: u32,
    /// Key inside the namespace.
    pub key: [u8; KEY_BYTES],
    /// Distance from the chain's root, 0 for a root.
    pub depth: u32,
    /// Parent's key inside the same namespace; all zero for a root.
    pub parent: [u8; KEY_BYTES],
    /// Reserved, zero.
    pub flags: u32,
    /// Larger is more recent; to be given back by recovery.
    pub recency: u64,
    /// CRC-64/NVME of the block, see [`crate::checksum`].
    pub checksum: u64,
    /// Payload, in bytes.
    pub length: u64,
    /// Registered region of the buffer.
    pub region: u64,
    /// Start of the buffer in its region, in bytes.
    pub offset: u64,
    /// What this block's put answered; 0 in a put.
    pub location: u64,
    /// CLOCK_MONOTONIC, in nanoseconds; 0 for none. Past it the host gives up, and the backend may.
    pub deadline_ns: u64,
    /// Movers: `runs_count` structs [`Run`], `runs_stride` bytes apart; valid only during `submit`.
    pub runs: u64,
    /// Number of runs.
    pub runs_count: u32,
    /// Bytes from one run to the next.
    pub runs_stride: u32,
    /// A field of the next minor version, for the tests of growth.
    #[cfg(feature = "__grown")]
    pub grown: u64,
}

impl Default for Operation {
    fn default() -> Self {
        Self {
            id: 0,
            code: 0,
            namespace_id: 0,
            key: [0; KEY_BYTES],
            depth: 0,
            parent: [0; KEY_BYTES],
            flags: 0,
            recency: 0,
            checksum: 0,
            length: 0,
            region: 0,
            offset: 0,
            location: 0,
            deadline_ns: 0,
            runs: 0,
            runs_count: 0,
            runs_stride: 0,
            #[cfg(feature = "__grown")]
            grown: 0,
        }
    }
}

/// A stretch of a device region that holds part of a block.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Run {
    /// Registered device region.
    pub region: u64,
    /// Start in that region, in bytes.
    pub offset: u64,
    /// Length, in bytes.
    pub length: u64,
    /// Start inside the block's payload, in bytes.
    pub object_offset: u64,
    /// A field of the next minor version, for the tests of growth.
    #[cfg(feature = "__grown")]
    pub grown: u64,
}

/// How one accepted operation ended.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The operation's id.
    pub id: u64,
    /// How it ended.
    pub status: Status,
    /// `file_extent`: an fd that stays the backend's own; otherwise 0.
    pub fd: i32,
    /// `put`, `exists`: where the block lies, for later operations.
    pub location: u64,
    /// `get`, `exists`, `file_extent`: bytes of payload.
    pub length: u64,
    /// `file_extent`: offset of the payload in the file, in bytes.
    pub offset: u64,
    /// An errno that explains the status, or 0.
    pub errno: i32,
    /// `exists` of a shared backend: distance from the chain's root, as another host's put told it; otherwise 0.
    pub depth: u32,
    /// `exists` and `put` of a shared backend: CRC-64/NVME of the block that is there, which may be another host's;
    /// otherwise 0.
    pub checksum: u64,
    /// `exists` of a shared backend: the parent's key, as another host's put told it; zero for a root, and otherwise.
    pub parent: [u8; KEY_BYTES],
    /// Reserved, zero.
    pub flags: u32,
    /// A field of the next minor version, for the tests of growth.
    #[cfg(feature = "__grown")]
    pub grown: u64,
}

impl Default for Completion {
    fn default() -> Self {
        Self {
            id: 0,
            status: Status::OK,
            fd: 0,
            location: 0,
            length: 0,
            offset: 0,
            errno: 0,
            depth: 0,
            checksum: 0,
            parent: [0; KEY_BYTES],
            flags: 0,
            #[cfg(feature = "__grown")]
            grown: 0,
        }
    }
}

/// A block that a persistent backend holds from an earlier life.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RecoveredBlock {
    /// Key inside the namespace.
    pub key: [u8; KEY_BYTES],
    /// The number under which the host put this block's namespace in this life.
    pub namespace_id: u32,
    /// Parent's key; all zero for a root.
    pub parent: [u8; KEY_BYTES],
    /// Distance from the chain's root.
    pub depth: u32,
    /// Payload, in bytes.
    pub length: u64,
    /// CRC-64/NVME of the block.
    pub checksum: u64,
    /// For later operations.
    pub location: u64,
    /// Larger is more recent.
    pub recency: u64,
    /// A field of the next minor version, for the tests of growth.
    #[cfg(feature = "__grown")]
    pub grown: u64,
}

impl Default for RecoveredBlock {
    fn default() -> Self {
        Self {
            key: [0; KEY_BYTES],
            namespace_id: 0,
            parent: [0; KEY_BYTES],
            depth: 0,
            length: 0,
            checksum: 0,
            location: 0,
            recency: 0,
            #[cfg(feature = "__grown")]
            grown: 0,
        }
    }
}
