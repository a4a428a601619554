//! A session without a namespace: it says Hello, asks for Status, and ends.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use umbp_protocol::message::{Hello, PROTOCOL_VERSIONS, Reply, Request};
use umbp_protocol::{Decoder, Frame, Kind, decode_reply, encode_request};

/// A daemon that does not answer in this time is reported, not waited for.
const ANSWER_MS: u64 = 5000;
const READ_BYTES: usize = 64 << 10;

/// Why there is no status.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub(crate) enum AskError {
    #[error("no umbpd answers on {socket:?}")]
    #[diagnostic(help(
        "start one (`umbpd`; in the source tree `cargo xtask serve`), or name its socket with --socket or UMBP_SOCKET"
    ))]
    Connect {
        socket: String,
        #[source]
        source: std::io::Error,
    },
    #[error("umbpd on {socket:?} gave no answer")]
    Read {
        socket: String,
        #[source]
        source: std::io::Error,
    },
    #[error("what answers on {socket:?} does not speak the protocol of this umbp: {reason}")]
    #[diagnostic(help("bring umbp and umbpd to one release"))]
    Protocol { socket: String, reason: String },
    #[error("umbpd on {socket:?} refused: {message}")]
    Refused { socket: String, message: String },
}

/// The daemon's status as JSON.
pub(crate) fn ask(socket: &Path) -> Result<serde_json::Value, AskError> {
    let name = socket.display().to_string();
    let stream = UnixStream::connect(socket).map_err(|source| AskError::Connect { socket: name.clone(), source })?;
    let mut session = Session { stream, name, decoder: Decoder::new() };
    let hello = Hello {
        versions: PROTOCOL_VERSIONS,
        client: concat!("umbp ", env!("CARGO_PKG_VERSION")).to_owned(),
        tenant: None,
        namespace: None,
        previous_session: None,
        previous_boot_id: 0,
        all_unmapped: true,
    };
    session.call(1, &Request::Hello(hello))?;
    match session.call(2, &Request::Status)? {
        Reply::Status(status) => Ok(status),
        other => Err(session.nonsense(format!("Status was answered with {other:?}"))),
    }
}

struct Session {
    stream: UnixStream,
    name: String,
    decoder: Decoder,
}

impl Session {
    /// One request and its reply; events in between are passed over. What fds come along, the kernel closes.
    fn call(&mut self, id: u64, request: &Request) -> Result<Reply, AskError> {
        let failed = |source| AskError::Read { socket: self.name.clone(), source };
        self.stream.set_read_timeout(Some(Duration::from_millis(ANSWER_MS))).map_err(failed)?;
        self.stream.write_all(&encode_request(id, request)).map_err(failed)?;
        loop {
            let frame = self.next_frame()?;
            if frame.kind == Kind::Reply && frame.request_id == id {
                return match decode_reply(&frame).map_err(|e| self.nonsense(e.to_string()))? {
                    Reply::Refused(refusal) => {
                        Err(AskError::Refused { socket: self.name.clone(), message: refusal.message })
                    }
                    reply => Ok(reply),
                };
            }
        }
    }

    fn next_frame(&mut self) -> Result<Frame, AskError> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            if let Some(frame) = self.decoder.next_frame().map_err(|e| self.nonsense(e.to_string()))? {
                return Ok(frame);
            }
            let read = self.stream.read(&mut buffer);
            let count = read.map_err(|source| AskError::Read { socket: self.name.clone(), source })?;
            if count == 0 {
                return Err(self.nonsense("it closed the session".to_owned()));
            }
            self.decoder.feed(&buffer[..count]);
        }
    }

    fn nonsense(&self, reason: String) -> AskError {
        AskError::Protocol { socket: self.name.clone(), reason }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use serde_json::json;
    use umbp_protocol::message::Event;
    use umbp_protocol::{encode_event, encode_reply};

    use super::*;

    /// A peer that sends these bytes whatever it is asked, then closes.
    fn answered(bytes: Vec<u8>) -> Result<serde_json::Value, String> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let peer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let answer = ask(&socket).map_err(|e| e.to_string());
        peer.join().unwrap();
        answer
    }

    #[test]
    fn events_before_the_answer_are_passed_over() {
        let hello = encode_reply(1, 7, &Reply::Abort { count: 0 });
        let status = encode_reply(2, 7, &Reply::Status(json!({"tiers": []})));
        let event = encode_event(7, &Event::Resync);
        assert_eq!(answered([event.clone(), hello, event, status].concat()), Ok(json!({"tiers": []})));
    }

    #[test]
    fn what_is_no_daemon_is_said_in_words() {
        let check = |bytes: Vec<u8>, part: &str| {
            let error = answered(bytes).unwrap_err();
            assert!(error.contains(part), "{error}");
        };
        check(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "does not speak");
        check(Vec::new(), "closed the session");
        let folder = tempfile::tempdir().unwrap();
        assert!(ask(&folder.path().join("none")).unwrap_err().to_string().contains("no umbpd answers"));
    }
}
