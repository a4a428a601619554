//! What a client is told once, and why it could not be had.

use std::path::PathBuf;
use std::time::Duration;

use umbp_connector_core::namespace::NamespaceDescriptor;
use umbp_protocol::message::Refusal;

/// Most blocks of one job, since its keys travel in one message.
pub const JOB_BLOCKS_MAX: usize = umbp_protocol::message::KEYS_PER_MESSAGE_MAX;
/// Most jobs that are open, or ended and not yet polled; a further one is refused as [`Error::Busy`].
pub const JOBS_MAX: usize = 4096;
/// Most blocks of open jobs, all together; a job beyond it is refused as [`Error::Busy`]. It bounds the copy queue.
pub const COPY_QUEUE_BLOCKS_MAX: usize = 65_536;
/// Most copy threads.
pub const COPY_THREADS_MAX: usize = 64;

/// The longest wait for one answer, unless a client is told another.
pub const CALL_TIMEOUT_MS: u64 = 5_000;
/// The longest that a job may take, unless a client is told otherwise.
pub const JOB_TIMEOUT_MS: u64 = 30_000;

/// Which copies compute and compare the block's checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksums {
    /// Every store; loads from a lower tier, and from the first one where the daemon's config says so.
    #[default]
    Policy,
    /// Every store and every load.
    Always,
    /// None: for measuring what they cost, and nothing else. What is stored so cannot be verified later.
    Off,
}

/// What a client is told once.
#[derive(Clone, Debug)]
pub struct Options {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// The tenant wanted; none = the first that the daemon's config allows.
    pub tenant: Option<String>,
    /// The namespace of all keys; none = this client only asks for status.
    pub namespace: Option<NamespaceDescriptor>,
    /// Name for the daemon's logs and status.
    pub name: String,
    /// Threads that copy, 1 to [`COPY_THREADS_MAX`].
    pub copy_threads: usize,
    /// The longest that one request may wait for its answer; past it the session is given up and attached anew.
    pub call_timeout: Duration,
    /// The longest that a job may take, waiting for promotions included; past it what is left of it fails.
    pub job_timeout: Duration,
    /// See [`Checksums`].
    pub checksums: Checksums,
    /// Fill the page tables of mapped segments in the background, so that no copy pays for first touches.
    pub populate: bool,
}

impl Options {
    /// The defaults, for this socket and namespace: min(4, cores) copy threads, calls of 5 s, jobs of 30 s.
    pub fn new(socket: impl Into<PathBuf>, namespace: Option<NamespaceDescriptor>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            socket: socket.into(),
            tenant: None,
            namespace,
            name: concat!("umbp-client ", env!("CARGO_PKG_VERSION")).to_owned(),
            copy_threads: cores.min(4),
            call_timeout: Duration::from_millis(CALL_TIMEOUT_MS),
            job_timeout: Duration::from_millis(JOB_TIMEOUT_MS),
            checksums: Checksums::Policy,
            populate: true,
        }
    }
}

/// Why a call did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No session now; the client attaches in the background.
    #[error("not attached to the daemon at {socket}: {reason}")]
    Detached {
        /// The daemon's socket.
        socket: PathBuf,
        /// Why the last attempt failed.
        reason: String,
    },
    /// The session ended while the call waited.
    #[error("the session with the daemon ended: {0}")]
    SessionLost(String),
    /// No answer in time; the session was given up.
    #[error("no answer to {request} within {after:?}; the session was given up")]
    TimedOut {
        /// Name of the request.
        request: &'static str,
        /// How long it waited.
        after: Duration,
    },
    /// The daemon refused the request or the session.
    #[error("the daemon refused: {} ({})", .0.message, .0.code)]
    Refused(Refusal),
    /// A bound of this client is reached: too many jobs or blocks are open.
    #[error("{what} are {open}, limit {limit}: wait for jobs to end and poll them")]
    Busy {
        /// What there is too much of.
        what: &'static str,
        /// How many there would be.
        open: usize,
        /// The bound.
        limit: usize,
    },
    /// An argument is wrong.
    #[error("{field} is {value}: {remedy}")]
    Argument {
        /// Name of the argument.
        field: &'static str,
        /// What it says.
        value: String,
        /// What it should say.
        remedy: &'static str,
    },
    /// This process was forked off the one that attached; it must attach for itself.
    #[error("this process was forked after the client attached: connect anew in the child")]
    Forked,
    /// A thread could not be started.
    #[error("could not start a thread: {0}")]
    Threads(String),
}
