//! The benchmark, through a daemon of a few lines: it answers every request, and never evicts.

mod fake;

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};

use umbp_client::{Options, bench};
use umbp_protocol::message::*;
use umbp_protocol::{Decoder, decode_request, encode_event, encode_reply, fds};

/// Serves sessions one after the other's start, each on a thread, each with a pool of its own.
fn serve(listener: &UnixListener, pool_bytes: u64, sessions: usize) {
    std::thread::scope(|scope| {
        for _ in 0..sessions {
            let (stream, _) = listener.accept().expect("accepted");
            scope.spawn(move || serve_session(&stream, pool_bytes));
        }
    });
}

fn memfd(bytes: u64) -> std::fs::File {
    let fd = rustix::fs::memfd_create("bench", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
    rustix::fs::ftruncate(&fd, bytes).expect("sized");
    rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, bytes).expect("filled");
    std::fs::File::from(fd)
}

fn limits() -> Limits {
    Limits { keys: 8192, frame_bytes: 4 << 20, lease_ms: 10_000, hold_ms: 0, block_bytes: 64 << 20, verify_dram: false }
}

fn serve_session(stream: &UnixStream, pool_bytes: u64) {
    let (pool, table) = (memfd(pool_bytes), memfd(8 << 16));
    let (mut decoder, mut buffer) = (Decoder::new(), vec![0; 65536]);
    let (mut blocks, mut top) = (HashMap::new(), 0);
    let mut reserved: Vec<(WireKey, Extent, u64)> = Vec::new();
    loop {
        while let Some(frame) = decoder.next_frame().expect("a frame") {
            let reply = match decode_request(&frame).expect("a request") {
                Request::Hello(_) => {
                    let limits = limits();
                    let welcome = Welcome {
                        version: 1,
                        daemon: "bench".to_owned(),
                        boot_id: 1,
                        session: SessionId(1),
                        tenant: String::new(),
                        namespace: Some(NamespaceId(1)),
                        generation_words: 1 << 16,
                        limits,
                        tiers: vec![],
                    };
                    let bytes = encode_reply(frame.request_id, 1, &Reply::Welcome(welcome));
                    fds::send_all(stream, &bytes, &[table.as_fd()]).expect("welcomed");
                    let added = Event::SegmentsAdded { segments: vec![(SegmentId(0), pool_bytes)] };
                    fds::send_all(stream, &encode_event(1, &added), &[pool.as_fd()]).expect("segment");
                    continue;
                }
                Request::Reserve { items } => {
                    let place = |item: &ReserveItem| {
                        let extent = Extent { segment: 0, slot: 0, offset: top, generation: 0 };
                        top += item.length.next_multiple_of(4096);
                        (item.key, extent, item.length)
                    };
                    reserved = items.iter().map(place).collect();
                    let items = reserved.iter().map(|(_, extent, _)| Reserved::Extent(*extent)).collect();
                    Reply::Reserve { lease: LeaseId(1), lease_ms: 10_000, items }
                }
                Request::Commit { items, .. } => {
                    for (index, checksum) in &items {
                        let (key, extent, length) = reserved[*index as usize];
                        blocks.insert(key, Acquired::Ready { extent, length, checksum: *checksum, tier: 0 });
                    }
                    Reply::Commit { items: vec![Outcome::Done; items.len()] }
                }
                Request::Acquire { keys } => {
                    let items = keys.iter().map(|key| blocks[key]).collect();
                    Reply::Acquire { lease: LeaseId(2), lease_ms: 10_000, items }
                }
                Request::Release { .. } => Reply::Release { items: vec![] },
                Request::Clear { .. } => {
                    top = 0;
                    Reply::Clear { removed: blocks.drain().count() as u64, pinned: 0 }
                }
                other => panic!("{other:?}"),
            };
            fds::send_all(stream, &encode_reply(frame.request_id, 1, &reply), &[]).expect("replied");
        }
        let received = fds::receive(stream, &mut buffer, 0, &mut Vec::new()).expect("received");
        if received.bytes == 0 {
            return;
        }
        decoder.feed(&buffer[..received.bytes]);
    }
}

fn run(settings: &bench::CopySettings, pool_bytes: u64) -> bench::CopyReport {
    let directory = tempfile::tempdir().expect("directory");
    let socket = directory.path().join("socket");
    let listener = UnixListener::bind(&socket).expect("bound");
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&listener, pool_bytes, 2));
        bench::copy(&Options::new(&socket, None), settings).expect("measured")
    })
}

#[test]
fn the_benchmark_measures_four_lines_and_compares_the_bytes() {
    for mut settings in bench::CopySettings::shapes(1, 2) {
        settings.set_bytes = Some(8 << 20);
        let report = run(&settings, 16 << 20);
        let lines: Vec<_> = report.lines.iter().map(|line| (line.direction, line.checksum)).collect();
        assert_eq!(lines, [("store", false), ("load", false), ("store", true), ("load", true)]);
        assert!(report.lines.iter().all(|line| line.ratio > 0.0 && line.gbps > 0.0));
    }
}
