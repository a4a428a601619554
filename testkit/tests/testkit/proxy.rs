//! Faults on the way.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use umbp_testkit::proxy::{Door, Mode, Proxy, Way};
use umbp_testkit::wait::until;

const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough to tell "nothing comes" from "it comes at once".
const SILENCE: Duration = Duration::from_millis(200);

/// A server without a client, and the proxy before it.
struct Rig {
    listener: TcpListener,
    proxy: Proxy,
}

impl Rig {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy::to(&listener.local_addr().unwrap().to_string());
        Self { listener, proxy }
    }

    /// A client's end and the server's.
    fn pair(&self) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(self.proxy.address()).unwrap();
        let (server, _) = self.listener.accept().unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        (client, server)
    }
}

fn read(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Nothing comes, and the connection stays.
fn is_silent(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    let error = stream.read(&mut [0]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
}

/// The rest that comes before the connection is reset.
fn rest_until_reset(stream: &mut TcpStream) -> usize {
    let mut count = 0;
    loop {
        match stream.read(&mut [0; 4096]) {
            Ok(0) => panic!("an orderly end after {count} bytes"),
            Ok(more) => count += more,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return count,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn bytes_pass_both_ways_and_are_counted_and_an_end_is_an_end() {
    let rig = Rig::new();
    let (mut client, mut server) = rig.pair();
    let much: Vec<u8> = (0..10_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    let sent = much.clone();
    let sender = std::thread::spawn(move || {
        client.write_all(&sent).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        client
    });
    let mut came = Vec::new();
    server.read_to_end(&mut came).unwrap();
    assert!(came == much, "the same bytes in the same order");
    let mut client = sender.join().unwrap();
    server.write_all(b"answer").unwrap();
    drop(server);
    came.clear();
    client.read_to_end(&mut came).unwrap();
    assert_eq!(came, b"answer");
    until("the connection is over", || (rig.proxy.open() == 0).then_some(()));
    assert_eq!((rig.proxy.bytes(Way::There), rig.proxy.bytes(Way::Back)), (10_000_000, 6));
    assert_eq!(rig.proxy.connections(), 1);
}

#[test]
fn a_delay_moves_bytes_and_keeps_their_order_and_their_pace() {
    let rig = Rig::new();
    let (mut client, mut server) = rig.pair();
    let delay = Duration::from_millis(100);
    rig.proxy.set(Way::There, Mode::Delay(delay));
    let start = Instant::now();
    for byte in 0..50 {
        client.write_all(&[byte]).unwrap();
    }
    assert_eq!(read(&mut server, 50), (0..50).collect::<Vec<u8>>());
    let took = start.elapsed();
    // Were they delayed one after the other, it would be 5 s.
    assert!(took >= delay && took < delay * 25, "{took:?}");
    let start = Instant::now();
    server.write_all(b"x").unwrap();
    read(&mut client, 1);
    assert!(start.elapsed() < delay, "the other direction is not delayed");
}

#[test]
fn a_cut_resets_both_sides_at_once_or_after_so_many_bytes() {
    let rig = Rig::new();
    let (mut client, mut server) = rig.pair();
    client.write_all(b"hello").unwrap();
    read(&mut server, 5);
    rig.proxy.cut();
    assert_eq!(rest_until_reset(&mut client), 0);
    assert_eq!(rest_until_reset(&mut server), 0);
    assert_eq!(rig.proxy.open(), 0);

    let (mut client, mut server) = rig.pair();
    rig.proxy.cut_after(Way::Back, 1000);
    server.write_all(&[7; 999]).unwrap();
    assert_eq!(read(&mut client, 999), [7; 999]);
    server.write_all(&[7; 500]).unwrap();
    // The last byte may be lost in the reset.
    assert!(rest_until_reset(&mut client) <= 1);
    let (mut client, mut server) = rig.pair();
    server.write_all(&[7; 5000]).unwrap();
    assert_eq!(read(&mut client, 5000), [7; 5000], "a cut is done once");
}

#[test]
fn what_is_swallowed_is_taken_and_gone_and_what_is_stalled_comes_later() {
    let rig = Rig::new();
    let (mut client, mut server) = rig.pair();
    rig.proxy.set(Way::Back, Mode::Swallow);
    server.write_all(&vec![1; 20_000_000]).unwrap();
    is_silent(&mut client);
    rig.proxy.set(Way::Back, Mode::Pass);
    server.write_all(b"b").unwrap();
    until("the swallowed bytes are taken", || (rig.proxy.bytes(Way::Back) == 20_000_001).then_some(()));
    assert_eq!(read(&mut client, 1), b"b");

    rig.proxy.set_both(Mode::Stall);
    client.write_all(b"request").unwrap();
    is_silent(&mut server);
    assert_eq!(rig.proxy.bytes(Way::There), 0);
    rig.proxy.set_both(Mode::Pass);
    assert_eq!(read(&mut server, 7), b"request");
}

#[test]
fn a_drip_is_as_slow_as_it_says() {
    let rig = Rig::new();
    let (mut client, mut server) = rig.pair();
    let every = Duration::from_millis(10);
    rig.proxy.set(Way::Back, Mode::Drip { bytes: 3, every });
    let start = Instant::now();
    server.write_all(&[5; 60]).unwrap();
    assert_eq!(read(&mut client, 60), [5; 60]);
    assert!(start.elapsed() >= every * 19, "{:?}", start.elapsed());
}

#[test]
fn the_door_refuses_or_says_nothing_or_opens() {
    let rig = Rig::new();
    rig.proxy.door(Door::Refuse);
    let refused = TcpStream::connect(rig.proxy.address()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    rig.proxy.door(Door::Silent);
    let mut client = TcpStream::connect(rig.proxy.address()).unwrap();
    client.write_all(b"anybody?").unwrap();
    is_silent(&mut client);
    rig.proxy.door(Door::Open);
    let (mut other, mut server) = rig.pair();
    other.write_all(b"x").unwrap();
    assert_eq!(read(&mut server, 1), b"x");
    is_silent(&mut client);
    rig.proxy.cut();
    rest_until_reset(&mut client);
}

#[test]
fn without_a_server_a_connection_is_reset() {
    let rig = Rig::new();
    let address = rig.proxy.address();
    drop(rig.listener);
    let mut client = TcpStream::connect(&address).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    rest_until_reset(&mut client);
    drop(rig.proxy);
    assert_eq!(TcpStream::connect(&address).unwrap_err().kind(), ErrorKind::ConnectionRefused, "it ends when dropped");
}
