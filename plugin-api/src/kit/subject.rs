//! The backend under test: a shared object, or a type in this process, which is easier to debug.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{RecoveredNamespace, Recovery, Stats};
use crate::host::{CheckError, HostOpenError, HostedBackend, Plugin};
use crate::types::{Operation, RecoveredBlock, Status, Submitted};
use crate::{Backend, Host, HostServices, OpenConfig, Opened, Role, Segment};

/// What is known without `open`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// See [`crate::Info`], also for the rest.
    pub name: String,
    /// The backend's own version.
    pub version: String,
    /// Storage or mover.
    pub role: Role,
    /// Provides segments.
    pub mappable: bool,
    /// Recovers.
    pub persistent: bool,
    /// Seen by other hosts.
    pub shared: bool,
}

/// Something that can be opened as a backend, more than once.
pub trait Subject: Send + Sync {
    /// Where it comes from: a path, or the name of a type.
    fn source(&self) -> String;
    /// Asks for the facts anew: a shared object is loaded again.
    fn facts(&self) -> Result<Facts, String>;
    /// As [`Backend::check_options`].
    fn check_options(&self, text: &str) -> Result<String, CheckError>;
    /// As [`Backend::open`].
    fn open(&self, config: &OpenConfig, host: Arc<dyn HostServices>) -> Result<(Box<dyn Live>, Opened), HostOpenError>;
}

/// An open backend; its methods are those of [`HostedBackend`].
#[allow(missing_docs, reason = "the methods of `HostedBackend`")]
pub trait Live: Send + Sync {
    /// What broke it, once it is broken.
    fn failure(&self) -> Option<String>;
    fn segment_create(&self, id: u64, length: u64) -> Result<Segment, HostOpenError>;
    fn segment_destroy(&self, id: u64) -> Status;
    /// # Safety
    /// As [`Backend::region_register`].
    unsafe fn region_register(&self, id: u64, address: *mut u8, length: u64, device: &str) -> Status;
    fn region_unregister(&self, id: u64) -> Status;
    fn namespace_put(&self, id: u32, digest: &[u8; 32], descriptor: &[u8]) -> Status;
    fn namespace_drop(&self, id: u32) -> Status;
    fn submit(&self, operations: &[Operation], results: &mut [Submitted]);
    fn cancel(&self, ids: &[u64]) -> Status;
    fn flush(&self) -> Status;
    fn recover_namespaces(&self) -> Result<Vec<RecoveredNamespace>, Status>;
    fn recover(&self, cursor: u64, limit: usize, blocks: &mut Vec<RecoveredBlock>) -> Result<Recovery, Status>;
    fn stats(&self) -> Result<Stats, Status>;
    fn extension(&self, id: u64, input: &[u8]) -> Result<Vec<u8>, Status>;
    fn shutdown(&self, deadline: Duration) -> Status;
}

/// A backend's type, opened without the boundary. A panic in it is a panic of the check.
pub struct InProcess<B>(std::marker::PhantomData<fn() -> B>);

impl<B> Default for InProcess<B> {
    fn default() -> Self {
        Self(std::marker::PhantomData)
    }
}

impl<B: Backend> Subject for InProcess<B> {
    fn source(&self) -> String {
        format!("{} (in this process)", std::any::type_name::<B>())
    }

    fn facts(&self) -> Result<Facts, String> {
        let info = B::INFO;
        let (name, version) = (info.name.to_owned(), info.version.to_owned());
        let (mappable, persistent, shared) = (info.mappable, info.persistent, info.shared);
        Ok(Facts { name, version, role: info.role, mappable, persistent, shared })
    }

    fn check_options(&self, text: &str) -> Result<String, CheckError> {
        Ok(B::check_options(text)?)
    }

    fn open(&self, config: &OpenConfig, host: Arc<dyn HostServices>) -> Result<(Box<dyn Live>, Opened), HostOpenError> {
        let (backend, opened) = B::open(config, Host(host)).map_err(HostOpenError::Open)?;
        Ok((Box::new(LiveInProcess(backend)), opened))
    }
}

struct LiveInProcess<B>(B);

impl<B: Backend> Live for LiveInProcess<B> {
    fn failure(&self) -> Option<String> {
        None
    }

    fn segment_create(&self, id: u64, length: u64) -> Result<Segment, HostOpenError> {
        self.0.segment_create(id, length).map_err(HostOpenError::Open)
    }

    fn segment_destroy(&self, id: u64) -> Status {
        self.0.segment_destroy(id);
        Status::OK
    }

    unsafe fn region_register(&self, id: u64, address: *mut u8, length: u64, device: &str) -> Status {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.0.region_register(id, address, length, device) }
    }

    fn region_unregister(&self, id: u64) -> Status {
        self.0.region_unregister(id);
        Status::OK
    }

    fn namespace_put(&self, id: u32, digest: &[u8; 32], descriptor: &[u8]) -> Status {
        self.0.namespace_put(id, digest, descriptor)
    }

    fn namespace_drop(&self, id: u32) -> Status {
        self.0.namespace_drop(id);
        Status::OK
    }

    fn submit(&self, operations: &[Operation], results: &mut [Submitted]) {
        self.0.submit(operations, results);
    }

    fn cancel(&self, ids: &[u64]) -> Status {
        self.0.cancel(ids);
        Status::OK
    }

    fn flush(&self) -> Status {
        self.0.flush()
    }

    fn recover_namespaces(&self) -> Result<Vec<RecoveredNamespace>, Status> {
        self.0.recover_namespaces()
    }

    fn recover(&self, cursor: u64, limit: usize, blocks: &mut Vec<RecoveredBlock>) -> Result<Recovery, Status> {
        self.0.recover(cursor, limit, blocks)
    }

    fn stats(&self) -> Result<Stats, Status> {
        Ok(self.0.stats())
    }

    fn extension(&self, id: u64, input: &[u8]) -> Result<Vec<u8>, Status> {
        self.0.extension(id, input).ok_or(Status::UNSUPPORTED)
    }

    fn shutdown(&self, deadline: Duration) -> Status {
        self.0.shutdown(deadline);
        Status::OK
    }
}

/// A shared object.
pub struct Hosted(Plugin);

impl Hosted {
    /// Loads the file, or says why it is no backend.
    pub fn load(path: &std::path::Path) -> Result<Self, String> {
        Plugin::load(path).map(Self).map_err(|error| error.to_string())
    }
}

impl Subject for Hosted {
    fn source(&self) -> String {
        let info = self.0.info();
        format!("{} (plugin API {}.{})", info.path.display(), info.api.0, info.api.1)
    }

    fn facts(&self) -> Result<Facts, String> {
        let plugin = Plugin::load(&self.0.info().path).map_err(|error| error.to_string())?;
        let info = plugin.info();
        Ok(Facts {
            name: info.name.clone(),
            version: info.version.clone(),
            role: info.role,
            mappable: info.mappable,
            persistent: info.persistent,
            shared: info.shared,
        })
    }

    fn check_options(&self, text: &str) -> Result<String, CheckError> {
        self.0.check_options(text)
    }

    fn open(&self, config: &OpenConfig, host: Arc<dyn HostServices>) -> Result<(Box<dyn Live>, Opened), HostOpenError> {
        let (backend, opened) = self.0.open(config, host)?;
        Ok((Box::new(backend), opened))
    }
}

// An inherent method comes before the trait's of the same name, so each of these calls the backend's own.
impl Live for HostedBackend {
    fn failure(&self) -> Option<String> {
        self.failure().map(str::to_owned)
    }

    fn segment_create(&self, id: u64, length: u64) -> Result<Segment, HostOpenError> {
        self.segment_create(id, length)
    }

    fn segment_destroy(&self, id: u64) -> Status {
        self.segment_destroy(id)
    }

    unsafe fn region_register(&self, id: u64, address: *mut u8, length: u64, device: &str) -> Status {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.region_register(id, address, length, device) }
    }

    fn region_unregister(&self, id: u64) -> Status {
        self.region_unregister(id)
    }

    fn namespace_put(&self, id: u32, digest: &[u8; 32], descriptor: &[u8]) -> Status {
        self.namespace_put(id, digest, descriptor)
    }

    fn namespace_drop(&self, id: u32) -> Status {
        self.namespace_drop(id)
    }

    fn submit(&self, operations: &[Operation], results: &mut [Submitted]) {
        self.submit(operations, results);
    }

    fn cancel(&self, ids: &[u64]) -> Status {
        self.cancel(ids)
    }

    fn flush(&self) -> Status {
        self.flush()
    }

    fn recover_namespaces(&self) -> Result<Vec<RecoveredNamespace>, Status> {
        self.recover_namespaces()
    }

    fn recover(&self, cursor: u64, limit: usize, blocks: &mut Vec<RecoveredBlock>) -> Result<Recovery, Status> {
        self.recover(cursor, limit, blocks)
    }

    fn stats(&self) -> Result<Stats, Status> {
        self.stats()
    }

    fn extension(&self, id: u64, input: &[u8]) -> Result<Vec<u8>, Status> {
        self.extension(id, input)
    }

    fn shutdown(&self, deadline: Duration) -> Status {
        self.shutdown(deadline)
    }
}
