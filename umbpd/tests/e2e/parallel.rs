//! Clients side by side: none waits for another, nor for the daemon, to copy what it was lent (K8, K9).

use rustix::process::Signal;
use umbp_protocol::message::{Acquired, Reply, Request};

use crate::common::client::Client;
use crate::common::daemon::Place;
use crate::rig::is_quiet;

const BLOCKS: u64 = 8;
const BYTES: u64 = 64 << 10;

/// K9: two clients have the same blocks lent at the same time and read them while the daemon stands still: no lock and
/// no thread of it is in their way.
#[test]
fn k9_two_clients_read_at_once_and_the_daemon_is_not_in_the_way() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let mut clients = [(); 2].map(|()| Client::new(&daemon.socket));
    assert!((0..BLOCKS).all(|number| clients[0].store(number, BYTES)));
    let lent: Vec<_> = clients
        .iter_mut()
        .map(|client| {
            let keys = (0..BLOCKS).map(|number| client.key(number)).collect();
            let Reply::Acquire { lease, items, .. } = client.call(&Request::Acquire { keys }) else {
                panic!("an answer")
            };
            (lease, items)
        })
        .collect();
    assert_eq!(daemon.status()["leases"]["read"], 2);
    daemon.signal(Signal::STOP);
    for (client, (_, items)) in clients.iter().zip(&lent) {
        for (number, item) in (0..).zip(items) {
            let Acquired::Ready { extent, length, .. } = item else { panic!("block {number}: {item:?}") };
            // SAFETY: lent to this client for reading, and inside its mapping.
            let bytes = unsafe { std::slice::from_raw_parts(client.slice(extent, *length), *length as usize) };
            assert!(bytes == Client::content(number, BYTES), "block {number}");
        }
    }
    daemon.signal(Signal::CONT);
    for (client, (lease, _)) in clients.iter_mut().zip(lent) {
        client.call(&Request::Release { lease, items: Vec::new() });
    }
    daemon.until("all is given back", is_quiet);
}

/// K8: the checksum of blocks is the processor's own carry-less multiplication wherever there is one.
#[test]
fn k8_the_checksum_runs_in_hardware_where_the_processor_can() {
    let way = crc_fast::get_calculator_target(crc_fast::CrcAlgorithm::Crc64Nvme);
    #[cfg(target_arch = "x86_64")]
    let can = std::is_x86_feature_detected!("pclmulqdq") && std::is_x86_feature_detected!("sse4.1");
    #[cfg(target_arch = "aarch64")]
    let can = std::arch::is_aarch64_feature_detected!("aes");
    assert_eq!(can, !way.starts_with("software"), "{way}");
    // It is that very code that blocks are checked with.
    let (digest, key, payload) = ([7; 32], [9; 44], vec![0x5a; 100_000]);
    let mut all = [&digest[..], &key[..], &100_000u64.to_le_bytes()].concat();
    all.extend(&payload);
    assert_eq!(umbp_plugin_api::checksum::of_block(&digest, &key, &payload), crc_fast::crc64_nvme(&all));
}
