//! What a client may get wrong: its session ends with a reason, every other one goes on.

mod common;

use std::io::Write;
use std::os::fd::AsFd;

use common::client::{Client, hello};
use common::daemon::{Daemon, Place};
use umbp_protocol::frame::opcode;
use umbp_protocol::message::{Hello, KEYS_PER_MESSAGE_MAX, Reply, Request};
use umbp_protocol::{encode_reply, encode_request, fds};

/// A frame with these header fields and body.
fn frame(version: u8, opcode: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 32];
    bytes[..4].copy_from_slice(&((28 + body.len()) as u32).to_le_bytes());
    bytes[4] = version;
    bytes[6..8].copy_from_slice(&opcode.to_le_bytes());
    bytes[8..10].copy_from_slice(&32u16.to_le_bytes());
    bytes[16] = 9;
    bytes.extend_from_slice(body);
    bytes
}

/// A Lookup's body that claims `count` keys and holds none.
fn lookup_of(count: u32) -> Vec<u8> {
    let mut body = 12u16.to_le_bytes().to_vec();
    body.extend_from_slice(&[0; 2]);
    body.extend_from_slice(&count.to_le_bytes());
    body.extend_from_slice(&[0; 4]);
    body
}

/// Sends bytes on a session of its own and expects its end, with these words.
fn check(daemon: &Daemon, greeted: bool, bytes: &[u8], words: &str) {
    let mut client = if greeted { Client::new(&daemon.socket) } else { Client::silent(&daemon.socket) };
    client.stream.write_all(bytes).expect("sent");
    let refusal = client.last_words().unwrap_or_else(|| panic!("no reason was given; expected {words:?}"));
    assert!(refusal.message.contains(words), "expected {words:?}: {refusal:?}");
}

#[test]
fn a_wrong_frame_ends_its_session_with_a_reason_and_the_daemon_lives() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let mut bystander = Client::new(&daemon.socket);
    assert!(bystander.store(1, 4096));
    let too_long = 0x7fff_ffffu32.to_le_bytes();
    let count = KEYS_PER_MESSAGE_MAX as u32;
    for greeted in [false, true] {
        for (bytes, words) in [
            (b"GET / HTTP/1.1\r\nHost: umbp\r\n\r\n".to_vec(), "frame length"),
            (too_long.to_vec(), "frame length 2147483647 bytes"),
            (vec![0; 64], "frame header of 4 bytes"),
            (frame(7, opcode::STATUS, &[]), "frame version 7"),
            (frame(1, 0x7777, &[]), "unknown opcode 0x7777"),
            (frame(1, opcode::LOOKUP, &lookup_of(count + 1)), "count 8193, limit 8192"),
            (frame(1, opcode::LOOKUP, &lookup_of(count)), "body ends early"),
            (frame(1, opcode::LOOKUP, &[1]), "body ends early"),
            (frame(1, opcode::HELLO, b"{\"versions\":"), "JSON of its message: EOF"),
            (frame(1, opcode::HELLO, b"{\"versions\":[1,1]}"), "missing field `client`"),
            (
                frame(1, opcode::HELLO, format!("{{\"x\":{}", "[".repeat(100_000)).as_bytes()),
                "EOF while parsing a list",
            ),
            (encode_reply(1, 0, &Reply::SegmentUnmapped), "is of another kind"),
        ] {
            check(&daemon, greeted, &bytes, words);
        }
    }
    check(&daemon, false, &encode_request(1, &Request::Status), "first message must be Hello");
    let status = bystander.status();
    assert_eq!(status["sessions"].as_array().expect("sessions").len(), 1, "{status:#}");
    assert_eq!(status["sessions_ended"]["frame"], 25, "each is counted: {status:#}");
    assert_eq!(bystander.load(1, 4096), Some(0));
}

#[test]
fn k6_a_session_that_sends_an_fd_ends_and_the_fd_is_closed() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    for greeted in [false, true] {
        let mut client = if greeted { Client::new(&daemon.socket) } else { Client::silent(&daemon.socket) };
        let (reader, writer) = std::io::pipe().expect("pipe");
        let bytes = encode_request(1, &Request::Status);
        fds::send_all(&client.stream, &bytes, &[writer.as_fd()]).expect("sent");
        drop(writer);
        let refusal = client.last_words().expect("a reason");
        assert!(refusal.message.contains("takes none from a client"), "{refusal:?}");
        // Reading ends at once, since the daemon's copy of the writer is closed.
        assert_eq!(std::io::Read::read(&mut &reader, &mut [0; 1]).expect("read"), 0);
    }
    assert!(Client::new(&daemon.socket).store(1, 4096));
}

#[test]
fn versions_that_do_not_meet_are_refused_with_both_sides_printed() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    for versions in [(0, 0), (2, 9)] {
        let mut client = Client::silent(&daemon.socket);
        let refusal = client.greet(Hello { versions, ..hello() }).expect_err("refused");
        let theirs = format!("versions {} to {}", versions.0, versions.1);
        assert!(refusal.code == "version" && refusal.message.contains(&theirs), "{refusal:?}");
        assert!(refusal.message.contains("speaks 1 to 1"), "{refusal:?}");
        assert_eq!(client.last_words(), None, "and the session ends");
    }
    let mut newer = Client::silent(&daemon.socket);
    newer.greet(Hello { versions: (1, 9), ..hello() }).expect("they meet at 1");
    assert_eq!(newer.welcome.as_ref().expect("welcome").version, 1);
}

#[test]
fn a_second_hello_is_refused_and_the_session_goes_on() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let mut client = Client::new(&daemon.socket);
    assert!(matches!(client.call(&Request::Hello(hello())), Reply::Refused(_)));
    assert!(client.store(1, 4096));
}

/// A flood of requests whose answers are not read: the daemon stops reading that session at a bound, serves others
/// meanwhile, and answers the rest once the client reads.
#[test]
fn a_client_that_does_not_read_slows_nobody_but_itself() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let mut flood = Client::new(&daemon.socket);
    let request = encode_request(77, &Request::Lookup { hold_ms: 0, keys: vec![flood.key(1); KEYS_PER_MESSAGE_MAX] });
    let mut sink = flood.stream.try_clone().expect("cloned");
    let sent = std::thread::spawn(move || (0..400).all(|_| sink.write_all(&request).is_ok()));
    let mut other = Client::new(&daemon.socket);
    for number in 0..50 {
        assert!(other.store(number, 4096));
    }
    for _ in 0..400 {
        assert!(matches!(flood.reply(), Reply::Lookup { found } if found.len() == KEYS_PER_MESSAGE_MAX));
    }
    assert!(sent.join().expect("sent"));
}
