//! The daemon's and the client's reader: frames out of a stream, then the message of each.
//!
//! Claims: nothing panics; every frame is paid for by bytes of the stream; a message that decodes survives being
//! encoded and decoded again; a stream cut in two pieces gives the same frames.

use umbp_connector_core::namespace::NamespaceDescriptor;
use umbp_protocol::frame::HEADER_BYTES;
use umbp_protocol::message::{
    Acquired, Event, Extent, Found, Hello, LeaseId, MissReason, NamespaceId, Outcome, PROTOCOL_VERSIONS, Refusal,
    RemovedReason, Reply, Request, ReserveItem, Reserved, SegmentId, SessionId, WireKey,
};
use umbp_protocol::{
    Decoder, Frame, Kind, decode_event, decode_reply, decode_request, encode_event, encode_reply, encode_request,
};

use super::{Target, signature};

/// The target.
pub(super) fn target() -> Target {
    Target { name: "frame", run, repair, seeds }
}

fn run(input: &[u8]) -> u64 {
    let whole = frames(&[input]);
    let cut = input.first().map_or(0, |first| usize::from(*first) % (input.len() + 1));
    assert_eq!(whole, frames(&[&input[..cut], &input[cut..]]), "a cut stream gives the same frames");
    let (found, end) = whole;
    assert!(found.len() * HEADER_BYTES <= input.len(), "every frame is paid for");
    let mut outcome = vec![end];
    outcome.extend(found.iter().map(|frame| format!("{} {}", letters(frame.opcode), message(frame))));
    signature(&outcome)
}

/// Digits do not count in a signature; an opcode does.
fn letters(number: u16) -> String {
    format!("{number:04x}").chars().map(|c| c.to_digit(16).map_or(c, |d| (b'a' + d as u8) as char)).collect()
}

/// All frames, and how the stream ended.
fn frames(pieces: &[&[u8]]) -> (Vec<Frame>, String) {
    let (mut decoder, mut found) = (Decoder::new(), Vec::new());
    for piece in pieces {
        decoder.feed(piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => found.push(frame),
                Ok(None) => break,
                Err(error) => return (found, error.to_string()),
            }
        }
    }
    (found, format!("open: {}", decoder.buffered() > 0))
}

/// Decodes a frame's message; a good one is encoded and decoded again.
fn message(frame: &Frame) -> String {
    let again = |bytes: Vec<u8>| -> Frame {
        let (mut frames, end) = frames(&[&bytes]);
        assert_eq!((frames.len(), end.as_str()), (1, "open: false"), "an encoded message is one frame");
        frames.remove(0)
    };
    match frame.kind {
        Kind::Request => match decode_request(frame) {
            Ok(request) => {
                let encoded = again(encode_request(frame.request_id, &request));
                assert_eq!(decode_request(&encoded).ok(), Some(request));
                "request".to_owned()
            }
            Err(error) => error.to_string(),
        },
        Kind::Reply => match decode_reply(frame) {
            Ok(reply) => {
                let encoded = again(encode_reply(frame.request_id, frame.boot_id, &reply));
                assert_eq!(decode_reply(&encoded).ok(), Some(reply));
                "reply".to_owned()
            }
            Err(error) => error.to_string(),
        },
        Kind::Event => match decode_event(frame) {
            Ok(event) => {
                let encoded = again(encode_event(frame.boot_id, &event));
                assert_eq!(decode_event(&encoded).ok(), Some(event));
                "event".to_owned()
            }
            Err(error) => error.to_string(),
        },
    }
}

/// Half of the inputs get a length word that fits, since most mutations break it and nothing behind it is reached.
fn repair(input: &mut [u8], random: u64) {
    if random.is_multiple_of(2) && input.len() >= HEADER_BYTES {
        let length = (input.len() - 4) as u32;
        input[..4].copy_from_slice(&length.to_le_bytes());
    }
}

fn key(n: u8) -> WireKey {
    let mut local = [0; 44];
    local[..8].fill(n + 1);
    local[32] = 8;
    WireKey { namespace: NamespaceId(1), local }
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let named = |kind: &str, frames: Vec<Vec<u8>>| -> Vec<(String, Vec<u8>)> {
        frames.into_iter().enumerate().map(|(index, bytes)| (format!("{kind}-{index:02}"), bytes)).collect()
    };
    let requests: Vec<_> = requests().iter().zip(1..).map(|(request, id)| encode_request(id, request)).collect();
    let replies: Vec<_> = replies().iter().zip(1..).map(|(reply, id)| encode_reply(id, 77, reply)).collect();
    let events = events().iter().map(|event| encode_event(77, event)).collect();
    let stream = vec![[requests.concat(), replies.concat()].concat()];
    [named("request", requests), named("reply", replies), named("event", events), named("stream", stream)].concat()
}

fn requests() -> Vec<Request> {
    let keys = || vec![key(0), key(1), key(2)];
    let item =
        |n: u8| ReserveItem { key: key(n), parent: key(n.saturating_sub(1)).local, depth: n.into(), length: 4096 };
    vec![
        Request::Hello(Hello {
            versions: PROTOCOL_VERSIONS,
            client: "fuzz".to_owned(),
            tenant: Some("default".to_owned()),
            namespace: Some(NamespaceDescriptor::default().with("model", "m")),
            previous_session: Some(SessionId(3)),
            previous_boot_id: 5,
            all_unmapped: true,
        }),
        Request::Lookup { hold_ms: 2000, keys: keys() },
        Request::Reserve { items: (0..3).map(item).collect() },
        Request::Commit { lease: LeaseId(5), items: vec![(0, 1), (1, u64::MAX)] },
        Request::Abort { lease: LeaseId(5), items: vec![2] },
        Request::Acquire { keys: keys() },
        Request::Renew { leases: vec![LeaseId(5), LeaseId(6)] },
        Request::Release { lease: LeaseId(6), items: vec![(0, true), (1, false)] },
        Request::Unhold { keys: keys() },
        Request::Clear { namespace: Some(NamespaceId(1)) },
        Request::SegmentUnmapped { segment: SegmentId(4) },
        Request::Status,
    ]
}

fn replies() -> Vec<Reply> {
    let extent = Extent { segment: 1, slot: 2, offset: 4096, generation: 9 };
    let ready = Acquired::Ready { extent, length: 4096, checksum: 7, tier: 1 };
    vec![
        Reply::Lookup {
            found: vec![
                Found::Hit { tier: 0, held: true },
                Found::Miss(MissReason::Absent),
                Found::Miss(MissReason::NoRoom),
            ],
        },
        Reply::Reserve {
            lease: LeaseId(5),
            lease_ms: 10_000,
            items: vec![Reserved::Extent(extent), Reserved::Present, Reserved::Refused, Reserved::LengthDiffers],
        },
        Reply::Commit { items: vec![Outcome::Done, Outcome::LeaseExpired, Outcome::NotLeased] },
        Reply::Abort { count: 1 },
        Reply::Acquire {
            lease: LeaseId(6),
            lease_ms: 10_000,
            items: vec![ready, Acquired::Pending, Acquired::Miss(MissReason::TierDown)],
        },
        Reply::Renew { lease_ms: vec![10_000, 0] },
        Reply::Release { items: vec![Outcome::Done] },
        Reply::Unhold { count: 3 },
        Reply::Clear { removed: 12, pinned: 1 },
        Reply::SegmentUnmapped,
        Reply::Refused(Refusal { code: "limit".to_owned(), message: "too many keys".to_owned() }),
    ]
}

fn events() -> Vec<Event> {
    vec![
        Event::Promoted { lease: LeaseId(6), index: 1, item: Acquired::Miss(MissReason::Failed) },
        Event::SegmentsAdded { segments: vec![(SegmentId(1), 64 << 20), (SegmentId(2), 64 << 20)] },
        Event::SegmentWithdrawn { segment: SegmentId(1) },
        Event::Removed { tier: 0, reason: RemovedReason::Evicted, keys: [key(0), key(1)].into() },
        Event::TierState { tier: 1, state: "degraded".to_owned() },
        Event::Resync,
        Event::Draining,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_is_a_message_and_each_is_another_outcome() {
        let mut outcomes = std::collections::HashSet::new();
        for (name, bytes) in seeds() {
            let (found, end) = frames(&[&bytes]);
            assert_eq!(end, "open: false", "{name}");
            for frame in &found {
                assert!(["request", "reply", "event"].contains(&message(frame).as_str()), "{name}: {}", message(frame));
            }
            assert!(outcomes.insert(run(&bytes)), "{name} adds nothing");
        }
    }
}
