//! A daemon in a test's own hands, over a real socket, with real memfds: the test answers each request itself.

#![allow(dead_code, missing_docs, unreachable_pub)]

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use umbp_client::{Client, JobId, LoadBlock, Options, Outcome, RegionId, Run, StoreBlock};
use umbp_connector_core::key::{BlockHash, GroupId, LocalKey, Rank};
use umbp_connector_core::namespace::{NamespaceDescriptor, tenant_digest};
use umbp_protocol::message::*;
use umbp_protocol::{Decoder, decode_request, encode_event, encode_reply, fds};

pub const SEGMENT: u32 = 3;
pub const SEGMENT_BYTES: u64 = 16 << 20;
pub const WORDS: u64 = 512;
pub const LEASE_MS: u32 = 10_000;
/// Far beyond what any step takes; a test that waits so long has failed.
pub const LONG: Duration = Duration::from_secs(20);

pub struct Fake {
    listener: UnixListener,
    directory: tempfile::TempDir,
}

pub struct Peer {
    pub hello: Hello,
    pub segment: File,
    pub generations: File,
    pub boot_id: u64,
    /// Lives given to each Renew, in order, the last one for ever; empty = a Renew is handed to the test.
    pub renewals: Vec<u32>,
    pub renewed: usize,
    stream: UnixStream,
    decoder: Decoder,
}

const TENANT: &str = "default";

/// What goes into checksums.
pub fn digest() -> [u8; 32] {
    tenant_digest(TENANT, &namespace().encode()).0
}

pub fn namespace() -> NamespaceDescriptor {
    NamespaceDescriptor::default().with("model", "test").with("block_size", 16)
}

fn memfd(bytes: u64) -> File {
    let fd = rustix::fs::memfd_create("fake", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
    let file = File::from(fd);
    file.set_len(bytes).expect("sized");
    file
}

impl Fake {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let listener = UnixListener::bind(directory.path().join("socket")).expect("bound");
        Self { listener, directory }
    }

    pub fn options(&self) -> Options {
        let mut options = Options::new(self.directory.path().join("socket"), Some(namespace()));
        options.copy_threads = 2;
        options.call_timeout = LONG;
        options
    }

    /// Accepts one session and welcomes it, with one segment.
    pub fn accept(&self, boot_id: u64, session: u64) -> Peer {
        self.accept_with(boot_id, session, |_| ())
    }

    pub fn accept_with(&self, boot_id: u64, session: u64, change: impl FnOnce(&mut Welcome)) -> Peer {
        let (stream, _) = self.listener.accept().expect("accepted");
        stream.set_read_timeout(Some(LONG)).expect("timeout");
        let hello = Hello {
            versions: (0, 0),
            client: String::new(),
            tenant: None,
            namespace: None,
            previous_session: None,
            previous_boot_id: 0,
            all_unmapped: false,
        };
        let (segment, generations) = (memfd(SEGMENT_BYTES), memfd(8 * WORDS));
        let mut peer = Peer {
            hello,
            segment,
            generations,
            boot_id,
            renewals: vec![],
            renewed: 0,
            stream,
            decoder: Decoder::new(),
        };
        let (id, request) = peer.next();
        let Request::Hello(hello) = request else { panic!("not a Hello: {request:?}") };
        let mut welcome = Welcome {
            version: 1,
            daemon: "fake".to_owned(),
            boot_id,
            session: SessionId(session),
            tenant: TENANT.to_owned(),
            namespace: hello.namespace.as_ref().map(|_| NamespaceId(7)),
            generation_words: WORDS,
            limits: Limits {
                keys: 8192,
                frame_bytes: 4 << 20,
                lease_ms: LEASE_MS,
                hold_ms: 2000,
                block_bytes: 64 << 20,
                verify_dram: false,
            },
            tiers: Vec::new(),
        };
        change(&mut welcome);
        let bytes = encode_reply(id, boot_id, &Reply::Welcome(welcome));
        fds::send_all(&peer.stream, &bytes, &[peer.generations.as_fd()]).expect("welcomed");
        let added = Event::SegmentsAdded { segments: vec![(SegmentId(SEGMENT), SEGMENT_BYTES)] };
        // A client that does not like its Welcome may have closed already.
        let _ = fds::send_all(&peer.stream, &encode_event(boot_id, &added), &[peer.segment.as_fd()]);
        peer.hello = hello;
        peer
    }

    pub fn client(&self) -> (Client, Peer) {
        self.client_with(self.options())
    }

    pub fn client_with(&self, options: Options) -> (Client, Peer) {
        let client = Client::start(options).expect("started");
        let peer = self.accept(1, 10);
        assert!(client.wait_attached(LONG));
        (client, peer)
    }
}

impl Peer {
    /// The next request; panics when the client has closed.
    pub fn next(&mut self) -> (u64, Request) {
        self.try_next().expect("a request")
    }

    /// The next request; none when the client has closed.
    pub fn try_next(&mut self) -> Option<(u64, Request)> {
        let (mut buffer, mut none) = (vec![0; 65536], VecDeque::new());
        loop {
            if let Some(frame) = self.decoder.next_frame().expect("a frame") {
                let (id, request) = (frame.request_id, decode_request(&frame).expect("a request"));
                match &request {
                    Request::Renew { leases } if !self.renewals.is_empty() => {
                        let life = self.renewals[self.renewed.min(self.renewals.len() - 1)];
                        self.renewed += 1;
                        self.reply(id, &Reply::Renew { lease_ms: vec![life; leases.len()] });
                        if self.renewed == self.renewals.len() {
                            return Some((id, request));
                        }
                        continue;
                    }
                    _ => return Some((id, request)),
                }
            }
            let received = fds::receive(&self.stream, &mut buffer, 0, &mut none).ok()?;
            assert_eq!(received.refused_fds, 0, "a client sends no fd");
            if received.bytes == 0 {
                return None;
            }
            self.decoder.feed(&buffer[..received.bytes]);
        }
    }

    pub fn reply(&self, id: u64, reply: &Reply) {
        fds::send_all(&self.stream, &encode_reply(id, self.boot_id, reply), &[]).expect("replied");
    }

    pub fn push(&self, event: &Event) {
        fds::send_all(&self.stream, &encode_event(self.boot_id, event), &[]).expect("pushed");
    }

    pub fn push_with_boot_id(&self, boot_id: u64, event: &Event) {
        fds::send_all(&self.stream, &encode_event(boot_id, event), &[]).expect("pushed");
    }

    /// Answers a Reserve with extents one after the other; answers its items.
    pub fn reserve(&mut self, lease: u64, lease_ms: u32) -> Vec<ReserveItem> {
        let (id, request) = self.next();
        let Request::Reserve { items } = request else { panic!("not a Reserve: {request:?}") };
        let mut offset = 0;
        let reserved = items.iter().enumerate().map(|(slot, item)| {
            let extent = Extent { segment: SEGMENT, slot: slot as u32, offset, generation: 1 };
            offset += item.length.next_multiple_of(4096);
            Reserved::Extent(extent)
        });
        self.reply(id, &Reply::Reserve { lease: LeaseId(lease), lease_ms, items: reserved.collect() });
        items
    }

    /// The Commit, answered as done.
    pub fn commit(&mut self) -> Vec<(u32, u64)> {
        let (id, request) = self.next();
        let Request::Commit { items, .. } = request else { panic!("not a Commit: {request:?}") };
        self.reply(id, &Reply::Commit { items: vec![Outcome_::Done; items.len()] });
        items
    }

    /// Answers an Acquire as `answer` says, by index; answers the keys.
    pub fn acquire(&mut self, lease: u64, lease_ms: u32, answer: impl Fn(usize) -> Acquired) -> Vec<WireKey> {
        let (id, request) = self.next();
        let Request::Acquire { keys } = request else { panic!("not an Acquire: {request:?}") };
        let items = (0..keys.len()).map(answer).collect();
        self.reply(id, &Reply::Acquire { lease: LeaseId(lease), lease_ms, items });
        keys
    }

    /// The Releases until one that ends the lease; answers the bad indices.
    pub fn release(&mut self) -> Vec<u32> {
        let mut bad = Vec::new();
        loop {
            let (id, request) = self.next();
            let Request::Release { items, .. } = request else { panic!("not a Release: {request:?}") };
            self.reply(id, &Reply::Release { items: Vec::new() });
            if items.is_empty() {
                return bad;
            }
            assert!(items.iter().all(|(_, good)| !good), "only bad ones are named");
            bad.extend(items.iter().map(|(index, _)| *index));
        }
    }

    pub fn abort(&mut self) -> (LeaseId, Vec<u32>) {
        let (id, request) = self.next();
        let Request::Abort { lease, items } = request else { panic!("not an Abort: {request:?}") };
        self.reply(id, &Reply::Abort { count: 0 });
        (lease, items)
    }

    pub fn set_generation(&self, slot: u32, generation: u64) {
        self.generations.write_all_at(&generation.to_le_bytes(), u64::from(slot) * 8).expect("written");
    }

    pub fn bytes_at(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.segment.read_exact_at(&mut bytes, offset).expect("read");
        bytes
    }

    /// Puts a block of a key where `ready` says, as a daemon would hold it.
    pub fn put(&self, key: &LocalKey, slot: u32, offset: u64, payload: &[u8], tier: u8) -> Acquired {
        self.segment.write_all_at(payload, offset).expect("written");
        self.set_generation(slot, 5);
        let checksum = umbp_plugin_api::checksum::of_block(&digest(), &key.to_bytes(), payload);
        let extent = Extent { segment: SEGMENT, slot, offset, generation: 5 };
        Acquired::Ready { extent, length: payload.len() as u64, checksum, tier }
    }
}

pub use umbp_protocol::message::Outcome as Outcome_;

pub fn key(n: u32) -> LocalKey {
    LocalKey { hash: BlockHash::new(&n.to_le_bytes()).expect("a hash"), group: GroupId(0), rank: Rank::default() }
}

/// Engine memory of a test, registered. Runs are `length` bytes, each with as many unused bytes behind it.
pub struct Engine {
    pub memory: Vec<u8>,
    pub region: RegionId,
    run_bytes: usize,
    runs: usize,
}

impl Engine {
    pub fn new(client: &Client, blocks: usize, runs: usize, run_bytes: usize) -> Self {
        let mut memory = vec![0_u8; blocks * runs * run_bytes * 2];
        // SAFETY: the vector is never moved or dropped before its client in these tests, and is touched by the test
        // only between jobs.
        let region = unsafe { client.register(memory.as_mut_ptr(), memory.len() as u64) }.expect("registered");
        Self { memory, region, run_bytes, runs }
    }

    pub fn block_bytes(&self) -> usize {
        self.runs * self.run_bytes
    }

    pub fn runs(&self, block: usize) -> Vec<Run> {
        let at = |run: usize| 2 * (block * self.runs + run) * self.run_bytes;
        let run = |n| Run { region: self.region, offset: at(n) as u64, length: self.run_bytes as u64 };
        (0..self.runs).map(run).collect()
    }

    pub fn fill(&mut self, block: usize, payload: &[u8]) {
        for (run, bytes) in self.runs(block).iter().zip(payload.chunks(self.run_bytes)) {
            self.memory[run.offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    pub fn payload(&self, block: usize) -> Vec<u8> {
        self.runs(block).iter().flat_map(|run| &self.memory[run.offset as usize..][..self.run_bytes]).copied().collect()
    }

    pub fn store_block(&self, n: usize) -> StoreBlock {
        let parent = n.checked_sub(1).map(|n| key(n as u32));
        StoreBlock { key: key(n as u32), parent, depth: n as u32, runs: self.runs(n) }
    }

    pub fn load_block(&self, n: usize) -> LoadBlock {
        LoadBlock { key: key(n as u32), runs: self.runs(n) }
    }
}

pub fn payload(seed: u32, bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 13) as u8).collect()
}

pub fn outcomes(client: &Client, job: JobId) -> Vec<Outcome> {
    client.wait(job, LONG).expect("the job ends").outcomes
}
