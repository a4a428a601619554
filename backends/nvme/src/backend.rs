//! The seam to the host.

use std::collections::HashMap;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use umbp_plugin_api::backend::{Level, RecoveredNamespace, Recovery as Page, Stats};
use umbp_plugin_api::types::{Operation, RecoveredBlock};
use umbp_plugin_api::{Backend, Host, Info, OpenConfig, OpenError, Opened, OptionsError, Role, Status, Submitted};

use crate::format::UNIT_BYTES;
use crate::inbox::Command;
use crate::launch::{Threads, launch};
use crate::namespaces::{Namespace, NamespaceMap};
use crate::options::Options;
use crate::port::{Disk, Medium};
use crate::queue::locked;
use crate::recovery::{Step, Unread};
use crate::regions::{Address, Region, RegionMap};
use crate::store::{CAPACITY_MIN_BYTES, Opening, Store};
use crate::ticket::Slots;
use crate::verify::{VERIFY_THREADS_MAX, Verifier};

/// Longest payload, in bytes.
pub const LARGEST_PAYLOAD_BYTES: u64 = 64 << 20;
/// Ranges freed, or blocks dropped, in one step under a path's lock.
const SLICE_ENTRIES: usize = 1024;
/// How long a drop without shutdown waits for what is in flight.
const DROP_DEADLINE: Duration = Duration::from_secs(10);
/// How long a call of `recover` waits that finds nothing to do yet; loads may share its thread.
const RECOVERY_WAIT: Duration = Duration::from_millis(5);

/// The nvme tier. One value per tier of the config.
pub struct Nvme {
    pub(crate) stores: Vec<Arc<Store>>,
    pub(crate) host: Host,
    pub(crate) slots: Arc<Slots>,
    pub(crate) regions: RwLock<RegionMap>,
    pub(crate) namespaces: RwLock<NamespaceMap>,
    pub(crate) verifier: Arc<Verifier>,
    pub(crate) threads: Threads,
    recovery: Mutex<Reading>,
}

/// How far recovery has come.
#[derive(Default)]
struct Reading {
    cursor: u64,
    /// Where it goes on; those that have ended are passed over.
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

    /// Namespaces of an earlier life that were not introduced are dead from now on, and durably so before the first of
    /// their units is given out. Where nothing but them is left, all is free at once; else each block when it is read.
    fn drop_strangers(&self, store: &Store) {
        let mut namespaces = locked(&store.namespaces);
        namespaces.seal();
        let dropped = !namespaces.strangers_gone();
        if let Err(error) = namespaces.drop_strangers(&store.folder) {
            let path = store.folder.path().display();
            self.host.log(Level::Warn, &format!("path {path}: namespaces not in use stay on disk: {error}"));
        }
        let (alone, gone) = (namespaces.all_new(), namespaces.strangers_gone());
        drop(namespaces);
        if gone && dropped {
            locked(&store.space).expect_strangers();
        }
        while alone && gone && !locked(&store.space).end_recovery(SLICE_ENTRIES) {}
        store.ask_relief();
    }

    fn end_recovery(&self, store: &Store) {
        loop {
            if locked(&store.space).end_recovery(SLICE_ENTRIES) {
                break;
            }
        }
        store.ask_relief();
        store.room_made();
        let recovery = locked(&store.recovery);
        let (damaged, cut) = (recovery.damaged, recovery.beyond_end);
        if let Some(Unread { records, path, error }) = &recovery.unread {
            self.host.count("recovery.unreadable_records", *records);
            let text = format!(
                "{}: cannot be read ({error}); recovery goes without {records} records of its folder: blocks that \
                 they name are missing, and deletions among them are forgotten; check the disk",
                path.display()
            );
            self.host.log(Level::Error, &text);
        }
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
            store.ask_relief();
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
        if cursor == 0 {
            self.stores.iter().for_each(|store| self.drop_strangers(store));
        }
        let (now, count) = (Instant::now(), self.stores.len());
        let order = (reading.path..count).chain(0..reading.path);
        let left: Vec<usize> = order.filter(|path| !locked(&self.stores[*path].recovery).ended()).collect();
        let mut done = left.is_empty();
        // Where one is to be tried again later, the others go first.
        if let Some(&path) = left.iter().find(|path| !locked(&self.stores[**path].recovery).waits(now)) {
            let store = &self.stores[path];
            reading.path = path;
            let step = locked(&store.recovery).next(limit.max(1), &*store.medium, &**store, blocks);
            if step == Step::Ended {
                self.end_recovery(store);
                done = left.len() == 1;
            }
            if step == Step::Stuck {
                reading.path = (path + 1) % count;
            }
        } else if !done {
            std::thread::sleep(RECOVERY_WAIT);
        }
        reading.cursor += 1;
        Ok(if done { Page::Done } else { Page::More(reading.cursor) })
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
