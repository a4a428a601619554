//! A small persistent backend in memory that keeps the contract, except where its option `fault` says otherwise.
//!
//! "Persistent" between lives of one process: what a life leaves is kept under the name of its folder.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use umbp_plugin_api::backend::{RecoveredNamespace, Recovery, Stats};
use umbp_plugin_api::types::{RecoveredBlock, code};
use umbp_plugin_api::{
    Backend, Completion, Host, Info, OpenConfig, OpenError, Opened, Operation, OptionsError, Role, Status, Submitted,
    checksum,
};

/// A block's namespace digest and key.
type Name = ([u8; 32], [u8; 44]);

#[derive(Clone)]
struct Held {
    block: RecoveredBlock,
    bytes: Vec<u8>,
}

#[derive(Clone, Default)]
struct Shelf {
    blocks: BTreeMap<Name, Held>,
    graveyard: Vec<(Name, Held)>,
    namespaces: BTreeMap<[u8; 32], Vec<u8>>,
    next_location: u64,
}

/// What earlier lives left, and which folders are in use.
static SHELVES: Mutex<BTreeMap<String, Option<Shelf>>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct State {
    shelf: Shelf,
    queue: VecDeque<Operation>,
    working: usize,
    closed: bool,
    regions: HashMap<u64, (usize, u64)>,
    namespaces: HashMap<u32, [u8; 32]>,
}

struct Shared {
    host: Host,
    fault: String,
    folder: String,
    capacity: u64,
    slots: usize,
    state: Mutex<State>,
    changed: Condvar,
}

pub(crate) struct Memory {
    shared: Arc<Shared>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// The options: `folder = "…"` and `fault = "…"`, one a line.
fn parse(text: &str) -> Result<(String, String), OptionsError> {
    let (mut folder, mut fault) = (String::new(), String::new());
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let span = start..start + line.trim_end().len();
        start += line.len();
        let refused = |why: &str| OptionsError { message: format!("{why}: {}", line.trim_end()), span: span.clone() };
        let (name, value) = line.trim_end().split_once(" = ").ok_or_else(|| refused("no option"))?;
        let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        match name {
            "folder" => folder = value.ok_or_else(|| refused("no string"))?.to_owned(),
            "fault" => fault = value.ok_or_else(|| refused("no string"))?.to_owned(),
            _ if text.contains("any-option") => {}
            _ => return Err(refused("unknown option")),
        }
    }
    Ok((folder, fault))
}

impl Shared {
    fn faulty(&self, fault: &str) -> bool {
        self.fault == fault
    }

    fn region(&self, state: &State, operation: &Operation) -> Option<*mut u8> {
        let (address, length) = *state.regions.get(&operation.region)?;
        let end = operation.offset.checked_add(operation.length).filter(|end| *end <= length)?;
        Some((address + (end - operation.length) as usize) as *mut u8)
    }

    fn check(&self, state: &State, operation: &Operation) -> Result<(), Status> {
        if !(code::PUT..=code::EXISTS).contains(&operation.code) && !self.faulty("any-code") {
            return Err(Status::UNSUPPORTED);
        }
        if !state.namespaces.contains_key(&operation.namespace_id) && !self.faulty("any-namespace") {
            return Err(Status::INVALID);
        }
        let buffered = matches!(operation.code, code::PUT | code::GET) && !self.faulty("any-region");
        if buffered && self.region(state, operation).is_none() { Err(Status::INVALID) } else { Ok(()) }
    }

    fn work(&self) {
        let mut state = self.state.lock().expect("state");
        loop {
            let next = if self.holds_back(&state) { None } else { state.queue.pop_front() };
            if let Some(operation) = next {
                state.working = 1;
                let completion = self.perform(&mut state, &operation);
                drop(state);
                if !(self.faulty("loses-some") && operation.id % 7 == 3) {
                    self.host.complete(&[completion]);
                }
                if self.faulty("completes-twice") && operation.id % 7 == 3 {
                    self.host.complete(&[completion]);
                }
                state = self.state.lock().expect("state");
                state.working = 0;
            } else if state.closed {
                return;
            } else {
                state = self.changed.wait(state).expect("state");
            }
        }
    }

    /// These faults show in what is still waiting, so something has to be, however fast this thread is.
    fn holds_back(&self, state: &State) -> bool {
        let in_front = state.queue.front().map(|operation| operation.code);
        self.faulty("cancel-loses") && state.queue.len() == 1
            || self.faulty("shutdown-forgets") && in_front == Some(code::GET)
    }

    fn perform(&self, state: &mut State, operation: &Operation) -> Completion {
        let digest = state.namespaces.get(&operation.namespace_id).copied().unwrap_or_default();
        let name = (digest, operation.key);
        let buffer = self.region(state, operation);
        let mut done = Completion { id: operation.id, ..Completion::default() };
        let held = state.shelf.blocks.get(&name).filter(|held| held.block.location == operation.location);
        done.status = match (operation.code, buffer, held) {
            (code::PUT, Some(buffer), _) => return self.put(state, operation, name, buffer),
            (code::GET, Some(buffer), Some(held)) => self.get(operation, &name, held, buffer, &mut done),
            (code::EXISTS, _, Some(held)) => {
                done.location = held.block.location;
                done.length = if self.faulty("exists-lies") { 1 } else { held.block.length };
                Status::OK
            }
            (code::DELETE, _, Some(_)) => {
                let held = state.shelf.blocks.remove(&name);
                state.shelf.graveyard.extend(held.map(|held| (name, held)));
                if self.faulty("delete-keeps") {
                    state.shelf.blocks.extend(state.shelf.graveyard.pop());
                }
                Status::OK
            }
            (code::GET | code::EXISTS | code::DELETE, _, None) if !self.faulty("no-miss") => Status::MISS,
            _ => Status::OK,
        };
        done
    }

    fn put(&self, state: &mut State, operation: &Operation, name: Name, buffer: *mut u8) -> Completion {
        let id = operation.id;
        let used: u64 = state.shelf.blocks.values().map(|held| held.block.length).sum();
        if used + operation.length > self.capacity && !self.faulty("never-full") {
            return Completion { id, status: Status::NO_SPACE, ..Completion::default() };
        }
        if self.faulty("scribbles-source") {
            // SAFETY: the range was checked; that a put must not write is the point.
            unsafe { *buffer = (*buffer).wrapping_add(1) };
        }
        // SAFETY: the range was checked, and stays mapped until this operation completes.
        let bytes = unsafe { std::slice::from_raw_parts(buffer, operation.length as usize) }.to_vec();
        state.shelf.next_location += 1;
        let location = state.shelf.next_location;
        let block = RecoveredBlock {
            key: operation.key,
            namespace_id: 0,
            parent: operation.parent,
            depth: operation.depth,
            length: operation.length,
            checksum: operation.checksum,
            location,
            recency: operation.recency,
        };
        state.shelf.blocks.insert(name, Held { block, bytes });
        Completion { id, location, ..Completion::default() }
    }

    fn get(&self, operation: &Operation, name: &Name, held: &Held, buffer: *mut u8, done: &mut Completion) -> Status {
        if held.block.length != operation.length {
            return Status::MISS;
        }
        // SAFETY: the range was checked, and the buffer is this operation's alone until it completes.
        unsafe { std::ptr::copy_nonoverlapping(held.bytes.as_ptr(), buffer, held.bytes.len()) };
        done.length = held.block.length;
        if self.faulty("wrong-bytes") && done.length > 100_000 {
            // SAFETY: as above.
            unsafe { *buffer.add(99_999) ^= 1 };
        }
        if self.faulty("scribbles-behind") {
            // SAFETY: the kit's region is longer; that this is not the buffer is the point.
            unsafe { *buffer.add(held.bytes.len().next_multiple_of(4096)) ^= 1 };
        }
        let found = checksum::of_block(&name.0, &name.1, &held.bytes);
        if found == operation.checksum || self.faulty("no-checksum") { Status::OK } else { Status::CORRUPT }
    }
}

impl Backend for Memory {
    const INFO: Info =
        Info { name: "memory", version: "1", role: Role::Storage, mappable: false, persistent: true, shared: false };

    fn check_options(text: &str) -> Result<String, OptionsError> {
        let (folder, fault) = parse(text)?;
        let twice = if fault == "unresolved" && text.contains("folder") { "fault = \"other\"\n" } else { "" };
        Ok(format!("folder = \"{folder}\"\nfault = \"{fault}\"\n{twice}"))
    }

    fn open(config: &OpenConfig, host: Host) -> Result<(Self, Opened), OpenError> {
        let (folder, fault) = parse(&config.options)?;
        let mut shelves = SHELVES.lock().expect("shelves");
        let shelf = match shelves.insert(folder.clone(), None) {
            Some(Some(shelf)) => shelf,
            None => Shelf::default(),
            Some(None) if fault == "no-lock" => Shelf::default(),
            Some(None) => return Err(OpenError::Locked(format!("{folder} is in use"))),
        };
        drop(shelves);
        let shared = Arc::new(Shared {
            host,
            fault,
            folder,
            capacity: config.capacity,
            slots: config.slots as usize,
            state: Mutex::new(State { shelf, ..State::default() }),
            changed: Condvar::new(),
        });
        if shared.faulty("leaves-a-thread") {
            std::thread::spawn(|| std::thread::park_timeout(Duration::from_secs(60)));
        }
        let own = Arc::clone(&shared);
        let thread = std::thread::spawn(move || own.work());
        let report = if shared.faulty("silent") { "" } else { "in memory" }.to_owned();
        let opened = Opened { alignment: 1, largest_payload: config.capacity, file_extent: false, report };
        Ok((Self { shared, thread: Mutex::new(Some(thread)) }, opened))
    }

    unsafe fn region_register(&self, id: u64, address: *mut u8, length: u64, _device: &str) -> Status {
        self.shared.state.lock().expect("state").regions.insert(id, (address.addr(), length));
        Status::OK
    }

    fn region_unregister(&self, id: u64) {
        if !self.shared.faulty("keeps-region") {
            self.shared.state.lock().expect("state").regions.remove(&id);
        }
    }

    fn namespace_put(&self, id: u32, digest: &[u8; 32], descriptor: &[u8]) -> Status {
        let mut state = self.shared.state.lock().expect("state");
        state.namespaces.insert(id, *digest);
        state.shelf.namespaces.insert(*digest, descriptor.to_vec());
        Status::OK
    }

    fn namespace_drop(&self, id: u32) {
        self.shared.state.lock().expect("state").namespaces.remove(&id);
    }

    fn submit(&self, operations: &[Operation], results: &mut [Submitted]) {
        let mut state = self.shared.state.lock().expect("state");
        for (operation, result) in operations.iter().zip(results) {
            *result = match self.shared.check(&state, operation) {
                Err(status) => Submitted::rejected(status),
                Ok(()) if state.queue.len() + state.working >= self.shared.slots => Submitted::BUSY,
                Ok(()) if self.shared.faulty("always-busy") => Submitted::BUSY,
                Ok(()) => {
                    state.queue.push_back(*operation);
                    Submitted::ACCEPTED
                }
            };
            if self.shared.faulty("completes-refused") && *result != Submitted::ACCEPTED {
                self.shared.host.complete(&[Completion { id: operation.id, ..Completion::default() }]);
            }
        }
        assert!(!self.shared.faulty("panics"), "asked to panic");
        drop(state);
        self.shared.changed.notify_all();
    }

    fn cancel(&self, ids: &[u64]) {
        let mut state = self.shared.state.lock().expect("state");
        let (out, kept): (VecDeque<Operation>, _) = state.queue.drain(..).partition(|o| ids.contains(&o.id));
        state.queue = kept;
        drop(state);
        if !self.shared.faulty("cancel-loses") {
            end_all(&self.shared.host, &out);
        }
    }

    fn recover_namespaces(&self) -> Result<Vec<RecoveredNamespace>, Status> {
        let state = self.shared.state.lock().expect("state");
        let namespaces = state.shelf.namespaces.iter();
        Ok(namespaces.map(|(digest, text)| RecoveredNamespace { digest: *digest, descriptor: text.clone() }).collect())
    }

    fn recover(&self, cursor: u64, limit: usize, blocks: &mut Vec<RecoveredBlock>) -> Result<Recovery, Status> {
        let mut state = self.shared.state.lock().expect("state");
        if self.shared.faulty("revives") {
            let dead: Vec<_> = state.shelf.graveyard.drain(..).collect();
            state.shelf.blocks.extend(dead);
        }
        let numbers: HashMap<[u8; 32], u32> = state.namespaces.iter().map(|(id, digest)| (*digest, *id)).collect();
        let limit = if self.shared.faulty("pages-too-long") { limit + 1 } else { limit };
        let told = state.shelf.blocks.len().saturating_sub(usize::from(self.shared.faulty("loses-the-last")));
        let page: Vec<_> = state.shelf.blocks.iter().take(told).skip(cursor as usize).take(limit).collect();
        for (name, held) in &page {
            let number = numbers.get(&name.0).copied().or(self.shared.faulty("all-namespaces").then_some(1));
            let Some(namespace_id) = number else { continue };
            let mut block = RecoveredBlock { namespace_id, ..held.block };
            if self.shared.faulty("forgets-parents") {
                block.parent = [0; 44];
            }
            blocks.push(block);
        }
        let next = cursor + page.len() as u64;
        Ok(if next >= told as u64 { Recovery::Done } else { Recovery::More(next) })
    }

    fn stats(&self) -> Stats {
        let state = self.shared.state.lock().expect("state");
        let bytes = state.shelf.blocks.values().map(|held| held.block.length).sum();
        let blocks = if self.shared.faulty("counts-wrong") { 7 } else { state.shelf.blocks.len() as u64 };
        Stats { resident_bytes: bytes, medium_bytes: bytes, blocks }
    }

    fn shutdown(&self, _deadline: Duration) {
        let mut state = self.shared.state.lock().expect("state");
        state.closed = true;
        let waiting = std::mem::take(&mut state.queue);
        drop(state);
        self.shared.changed.notify_all();
        if !self.shared.faulty("shutdown-forgets") {
            end_all(&self.shared.host, &waiting);
        }
        if self.shared.faulty("hangs") {
            std::thread::park_timeout(Duration::from_secs(60));
        }
        if let Some(thread) = self.thread.lock().expect("thread").take() {
            thread.join().expect("the worker ends in order");
        }
        let state = std::mem::take(&mut *self.shared.state.lock().expect("state"));
        SHELVES.lock().expect("shelves").insert(self.shared.folder.clone(), Some(state.shelf));
    }
}

fn end_all(host: &Host, operations: &VecDeque<Operation>) {
    let end = |o: &Operation| Completion { id: o.id, status: Status::CANCELLED, ..Completion::default() };
    host.complete(&operations.iter().map(end).collect::<Vec<_>>());
}
