//! What both runtimes are told once.

use std::path::PathBuf;
use std::time::Duration;

use umbp_connector_core::namespace::NamespaceDescriptor;

use crate::options::Options;

/// The longest wait for a first attach, while an engine starts.
const FIRST_ATTACH_MS: u64 = 1_000;

/// How long a lookup's hits are kept from eviction, unless a runtime is told otherwise.
pub const HOLD_MS: u64 = 2_000;

/// What a runtime is told once. Scheduler and workers of an engine are given the same namespace, or neither finds what
/// the other has.
#[derive(Clone, Debug)]
pub struct RuntimeOptions {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// What must match for bytes to mean the same.
    pub namespace: NamespaceDescriptor,
    /// The name that stands for the namespace in text keys; none = text names are nobody's, and fail alone.
    pub key_namespace: Option<String>,
    /// The tenant wanted; none = the first that the daemon's config allows.
    pub tenant: Option<String>,
    /// Name for the daemon's logs and status.
    pub name: String,
    /// The longest that any call waits for the daemon.
    pub timeout: Duration,
    /// The longest that an asynchronous job may take; one that is waited for ends after `timeout`.
    pub job_timeout: Duration,
    /// How long a lookup's hits are kept from eviction, at most as long as the daemon's `limits.hold`.
    pub hold: Duration,
    /// Threads that copy; none = as [`Options::new`] chooses.
    pub copy_threads: Option<usize>,
}

impl RuntimeOptions {
    /// The defaults: calls of 5 s, jobs of 30 s, holds of 2 s.
    pub fn new(socket: impl Into<PathBuf>, namespace: NamespaceDescriptor) -> Self {
        let options = Options::new(socket, Some(namespace.clone()));
        Self {
            socket: options.socket,
            namespace,
            key_namespace: None,
            tenant: None,
            name: options.name,
            timeout: options.call_timeout,
            job_timeout: options.job_timeout,
            hold: Duration::from_millis(HOLD_MS),
            copy_threads: None,
        }
    }

    pub(super) fn client(&self) -> Options {
        let mut options = Options::new(&self.socket, Some(self.namespace.clone()));
        options.tenant = self.tenant.clone();
        options.name = self.name.clone();
        options.copy_threads = self.copy_threads.unwrap_or(options.copy_threads);
        options.call_timeout = self.timeout;
        options.job_timeout = self.job_timeout;
        options
    }

    pub(super) fn first_attach(&self) -> Duration {
        self.timeout.min(Duration::from_millis(FIRST_ATTACH_MS))
    }

    pub(super) fn hold_ms(&self) -> u32 {
        u32::try_from(self.hold.as_millis()).unwrap_or(u32::MAX)
    }
}
