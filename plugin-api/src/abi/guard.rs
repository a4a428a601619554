//! No panic leaves the plugin.
//!
//! A panic that unwinds into abi_stable's own thunks ends the whole process, so every body is inside `catch_unwind`
//! here, `Drop` included. After a panic the object is poisoned: the backend's state cannot be trusted, so no later
//! call enters it, not even its `Drop`: the value is leaked.

use std::mem::ManuallyDrop;
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use abi_stable::std_types::{RSlice, RSliceMut, RStr};

use crate::backend::{Backend, OpenError, Recovery};
use crate::thread::guarded;
use crate::types::{Operation, Status, Submitted, code};

use super::object::Object;
use super::plain::{Emit, Records, record};
use super::raw::{CursorRaw, NamespaceRaw, SegmentRaw, StatsRaw, Text, error_kind};
use super::services::Services;

const OPEN: u8 = 0;
const SHUT: u8 = 1;
const POISONED: u8 = 2;

/// Emits why `open` or `segment_create` failed.
pub fn emit_open_error(answer: Emit<'_>, error: &OpenError) {
    match error {
        OpenError::Options(e) => answer.error(error_kind::OPTIONS, e.span.clone(), &e.message),
        OpenError::Locked(text) => answer.error(error_kind::LOCKED, 0..0, text),
        OpenError::TooLarge(text) => answer.error(error_kind::TOO_LARGE, 0..0, text),
        OpenError::Environment(text) => answer.error(error_kind::ENVIRONMENT, 0..0, text),
    }
}

/// A backend behind the boundary.
pub struct Guard<T: Backend> {
    backend: ManuallyDrop<T>,
    state: AtomicU8,
    services: Services,
}

impl<T: Backend> Guard<T> {
    /// Takes an open backend in.
    pub fn new(backend: T, services: Services) -> Self {
        Self { backend: ManuallyDrop::new(backend), state: AtomicU8::new(OPEN), services }
    }

    fn poison(&self, call: &str, text: &str) {
        self.state.store(POISONED, Ordering::Release);
        self.services.panicked(&format!("panic in {call}: {text}"));
    }

    /// Enters the backend, unless it is shut or poisoned.
    fn enter<R>(&self, call: &str, body: impl FnOnce(&T) -> R) -> Result<R, Status> {
        match self.state.load(Ordering::Acquire) {
            OPEN => {}
            SHUT => return Err(Status::INVALID),
            _ => return Err(Status::PANICKED),
        }
        guarded(|| body(&self.backend)).map_err(|text| {
            self.poison(call, &text);
            Status::PANICKED
        })
    }

    fn status(&self, call: &str, body: impl FnOnce(&T) -> Status) -> u32 {
        self.enter(call, body).unwrap_or_else(|status| status).0
    }

    fn done(&self, call: &str, body: impl FnOnce(&T)) -> u32 {
        self.status(call, |backend| {
            body(backend);
            Status::OK
        })
    }

    fn submit_known(&self, operations: &[Operation], results: &mut [Submitted]) -> Status {
        self.enter("submit", |backend| backend.submit(operations, results)).err().unwrap_or(Status::OK)
    }

    /// Submits what the plugin knows and answers the rest itself, so that a backend never meets a code that is newer
    /// than it.
    fn submit_mixed(&self, operations: &[Operation], results: &mut [Submitted]) -> Status {
        let known: Vec<usize> = (0..operations.len()).filter(|&at| is_known(operations[at].code)).collect();
        let taken: Vec<Operation> = known.iter().map(|&at| operations[at]).collect();
        let mut answers = vec![Submitted::rejected(Status::FAILED); taken.len()];
        results.fill(Submitted::rejected(Status::UNSUPPORTED));
        let status = self.submit_known(&taken, &mut answers);
        for (&at, answer) in known.iter().zip(answers) {
            results[at] = answer;
        }
        status
    }
}

fn is_known(operation: u32) -> bool {
    (code::PUT..=code::COPY_FROM_DEVICE).contains(&operation)
}

impl<T: Backend> Object for Guard<T> {
    fn segment_create(&self, id: u64, length: u64, answer: Emit<'_>) -> u32 {
        self.status("segment_create", |backend| match backend.segment_create(id, length) {
            Ok(segment) => {
                let (address, length) = (segment.address as u64, segment.length);
                let fd = segment.fd.into_raw_fd();
                answer.one(record::SEGMENT, &SegmentRaw { address, length, fd, reserved: 0 });
                Status::OK
            }
            Err(error) => {
                emit_open_error(answer, &error);
                Status::FAILED
            }
        })
    }

    fn segment_destroy(&self, id: u64) -> u32 {
        self.done("segment_destroy", |backend| backend.segment_destroy(id))
    }

    unsafe fn region_register(&self, id: u64, address: *mut u8, length: u64, device: RStr<'_>) -> u32 {
        self.status("region_register", |backend| {
            // SAFETY: the host's own promise (its method of this name is unsafe with the same words) is passed on.
            unsafe { backend.region_register(id, address, length, device.as_str()) }
        })
    }

    fn region_unregister(&self, id: u64) -> u32 {
        self.done("region_unregister", |backend| backend.region_unregister(id))
    }

    fn namespace_put(&self, id: u32, digest: &[u8; 32], descriptor: RSlice<'_, u8>) -> u32 {
        self.status("namespace_put", |backend| backend.namespace_put(id, digest, descriptor.as_slice()))
    }

    fn namespace_drop(&self, id: u32) -> u32 {
        self.done("namespace_drop", |backend| backend.namespace_drop(id))
    }

    fn submit(&self, operations: Records<'_>, mut results: RSliceMut<'_, u32>) -> u32 {
        let operations = operations.to_slice::<Operation>();
        let results = Submitted::of_words_mut(results.as_mut_slice());
        let count = operations.len().min(results.len());
        let (operations, results) = (&operations[..count], &mut results[..count]);
        let status = match operations.iter().all(|operation| is_known(operation.code)) {
            true => self.submit_known(operations, results),
            false => self.submit_mixed(operations, results),
        };
        if status != Status::OK {
            results.fill(Submitted::rejected(status));
        }
        status.0
    }

    fn cancel(&self, ids: RSlice<'_, u64>) -> u32 {
        self.done("cancel", |backend| backend.cancel(ids.as_slice()))
    }

    fn flush(&self) -> u32 {
        self.status("flush", T::flush)
    }

    fn recover_namespaces(&self, answer: Emit<'_>) -> u32 {
        self.status("recover_namespaces", |backend| match backend.recover_namespaces() {
            Ok(namespaces) => {
                for namespace in namespaces {
                    let descriptor = Text::of(&namespace.descriptor);
                    answer.one(record::NAMESPACE, &NamespaceRaw { digest: namespace.digest, descriptor });
                }
                Status::OK
            }
            Err(status) => failure(status),
        })
    }

    fn recover(&self, cursor: u64, limit: u64, answer: Emit<'_>) -> u32 {
        self.status("recover", |backend| {
            let mut blocks = Vec::new();
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let page = match backend.recover(cursor, limit, &mut blocks) {
                Ok(page) => page,
                Err(status) => return failure(status),
            };
            answer.records(record::BLOCK, Records::of(&blocks));
            let (more, cursor) = match page {
                Recovery::More(cursor) => (1, cursor),
                Recovery::Done => (0, 0),
            };
            answer.one(record::CURSOR, &CursorRaw { cursor, more, reserved: 0 });
            Status::OK
        })
    }

    fn stats(&self, answer: Emit<'_>) -> u32 {
        self.done("stats", |backend| {
            let stats = backend.stats();
            let raw = StatsRaw {
                resident_bytes: stats.resident_bytes,
                medium_bytes: stats.medium_bytes,
                blocks: stats.blocks,
            };
            answer.one(record::STATS, &raw);
        })
    }

    fn extension(&self, id: u64, input: RSlice<'_, u8>, answer: Emit<'_>) -> u32 {
        self.status("extension", |backend| match backend.extension(id, input.as_slice()) {
            Some(output) => {
                answer.records(record::BYTES, Records::bytes(&output));
                Status::OK
            }
            None => Status::UNSUPPORTED,
        })
    }

    fn shutdown(&self, deadline_ns: u64) -> u32 {
        let status = self.done("shutdown", |backend| backend.shutdown(Duration::from_nanos(deadline_ns)));
        // A panic in it has poisoned the object already, which stays so.
        let _ = self.state.compare_exchange(OPEN, SHUT, Ordering::AcqRel, Ordering::Acquire);
        status
    }
}

/// An error must not read as success, whatever the backend put into it.
fn failure(status: Status) -> Status {
    if status == Status::OK { Status::FAILED } else { status }
}

impl<T: Backend> Drop for Guard<T> {
    fn drop(&mut self) {
        if *self.state.get_mut() == POISONED {
            return;
        }
        // SAFETY: dropped once, here, and not used after. Should it panic, what is left of it is leaked.
        let dropped = guarded(|| unsafe { ManuallyDrop::drop(&mut self.backend) });
        if let Err(text) = dropped {
            self.poison("drop", &text);
        }
    }
}
