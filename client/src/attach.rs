//! The handshake: connect, Hello, Welcome, the generation table's fd.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use umbp_connector_core::namespace::{NamespaceDescriptor, tenant_digest};
use umbp_protocol::frame::{Decoder, Frame, Kind};
use umbp_protocol::message::{Hello, PROTOCOL_VERSIONS, Reply, Request, SessionId, Welcome};
use umbp_protocol::{decode_reply, encode_request, fds};

use crate::options::{Error, Options};
use crate::session::{Attached, READ_BYTES};

/// The request id of Hello; a session's own ids begin at 1.
const HELLO_ID: u64 = 0;

/// How often the wait for Welcome asks whether it is still wanted.
const GO_ON_EVERY: Duration = Duration::from_millis(100);

/// This process's session before.
#[derive(Clone, Copy)]
pub(crate) struct Before {
    pub(crate) session: SessionId,
    pub(crate) boot_id: u64,
    /// All that it had mapped is unmapped.
    pub(crate) unmapped: bool,
}

/// Attaches within the options' time-out for a call. Gives up early once `go_on` says no.
pub(crate) fn attach(options: &Options, previous: Option<Before>, go_on: &dyn Fn() -> bool) -> Result<Attached, Error> {
    let end = Instant::now() + options.call_timeout;
    let io = |what: &str, error: std::io::Error| Error::Detached {
        socket: options.socket.clone(),
        reason: format!("{what}: {error}"),
    };
    let socket = connect(options).map_err(|e| io("connect", e))?;
    socket.set_write_timeout(Some(options.call_timeout)).map_err(|e| io("set timeout", e))?;
    let hello = Hello {
        versions: PROTOCOL_VERSIONS,
        client: options.name.clone(),
        tenant: options.tenant.clone(),
        namespace: options.namespace.clone(),
        previous_session: previous.map(|before| before.session),
        previous_boot_id: previous.map_or(0, |before| before.boot_id),
        all_unmapped: previous.is_some_and(|before| before.unmapped),
    };
    let bytes = encode_request(HELLO_ID, &Request::Hello(hello));
    fds::send_all(&socket, &bytes, &[]).map_err(|e| io("send Hello", e))?;
    let (frame, decoder, mut fds) =
        receive_welcome(options, &socket, end, go_on).map_err(|e| io("await Welcome", e))?;
    let welcome = check_welcome(options, &frame)?;
    socket.set_read_timeout(None).map_err(|e| io("set timeout", e))?;
    let generations = if frame.fds > 0 { fds.pop_front() } else { None };
    if (welcome.generation_words > 0) != generations.is_some() {
        return Err(io("await Welcome", std::io::Error::other("the generation table's fd is not beside it")));
    }
    let of = |namespace: &NamespaceDescriptor| tenant_digest(&welcome.tenant, &namespace.encode()).0;
    let digest = options.namespace.as_ref().map_or([0; 32], of);
    Ok(Attached { socket, welcome, digest, generations, decoder, fds })
}

/// A daemon that is stopped with a full backlog answers EAGAIN here, at once, where a blocking connect would hang.
fn connect(options: &Options) -> std::io::Result<UnixStream> {
    let address = SocketAddrUnix::new(&options.socket)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    let socket = UnixStream::from(socket);
    socket.set_nonblocking(false)?;
    Ok(socket)
}

type Welcomed = (Frame, Decoder, VecDeque<OwnedFd>);

fn receive_welcome(
    options: &Options,
    socket: &UnixStream,
    end: Instant,
    go_on: &dyn Fn() -> bool,
) -> std::io::Result<Welcomed> {
    let (mut decoder, mut fds, mut buffer) = (Decoder::new(), VecDeque::new(), vec![0; READ_BYTES]);
    loop {
        if let Some(frame) = decoder.next_frame().map_err(std::io::Error::other)? {
            return Ok((frame, decoder, fds));
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || !go_on() {
            let text = format!("no answer within {:?}", options.call_timeout);
            return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, text));
        }
        socket.set_read_timeout(Some(left.clamp(Duration::from_millis(1), GO_ON_EVERY)))?;
        let limit = umbp_protocol::message::FDS_PER_MESSAGE_MAX;
        match fds::receive(socket, &mut buffer, limit, &mut fds) {
            Ok(received) if received.bytes == 0 => {
                return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the daemon closed it"));
            }
            Ok(received) if received.refused_fds > 0 => {
                return Err(std::io::Error::other("fds beyond what this process can take"));
            }
            Ok(received) => decoder.feed(&buffer[..received.bytes]),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::Interrupted | std::io::ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
}

fn check_welcome(options: &Options, frame: &Frame) -> Result<Welcome, Error> {
    let wrong = |reason: String| Error::Detached { socket: options.socket.clone(), reason };
    if frame.kind != Kind::Reply || frame.request_id != HELLO_ID {
        return Err(wrong(format!("expected the answer to Hello, got opcode {:#06x}", frame.opcode)));
    }
    let welcome = match decode_reply(frame).map_err(|e| wrong(e.to_string()))? {
        Reply::Welcome(welcome) => welcome,
        Reply::Refused(refusal) => return Err(Error::Refused(refusal)),
        _ => return Err(wrong("Hello was answered with something else".to_owned())),
    };
    let (oldest, newest) = PROTOCOL_VERSIONS;
    if !(oldest..=newest).contains(&welcome.version) {
        let said = welcome.version;
        return Err(wrong(format!("protocol version {said} was chosen, this client speaks {oldest} to {newest}")));
    }
    if welcome.boot_id != frame.boot_id || welcome.namespace.is_some() != options.namespace.is_some() {
        return Err(wrong("Welcome contradicts itself or the Hello".to_owned()));
    }
    Ok(welcome)
}
