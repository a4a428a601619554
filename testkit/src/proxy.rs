//! A proxy for one TCP server, with faults that a test sets while bytes flow.
//!
//! One thread moves all bytes, so that what is set holds from the moment its call returns.

mod flow;
mod work;

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::ports::{Port, listen};

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    There = 0,
    /// From the server to the client.
    Back = 1,
}

/// What becomes of the bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// They go on at once.
    #[default]
    Pass,
    /// Each goes on so long after it came; as many come as before, later.
    Delay(Duration),
    /// At most so many go on in each interval.
    Drip {
        /// Bytes.
        bytes: usize,
        /// The interval.
        every: Duration,
    },
    /// They are taken and forgotten, as by a host that is gone behind a network that takes all.
    Swallow,
    /// They are not taken: who sends is held up once all buffers are full.
    Stall,
}

/// What becomes of new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Door {
    /// They are connected to the server.
    #[default]
    Open,
    /// They are refused: nobody listens.
    Refuse,
    /// They are accepted, and nobody answers.
    Silent,
}

/// What a test asks of the thread.
enum Order {
    Mode(Way, Mode),
    CutAfter(Way, u64),
    Cut,
    Door(Door),
    Lead(String),
    End,
}

/// What happened so far.
#[derive(Debug, Default)]
struct Counts {
    connections: AtomicU64,
    open: AtomicU64,
    bytes: [AtomicU64; 2],
}

/// A proxy on a port of its own; it ends when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    counts: Arc<Counts>,
    orders: Sender<(Order, Sender<()>)>,
    /// A byte here wakes the thread.
    bell: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Listens on loopback, for the server at `host:port`. It need not be there yet: while it is not, connections are
    /// accepted and then reset.
    pub fn to(address: &str) -> Self {
        let port = Port::reserve();
        let listener = listen(&port.address());
        let (bell, ear) = UnixStream::pair().expect("a pair of sockets");
        let (orders, received) = channel();
        let counts = Arc::new(Counts::default());
        let mut work = work::Work::new(listener, port.address(), address.to_owned(), ear, received, counts.clone());
        let thread = std::thread::Builder::new().name("testkit-proxy".to_owned()).spawn(move || work.run());
        Self { port, counts, orders, bell, thread: Some(thread.expect("a thread")) }
    }

    /// `host:port`, as a client is to be told.
    pub fn address(&self) -> String {
        self.port.address()
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Sets one direction of all connections, those that are and those that come.
    pub fn set(&self, way: Way, mode: Mode) {
        self.order(Order::Mode(way, mode));
    }

    /// Sets both directions.
    pub fn set_both(&self, mode: Mode) {
        self.set(Way::There, mode);
        self.set(Way::Back, mode);
    }

    /// Resets all connections, in both directions.
    pub fn cut(&self) {
        self.order(Order::Cut);
    }

    /// Resets all connections once so many more bytes have gone this way, over all of them; once.
    pub fn cut_after(&self, way: Way, bytes: u64) {
        self.order(Order::CutAfter(way, bytes));
    }

    /// Says what becomes of new connections.
    pub fn door(&self, door: Door) {
        self.order(Order::Door(door));
    }

    /// New connections go to another server, as when a name or a virtual address has moved on; those that are stay.
    pub fn lead_to(&self, address: &str) {
        self.order(Order::Lead(address.to_owned()));
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> u64 {
        self.counts.connections.load(Ordering::SeqCst)
    }

    /// Connections that are open now.
    pub fn open(&self) -> u64 {
        self.counts.open.load(Ordering::SeqCst)
    }

    /// Bytes taken from this direction's sender so far, whatever became of them.
    pub fn bytes(&self, way: Way) -> u64 {
        self.counts.bytes[way as usize].load(Ordering::SeqCst)
    }

    /// Returns when it is done.
    fn order(&self, order: Order) {
        let (sender, done) = channel();
        self.orders.send((order, sender)).expect("the proxy's thread lives");
        self.ring();
        done.recv().expect("the proxy's thread lives");
    }

    fn ring(&self) {
        // Full means that it has been rung enough.
        let _ = std::io::Write::write(&mut &self.bell, &[1]);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // If the thread panicked, its test sees that elsewhere.
        let _ = self.orders.send((Order::End, channel().0));
        self.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
