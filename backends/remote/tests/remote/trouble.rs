//! Servers that refuse, hang, die and come back; slots that move; a master that changes.

use std::time::Duration;

use umbp_plugin_api::types::code;
use umbp_plugin_api::{Status, Submitted};
use umbp_testkit::cluster::Cluster;
use umbp_testkit::proxy::{Mode, Proxy, Way};
use umbp_testkit::servers::servers;
use umbp_testkit::valkey::Valkey;

use crate::rig::{self, Tier};

const QUICK: &str =
    "timeout = \"200ms\"\nconnect_timeout = \"200ms\"\nbreaker_failures = 2\nbreaker_pause = \"50ms\"\n";

fn quick(address: &str) -> Tier {
    Tier::open(&format!("{}{QUICK}", rig::single(address)))
}

/// G5, K10: each state has its status, its counter, and one line that says what to do.
#[test]
fn a_server_that_refuses_says_why() {
    let Some(servers) = servers() else { return };
    let secret = Valkey::single(&servers, &["requirepass right"]);
    let full = Valkey::single(&servers, &["maxmemory 2mb", "maxmemory-policy noeviction"]);
    let master = Valkey::single(&servers, &[]);
    let replica = Valkey::replica_of(&servers, &master, &[]);
    let limited = Valkey::single(&servers, &["user default on nopass ~other:* +@all"]);
    let cases = [
        (&secret, Status::IO, "fault.auth", "password"),
        (&full, Status::NO_SPACE, "fault.full", "maxmemory-policy"),
        (&replica, Status::IO, "fault.readonly", "master"),
        (&limited, Status::IO, "fault.permission", "docs/remote.md"),
    ];
    for (server, status, counter, remedy) in cases {
        let mut tier = Tier::open(&rig::single(&server.address()));
        tier.until(counter, |tier| tier.put(1, 4 << 20).1.status == status);
        assert!(tier.counted(counter) > 0, "{counter}: {:?}", tier.counters());
        tier.put(2, 4 << 20);
        let said = tier.lines().into_iter().filter(|line| line.contains(remedy)).count();
        assert_eq!(said, 1, "{counter}: one line, not one for each operation: {:?}", tier.lines());
    }
}

/// D4, F9: the circuit opens within a few calls' time, nothing is sent while it is open, and a probe closes it.
#[test]
fn a_hung_server_opens_the_circuit_and_an_answer_closes_it() {
    let Some(servers) = servers() else { return };
    let server = Valkey::single(&servers, &[]);
    let mut tier = quick(&server.address());
    let known = tier.put_ok(1, 1000);
    server.stop();
    tier.until("the circuit opens", |tier| {
        assert_ne!(tier.get(&known), Status::OK);
        tier.counted("breaker.refused") > 0
    });
    assert_eq!(tier.counted("breaker.opened"), 1);
    server.cont();
    tier.until("it closes again", |tier| tier.get(&known) == Status::OK);
    assert_eq!(tier.counted("breaker.closed"), 1, "{:?}", tier.counters());
}

#[test]
fn a_server_that_is_started_again_is_connected_to_again() {
    let Some(servers) = servers() else { return };
    let mut server = Valkey::single(&servers, &[]);
    let mut tier = quick(&server.address());
    let known = tier.put_ok(1, 1000);
    server.kill();
    assert_eq!(tier.get(&known), Status::IO);
    server.restart();
    tier.until("it answers that nothing is there", |tier| tier.get(&known) == Status::MISS);
    let known = tier.put_ok(1, 1000);
    assert_eq!(tier.get(&known), Status::OK);
}

/// D5, F9: faults on the way: what is cut, swallowed or dripped is no hang and no wrong byte, and ends when the
/// fault does.
#[test]
fn a_bad_network_costs_the_calls_on_it_and_nothing_after() {
    let Some(servers) = servers() else { return };
    let server = Valkey::single(&servers, &[]);
    let proxy = Proxy::to(&server.address());
    let mut tier = quick(&proxy.address());
    let known = tier.put_ok(1, 300_000);
    type Fault<'a> = &'a dyn Fn(&Proxy);
    let cut = |proxy: &Proxy| proxy.cut_after(Way::Back, 100_000);
    let faults: [(&str, Fault<'_>); 4] = [
        ("cut in the middle of an answer", &cut),
        ("half-open", &|proxy| proxy.set(Way::Back, Mode::Swallow)),
        ("slower than the time of a call", &|proxy| proxy.set_both(Mode::Delay(Duration::from_secs(2)))),
        ("all connections reset", &|proxy| proxy.cut()),
    ];
    for (what, fault) in faults {
        fault(&proxy);
        let status = tier.get(&known);
        assert!(matches!(status, Status::OK | Status::IO | Status::TIMED_OUT), "{what}: {status:?}");
        proxy.set_both(Mode::Pass);
        tier.until(what, |tier| tier.get(&known) == Status::OK);
    }
}

/// A3: of a batch exactly the blocks of the lost node fail.
#[test]
fn a_node_that_is_gone_fails_its_own_slots_alone_and_serves_them_when_it_is_back() {
    let Some(servers) = servers() else { return };
    let mut cluster = Cluster::start(&servers, 3, &[]);
    let options = format!("engine = \"redis\"\nmode = \"cluster\"\naddresses = {:?}\n{QUICK}", cluster.addresses());
    let mut tier = Tier::open(&options);
    let known: Vec<_> = (0..60).map(|number| tier.put_ok(number, 500)).collect();
    let there: Vec<i64> = (0..3).map(|node| cluster.node(node).ask(&["DBSIZE"]).integer()).collect();
    cluster.node_mut(1).kill();
    let good = |tier: &mut Tier| known.iter().filter(|block| tier.get(block) == Status::OK).count() as i64;
    assert_eq!(good(&mut tier), there[0] + there[2], "{there:?}");
    cluster.node_mut(1).restart();
    cluster.await_agreement();
    tier.until("every slot takes blocks again", |tier| {
        (0..60).all(|number| tier.put(number, 500).1.status == Status::OK)
    });
    assert_eq!(good(&mut tier), 60);
}

/// MOVED and ASK are followed: every block is there at every moment of a slot's move.
#[test]
fn slots_on_the_move_are_followed() {
    let Some(servers) = servers() else { return };
    let cluster = Cluster::start(&servers, 3, &[]);
    let options = format!("engine = \"redis\"\nmode = \"cluster\"\naddresses = {:?}\n", cluster.addresses());
    let mut tier = Tier::open(&options);
    let known: Vec<_> = (0..20).map(|number| tier.put_ok(number, 500)).collect();
    let all_there = |tier: &mut Tier, when: &str| {
        for block in &known {
            assert_eq!(tier.get(block), Status::OK, "{when}");
            assert_eq!(tier.run(code::EXISTS, block).status, Status::OK, "{when}");
        }
    };
    let names = (0..3).flat_map(|node| cluster.node(node).keys("*"));
    let slot = cluster.slot(&names.into_iter().next().expect("a name"));
    let to = (cluster.owner(slot).expect("an owner") + 1) % 3;
    cluster.begin_move(slot, to);
    all_there(&mut tier, "on the way");
    cluster.move_keys(slot, to);
    all_there(&mut tier, "moved, and not told");
    cluster.end_move(slot, to);
    all_there(&mut tier, "at the new place");
}

#[test]
fn the_master_that_sentinels_name_is_followed() {
    let Some(servers) = servers() else { return };
    let mut master = Valkey::single(&servers, &[]);
    let replica = Valkey::replica_of(&servers, &master, &[]);
    let sentinel = Valkey::sentinel(&servers, "blocks", &master, 1, &[]);
    let address = sentinel.address();
    let options = format!(
        "engine = \"redis\"\nmode = \"sentinel\"\nmaster_name = \"blocks\"\naddresses = [{address:?}]\n{QUICK}"
    );
    let mut tier = Tier::open(&options);
    let known = tier.put_ok(1, 1000);
    umbp_testkit::wait::until("the replica has it", || (!replica.keys("*").is_empty()).then_some(()));
    umbp_testkit::wait::until("the sentinel knows the replica", || {
        let told = sentinel.ask(&["SENTINEL", "REPLICAS", "blocks"]);
        (!told.list().is_empty()).then_some(())
    });
    master.kill();
    tier.until("the new master takes blocks", |tier| tier.put(2, 1000).1.status == Status::OK);
    assert_eq!(tier.get(&known), Status::OK);
}

/// An address that leads to the new master by now is connected to anew, though the old one still answers.
#[test]
fn an_address_that_has_moved_on_is_followed_once_the_old_server_takes_nothing_more() {
    let Some(servers) = servers() else { return };
    let old = Valkey::single(&servers, &[]);
    let new = Valkey::single(&servers, &[]);
    let proxy = Proxy::to(&old.address());
    let mut tier = Tier::open(&format!("{}{QUICK}connections = 1\n", rig::single(&proxy.address())));
    tier.put_ok(1, 1000);
    proxy.lead_to(&new.address());
    let (host, port) = new.address().rsplit_once(':').map(|(host, port)| (host.to_owned(), port.to_owned())).unwrap();
    assert_eq!(old.ask(&["REPLICAOF", &host, &port]).text(), "OK");
    tier.until("the new master takes blocks", |tier| tier.put(2, 1000).1.status == Status::OK);
    assert!(tier.counted("fault.readonly") > 0, "{:?}", tier.counters());
    assert!(!new.keys("*").is_empty());
}

/// G4: what is under way has its bound.
#[test]
fn more_bytes_than_may_be_under_way_are_busy_and_a_cancelled_operation_ends_once() {
    let Some(servers) = servers() else { return };
    let server = Valkey::single(&servers, &[]);
    let options = format!("{}in_flight_bytes = \"1MiB\"\ntimeout = \"60s\"\n", rig::single(&server.address()));
    let tier = Tier::open(&options);
    server.stop();
    let put = |number| tier.operation(code::PUT, &Tier::known(number, 600_000));
    let (first, second) = (put(1), put(2));
    assert_eq!((tier.submit(first), tier.submit(second)), (Submitted::ACCEPTED, Submitted::BUSY));
    tier.cancel(&[first.id, first.id, 999]);
    let done = tier.wait();
    assert_eq!((done.id, done.status), (first.id, Status::CANCELLED));
    assert_eq!(tier.submit(second), Submitted::ACCEPTED);
    let took = tier.shutdown(Duration::from_secs(4));
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!((tier.wait().id, tier.submit(put(3))), (second.id, Submitted::rejected(Status::INVALID)));
    server.cont();
}
