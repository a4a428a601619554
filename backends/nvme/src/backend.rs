//! The seam to the host.

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use umbp_plugin_api::backend::{Level, RecoveredNamespace, Recovery as Page, Stats};
use umbp_plugin_api::types::{Operation, RecoveredBlock, code};
use umbp_plugin_api::{
    Backend, Completion, Host, Info, OpenConfig, OpenError, Opened, OptionsError, Role, Status, Submitted,
};

use crate::format::{UNIT_BYTES, fingerprint};
use crate::keeper::Deletion;
use crate::launch::{Threads, launch};
use crate::namespaces::{Namespace, NamespaceMap};
use crate::options::Options;
use crate::port::{Direction, Disk, Medium};
use crate::queue::locked;
use crate::regions::{Address, Region, RegionMap};
use crate::space::{Live, parts, tag};
use crate::store::{CAPACITY_MIN_BYTES, Command, Opening, Store};
use crate::ticket::{Slots, Ticket};
use crate::transfer::{Buffer, Reserved, Transfer};
use crate::verify::{VERIFY_THREADS_MAX, Verifier};

/// Longest payload, in bytes.
pub const LARGEST_PAYLOAD_BYTES: u64 = 64 << 20;
/// Ranges freed, or blocks dropped, in one step under a path's lock.
const SLICE_ENTRIES: usize = 1024;
/// How long a drop without shutdown waits for what is in flight.
const DROP_DEADLINE: Duration = Duration::from_secs(10);

/// The nvme tier. One value per tier of the config.
pub struct Nvme {
    stores: Vec<Arc<Store>>,
    host: Host,
    slots: Arc<Slots>,
    regions: RwLock<RegionMap>,
    namespaces: RwLock<NamespaceMap>,
    verifier: Arc<Verifier>,
    threads: Threads,
    recovery: Mutex<Reading>,
}

/// How far recovery has come.
#[derive(Default)]
struct Reading {
    cursor: u64,
    path: usize,
}

impl Nvme {
    /// [`Backend::open`], on a medium of one's own: the real one with faults around it.
    pub fn open_on(config: &OpenConfig, host: Host, medium: Arc<dyn Medium>) -> Result<(Self, Opened), OpenError> {
        let options = Options::parse(&config.options)?;
        let count = options.paths.len();
        let capacity = config.capacity / count as u64;
        if capacity < CAPACITY_MIN_BYTES {
            let message = format!(
                "capacity = {} bytes over {count} path(s): an nvme tier needs {CAPACITY_MIN_BYTES} bytes for each path",
                config.capacity
            );
            return Err(OptionsError { message, span: 0..0 }.into());
        }
        let verifier = Verifier::new();
        let mut tier = Self {
            stores: Vec::new(),
            host: host.clone(),
            slots: Slots::new(config.slots),
            regions: RwLock::new(HashMap::new()),
            namespaces: RwLock::new(HashMap::new()),
            verifier: verifier.clone(),
            threads: Threads::new(),
            recovery: Mutex::new(Reading::default()),
        };
        let mut reports: Vec<String> = Vec::new();
        for (index, path) in options.paths.iter().enumerate() {
            let (host, medium, verifier) = (host.clone(), medium.clone(), verifier.clone());
            let opening = Opening { index, count, capacity, host, medium, verifier };
            // An error drops `tier`, which ends the threads begun so far and lets go of their locks.
            let (store, report) = launch(opening, path, &options, &tier.threads)?;
            tier.stores.push(store);
            if reports.last() != Some(&report) {
                reports.push(report);
            }
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for number in 0..cores.min(VERIFY_THREADS_MAX) {
            let verifier = verifier.clone();
            tier.threads.spawn(&format!("nvme-check-{number}"), move || verifier.run())?;
        }
        let largest_payload = LARGEST_PAYLOAD_BYTES.min(capacity / UNIT_BYTES * UNIT_BYTES);
        let report = reports.join("; ");
        Ok((tier, Opened { alignment: UNIT_BYTES, largest_payload, file_extent: true, report }))
    }

    fn take(&self, operation: &Operation) -> Submitted {
        let checked = match operation.code {
            code::PUT | code::GET => self.prepare(operation).map(Some),
            code::DELETE | code::EXISTS | code::FILE_EXTENT => Ok(None),
            _ => Err(Status::UNSUPPORTED),
        };
        let prepared = match checked {
            Ok(prepared) => prepared,
            Err(status) => return Submitted::rejected(status),
        };
        let ticket = match self.slots.take(operation.id, &self.host) {
            Ok(Some(ticket)) => ticket,
            Ok(None) => return Submitted::BUSY,
            Err(()) => return Submitted::rejected(Status::CANCELLED),
        };
        match (operation.code, prepared) {
            (code::PUT, Some((namespace, buffer))) => self.put(operation, namespace, buffer, ticket),
            (code::GET, Some((namespace, buffer))) => self.get(operation, namespace, buffer, ticket),
            (code::DELETE, _) => self.delete(operation, ticket),
            _ => self.tell(operation, ticket),
        }
        Submitted::ACCEPTED
    }

    fn prepare(&self, operation: &Operation) -> Result<(Arc<Namespace>, Buffer), Status> {
        let Operation { region, offset, length, namespace_id, .. } = *operation;
        if length == 0 || length > LARGEST_PAYLOAD_BYTES {
            return Err(Status::INVALID);
        }
        let namespaces = self.namespaces.read().unwrap_or_else(|e| e.into_inner());
        let namespace = namespaces.get(&namespace_id).cloned().ok_or(Status::INVALID)?;
        let regions = self.regions.read().unwrap_or_else(|e| e.into_inner());
        let region = regions.get(&region).ok_or(Status::INVALID)?;
        if offset.checked_add(length).is_none_or(|end| end > region.length) {
            return Err(Status::INVALID);
        }
        // SAFETY: the offset lies inside the region, which is mapped.
        let address = unsafe { region.address.0.add(offset as usize) };
        // Which path's buffers it will be is not known yet.
        Ok((namespace, Buffer { address, offset, room: region.length - offset, registered: Arc::default() }))
    }

    fn registered(&self, region: u64, path: usize) -> Arc<[u16]> {
        let regions = self.regions.read().unwrap_or_else(|e| e.into_inner());
        regions.get(&region).and_then(|region| region.registered.get(path).cloned()).unwrap_or_default()
    }

    fn put(&self, operation: &Operation, namespace: Arc<Namespace>, buffer: Buffer, ticket: Ticket) {
        let length = operation.length;
        let mut paths: Vec<usize> = (0..self.stores.len()).collect();
        if paths.len() > 1 {
            let free: Vec<u64> = self.stores.iter().map(|store| locked(&store.space).free_bytes()).collect();
            paths.sort_by_key(|&path| std::cmp::Reverse(free[path]));
        }
        let found = paths.into_iter().find_map(|path| self.stores[path].reserve(length).map(|unit| (path, unit)));
        let Some((path, unit)) = found else {
            self.host.count("no_space", 1);
            return ticket.fail(Status::NO_SPACE, 0);
        };
        let store = self.stores[path].clone();
        let reserved = Some(Reserved { store, unit, length, kept: false });
        self.hand_over(path, unit, Direction::Store, operation, namespace, buffer, reserved, ticket);
    }

    fn get(&self, operation: &Operation, namespace: Arc<Namespace>, buffer: Buffer, ticket: Ticket) {
        let Some((path, unit, block)) = self.find(operation) else { return ticket.fail(Status::MISS, 0) };
        let local = namespace.local.get(path).copied();
        if u64::from(block.length) != operation.length || local != Some(block.namespace) {
            return ticket.fail(Status::MISS, 0);
        }
        self.hand_over(path, unit, Direction::Load, operation, namespace, buffer, None, ticket);
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one transfer, put together here alone")]
    fn hand_over(
        &self,
        path: usize,
        unit: u64,
        direction: Direction,
        operation: &Operation,
        namespace: Arc<Namespace>,
        buffer: Buffer,
        reserved: Option<Reserved>,
        ticket: Ticket,
    ) {
        let buffer = Buffer { registered: self.registered(operation.region, path), ..buffer };
        let local = namespace.local.get(path).copied().unwrap_or_default();
        let operation = *operation;
        let transfer = Transfer { direction, unit, local, operation, namespace, buffer, reserved, ticket };
        // Refused by a driver that has ended: dropped, and so completed as failed.
        drop(self.stores[path].inbox.push(Command::Transfer(Box::new(transfer))));
    }

    /// Path, unit and block of an operation whose location is still current, and is its key's.
    fn find(&self, operation: &Operation) -> Option<(usize, u64, Live)> {
        let (path, unit, _) = parts(operation.location);
        let block = locked(&self.stores.get(usize::from(path))?.space).find(unit)?;
        is_meant(&block, operation).then_some((usize::from(path), unit, block))
    }

    fn delete(&self, operation: &Operation, ticket: Ticket) {
        let (path, unit, _) = parts(operation.location);
        let Some(store) = self.stores.get(usize::from(path)) else { return ticket.fail(Status::MISS, 0) };
        let mut space = locked(&store.space);
        let current = space.find(unit).is_some_and(|block| is_meant(&block, operation));
        let Some(block) = current.then(|| space.forget(unit)).flatten() else {
            drop(space);
            return ticket.fail(Status::MISS, 0);
        };
        drop(space);
        let (store, ticket) = (store.clone(), Some(ticket));
        self.stores[usize::from(path)].keeper.delete(Deletion { store, unit, block, recorded: false, ticket });
    }

    /// `exists` and `file_extent`: answered from memory.
    fn tell(&self, operation: &Operation, ticket: Ticket) {
        let Some((path, unit, block)) = self.find(operation) else { return ticket.fail(Status::MISS, 0) };
        let (location, length) = (operation.location, u64::from(block.length));
        let mut completion = Completion { location, length, ..Completion::default() };
        if operation.code == code::FILE_EXTENT {
            completion.fd = self.stores[path].data.as_raw_fd();
            completion.offset = unit * UNIT_BYTES;
        }
        ticket.finish(completion);
    }

    fn end_recovery(&self, store: &Store) {
        loop {
            if locked(&store.space).end_recovery(SLICE_ENTRIES) {
                break;
            }
        }
        if let Err(error) = locked(&store.namespaces).drop_strangers(&store.folder) {
            let path = store.folder.path().display();
            self.host.log(Level::Warn, &format!("path {path}: namespaces not in use stay on disk: {error}"));
        }
        let recovery = locked(&store.recovery);
        let (damaged, cut) = (recovery.damaged, recovery.beyond_end);
        drop(recovery);
        if damaged + cut > 0 {
            self.host.count("recovery.damaged_records", damaged);
            self.host.count("recovery.cut_blocks", cut);
            let path = store.folder.path().display();
            let text = format!("path {path}: {damaged} damaged records, {cut} blocks beyond the end of the data file");
            self.host.log(Level::Warn, &text);
        }
        let (blocks, bytes) = locked(&store.space).resident();
        let path = store.folder.path().display();
        self.host.log(Level::Info, &format!("path {path}: recovered; holds {blocks} blocks, {bytes} bytes"));
    }

    fn stop(&self, deadline: Duration) {
        let until = Instant::now() + deadline;
        self.slots.close();
        for store in &self.stores {
            // Queued transfers are given three quarters of the time, so that cancelling them still fits in.
            drop(store.inbox.push(Command::Stop(Instant::now() + deadline / 4 * 3)));
        }
        let drained = self.slots.wait_idle(until);
        self.verifier.close();
        for store in &self.stores {
            store.keeper.close();
            locked(&store.chores).stop = true;
            store.chores_changed.notify_all();
        }
        if !self.threads.join(until) || !drained {
            self.host.log(Level::Error, "nvme: not everything ended within the shutdown deadline");
        }
    }
}

/// Whether the block at the operation's location is the one that the host means, and not a later one.
fn is_meant(block: &Live, operation: &Operation) -> bool {
    let (_, _, wanted) = parts(operation.location);
    tag(block.generation) == wanted && block.fingerprint == fingerprint(&operation.key)
}

impl Backend for Nvme {
    const INFO: Info = Info {
        name: "nvme",
        version: env!("CARGO_PKG_VERSION"),
        role: Role::Storage,
        mappable: false,
        persistent: true,
        shared: false,
    };

    fn check_options(text: &str) -> Result<String, OptionsError> {
        Options::parse(text).map(|options| options.resolved())
    }

    fn open(config: &OpenConfig, host: Host) -> Result<(Self, Opened), OpenError> {
        Self::open_on(config, host, Arc::new(Disk))
    }

    unsafe fn region_register(&self, id: u64, address: *mut u8, length: u64, device: &str) -> Status {
        if !device.is_empty() {
            return Status::UNSUPPORTED;
        }
        let known = self.regions.read().unwrap_or_else(|e| e.into_inner()).contains_key(&id);
        if known || address.is_null() || length == 0 {
            return Status::INVALID;
        }
        let address = Address(address);
        let mut registered = Vec::new();
        for store in &self.stores {
            let (reply, answer) = channel();
            drop(store.inbox.push(Command::Register { address, length, reply }));
            // A driver that has ended drops the command, and with it the sender.
            registered.push(answer.recv().unwrap_or_default().into());
        }
        let region = Region { address, length, registered };
        self.regions.write().unwrap_or_else(|e| e.into_inner()).insert(id, region);
        Status::OK
    }

    fn region_unregister(&self, id: u64) {
        let region = self.regions.write().unwrap_or_else(|e| e.into_inner()).remove(&id);
        for (store, buffers) in self.stores.iter().zip(region.into_iter().flat_map(|region| region.registered)) {
            let (reply, answer) = channel();
            drop(store.inbox.push(Command::Unregister { buffers, reply }));
            let _ = answer.recv();
        }
    }

    fn namespace_put(&self, id: u32, digest: &[u8; 32], descriptor: &[u8]) -> Status {
        let known = self.namespaces.read().unwrap_or_else(|e| e.into_inner()).get(&id).cloned();
        if let Some(known) = known {
            return if known.digest == *digest { Status::OK } else { Status::INVALID };
        }
        let mut local = Vec::new();
        for store in &self.stores {
            match locked(&store.namespaces).introduce(&store.folder, id, digest, descriptor) {
                Ok(number) => local.push(number),
                Err(status) => return status,
            }
        }
        let namespace = Arc::new(Namespace { digest: *digest, local });
        self.namespaces.write().unwrap_or_else(|e| e.into_inner()).insert(id, namespace);
        Status::OK
    }

    fn namespace_drop(&self, id: u32) {
        let dropped = self.namespaces.write().unwrap_or_else(|e| e.into_inner()).remove(&id);
        let Some(dropped) = dropped else { return };
        for (store, &local) in self.stores.iter().zip(&dropped.local) {
            if let Err(error) = locked(&store.namespaces).drop_one(&store.folder, local) {
                self.host.log(Level::Warn, &format!("a dropped namespace stays on disk: {error}"));
                continue;
            }
            // On disk the blocks are dead now, without a record for each.
            let mut from = Some(0);
            while let Some(at) = from {
                let mut space = locked(&store.space);
                let (units, next) = space.of_namespace(at, local, SLICE_ENTRIES);
                for unit in units {
                    if let Some(block) = space.forget(unit) {
                        space.release(unit, u64::from(block.length));
                    }
                }
                from = next;
            }
        }
    }

    fn submit(&self, operations: &[Operation], results: &mut [Submitted]) {
        for (operation, result) in operations.iter().zip(results) {
            *result = self.take(operation);
        }
    }

    fn cancel(&self, ids: &[u64]) {
        for store in &self.stores {
            drop(store.inbox.push(Command::Cancel(ids.to_vec())));
        }
    }

    fn flush(&self) -> Status {
        let synced = self.stores.iter().map(|store| store.sync()).collect::<Vec<_>>();
        if synced.iter().all(Result::is_ok) { Status::OK } else { Status::IO }
    }

    fn recover_namespaces(&self) -> Result<Vec<RecoveredNamespace>, Status> {
        let mut found: Vec<RecoveredNamespace> = Vec::new();
        for store in &self.stores {
            for stored in locked(&store.namespaces).stored() {
                if found.iter().all(|known| known.digest != stored.digest) {
                    found.push(RecoveredNamespace { digest: stored.digest, descriptor: stored.descriptor.clone() });
                }
            }
        }
        Ok(found)
    }

    fn recover(&self, cursor: u64, limit: usize, blocks: &mut Vec<RecoveredBlock>) -> Result<Page, Status> {
        let mut reading = locked(&self.recovery);
        if cursor != reading.cursor {
            return Err(Status::INVALID);
        }
        let Some(store) = self.stores.get(reading.path) else { return Ok(Page::Done) };
        if cursor == 0 {
            self.stores.iter().for_each(|store| locked(&store.namespaces).seal());
        }
        let ended = locked(&store.recovery).next(limit.max(1), &**store, blocks).map_err(|error| {
            self.host
                .log(Level::Error, &format!("path {}: cannot read a record: {error}", store.folder.path().display()));
            Status::IO
        })?;
        if ended {
            self.end_recovery(store);
            reading.path += 1;
        }
        reading.cursor += 1;
        Ok(if reading.path == self.stores.len() { Page::Done } else { Page::More(reading.cursor) })
    }

    fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        for store in &self.stores {
            let (blocks, bytes) = locked(&store.space).resident();
            stats.blocks += blocks;
            stats.resident_bytes += bytes;
            stats.medium_bytes += store.medium_bytes();
        }
        stats
    }

    fn shutdown(&self, deadline: Duration) {
        self.stop(deadline);
    }
}

impl Drop for Nvme {
    fn drop(&mut self) {
        self.stop(DROP_DEADLINE);
    }
}
