//! What a backend's author implements.

use std::sync::Arc;
use std::time::Duration;

use crate::types::{Completion, Operation, RecoveredBlock, Status, Submitted};

/// What a backend is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A tier: put, get, delete, exists, and recovery.
    Storage,
    /// Copies between device regions and segments.
    Mover,
}

/// What the host knows of a backend before it opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// The name by which config asks for it.
    pub name: &'static str,
    /// The backend's own version.
    pub version: &'static str,
    /// Its role.
    pub role: Role,
    /// It provides pinned segments, and the host allocates in them.
    pub mappable: bool,
    /// It recovers what an earlier life stored.
    pub persistent: bool,
    /// Other hosts see what it stores.
    pub shared: bool,
}

/// Why options were refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct OptionsError {
    /// Names field, value and remedy.
    pub message: String,
    /// Byte range of the fault in the options' text.
    pub span: std::ops::Range<usize>,
}

/// Why `open` failed. The first three refuse the daemon's start; `Environment` obeys the tier's `required`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The options are wrong.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// Another process holds the backend's storage.
    #[error("{0}")]
    Locked(String),
    /// The size asked for cannot be had; names needed, free and the knob.
    #[error("{0}")]
    TooLarge(String),
    /// The machine lacks something: a device, a driver, a directory, a permission.
    #[error("{0}")]
    Environment(String),
}

/// What the host asks of `open`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenConfig {
    /// Name of the tier or mover in the config.
    pub tier: String,
    /// Most bytes it may hold; 0 for a mover.
    pub capacity: u64,
    /// The options' table as TOML text.
    pub options: String,
    /// Most operations in flight at one time.
    pub slots: u32,
}

/// What `open` found out. It never changes afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Buffers and their offsets are multiples of this many bytes.
    pub alignment: u64,
    /// The longest payload it takes, in bytes.
    pub largest_payload: u64,
    /// It answers `file_extent`.
    pub file_extent: bool,
    /// One line for a person: the path taken, such as "io_uring, O_DIRECT, 4096-byte alignment".
    pub report: String,
}

/// A piece of pinned memory that a mappable backend provides. The host maps and shares it.
#[derive(Debug)]
pub struct Segment {
    /// A sealed memfd, given to the host, which closes it.
    pub fd: std::os::fd::OwnedFd,
    /// Where the backend has it mapped (read and write), for registration with other backends.
    pub address: *mut u8,
    /// Its length, in bytes.
    pub length: u64,
}

/// Where a page of [`Backend::recover`] ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// More follows; call again with this cursor.
    More(u64),
    /// That was all.
    Done,
}

/// A namespace that a persistent backend holds from an earlier life: digest and descriptor, as it was put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredNamespace {
    /// SHA-256 of the descriptor.
    pub digest: [u8; 32],
    /// The descriptor, opaque to the backend.
    pub descriptor: Vec<u8>,
}

/// Figures that every backend can tell. More go out through [`HostServices::count`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Payload bytes of the blocks that it holds.
    pub resident_bytes: u64,
    /// Bytes that it takes up on its medium, as `du` would count them.
    pub medium_bytes: u64,
    /// Blocks that it holds.
    pub blocks: u64,
}

/// Severity of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something failed that an operator must mend.
    Error,
    /// A fallback was taken, or something may fail soon.
    Warn,
    /// Worth reading once.
    Info,
    /// For those who look for a fault.
    Debug,
}

/// What the host does for a backend. Every call is thread-safe, short, and never blocks.
pub trait HostServices: Send + Sync {
    /// One line to the daemon's log.
    fn log(&self, level: Level, text: &str);
    /// Adds to a counter that `umbp status` shows under the tier. Fallbacks are named `fallback.<what>`.
    fn count(&self, name: &str, delta: u64);
    /// The only way in which an accepted operation ends. From any thread, also from inside `submit`.
    fn complete(&self, completions: &[Completion]);
}

/// The host, as a backend holds it: cheap to clone, valid until the process ends.
#[derive(Clone)]
pub struct Host(pub Arc<dyn HostServices>);

impl std::ops::Deref for Host {
    type Target = dyn HostServices;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

/// A backend: a storage tier or a mover. One value per tier of the config.
///
/// Order of calls: `check_options` (any time, without `open`), `open` once, then `segment_create` (mappable),
/// `region_register` and `namespace_put` before operations name them, `recover` until done (persistent), `submit`,
/// `cancel`, `flush`, `stats` from any thread, `shutdown` once. A panic in any call ends the tier, not the daemon.
pub trait Backend: Sized + Send + Sync + 'static {
    /// Known before `open`.
    const INFO: Info;

    /// Checks the options' TOML text; answers the resolved text (every option with its value). Opens nothing.
    fn check_options(text: &str) -> Result<String, OptionsError>;

    /// Once per tier; may block.
    fn open(config: &OpenConfig, host: Host) -> Result<(Self, Opened), OpenError>;

    /// Mappable backends: one more segment of `length` bytes, pre-faulted; may block. `id` is the host's number.
    fn segment_create(&self, id: u64, length: u64) -> Result<Segment, OpenError> {
        let _ = (id, length);
        Err(OpenError::Environment("this backend provides no segments".to_owned()))
    }

    /// Mappable backends: unmaps a segment. No operation names it any more.
    fn segment_destroy(&self, id: u64) {
        let _ = id;
    }

    /// Memory that operations may name, mapped in this process until `region_unregister` returns.
    /// `device` is empty for host memory, else the device's name.
    ///
    /// # Safety
    /// `address..address + length` is mapped, readable and writable, until `region_unregister(id)` returns.
    unsafe fn region_register(&self, id: u64, address: *mut u8, length: u64, device: &str) -> Status;

    /// No operation names the region any more. On return the backend has let go of it.
    fn region_unregister(&self, id: u64);

    /// Introduces a namespace by number, before its first use. The digest is the SHA-256 of the descriptor and tells
    /// namespaces apart; the descriptor names the tenant too. The same ones may come again. NO_SPACE where there is no
    /// room for one more: operations of that namespace are rejected from then on, and no others. Any other answer than
    /// OK is a failure of the tier. A descriptor has at most 64 KiB.
    fn namespace_put(&self, id: u32, digest: &[u8; 32], descriptor: &[u8]) -> Status;

    /// The namespace is not used any more; what is stored under it may be reclaimed.
    fn namespace_drop(&self, id: u32);

    /// Takes operations; never waits for I/O. Fills one result per operation.
    fn submit(&self, operations: &[Operation], results: &mut [Submitted]);

    /// Asks to end operations early. Each still completes exactly once, as done or as cancelled.
    fn cancel(&self, ids: &[u64]) {
        let _ = ids;
    }

    /// Makes everything completed so far durable; may block.
    fn flush(&self) -> Status {
        Status::OK
    }

    /// Persistent backends: the namespaces of an earlier life. Called once, before `recover`.
    fn recover_namespaces(&self) -> Result<Vec<RecoveredNamespace>, Status> {
        Ok(Vec::new())
    }

    /// Persistent backends: the next blocks of an earlier life, at most `limit`, pushed to `blocks`. Blocks of
    /// namespaces that were not put in this life are left out. `cursor` is 0 at first. May block.
    fn recover(&self, cursor: u64, limit: usize, blocks: &mut Vec<RecoveredBlock>) -> Result<Recovery, Status> {
        let _ = (cursor, limit, blocks);
        Ok(Recovery::Done)
    }

    /// Figures of now; never waits for I/O.
    fn stats(&self) -> Stats {
        Stats::default()
    }

    /// A call that this version of the trait does not know by name; `None` where the backend does not either.
    fn extension(&self, id: u64, input: &[u8]) -> Option<Vec<u8>> {
        let _ = (id, input);
        None
    }

    /// Ends every operation in flight (each completes), makes what is stored durable, and ends every thread of the
    /// backend within `deadline`. Called once; no call follows.
    fn shutdown(&self, deadline: Duration);
}
