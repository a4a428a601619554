//! A client of the bare protocol: one blocking connection, segments mapped, nothing hidden.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use umbp_connector_core::key::{BlockHash, GroupId, LocalKey, Rank};
use umbp_connector_core::namespace::{NamespaceDescriptor, tenant_digest};
use umbp_plugin_api::checksum;
use umbp_protocol::message::{
    Acquired, Event, Extent, Found, Hello, LeaseId, Outcome, PROTOCOL_VERSIONS, Refusal, Reply, Request, ReserveItem,
    Reserved, Welcome, WireKey,
};
use umbp_protocol::{Decoder, Kind, decode_event, decode_reply, encode_request, fds};

use super::DEADLINE;

/// A connection.
pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    decoder: Decoder,
    fds: VecDeque<OwnedFd>,
    next_id: u64,
    pub(crate) events: VecDeque<Event>,
    pub(crate) welcome: Option<Welcome>,
    descriptor: NamespaceDescriptor,
    segments: BTreeMap<u32, (*mut u8, u64)>,
    table: Option<*const u64>,
}

pub(crate) fn descriptor() -> NamespaceDescriptor {
    NamespaceDescriptor::default().with("model", "test").with("block_size", 16)
}

pub(crate) fn hello() -> Hello {
    Hello {
        versions: PROTOCOL_VERSIONS,
        client: "test 1".to_owned(),
        tenant: None,
        namespace: Some(descriptor()),
        previous_session: None,
        previous_boot_id: 0,
        all_unmapped: false,
    }
}

impl Client {
    /// Connected, and nothing said.
    pub(crate) fn silent(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("connected");
        stream.set_read_timeout(Some(DEADLINE)).expect("timeout set");
        stream.set_write_timeout(Some(DEADLINE)).expect("timeout set");
        Self {
            stream,
            decoder: Decoder::new(),
            fds: VecDeque::new(),
            next_id: 1,
            events: VecDeque::new(),
            welcome: None,
            descriptor: descriptor(),
            segments: BTreeMap::new(),
            table: None,
        }
    }

    /// A session with a namespace.
    pub(crate) fn new(socket: &Path) -> Self {
        let mut client = Self::silent(socket);
        client.greet(hello()).expect("welcome");
        client
    }

    /// A session that only asks.
    pub(crate) fn status_only(socket: &Path) -> Self {
        let mut client = Self::silent(socket);
        client.greet(Hello { namespace: None, ..hello() }).expect("welcome");
        client
    }

    /// Says Hello.
    pub(crate) fn greet(&mut self, hello: Hello) -> Result<(), Refusal> {
        match self.call(&Request::Hello(hello)) {
            Reply::Welcome(welcome) => {
                if welcome.generation_words > 0 {
                    let fd = self.fds.pop_front().expect("the table's fd");
                    self.table = Some(map(&fd, welcome.generation_words * 8, ProtFlags::READ).cast());
                }
                self.welcome = Some(welcome);
                Ok(())
            }
            Reply::Refused(refusal) => Err(refusal),
            other => panic!("Hello was answered with {other:?}"),
        }
    }

    /// Sends a request and waits for its reply; events on the way are kept.
    pub(crate) fn call(&mut self, request: &Request) -> Reply {
        self.next_id += 1;
        let id = self.next_id;
        self.stream.write_all(&encode_request(id, request)).expect("sent");
        loop {
            let (frame_id, message) = self.next().expect("the session lives");
            if let Message::Reply(reply) = message {
                assert!(frame_id == id || frame_id == 0, "reply to {frame_id}, asked {id}");
                return *reply;
            }
        }
    }

    /// The next message; none when the daemon has closed.
    fn next(&mut self) -> Option<(u64, Message)> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            if let Some(frame) = self.decoder.next_frame().expect("the daemon's frames are whole") {
                if frame.kind == Kind::Reply {
                    return Some((frame.request_id, Message::Reply(Box::new(decode_reply(&frame).expect("reply")))));
                }
                let event = decode_event(&frame).expect("event");
                self.take(&event);
                self.events.push_back(event);
                return Some((0, Message::Event));
            }
            let received = match fds::receive(&self.stream, &mut buffer, 253, &mut self.fds) {
                Ok(received) => received,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no word from the daemon: {error}"),
            };
            if received.bytes == 0 {
                return None;
            }
            self.decoder.feed(&buffer[..received.bytes]);
        }
    }

    fn take(&mut self, event: &Event) {
        let Event::SegmentsAdded { segments } = event else { return };
        for (segment, length) in segments {
            let fd = self.fds.pop_front().expect("the segment's fd");
            let address = map(&fd, *length, ProtFlags::READ | ProtFlags::WRITE);
            self.segments.insert(segment.0, (address, *length));
        }
    }

    /// The next reply to something that a test sent by hand.
    pub(crate) fn reply(&mut self) -> Reply {
        loop {
            if let (_, Message::Reply(reply)) = self.next().expect("the session lives") {
                return *reply;
            }
        }
    }

    /// Waits for an event.
    pub(crate) fn event(&mut self, mut wanted: impl FnMut(&Event) -> bool) -> Event {
        loop {
            if let Some(at) = self.events.iter().position(&mut wanted) {
                return self.events.remove(at).expect("there");
            }
            self.next().expect("the session lives");
        }
    }

    /// Reads until the daemon closes; answers the last refusal.
    pub(crate) fn last_words(&mut self) -> Option<Refusal> {
        let mut refusal = None;
        while let Some((_, message)) = self.next() {
            if let Message::Reply(reply) = message
                && let Reply::Refused(words) = *reply
            {
                refusal = Some(words);
            }
        }
        refusal
    }

    /// Unmaps everything, for tests with many clients.
    pub(crate) fn unmap(&mut self) {
        let words = self.welcome.as_ref().map_or(0, |welcome| welcome.generation_words);
        if let Some(table) = self.table.take() {
            // SAFETY: exactly the mapping made in `greet`; the pointer is gone.
            unsafe { munmap(table.cast_mut().cast(), words as usize * 8) }.expect("unmapped");
        }
        for (_, (address, length)) in std::mem::take(&mut self.segments) {
            // SAFETY: exactly the mapping made in `take`; the pointer is gone.
            unsafe { munmap(address.cast(), length as usize) }.expect("unmapped");
        }
    }

    /// Numbers of the segments that were sent to it.
    pub(crate) fn mapped(&self) -> Vec<u32> {
        self.segments.keys().copied().collect()
    }

    pub(crate) fn status(&mut self) -> serde_json::Value {
        match self.call(&Request::Status) {
            Reply::Status(status) => status,
            other => panic!("Status was answered with {other:?}"),
        }
    }

    pub(crate) fn key(&self, number: u64) -> WireKey {
        let hash = BlockHash::new(&number.to_be_bytes()).expect("a hash");
        let local = LocalKey { hash, group: GroupId(0), rank: Rank::default() }.to_bytes();
        let namespace = self.welcome.as_ref().and_then(|welcome| welcome.namespace).expect("a namespace");
        WireKey { namespace, local }
    }

    /// Room for blocks without parents.
    pub(crate) fn reserve(&mut self, numbers: &[u64], length: u64) -> (LeaseId, Vec<Reserved>) {
        let item = |number: &u64| ReserveItem { key: self.key(*number), parent: [0; 44], depth: 0, length };
        let items = numbers.iter().map(item).collect();
        match self.call(&Request::Reserve { items }) {
            Reply::Reserve { lease, items, .. } => (lease, items),
            other => panic!("Reserve was answered with {other:?}"),
        }
    }

    /// What the block of this number holds: words that depend on the number, and at the start of each 4 KiB the number
    /// and the place, so that no stretch of it is another block's. Cheap, since tests make much of it.
    pub(crate) fn content(number: u64, length: u64) -> Vec<u8> {
        const STRETCH: usize = 4096;
        let seed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let words = (0..STRETCH as u64 / 8).map(|at| seed.wrapping_mul(2 * at + 1) ^ (seed >> 29));
        let stretch: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let mut content = stretch.repeat((length as usize).div_ceil(STRETCH));
        for (at, stretch) in content.chunks_mut(STRETCH).enumerate() {
            stretch[..8].copy_from_slice(&number.to_le_bytes());
            stretch[8..16].copy_from_slice(&at.to_le_bytes());
        }
        content.truncate(length as usize);
        content
    }

    pub(crate) fn slice(&self, extent: &Extent, length: u64) -> *mut u8 {
        let (address, size) = self.segments[&extent.segment];
        assert!(extent.offset + length <= size, "extent {extent:?} lies in its segment");
        // SAFETY: inside the mapping.
        unsafe { address.add(extent.offset as usize) }
    }

    /// Reserves, writes and commits a block. False if it was refused.
    pub(crate) fn store(&mut self, number: u64, length: u64) -> bool {
        let (lease, items) = self.reserve(&[number], length);
        let Reserved::Extent(extent) = items[0] else { return items[0] == Reserved::Present };
        let content = Self::content(number, length);
        let target = self.slice(&extent, length);
        // SAFETY: the extent is leased to this client for writing, and inside the mapping.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), target, content.len()) };
        let tenant = self.welcome.as_ref().map_or("", |welcome| &welcome.tenant);
        let digest = tenant_digest(tenant, &self.descriptor.encode()).0;
        let sum = checksum::of_block(&digest, &self.key(number).local, &content);
        let reply = self.call(&Request::Commit { lease, items: vec![(0, sum)] });
        reply == Reply::Commit { items: vec![Outcome::Done] }
    }

    /// Loads a block and checks every byte; tells the tier that it came from, or that it missed.
    pub(crate) fn load(&mut self, number: u64, length: u64) -> Option<u8> {
        let keys = vec![self.key(number)];
        let (lease, item) = match self.call(&Request::Acquire { keys }) {
            Reply::Acquire { lease, items, .. } => (lease, items[0]),
            other => panic!("Acquire was answered with {other:?}"),
        };
        let item = match item {
            Acquired::Pending => {
                let event = self.event(|event| matches!(event, Event::Promoted { lease: of, .. } if *of == lease));
                let Event::Promoted { item, .. } = event else { panic!("asked for") };
                item
            }
            item => item,
        };
        let Acquired::Ready { extent, length: found, tier, .. } = item else { return None };
        assert_eq!(found, length);
        // SAFETY: the extent is leased to this client for reading, and inside the mapping.
        let bytes = unsafe { std::slice::from_raw_parts(self.slice(&extent, length), length as usize) };
        assert!(bytes == Self::content(number, length), "wrong bytes for block {number}");
        // SAFETY: a word of the mapped table.
        let word = unsafe { self.table.expect("a table").add(extent.slot as usize).read_volatile() };
        assert_eq!(word, extent.generation, "the extent is still that block's");
        self.call(&Request::Release { lease, items: Vec::new() });
        Some(tier)
    }

    pub(crate) fn lookup(&mut self, numbers: &[u64], hold_ms: u32) -> Vec<Found> {
        let keys = numbers.iter().map(|number| self.key(*number)).collect();
        match self.call(&Request::Lookup { hold_ms, keys }) {
            Reply::Lookup { found } => found,
            other => panic!("Lookup was answered with {other:?}"),
        }
    }
}

enum Message {
    Reply(Box<Reply>),
    Event,
}

fn map(fd: &OwnedFd, length: u64, protection: ProtFlags) -> *mut u8 {
    // SAFETY: a new mapping at an address of the kernel's choice, kept until the test's process ends.
    unsafe { mmap(std::ptr::null_mut(), length as usize, protection, MapFlags::SHARED, fd, 0) }.expect("mapped").cast()
}
