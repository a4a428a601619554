//! The proxy's thread: accepts, moves bytes, follows orders.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::ports::listen;

use super::flow::{Broken, Flow};
use super::{Counts, Door, Mode, Order, Way};

/// A server on loopback accepts at once, or it is not there.
const CONNECT_MS: u64 = 1000;

/// A client and the server behind it.
struct Line {
    /// The client, then the server: the sender of each [`Way`].
    ends: [TcpStream; 2],
    flows: [Flow; 2],
    /// The receiver of this way takes no more now.
    is_full: [bool; 2],
}

pub(super) struct Work {
    listener: Option<TcpListener>,
    own: String,
    server: String,
    ear: UnixStream,
    orders: Receiver<(Order, Sender<()>)>,
    counts: Arc<Counts>,
    modes: [Mode; 2],
    /// Bytes until all is cut.
    left: [Option<u64>; 2],
    door: Door,
    lines: Vec<Line>,
    /// Accepted, and never answered.
    silent: Vec<TcpStream>,
}

impl Work {
    pub(super) fn new(
        listener: TcpListener,
        own: String,
        server: String,
        ear: UnixStream,
        orders: Receiver<(Order, Sender<()>)>,
        counts: Arc<Counts>,
    ) -> Self {
        listener.set_nonblocking(true).expect("a socket that does not block");
        ear.set_nonblocking(true).expect("a socket that does not block");
        let (modes, left) = ([Mode::Pass; 2], [None; 2]);
        let (door, lines, silent) = (Door::Open, Vec::new(), Vec::new());
        Self { listener: Some(listener), own, server, ear, orders, counts, modes, left, door, lines, silent }
    }

    pub(super) fn run(&mut self) {
        loop {
            let mut rung = [0; 64];
            while self.ear.read(&mut rung).is_ok_and(|count| count == rung.len()) {}
            while let Ok((order, done)) = self.orders.try_recv() {
                if matches!(order, Order::End) {
                    return;
                }
                self.follow(order);
                self.tell_open();
                // Who ordered may have been interrupted by a panic.
                let _ = done.send(());
            }
            self.accept();
            self.move_bytes();
            self.tell_open();
            self.wait();
        }
    }

    fn tell_open(&self) {
        self.counts.open.store((self.lines.len() + self.silent.len()) as u64, Ordering::SeqCst);
    }

    fn follow(&mut self, order: Order) {
        match order {
            Order::Mode(way, mode) => {
                // What came before is taken as it was to be taken.
                self.move_bytes();
                self.modes[way as usize] = mode;
            }
            Order::CutAfter(way, bytes) => {
                self.move_bytes();
                self.left[way as usize] = Some(bytes);
                if bytes == 0 {
                    self.cut();
                }
            }
            Order::Cut => self.cut(),
            Order::Lead(server) => self.server = server,
            Order::Door(door) => {
                self.door = door;
                if door == Door::Refuse {
                    // A child that is just being started may have the socket still, which must not listen for it.
                    if let Some(listener) = self.listener.take() {
                        let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
                    }
                } else if self.listener.is_none() {
                    let listener = listen(&self.own);
                    listener.set_nonblocking(true).expect("a socket that does not block");
                    self.listener = Some(listener);
                }
            }
            Order::End => {}
        }
    }

    fn cut(&mut self) {
        self.left = [None; 2];
        self.lines.drain(..).for_each(Line::reset);
        self.silent.drain(..).for_each(|client| reset(&client));
    }

    fn accept(&mut self) {
        while let Some((client, _)) = self.listener.as_ref().and_then(|listener| listener.accept().ok()) {
            self.counts.connections.fetch_add(1, Ordering::SeqCst);
            if self.door == Door::Silent {
                self.silent.push(client);
                continue;
            }
            match connect(&self.server) {
                Some(server) => self.lines.push(Line::new([client, server])),
                None => reset(&client),
            }
        }
    }

    fn move_bytes(&mut self) {
        let now = Instant::now();
        let mut index = 0;
        while index < self.lines.len() {
            let line = &mut self.lines[index];
            let moved = line.move_bytes(self.modes, &mut self.left, &self.counts, now);
            let is_cut = self.left.contains(&Some(0));
            match moved {
                Err(Broken) if is_cut => return self.cut(),
                Err(Broken) => self.lines.swap_remove(index).reset(),
                Ok(()) if line.flows.iter().all(Flow::is_over) => drop(self.lines.swap_remove(index)),
                Ok(()) => index += 1,
            }
        }
    }

    /// Until something can be done: an order, a connection, bytes, or the time of some.
    fn wait(&self) {
        let mut waits = vec![PollFd::new(&self.ear, PollFlags::IN)];
        waits.extend(self.listener.as_ref().map(|listener| PollFd::new(listener, PollFlags::IN)));
        let mut due: Option<Instant> = None;
        for line in &self.lines {
            for end in 0..2 {
                let (reads, writes) = (line.flows[end].wants_read(self.modes[end]), line.is_full[1 - end]);
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, reads);
                flags.set(PollFlags::OUT, writes);
                // The kernel tells of a hang-up even where nothing is waited for.
                if !flags.is_empty() {
                    waits.push(PollFd::new(&line.ends[end], flags));
                }
                let own = line.flows[end].due(self.modes[end]).filter(|_| !line.is_full[end]);
                due = due.into_iter().chain(own).min();
            }
        }
        let time = due.map(|due| due.saturating_duration_since(Instant::now()));
        let time = time.map(|time| Timespec::try_from(time).expect("a time of a test"));
        // An interrupted wait is a turn with nothing to do.
        let _ = poll(&mut waits, time.as_ref());
    }
}

impl Line {
    fn new(ends: [TcpStream; 2]) -> Self {
        for end in &ends {
            end.set_nonblocking(true).expect("a socket that does not block");
            end.set_nodelay(true).expect("a TCP socket");
        }
        let now = Instant::now();
        Self { ends, flows: [Flow::new(now), Flow::new(now)], is_full: [false; 2] }
    }

    fn move_bytes(
        &mut self,
        modes: [Mode; 2],
        left: &mut [Option<u64>; 2],
        counts: &Counts,
        now: Instant,
    ) -> Result<(), Broken> {
        for way in [Way::There as usize, Way::Back as usize] {
            let (from, to) = (&self.ends[way], &self.ends[1 - way]);
            let taken = self.flows[way].take(from, modes[way], now)?;
            counts.bytes[way].fetch_add(taken, Ordering::SeqCst);
            self.is_full[way] = self.flows[way].give(to, modes[way], now, &mut left[way])?;
        }
        Ok(())
    }

    fn reset(self) {
        self.ends.iter().for_each(reset);
    }
}

/// Closed without a lingering time, a connection is reset, and the other side sees that at once.
fn reset(stream: &TcpStream) {
    // It may be reset already.
    let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

fn connect(server: &str) -> Option<TcpStream> {
    let address: SocketAddr = server.parse().unwrap_or_else(|_| panic!("{server} is no host:port"));
    TcpStream::connect_timeout(&address, Duration::from_millis(CONNECT_MS)).ok()
}
