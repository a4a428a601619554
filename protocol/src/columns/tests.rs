//! Claims that hold for every message: it comes back as it went, and no bytes make a decoder panic or overspend.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::frame::{Decoder, ENVELOPE_VERSION, opcode};
use crate::message::*;

fn key() -> impl Strategy<Value = WireKey> {
    (any::<u32>(), vec(any::<u8>(), LOCAL_KEY_BYTES)).prop_map(|(namespace, local)| {
        let mut bytes = [0; LOCAL_KEY_BYTES];
        bytes.copy_from_slice(&local);
        WireKey { namespace: NamespaceId(namespace), local: bytes }
    })
}

fn keys() -> impl Strategy<Value = Vec<WireKey>> {
    vec(key(), 0..9)
}

fn lease() -> impl Strategy<Value = LeaseId> {
    any::<u64>().prop_map(LeaseId)
}

fn extent() -> impl Strategy<Value = Extent> {
    (any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(segment, slot, offset, generation)| Extent {
        segment,
        slot,
        offset,
        generation,
    })
}

fn miss() -> impl Strategy<Value = MissReason> {
    prop::sample::select(MissReason::ALL.to_vec())
}

fn acquired_ended() -> impl Strategy<Value = Acquired> {
    prop_oneof![
        (extent(), any::<u64>(), any::<u64>(), any::<u8>())
            .prop_map(|(extent, length, checksum, tier)| Acquired::Ready { extent, length, checksum, tier }),
        miss().prop_map(Acquired::Miss),
    ]
}

fn outcomes() -> impl Strategy<Value = Vec<Outcome>> {
    vec(prop::sample::select(vec![Outcome::Done, Outcome::LeaseExpired, Outcome::NotLeased]), 0..9)
}

fn request() -> impl Strategy<Value = Request> {
    let descriptor = prop::collection::btree_map(".{0,8}", ".{0,8}", 0..4)
        .prop_map(umbp_connector_core::namespace::NamespaceDescriptor);
    let hello = (any::<(u16, u16)>(), ".{0,12}", any::<Option<String>>(), prop::option::of(descriptor))
        .prop_flat_map(|fields| (Just(fields), any::<Option<u64>>(), any::<(u64, bool)>()))
        .prop_map(|((versions, client, tenant, namespace), previous, (previous_boot_id, all_unmapped))| {
            let previous_session = previous.map(SessionId);
            Request::Hello(Hello {
                versions,
                client,
                tenant,
                namespace,
                previous_session,
                previous_boot_id,
                all_unmapped,
            })
        });
    let item = (key(), key(), any::<u32>(), any::<u64>()).prop_map(|(key, parent, depth, length)| ReserveItem {
        key,
        parent: parent.local,
        depth,
        length,
    });
    prop_oneof![
        hello,
        (any::<u32>(), keys()).prop_map(|(hold_ms, keys)| Request::Lookup { hold_ms, keys }),
        vec(item, 0..9).prop_map(|items| Request::Reserve { items }),
        (lease(), any::<Vec<(u32, u64)>>()).prop_map(|(lease, items)| Request::Commit { lease, items }),
        (lease(), any::<Vec<u32>>()).prop_map(|(lease, items)| Request::Abort { lease, items }),
        keys().prop_map(|keys| Request::Acquire { keys }),
        vec(lease(), 0..9).prop_map(|leases| Request::Renew { leases }),
        (lease(), any::<Vec<(u32, bool)>>()).prop_map(|(lease, items)| Request::Release { lease, items }),
        keys().prop_map(|keys| Request::Unhold { keys }),
        any::<Option<u32>>().prop_map(|id| Request::Clear { namespace: id.map(NamespaceId) }),
        any::<u32>().prop_map(|id| Request::SegmentUnmapped { segment: SegmentId(id) }),
        Just(Request::Status),
    ]
}

fn welcome() -> impl Strategy<Value = Reply> {
    let limits = (any::<[u32; 4]>(), any::<u64>(), any::<bool>()).prop_map(|(words, block_bytes, verify_dram)| {
        let [keys, frame_bytes, lease_ms, hold_ms] = words;
        Limits { keys, frame_bytes, lease_ms, hold_ms, block_bytes, verify_dram }
    });
    let tier = (".{0,8}", ".{0,8}").prop_map(|(name, backend)| TierName { name, backend });
    let names = (any::<u16>(), ".{0,8}", ".{0,8}");
    (names, any::<[u64; 3]>(), any::<Option<u32>>(), limits, vec(tier, 0..4)).prop_map(
        |((version, daemon, tenant), [boot_id, session, generation_words], namespace, limits, tiers)| {
            let (session, namespace) = (SessionId(session), namespace.map(NamespaceId));
            Reply::Welcome(Welcome {
                version,
                daemon,
                boot_id,
                session,
                tenant,
                namespace,
                generation_words,
                limits,
                tiers,
            })
        },
    )
}

fn reply() -> impl Strategy<Value = Reply> {
    let found = prop_oneof![
        miss().prop_map(Found::Miss),
        any::<(u8, bool)>().prop_map(|(tier, held)| Found::Hit { tier, held })
    ];
    let reserved = prop_oneof![
        extent().prop_map(Reserved::Extent),
        prop::sample::select(vec![
            Reserved::Present,
            Reserved::BeingWritten,
            Reserved::Refused,
            Reserved::LengthDiffers,
            Reserved::Invalid
        ])
    ];
    let acquired = prop_oneof![acquired_ended(), Just(Acquired::Pending)];
    prop_oneof![
        welcome(),
        vec(found, 0..9).prop_map(|found| Reply::Lookup { found }),
        (lease(), any::<u32>(), vec(reserved, 0..9)).prop_map(|(lease, lease_ms, items)| Reply::Reserve {
            lease,
            lease_ms,
            items
        }),
        outcomes().prop_map(|items| Reply::Commit { items }),
        any::<u32>().prop_map(|count| Reply::Abort { count }),
        (lease(), any::<u32>(), vec(acquired, 0..9)).prop_map(|(lease, lease_ms, items)| Reply::Acquire {
            lease,
            lease_ms,
            items
        }),
        any::<Vec<u32>>().prop_map(|lease_ms| Reply::Renew { lease_ms }),
        outcomes().prop_map(|items| Reply::Release { items }),
        any::<u32>().prop_map(|count| Reply::Unhold { count }),
        any::<(u64, u64)>().prop_map(|(removed, pinned)| Reply::Clear { removed, pinned }),
        Just(Reply::SegmentUnmapped),
        any::<u64>().prop_map(|n| Reply::Status(serde_json::json!({ "tiers": [n] }))),
        (".{0,8}", ".{0,8}").prop_map(|(code, message)| Reply::Refused(Refusal { code, message })),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let reason = prop::sample::select(vec![RemovedReason::Evicted, RemovedReason::Cleared, RemovedReason::Failed]);
    let segment = (any::<u32>(), any::<u64>()).prop_map(|(id, length)| (SegmentId(id), length));
    prop_oneof![
        (lease(), any::<u32>(), acquired_ended()).prop_map(|(lease, index, item)| Event::Promoted {
            lease,
            index,
            item
        }),
        vec(segment, 0..9).prop_map(|segments| Event::SegmentsAdded { segments }),
        any::<u32>().prop_map(|id| Event::SegmentWithdrawn { segment: SegmentId(id) }),
        (any::<u8>(), reason, keys()).prop_map(|(tier, reason, keys)| Event::Removed {
            tier,
            reason,
            keys: keys.into()
        }),
        (any::<u8>(), ".{0,8}").prop_map(|(tier, state)| Event::TierState { tier, state }),
        Just(Event::Resync),
        Just(Event::Draining),
    ]
}

/// One frame with nothing before or behind it, fed in pieces.
fn frame_of(bytes: &[u8], piece: usize) -> Frame {
    let mut decoder = Decoder::new();
    let mut frames = Vec::new();
    for piece in bytes.chunks(piece) {
        decoder.feed(piece);
        frames.extend(decoder.next_frame().expect("a frame"));
    }
    assert_eq!((frames.len(), decoder.buffered()), (1, 0));
    frames.remove(0)
}

fn decode_any(frame: &Frame) {
    let _ = decode_request(frame);
    let _ = decode_reply(frame);
    let _ = decode_event(frame);
}

proptest! {
    #[test]
    fn every_request_comes_back(request in request(), id: u64, piece in 1usize..200) {
        let frame = frame_of(&encode_request(id, &request), piece);
        prop_assert_eq!((frame.kind, frame.request_id, frame.boot_id, frame.fds), (Kind::Request, id, 0, 0));
        prop_assert_eq!(decode_request(&frame).expect("decodes"), request);
    }

    #[test]
    fn every_reply_comes_back(reply in reply(), id: u64, boot_id: u64, piece in 1usize..200) {
        let frame = frame_of(&encode_reply(id, boot_id, &reply), piece);
        let table = matches!(&reply, Reply::Welcome(w) if w.generation_words > 0);
        prop_assert_eq!((frame.request_id, frame.boot_id, frame.fds), (id, boot_id, u16::from(table)));
        prop_assert_eq!(decode_reply(&frame).expect("decodes"), reply);
    }

    #[test]
    fn every_event_comes_back(event in event(), boot_id: u64, piece in 1usize..200) {
        let frame = frame_of(&encode_event(boot_id, &event), piece);
        let fds = if let Event::SegmentsAdded { segments } = &event { segments.len() } else { 0 };
        prop_assert_eq!((frame.boot_id, usize::from(frame.fds)), (boot_id, fds));
        prop_assert_eq!(decode_event(&frame).expect("decodes"), event);
    }

    /// Cut anywhere with an honest length, a message is an error, or reads as one whose list is empty; never a panic.
    #[test]
    fn a_body_cut_at_any_byte_is_an_error(reply in reply(), request in request()) {
        for (whole, is_reply) in [(encode_reply(1, 2, &reply), true), (encode_request(1, &request), false)] {
            let frame = frame_of(&whole, whole.len());
            for cut in 0..frame.body.len() {
                let cut = Frame { body: frame.body[..cut].to_vec(), ..frame.clone() };
                if is_reply {
                    prop_assert!(decode_reply(&cut).is_err(), "{:?} cut to {} bytes", reply, cut.body.len());
                } else {
                    prop_assert!(decode_request(&cut).is_err(), "{:?} cut to {} bytes", request, cut.body.len());
                }
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..300), piece in 1usize..64) {
        let mut decoder = Decoder::new();
        for piece in bytes.chunks(piece) {
            decoder.feed(piece);
            while let Ok(Some(frame)) = decoder.next_frame() {
                decode_any(&frame);
            }
        }
    }

    #[test]
    fn arbitrary_bodies_never_panic(op in any::<u16>(), body in vec(any::<u8>(), 0..300)) {
        if let Some(kind) = Kind::of(op) {
            decode_any(&Frame { opcode: op, kind, fds: 0, request_id: 0, boot_id: 0, body });
        }
    }

    /// Bytes of a message with a few of them changed: closer to the decoders' branches than pure noise.
    #[test]
    fn a_damaged_message_never_panics(event in event(), reply in reply(), at: u16, value: u8) {
        for mut bytes in [encode_event(1, &event), encode_reply(1, 1, &reply)] {
            let at = usize::from(at) % bytes.len();
            bytes[at] = value;
            let mut decoder = Decoder::new();
            decoder.feed(&bytes);
            if let Ok(Some(frame)) = decoder.next_frame() {
                decode_any(&frame);
            }
        }
    }
}

fn body_with(count: u32, rest: &[u8]) -> Frame {
    let mut body = vec![8, 0, 0, 0];
    body.extend_from_slice(&count.to_le_bytes());
    body.extend_from_slice(rest);
    Frame { opcode: opcode::ACQUIRE, kind: Kind::Request, fds: 0, request_id: 0, boot_id: 0, body }
}

#[test]
fn a_lying_count_is_refused_before_anything_is_allocated_for_it() {
    assert!(matches!(decode_request(&body_with(u32::MAX, &[])), Err(DecodeError::Count { count: 0xffff_ffff, .. })));
    assert!(matches!(decode_request(&body_with(8193, &[0; 8193 * 48])), Err(DecodeError::Count { .. })));
    assert!(matches!(decode_request(&body_with(8192, &[0; 47])), Err(DecodeError::Short { needed: 32768, .. })));
    assert!(matches!(decode_request(&body_with(1, &[0; 48])), Ok(Request::Acquire { keys }) if keys.len() == 1));
}

/// Work and memory: what a decoder gives out is at most a constant times the frame.
#[test]
fn the_largest_batch_fits_in_a_frame_and_costs_a_constant_times_it() {
    let key = WireKey { namespace: NamespaceId(1), local: [7; LOCAL_KEY_BYTES] };
    let item = ReserveItem { key, parent: [8; LOCAL_KEY_BYTES], depth: 1, length: 2 };
    let bytes = encode_request(1, &Request::Reserve { items: vec![item; KEYS_PER_MESSAGE_MAX] });
    assert!(bytes.len() < FRAME_BYTES_MAX, "{} bytes", bytes.len());
    let Ok(Request::Reserve { items }) = decode_request(&frame_of(&bytes, 65536)) else { panic!("not a Reserve") };
    assert!(items.capacity() * size_of::<ReserveItem>() <= 2 * bytes.len());
}

/// A newer minor may lengthen the header, the fixed part, and add columns at the end.
#[test]
fn what_a_newer_minor_adds_is_skipped() {
    let keys = vec![WireKey { namespace: NamespaceId(3), local: [5; LOCAL_KEY_BYTES] }; 2];
    let known = encode_request(9, &Request::Lookup { hold_ms: 70, keys: keys.clone() });
    let (fixed, columns) = known[HEADER_BYTES..].split_at(12);
    let mut newer = header(opcode::LOOKUP, 0, 9, 0);
    newer.extend_from_slice(&[0xaa; 16]);
    newer[8] = 48;
    newer.extend_from_slice(fixed);
    newer[48] = 12 + 6;
    newer.extend_from_slice(&[0xbb; 6]);
    newer.extend_from_slice(columns);
    newer.extend_from_slice(&[0xcc; 2 * 13]);
    let frame = frame_of(&seal(newer), 17);
    assert_eq!(decode_request(&frame).expect("decodes"), Request::Lookup { hold_ms: 70, keys });
    assert_eq!(ENVELOPE_VERSION, 1);
}

#[test]
fn a_message_that_goes_the_other_way_is_refused() {
    let frame = frame_of(&encode_request(1, &Request::Status), 8);
    assert!(matches!(decode_reply(&frame), Err(DecodeError::WrongKind { expected: Kind::Reply, .. })));
    assert!(matches!(decode_event(&frame), Err(DecodeError::WrongKind { expected: Kind::Event, .. })));
}
