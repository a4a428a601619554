//! Ids, sizes and offsets that are not the client's to name (K11), Clear within its own bounds (K12), and namespaces
//! that stay apart (H5).

use umbp_client::Outcome;
use umbp_connector_core::namespace::NamespaceDescriptor;
use umbp_protocol::message::{
    Acquired, Found, LeaseId, MissReason, NamespaceId, Outcome as Done, Reply, Request, ReserveItem, Reserved,
    SegmentId, WireKey,
};

use crate::common::client::{Client as Bare, descriptor};
use crate::common::daemon::{Daemon, Place};
use crate::rig::{BLOCK_BYTES, Engine, copied, is_loaded, is_quiet, recovered, summary, with_nvme};

fn two_tenants() -> String {
    let own = rustix::process::getuid().as_raw();
    format!("[[tenant]]\nname = \"a\"\nuids = [{own}]\n[[tenant]]\nname = \"b\"\nuids = [{own}]\n")
}

/// Everything that a client could say of a lease that is not its own.
fn meddle(client: &mut Bare, lease: LeaseId) {
    let expired = vec![Done::LeaseExpired];
    let release = Request::Release { lease, items: vec![(0, false)] };
    for (request, answer) in [
        (Request::Commit { lease, items: vec![(0, 1)] }, Reply::Commit { items: expired.clone() }),
        (Request::Abort { lease, items: Vec::new() }, Reply::Abort { count: 0 }),
        (Request::Abort { lease, items: vec![0] }, Reply::Abort { count: 0 }),
        (release, Reply::Release { items: expired }),
        (Request::Renew { leases: vec![lease] }, Reply::Renew { lease_ms: vec![0] }),
    ] {
        assert_eq!(client.call(&request), answer, "{request:?}");
    }
    assert_eq!(client.call(&Request::Release { lease, items: Vec::new() }), Reply::Release { items: Vec::new() });
}

/// K11: a stranger, of the tenant or not, names another session's leases and holds: told so, and nothing changes.
#[test]
fn k11_a_strangers_lease_is_no_lease() {
    let place = Place::new("128MiB", &two_tenants());
    let daemon = place.serve();
    let mut owner = Bare::new(&daemon.socket);
    assert!(owner.store(1, BLOCK_BYTES));
    owner.lookup(&[1], 10_000);
    let (write, items) = owner.reserve(&[2], BLOCK_BYTES);
    assert!(matches!(items[0], Reserved::Extent(_)));
    let keys = vec![owner.key(1)];
    let Reply::Acquire { lease: read, .. } = owner.call(&Request::Acquire { keys }) else { panic!("an answer") };
    owner.lookup(&[1], 10_000);
    let mut other_tenant = Bare::silent(&daemon.socket);
    let hello = crate::common::client::hello();
    other_tenant.greet(umbp_protocol::message::Hello { tenant: Some("b".to_owned()), ..hello }).expect("welcome");
    for mut stranger in [Bare::new(&daemon.socket), other_tenant] {
        let known = [read, write].map(|lease| lease.0);
        for lease in (0..64).chain(known).chain([u64::MAX]) {
            meddle(&mut stranger, LeaseId(lease));
        }
        let keys = vec![owner.key(1)];
        assert_eq!(stranger.call(&Request::Unhold { keys }), Reply::Unhold { count: 0 });
        assert_eq!(stranger.call(&Request::Unhold { keys: Vec::new() }), Reply::Unhold { count: 0 });
    }
    let status = daemon.status();
    assert_eq!((&status["leases"]["read"], &status["leases"]["write"]), (&1.into(), &1.into()), "{status:#}");
    assert_eq!(status["holds"]["now"], 1, "{status:#}");
    let reply = owner.call(&Request::Commit { lease: write, items: vec![(0, 5)] });
    assert_eq!(reply, Reply::Commit { items: vec![Done::Done] }, "the owner's lease is as it was");
    let reply = owner.call(&Request::Release { lease: read, items: vec![(0, true)] });
    assert_eq!(reply, Reply::Release { items: vec![Done::Done] });
}

/// Sizes, depths, indices, numbers and keys that lie, in one batch with a good block: each is told by itself, the good
/// one is served, the session and the daemon live.
#[test]
fn lying_sizes_indices_and_numbers_cost_nothing_but_themselves() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let mut client = Bare::new(&daemon.socket);
    let good = ReserveItem { key: client.key(1), parent: [0; 44], depth: 0, length: BLOCK_BYTES };
    let another = ReserveItem { key: client.key(2), parent: [0; 44], depth: 0, length: BLOCK_BYTES };
    let item = |change: &dyn Fn(&mut ReserveItem)| {
        let mut item = another;
        change(&mut item);
        item
    };
    let items = vec![
        item(&|item| item.length = 0),
        item(&|item| item.length = u64::MAX),
        item(&|item| item.length = u64::from(u32::MAX) + 1),
        item(&|item| item.length = (1 << 20) + 1),
        item(&|item| item.depth = u32::MAX),
        item(&|item| item.parent = item.key.local),
        item(&|item| item.parent = [0xff; 44]),
        item(&|item| item.key.local = [0; 44]),
        item(&|item| item.key.local = [0xff; 44]),
        item(&|item| item.key.namespace = NamespaceId(u32::MAX)),
        good,
    ];
    let Reply::Reserve { lease, items, .. } = client.call(&Request::Reserve { items }) else { panic!("an answer") };
    assert!(items[..10].iter().all(|item| *item == Reserved::Invalid), "{items:?}");
    assert!(matches!(items[10], Reserved::Extent(_)), "{items:?}");
    let commit = vec![(0, 1), (11, 1), (u32::MAX, 1), (10, 1), (10, 1)];
    let reply = client.call(&Request::Commit { lease, items: commit });
    let no = Done::NotLeased;
    // With its last block committed the lease is no more, or the index is settled: nothing changes either way.
    let Reply::Commit { items } = reply else { panic!("an answer") };
    assert_eq!(items[..4], [no, no, no, Done::Done]);
    assert_ne!(items[4], Done::Done);
    let stranger = WireKey { namespace: NamespaceId(77), local: good.key.local };
    let keys = vec![stranger, WireKey { local: [0xff; 44], ..good.key }, good.key];
    let Reply::Acquire { lease, items, .. } = client.call(&Request::Acquire { keys: keys.clone() }) else {
        panic!("an answer")
    };
    assert_eq!(items[0], Acquired::Miss(MissReason::BadKey));
    assert!(matches!((&items[1], &items[2]), (Acquired::Miss(_), Acquired::Ready { .. })), "{items:?}");
    let reply = client.call(&Request::Release { lease, items: vec![(9, true), (0, true), (2, true), (2, false)] });
    let Reply::Release { items } = reply else { panic!("an answer") };
    assert_eq!(items[..3], [no, no, Done::Done]);
    assert_ne!(items[3], Done::Done);
    assert_eq!(client.call(&Request::SegmentUnmapped { segment: SegmentId(u32::MAX) }), Reply::SegmentUnmapped);
    let reply = client.call(&Request::Clear { namespace: Some(NamespaceId(u32::MAX)) });
    assert!(matches!(reply, Reply::Clear { removed: 0, pinned: 0 } | Reply::Refused(_)), "{reply:?}");
    assert!(matches!(client.lookup(&[1], 0)[..], [Found::Hit { .. }]), "the good block is still there");
    let status = daemon.until("all quiet", is_quiet);
    assert_eq!(status["faults"], 0, "{status:#}");
}

fn engines(daemon: &Daemon) -> [Engine; 3] {
    let other = NamespaceDescriptor::default().with("model", "another").with("block_size", 16);
    let tenant = |name: &'static str, namespace: NamespaceDescriptor| {
        Engine::with(&daemon.socket, 64, BLOCK_BYTES, |options| {
            options.tenant = Some(name.to_owned());
            options.namespace = Some(namespace);
        })
    };
    [tenant("a", descriptor()), tenant("a", other), tenant("b", descriptor())]
}

/// K12: Clear reaches the client's own namespace of its own tenant: in both tiers, and for good.
#[test]
fn k12_a_clear_leaves_other_namespaces_and_tenants_and_stays_done_after_a_restart() {
    let place = with_nvme("192MiB", "128MiB", &two_tenants());
    let daemon = place.serve();
    let numbers: Vec<u64> = (0..32).collect();
    let mut clients = engines(&daemon);
    for client in &mut clients {
        client.store_all(&numbers);
    }
    daemon.until("copies below", |status| copied(status, 96));
    assert_eq!(clients[0].client.clear().map(|cleared| cleared.removed), Ok(32));
    let check = |clients: &mut [Engine; 3]| {
        let cleared = clients[0].load(&numbers);
        assert!(cleared.iter().all(|o| matches!(o, Outcome::Missed(_))), "{:?}", summary(&cleared));
        for other in &mut clients[1..] {
            let outcomes = other.load(&numbers);
            assert!(outcomes.iter().all(|o| is_loaded(*o)), "{:?}", summary(&outcomes));
        }
    };
    check(&mut clients);
    daemon.until("deletes are done", |status| copied(status, 64));
    drop(clients);
    drop(daemon);
    let daemon = place.serve();
    daemon.until("recovery", recovered);
    check(&mut engines(&daemon));
}

/// H5: what another namespace or tenant stored under the very same key is a miss: in the first tier, in the one below,
/// and after a restart.
#[test]
fn h5_no_tier_shows_a_block_to_another_namespace_or_tenant() {
    let place = with_nvme("64MiB", "128MiB", &two_tenants());
    let numbers: Vec<u64> = (0..32).collect();
    let check = |daemon: &Daemon, tier: u8| {
        let [mut owner, others @ ..] = engines(daemon);
        for mut other in others {
            let outcomes = other.load(&numbers);
            assert!(outcomes.iter().all(|o| matches!(o, Outcome::Missed(_))), "{:?}", summary(&outcomes));
        }
        let outcomes = owner.load(&numbers);
        let own = Outcome::Loaded { tier, bytes: BLOCK_BYTES };
        assert!(outcomes.iter().all(|o| *o == own), "tier {tier}: {:?}", summary(&outcomes));
    };
    let daemon = place.serve();
    engines(&daemon)[0].store_all(&numbers);
    check(&daemon, 0);
    daemon.until("copies below", |status| copied(status, 32));
    drop(daemon);
    let daemon = place.serve();
    daemon.until("recovery", recovered);
    check(&daemon, 1);
}
