//! The verifying threads: the checksum of each loaded block, before anybody may believe its bytes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use umbp_plugin_api::checksum::Checksum;
use umbp_plugin_api::{Completion, Status};

use crate::queue::{Queue, locked};
use crate::store::Store;
use crate::transfer::{Bounce, Transfer};

/// Most verifying threads of a tier.
pub(crate) const VERIFY_THREADS_MAX: usize = 4;

/// A block whose bytes came from the disk.
pub(crate) struct Loaded {
    pub(crate) store: Arc<Store>,
    pub(crate) transfer: Transfer,
    pub(crate) bounce: Option<Bounce>,
}

/// Hands blocks to the verifying threads.
pub(crate) struct Verifier(Queue<Loaded>);

impl Verifier {
    /// Nothing to do yet.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Queue::new()))
    }

    /// Takes a block; dropping one that is refused completes it as failed.
    pub(crate) fn verify(&self, loaded: Loaded) {
        drop(self.0.push(loaded));
    }

    /// Ends the threads once all is done.
    pub(crate) fn close(&self) {
        self.0.close();
    }

    /// Body of a thread. A panic fails the block at hand and no other (D5).
    pub(crate) fn run(&self) {
        while let Some(loaded) = self.0.pop() {
            let host = loaded.store.host.clone();
            if catch_unwind(AssertUnwindSafe(|| check(loaded))).is_err() {
                host.count("panics", 1);
            }
        }
    }
}

fn check(loaded: Loaded) {
    let Loaded { store, transfer, bounce } = loaded;
    let (operation, length) = (transfer.operation, transfer.operation.length as usize);
    // SAFETY: the buffer is this operation's alone until its completion, and `submit` checked its range.
    let buffer = unsafe { std::slice::from_raw_parts_mut(transfer.buffer.address, length) };
    let payload: &[u8] = match &bounce {
        Some(bounce) => &bounce.bytes()[..length],
        None => buffer,
    };
    let mut checksum = Checksum::new(&transfer.namespace.digest, &operation.key, operation.length);
    checksum.update(payload);
    if checksum.finish() != operation.checksum {
        return store.fail(transfer, Status::CORRUPT, 0);
    }
    if let Some(bounce) = &bounce {
        buffer.copy_from_slice(&bounce.bytes()[..length]);
    }
    // A block that was deleted meanwhile passes too: the bytes are the right ones.
    transfer.succeed(Completion { length: operation.length, location: operation.location, ..Completion::default() });
}

impl Store {
    /// Ends a transfer that failed. What was deleted while it was read is missing, not corrupt.
    pub(crate) fn fail(&self, transfer: Transfer, status: Status, errno: i32) {
        let (_, unit, tag) = crate::space::parts(transfer.operation.location);
        let load = transfer.direction == crate::port::Direction::Load;
        let there = locked(&self.space).find(unit).is_some_and(|live| crate::space::tag(live.generation) == tag);
        if load && !there && matches!(status, Status::CORRUPT | Status::IO) {
            return transfer.fail(Status::MISS, 0);
        }
        match status {
            Status::CORRUPT => self.host.count("corrupt", 1),
            Status::IO => self.host.count("io_errors", 1),
            _ => {}
        }
        transfer.fail(status, errno);
    }
}
