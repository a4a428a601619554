//! The trait that the daemon calls: operations become work for the pool.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use umbp_plugin_api::backend::{RecoveredNamespace, Recovery, Stats};
use umbp_plugin_api::types::{RecoveredBlock, code};
use umbp_plugin_api::{
    Backend, Completion, Host, Info, OpenConfig, OpenError, Opened, Operation, OptionsError, Role, Status, Submitted,
};

use crate::file::Header;
use crate::options::Options;
use crate::pool::{NotTaken, Pool, Ticket};
use crate::store::{Failure, Store, Wanted};

/// Memory of the daemon that operations may name.
#[derive(Clone, Copy)]
struct Region {
    address: usize,
    length: u64,
}

/// The buffer of one operation. Between taking and completing a get it is ours alone; a put shares it with readers.
#[derive(Clone, Copy)]
struct Buffer {
    address: usize,
    length: usize,
}

/// A tier in a directory.
pub struct Filesystem {
    store: Arc<Store>,
    pool: Pool,
    regions: RwLock<HashMap<u64, Region>>,
    namespaces: RwLock<HashMap<u32, [u8; 32]>>,
    /// What an earlier life left, until it is handed over.
    found: Mutex<Vec<Header>>,
}

impl Filesystem {
    fn found(&self) -> MutexGuard<'_, Vec<Header>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn namespace(&self, id: u32) -> Result<[u8; 32], Submitted> {
        let namespaces = self.namespaces.read().unwrap_or_else(PoisonError::into_inner);
        namespaces.get(&id).copied().ok_or(Submitted::rejected(Status::INVALID))
    }

    /// The operation's buffer, if it lies wholly inside its region.
    fn buffer(&self, operation: &Operation) -> Result<Buffer, Submitted> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let region = regions.get(&operation.region);
        let end = operation.offset.checked_add(operation.length);
        match region.filter(|region| end.is_some_and(|end| end <= region.length)) {
            Some(region) => {
                let address = region.address + operation.offset as usize;
                Ok(Buffer { address, length: operation.length as usize })
            }
            None => Err(Submitted::rejected(Status::INVALID)),
        }
    }

    fn submit_one(&self, operation: &Operation) -> Result<(), Submitted> {
        let known = [code::PUT, code::GET, code::DELETE, code::EXISTS];
        if !known.contains(&operation.code) {
            return Err(Submitted::rejected(Status::UNSUPPORTED));
        }
        let namespace = self.namespace(operation.namespace_id)?;
        let wanted = Wanted { namespace, key: operation.key, location: operation.location };
        let store = Arc::clone(&self.store);
        let work: Box<dyn FnOnce(Ticket) + Send> = match operation.code {
            code::PUT => {
                let (buffer, header) = (self.buffer(operation)?, header(operation, namespace));
                Box::new(move |ticket| end(ticket, put(&store, &header, buffer)))
            }
            code::GET => {
                let (buffer, checksum) = (self.buffer(operation)?, operation.checksum);
                Box::new(move |ticket| end(ticket, get(&store, &wanted, checksum, buffer)))
            }
            code::DELETE => Box::new(move |ticket| {
                end(ticket, store.delete(&wanted).map(|()| Completion::default()));
            }),
            _ => Box::new(move |ticket| {
                let found = store.exists(&wanted);
                let told = |h: Header| Completion { location: h.location, length: h.length, ..Completion::default() };
                end(ticket, found.map(told));
            }),
        };
        self.pool.take(operation.id, work).map_err(|why| match why {
            NotTaken::Busy => Submitted::BUSY,
            NotTaken::Closed => Submitted::rejected(Status::FAILED),
        })
    }
}

fn header(operation: &Operation, namespace: [u8; 32]) -> Header {
    Header {
        namespace,
        key: operation.key,
        parent: operation.parent,
        depth: operation.depth,
        length: operation.length,
        checksum: operation.checksum,
        recency: operation.recency,
        location: 0,
    }
}

fn put(store: &Store, header: &Header, buffer: Buffer) -> Result<Completion, Failure> {
    // SAFETY: the range was checked against its region, which stays mapped until this operation completes, and nobody
    // writes to the buffer of a put before that.
    let payload = unsafe { std::slice::from_raw_parts(buffer.address as *const u8, buffer.length) };
    let location = store.put(header, payload)?;
    Ok(Completion { location, ..Completion::default() })
}

fn get(store: &Store, wanted: &Wanted, checksum: u64, buffer: Buffer) -> Result<Completion, Failure> {
    // SAFETY: as for `put`; and the buffer of a get is this backend's alone until it completes.
    let payload = unsafe { std::slice::from_raw_parts_mut(buffer.address as *mut u8, buffer.length) };
    store.get(wanted, checksum, payload)?;
    Ok(Completion { length: buffer.length as u64, ..Completion::default() })
}

fn end(ticket: Ticket, result: Result<Completion, Failure>) {
    ticket.end(result.unwrap_or_else(|(status, errno)| Completion { status, errno, ..Completion::default() }));
}

impl Backend for Filesystem {
    const INFO: Info = Info {
        name: "filesystem",
        version: env!("CARGO_PKG_VERSION"),
        role: Role::Storage,
        mappable: false,
        persistent: true,
        shared: false,
    };

    fn check_options(text: &str) -> Result<String, OptionsError> {
        Ok(Options::parse(text)?.resolved())
    }

    fn open(config: &OpenConfig, host: Host) -> Result<(Self, Opened), OpenError> {
        let options = Options::parse(&config.options)?;
        let (store, found) = Store::open(&options.path, config.capacity)?;
        let pool = Pool::start(options.workers, config.slots, &host)
            .map_err(|error| OpenError::Environment(format!("cannot start {} threads: {error}", options.workers)))?;
        let (blocks, path) = (found.len(), options.path.display());
        let report = format!("one file per block in {path}, {} threads, {blocks} blocks found", options.workers);
        let opened = Opened { alignment: 1, largest_payload: config.capacity, file_extent: false, report };
        let backend = Self {
            store: Arc::new(store),
            pool,
            regions: RwLock::default(),
            namespaces: RwLock::default(),
            found: Mutex::new(found),
        };
        Ok((backend, opened))
    }

    unsafe fn region_register(&self, id: u64, address: *mut u8, length: u64, device: &str) -> Status {
        if !device.is_empty() {
            return Status::UNSUPPORTED;
        }
        let region = Region { address: address.addr(), length };
        self.regions.write().unwrap_or_else(PoisonError::into_inner).insert(id, region);
        Status::OK
    }

    fn region_unregister(&self, id: u64) {
        self.regions.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    fn namespace_put(&self, id: u32, digest: &[u8; 32], descriptor: &[u8]) -> Status {
        if self.store.put_namespace(digest, descriptor).is_err() {
            return Status::IO;
        }
        self.namespaces.write().unwrap_or_else(PoisonError::into_inner).insert(id, *digest);
        Status::OK
    }

    fn namespace_drop(&self, id: u32) {
        self.namespaces.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    fn submit(&self, operations: &[Operation], results: &mut [Submitted]) {
        for (operation, result) in operations.iter().zip(results) {
            *result = self.submit_one(operation).err().unwrap_or(Submitted::ACCEPTED);
        }
    }

    fn cancel(&self, ids: &[u64]) {
        self.pool.cancel(ids);
    }

    fn flush(&self) -> Status {
        if self.store.flush().is_ok() { Status::OK } else { Status::IO }
    }

    fn recover_namespaces(&self) -> Result<Vec<RecoveredNamespace>, Status> {
        self.store.namespaces().map_err(|_| Status::IO)
    }

    fn recover(&self, _cursor: u64, limit: usize, blocks: &mut Vec<RecoveredBlock>) -> Result<Recovery, Status> {
        // What was handed over is forgotten, so the cursor tells nothing that the list does not.
        let mut found = self.found();
        let namespaces = self.namespaces.read().unwrap_or_else(PoisonError::into_inner);
        let wanted = blocks.len() + limit;
        while blocks.len() < wanted
            && let Some(header) = found.pop()
        {
            let number = namespaces.iter().find(|(_, digest)| **digest == header.namespace);
            if let Some((&namespace_id, _)) = number {
                blocks.push(recovered(&header, namespace_id));
            }
        }
        Ok(if found.is_empty() { Recovery::Done } else { Recovery::More(1) })
    }

    fn stats(&self) -> Stats {
        self.store.stats()
    }

    fn shutdown(&self, deadline: Duration) {
        self.pool.close(deadline);
        let _ = self.store.flush();
    }
}

fn recovered(header: &Header, namespace_id: u32) -> RecoveredBlock {
    RecoveredBlock {
        key: header.key,
        namespace_id,
        parent: header.parent,
        depth: header.depth,
        length: header.length,
        checksum: header.checksum,
        location: header.location,
        recency: header.recency,
    }
}
