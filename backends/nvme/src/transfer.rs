//! One put or get on its way, and the memory it uses.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use umbp_plugin_api::types::Operation;
use umbp_plugin_api::{Completion, Status};

use crate::format::UNIT_BYTES;
use crate::namespaces::Namespace;
use crate::port::Direction;
use crate::queue::locked;
use crate::store::Store;
use crate::ticket::Ticket;

/// Memory of its own, aligned to a unit, for buffers that the kernel would not take.
pub(crate) struct Bounce {
    memory: NonNull<u8>,
    layout: Layout,
    leaked: bool,
}

// SAFETY: it owns its memory, and gives it out by reference alone.
unsafe impl Send for Bounce {}

impl Bounce {
    /// `length` zero bytes; at least one unit is taken.
    pub(crate) fn new(length: usize) -> Self {
        let layout = Layout::from_size_align(length.max(1), UNIT_BYTES as usize).unwrap_or(Layout::new::<u64>());
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        Self { memory, layout, leaked: false }
    }

    /// What it holds.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is this value's own, and initialised by `alloc_zeroed`.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.layout.size()) }
    }

    /// What it holds, to be changed.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.layout.size()) }
    }

    /// The kernel may still write to it: never give it back.
    pub(crate) fn leak(&mut self) {
        self.leaked = true;
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        if !self.leaked {
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(self.memory.as_ptr(), self.layout) };
        }
    }
}

/// The host's buffer of one operation.
#[derive(Clone)]
pub(crate) struct Buffer {
    /// Its start.
    pub(crate) address: *mut u8,
    /// Its offset in its region, in bytes.
    pub(crate) offset: u64,
    /// Bytes from its start to the end of its region.
    pub(crate) room: u64,
    /// Registered buffers of the region, one per [`crate::regions::CHUNK_BYTES`]; empty where there are none.
    pub(crate) registered: Arc<[u16]>,
}

// SAFETY: the host keeps the region mapped while operations name it, and grants the buffer to the operation.
unsafe impl Send for Buffer {}

/// Units of a put that has no record yet; given back on drop.
pub(crate) struct Reserved {
    pub(crate) store: Arc<Store>,
    pub(crate) unit: u64,
    pub(crate) length: u64,
    pub(crate) kept: bool,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if !self.kept {
            locked(&self.store.space).abandon(self.unit, self.length);
        }
    }
}

/// A put that waits for room; counted so until it is dropped.
pub(crate) struct Awaited {
    pub(crate) store: Arc<Store>,
    pub(crate) length: u64,
    pub(crate) since: Instant,
    /// Of punches, when it began to wait.
    pub(crate) failures: u64,
}

impl Drop for Awaited {
    fn drop(&mut self) {
        locked(&self.store.space).wait_ended(self.length);
    }
}

/// Where a transfer's block lies, or will.
pub(crate) enum Place {
    /// A block that is there.
    Load(u64),
    /// Units were taken for it.
    Store(Reserved),
    /// Units are to be taken for it.
    Await(Awaited),
}

/// A put or get that was accepted. The order of fields matters: units are given back before the ticket completes, so
/// that a host which deletes and stores again at once finds the room.
pub(crate) struct Transfer {
    pub(crate) direction: Direction,
    pub(crate) unit: u64,
    /// Local namespace id in the path.
    pub(crate) local: u32,
    pub(crate) operation: Operation,
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) buffer: Buffer,
    pub(crate) reserved: Option<Reserved>,
    /// It has no units yet.
    pub(crate) awaited: Option<Awaited>,
    pub(crate) ticket: Ticket,
}

impl Transfer {
    /// Ends it without success.
    pub(crate) fn fail(self, status: Status, errno: i32) {
        let Self { reserved, awaited, ticket, .. } = self;
        drop((reserved, awaited));
        ticket.fail(status, errno);
    }

    /// Ends it with success.
    pub(crate) fn succeed(self, completion: Completion) {
        self.ticket.finish(Completion { status: Status::OK, ..completion });
    }
}
