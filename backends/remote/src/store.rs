//! Put, get, exists, delete: blocks as objects, whatever engine holds them.
//!
//! Whoever stores a block first wins. What lies under a block's name and is not that block (cut, foreign, of another
//! version, damaged) is a miss, is counted, and is replaced by the next store: nobody else's object can be there.

use std::sync::Arc;

use tokio::time::Instant;
use umbp_plugin_api::checksum::Checksum;
use umbp_plugin_api::types::{KEY_BYTES, Operation};
use umbp_plugin_api::{Completion, Status};

use crate::calls::Calls;
use crate::header::{HEADER_BYTES, Header, Kind, Unsound};
use crate::names::Names;
use crate::objects::{Fault, Head, Objects, Stored};

/// Bytes that are copied and checked in one step: they stay in the cache between both.
pub(crate) const STEP_BYTES: usize = 64 << 10;
/// Memory of the host that an operation names: a put's is read, a get's written.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    address: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory that the host lends for the time of an operation; whoever reads or writes it through this
// does so inside that time (see `flight`).
unsafe impl Send for Buffer {}
// SAFETY: as above. Parts of one get write to stretches that do not meet.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// # Safety
    /// The memory is readable (a put) or writable by nobody else (a get) until the operation's completion, and the
    /// buffer is not used after that.
    pub(crate) unsafe fn new(address: *mut u8, bytes: usize) -> Self {
        Self { address, bytes }
    }

    /// A stretch of a put's buffer.
    pub(crate) fn read(&self, at: usize, bytes: usize) -> &[u8] {
        assert!(at <= self.bytes && bytes <= self.bytes - at, "inside the buffer");
        // SAFETY: inside the memory that `new` was promised; nobody writes to a put's buffer.
        unsafe { std::slice::from_raw_parts(self.address.add(at), bytes) }
    }

    /// Writes to a get's buffer.
    pub(crate) fn write(&self, at: usize, from: &[u8]) {
        assert!(at <= self.bytes && from.len() <= self.bytes - at, "inside the buffer");
        // SAFETY: inside the memory that `new` was promised, of which this stretch is this operation's alone.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.address.add(at), from.len()) };
    }
}

/// A block that an operation is about.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub(crate) namespace: [u8; 32],
    pub(crate) operation: Operation,
}

impl Block {
    pub(crate) fn key(&self) -> &[u8; KEY_BYTES] {
        &self.operation.key
    }

    pub(crate) fn length(&self) -> u64 {
        self.operation.length
    }

    /// Its header, as one object.
    fn header(&self) -> Header {
        Header {
            kind: Kind::Whole,
            namespace: self.namespace,
            key: self.operation.key,
            parent: self.operation.parent,
            depth: self.operation.depth,
            length: self.operation.length,
            checksum: self.operation.checksum,
            part_bytes: 0,
            parts: 0,
            part: 0,
            upload: 0,
        }
    }

    /// Its header, as parts.
    pub(crate) fn manifest(&self, part_bytes: u64, upload: u64) -> Header {
        let parts = self.length().div_ceil(part_bytes) as u32;
        Header { kind: Kind::Manifest, part_bytes, parts, upload, ..self.header() }
    }

    /// What lies under its name, read as a header of this block.
    pub(crate) fn sound(&self, head: &Head) -> Result<Header, Unsound> {
        let header = Header::decode(&head.bytes)?;
        if header.namespace != self.namespace || header.key != self.operation.key || header.kind == Kind::Part {
            return Err(Unsound::OtherKey);
        }
        match head.length {
            Some(length) if length != header.object_bytes() => Err(Unsound::Truncated),
            _ => Ok(header),
        }
    }
}

/// Blocks in an engine.
pub(crate) struct Store<O> {
    pub(crate) calls: Arc<Calls<O>>,
    pub(crate) names: Names,
    pub(crate) part_bytes: u64,
}

impl<O: Objects> Store<O> {
    fn name(&self, block: &Block) -> String {
        self.names.block(&block.namespace, block.key())
    }

    /// Where the block lies, as far as is known.
    pub(crate) fn endpoint(&self, block: &Block) -> usize {
        self.calls.objects().endpoint(&self.name(block))
    }

    /// Stores the block unless it is there.
    pub(crate) async fn put(&self, block: &Block, buffer: Buffer, until: Instant) -> Completion {
        let put = async {
            if block.length() > self.part_bytes {
                return self.put_parts(block, buffer, until).await;
            }
            let header = block.header();
            let payload = buffer.read(0, block.length() as usize);
            self.put_object(block, &header, payload, until).await
        };
        put.await.unwrap_or_else(|fault| failed(&fault))
    }

    /// Stores a block's object, whole or its manifest. OK with whose checksum is there.
    pub(crate) async fn put_object(
        &self,
        block: &Block,
        header: &Header,
        payload: &[u8],
        until: Instant,
    ) -> Result<Completion, Fault> {
        let name = self.name(block);
        let bytes = header.encode();
        let pieces: &[&[u8]] = if payload.is_empty() { &[&bytes] } else { &[&bytes, payload] };
        if self.calls.put_new(&name, pieces, until).await? == Stored::New {
            return Ok(stored(header));
        }
        if let Some(answer) = self.settle(block, &name, until).await? {
            return Ok(answer);
        }
        // What was there is gone, or worth nothing: ours takes its place, whatever is there by now.
        self.calls.replace(&name, pieces, until).await?;
        Ok(stored(header))
    }

    /// The answer to a put where something is there already; none if it is nothing of worth.
    pub(crate) async fn settle(&self, block: &Block, name: &str, until: Instant) -> Result<Option<Completion>, Fault> {
        let Some(head) = self.calls.head(name, HEADER_BYTES as u64, until).await? else { return Ok(None) };
        Ok(match block.sound(&head) {
            Ok(there) if there.length != block.length() => {
                self.calls.words.count("put.other_length");
                Some(Completion { status: Status::FAILED, ..Completion::default() })
            }
            Ok(there) => {
                let same = there.checksum == block.operation.checksum;
                self.calls.words.count(if same { "put.present" } else { "put.other" });
                Some(stored(&there))
            }
            Err(unsound) => {
                self.calls.words.count(unsound.counter());
                None
            }
        })
    }

    /// Fetches the block into the buffer, if it is the one that the operation means.
    pub(crate) async fn get(&self, block: &Block, buffer: Buffer, until: Instant) -> Completion {
        let name = self.name(block);
        // One byte more than it may have tells what is longer.
        let most = HEADER_BYTES as u64 + block.length() + 1;
        let object = match self.calls.get(&name, most, until).await {
            Ok(Some(object)) => object,
            Ok(None) => return missed(),
            Err(fault) => return failed(&fault),
        };
        let start = Head { bytes: object[..object.len().min(HEADER_BYTES)].to_vec(), length: None };
        let header = match block.sound(&start) {
            Ok(header) if header.location() != block.operation.location || header.length != block.length() => {
                // A good block, but another one.
                self.calls.words.count("object.other_block");
                return missed();
            }
            Ok(header) if header.object_bytes() == object.len() as u64 => header,
            found => {
                // So that whoever stores it next finds its place free.
                self.discard(&name, found.err().unwrap_or(Unsound::Truncated), until).await;
                return missed();
            }
        };
        let status = match header.kind {
            Kind::Manifest => match self.get_parts(block, &name, &header, buffer, until).await {
                Ok(Ok(())) => check(block, buffer),
                Ok(Err(unsound)) => {
                    self.discard(&name, unsound, until).await;
                    self.drop_parts(&name, &header);
                    return missed();
                }
                Err(fault) => return failed(&fault),
            },
            _ => copy(block, &object[HEADER_BYTES..], buffer),
        };
        drop(object);
        if status == Status::CORRUPT {
            self.discard(&name, Unsound::Corrupt, until).await;
            if header.kind == Kind::Manifest {
                self.drop_parts(&name, &header);
            }
        }
        Completion { status, length: block.length(), ..Completion::default() }
    }

    /// Takes away what is worth nothing, and counts it. That it fails is no matter: the next put replaces it.
    pub(crate) async fn discard(&self, name: &str, unsound: Unsound, until: Instant) {
        self.calls.words.count(unsound.counter());
        let _ = self.calls.delete(name, until).await;
    }

    /// Which blocks are there, in the order of the blocks.
    pub(crate) async fn exist(&self, blocks: &[Block], until: Instant) -> Vec<Completion> {
        let names: Vec<String> = blocks.iter().map(|block| self.name(block)).collect();
        let heads = self.calls.heads(&names, HEADER_BYTES as u64, until).await;
        let answer = |(block, head): (&Block, Result<Option<Head>, Fault>)| match head {
            Ok(None) => missed(),
            Err(fault) => failed(&fault),
            Ok(Some(head)) => match block.sound(&head) {
                Ok(header) => {
                    Completion { length: header.length, depth: header.depth, parent: header.parent, ..stored(&header) }
                }
                Err(unsound) => {
                    self.calls.words.count(unsound.counter());
                    missed()
                }
            },
        };
        blocks.iter().zip(heads).map(answer).collect()
    }

    /// Deletes the block that the operation means, and no other.
    pub(crate) async fn delete(&self, block: &Block, until: Instant) -> Completion {
        let delete = async {
            let name = self.name(block);
            let Some(head) = self.calls.head(&name, HEADER_BYTES as u64, until).await? else { return Ok(missed()) };
            let Ok(header) = block.sound(&head) else { return Ok(missed()) };
            if header.location() != block.operation.location {
                return Ok(missed());
            }
            let was_there = self.calls.delete(&name, until).await?;
            if header.kind == Kind::Manifest {
                self.drop_parts(&name, &header);
            }
            Ok(if was_there { Completion::default() } else { missed() })
        };
        delete.await.unwrap_or_else(|fault: Fault| failed(&fault))
    }
}

fn stored(header: &Header) -> Completion {
    let (location, checksum) = (header.location(), header.checksum);
    Completion { status: Status::OK, location, checksum, ..Completion::default() }
}

fn missed() -> Completion {
    Completion { status: Status::MISS, ..Completion::default() }
}

/// How a fault ends an operation.
pub(crate) fn failed(fault: &Fault) -> Completion {
    let status = match fault {
        Fault::Late(_) => Status::TIMED_OUT,
        Fault::Full(_) => Status::NO_SPACE,
        Fault::Unreachable(_) | Fault::Refused { .. } | Fault::Nonsense(_) => Status::IO,
    };
    Completion { status, ..Completion::default() }
}

/// Copies the payload and checks it, in one pass.
fn copy(block: &Block, payload: &[u8], buffer: Buffer) -> Status {
    let mut checksum = Checksum::new(&block.namespace, block.key(), block.length());
    for (number, step) in payload.chunks(STEP_BYTES).enumerate() {
        checksum.update(step);
        buffer.write(number * STEP_BYTES, step);
    }
    judged(block, &checksum)
}

/// Checks what is in the buffer.
fn check(block: &Block, buffer: Buffer) -> Status {
    let mut checksum = Checksum::new(&block.namespace, block.key(), block.length());
    checksum.update(buffer.read(0, block.length() as usize));
    judged(block, &checksum)
}

fn judged(block: &Block, checksum: &Checksum) -> Status {
    if checksum.finish() == block.operation.checksum { Status::OK } else { Status::CORRUPT }
}
