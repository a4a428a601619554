//! An open backend, as the daemon calls it.

use std::ops::Range;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use abi_stable::std_types::RStr;

use crate::abi::object::BackendObject;
use crate::abi::plain::{Emit, Records, record};
use crate::abi::raw::{CursorRaw, ErrorRaw, NamespaceRaw, SegmentRaw, StatsRaw};
use crate::backend::{RecoveredNamespace, Recovery, Segment, Stats};
use crate::types::{Operation, RecoveredBlock, Status, Submitted};

use super::error::HostOpenError;
use super::services::Context;

/// An error as it came over the boundary.
#[derive(Default)]
pub(super) struct Failure {
    pub(super) kind: u32,
    pub(super) span: Range<u64>,
    pub(super) message: String,
}

impl Failure {
    /// Keeps a record of an error.
    pub(super) fn take(&mut self, records: Records<'_>) {
        let raw: ErrorRaw = records.first();
        // SAFETY: the plugin lends the message during the call that emits it, which is now.
        let message = unsafe { raw.message.string() };
        *self = Self { kind: raw.kind, span: raw.span_start..raw.span_end, message };
    }
}

/// An open backend. Each method is that of [`crate::Backend`] and blocks as that may; none panics. Once the backend
/// has panicked, every call answers [`Status::PANICKED`] without entering it; after `shutdown`, [`Status::INVALID`].
///
/// Dropping it drops the backend, also without `shutdown`. Completions may still come afterwards, from a backend that
/// breaks the contract, and reach the services.
pub struct HostedBackend {
    object: BackendObject,
    context: &'static Context,
}

impl std::fmt::Debug for HostedBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostedBackend").field("failure", &self.failure()).finish_non_exhaustive()
    }
}

impl HostedBackend {
    pub(super) fn new(object: BackendObject, context: &'static Context) -> Self {
        Self { object, context }
    }

    /// What broke it, once it is broken: a panic in the backend, or one in a host service that it called. The tier is
    /// then to be Failed and its buffers to be kept (P9).
    pub fn failure(&self) -> Option<&str> {
        self.context.failure()
    }

    /// One more segment of `length` bytes.
    pub fn segment_create(&self, id: u64, length: u64) -> Result<Segment, HostOpenError> {
        let (mut segment, mut failure) = (None, Failure::default());
        let mut collect = |kind: u32, records: Records<'_>| match kind {
            record::SEGMENT => {
                let raw: SegmentRaw = records.first();
                // SAFETY: the record hands this fd over, once; a negative one is refused first.
                let fd = (raw.fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(raw.fd) });
                segment = fd.map(|fd| Segment { fd, address: raw.address as *mut u8, length: raw.length });
            }
            record::ERROR => failure.take(records),
            _ => {}
        };
        let status = Status(self.object.segment_create(id, length, Emit::into(&mut collect)));
        match (status, segment) {
            (Status::OK, Some(segment)) if segment.length >= length && !segment.address.is_null() => Ok(segment),
            (Status::OK, _) => Err(HostOpenError::Contract(format!(
                "segment_create({length} bytes) answered no segment of that length"
            ))),
            (Status::PANICKED, _) => Err(HostOpenError::Panicked(self.failure().unwrap_or_default().to_owned())),
            (status, _) if failure.kind == 0 => {
                Err(HostOpenError::Contract(format!("segment_create was answered with {status:?}")))
            }
            _ => Err(failure.open("")),
        }
    }

    /// Unmaps a segment.
    pub fn segment_destroy(&self, id: u64) -> Status {
        Status(self.object.segment_destroy(id))
    }

    /// Introduces memory that operations may name; `device` is empty for host memory.
    ///
    /// # Safety
    /// `address..address + length` stays mapped, readable and writable, until `region_unregister(id)` has returned;
    /// after a panic of the backend, until the process ends.
    pub unsafe fn region_register(&self, id: u64, address: *mut u8, length: u64, device: &str) -> Status {
        // SAFETY: the caller's promise is passed on.
        Status(unsafe { self.object.region_register(id, address, length, RStr::from_str(device)) })
    }

    /// Takes it back. Anything but `OK` means that the backend may still use it.
    pub fn region_unregister(&self, id: u64) -> Status {
        Status(self.object.region_unregister(id))
    }

    /// Introduces a namespace by number.
    pub fn namespace_put(&self, id: u32, digest: &[u8; 32], descriptor: &[u8]) -> Status {
        Status(self.object.namespace_put(id, digest, descriptor.into()))
    }

    /// Drops a namespace.
    pub fn namespace_drop(&self, id: u32) -> Status {
        Status(self.object.namespace_drop(id))
    }

    /// Hands operations over; fills one result for each. All are refused with `PANICKED` when the backend panics (its
    /// completions may come all the same, and its buffers stay its own), and a result that has no operation is
    /// refused with `INVALID`.
    pub fn submit(&self, operations: &[Operation], results: &mut [Submitted]) {
        let (results, spare) = results.split_at_mut(results.len().min(operations.len()));
        let operations = &operations[..results.len()];
        spare.fill(Submitted::rejected(Status::INVALID));
        results.fill(Submitted::rejected(Status::FAILED));
        let words = Submitted::words_mut(results);
        let status = Status(self.object.submit(Records::of(operations), words.into()));
        if status != Status::OK {
            results.fill(Submitted::rejected(status));
        }
    }

    /// Asks to end operations early.
    pub fn cancel(&self, ids: &[u64]) -> Status {
        Status(self.object.cancel(ids.into()))
    }

    /// Makes everything completed durable.
    pub fn flush(&self) -> Status {
        Status(self.object.flush())
    }

    /// Namespaces of an earlier life.
    pub fn recover_namespaces(&self) -> Result<Vec<RecoveredNamespace>, Status> {
        let mut namespaces = Vec::new();
        let mut collect = |kind: u32, records: Records<'_>| {
            if kind == record::NAMESPACE {
                namespaces.extend(records.iter::<NamespaceRaw>().map(|raw| {
                    // SAFETY: the plugin lends the descriptor during this call.
                    let descriptor = unsafe { raw.descriptor.bytes() };
                    RecoveredNamespace { digest: raw.digest, descriptor }
                }));
            }
        };
        answered(self.object.recover_namespaces(Emit::into(&mut collect)), namespaces)
    }

    /// The next blocks of an earlier life, at most `limit`, pushed to `blocks`. More than `limit`, or no cursor, breaks
    /// the contract: `INVALID`, and no block is pushed.
    pub fn recover(&self, cursor: u64, limit: usize, blocks: &mut Vec<RecoveredBlock>) -> Result<Recovery, Status> {
        let (mut page, mut found) = (Vec::new(), None);
        let mut collect = |kind: u32, records: Records<'_>| match kind {
            record::BLOCK => page.extend(records.iter::<RecoveredBlock>().take(limit + 1)),
            record::CURSOR => found = Some(records.first::<CursorRaw>()),
            _ => {}
        };
        answered(self.object.recover(cursor, limit as u64, Emit::into(&mut collect)), ())?;
        let found = found.filter(|_| page.len() <= limit).ok_or(Status::INVALID)?;
        blocks.append(&mut page);
        Ok(if found.more == 0 { Recovery::Done } else { Recovery::More(found.cursor) })
    }

    /// Figures of now.
    pub fn stats(&self) -> Result<Stats, Status> {
        let mut raw = StatsRaw::default();
        let mut collect = |kind: u32, records: Records<'_>| {
            if kind == record::STATS {
                raw = records.first();
            }
        };
        let status = self.object.stats(Emit::into(&mut collect));
        let StatsRaw { resident_bytes, medium_bytes, blocks } = raw;
        answered(status, Stats { resident_bytes, medium_bytes, blocks })
    }

    /// A call by number; `UNSUPPORTED` where the backend does not know it.
    pub fn extension(&self, id: u64, input: &[u8]) -> Result<Vec<u8>, Status> {
        let mut output = Vec::new();
        let mut collect = |kind: u32, records: Records<'_>| {
            if kind == record::BYTES {
                output.extend_from_slice(records.as_bytes());
            }
        };
        answered(self.object.extension(id, input.into(), Emit::into(&mut collect)), output)
    }

    /// Ends every operation and every thread of the backend, within `deadline` if it keeps the contract. Once.
    pub fn shutdown(&self, deadline: Duration) -> Status {
        Status(self.object.shutdown(u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX)))
    }
}

fn answered<T>(status: u32, value: T) -> Result<T, Status> {
    if Status(status) == Status::OK { Ok(value) } else { Err(Status(status)) }
}
