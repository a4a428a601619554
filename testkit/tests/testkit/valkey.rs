//! Valkey servers and clusters.

use std::io::ErrorKind;

use umbp_testkit::cluster::Cluster;
use umbp_testkit::proxy::Proxy;
use umbp_testkit::resp::{Reply, Resp};
use umbp_testkit::servers::servers;
use umbp_testkit::valkey::Valkey;
use umbp_testkit::wait::until;

fn set(address: &str, key: &str, value: &str) -> Reply {
    Resp::connect(address).unwrap().ask(&["SET", key, value]).unwrap()
}

#[test]
fn a_server_answers_by_both_sockets_stops_goes_on_and_comes_back_on_its_port() {
    let Some(servers) = servers() else { return };
    let mut valkey = Valkey::single(&servers, &["maxmemory 64mb", "maxmemory-policy noeviction"]);
    let address = valkey.address();
    assert!(set(&address, "a", "by tcp").is_ok());
    assert_eq!(Resp::connect(&valkey.unix_address()).unwrap().ask(&["GET", "a"]).unwrap().text(), "by tcp");
    assert_eq!(valkey.ask(&["CONFIG", "GET", "maxmemory"]).list()[1].text(), (64 << 20).to_string());
    assert_eq!(valkey.keys("*"), ["a"]);

    valkey.stop();
    let error = valkey.try_ask(&["PING"]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "a stopped server: {error}");
    valkey.cont();
    assert_eq!(valkey.ask(&["PING"]).text(), "PONG");

    valkey.kill();
    assert_eq!(Resp::connect(&address).err().unwrap().kind(), ErrorKind::ConnectionRefused);
    valkey.restart();
    assert_eq!(valkey.address(), address);
    assert!(set(&address, "b", "1").is_ok());
    assert_eq!(valkey.keys("*"), ["b"], "it keeps nothing on disk");
}

#[test]
fn a_password_is_asked_of_others_and_known_to_the_kit() {
    let Some(servers) = servers() else { return };
    let valkey = Valkey::single(&servers, &["requirepass secret"]);
    assert!(set(&valkey.address(), "a", "1").text().starts_with("NOAUTH"));
    assert_eq!(valkey.ask(&["PING"]).text(), "PONG");
    let replica = Valkey::replica_of(&servers, &valkey, &["requirepass secret"]);
    assert!(replica.ask(&["SET", "a", "1"]).text().starts_with("READONLY"));
}

#[test]
fn a_sentinel_puts_the_replica_in_the_place_of_a_dead_master() {
    let Some(servers) = servers() else { return };
    let mut master = Valkey::single(&servers, &[]);
    assert!(set(&master.address(), "a", "1").is_ok());
    let replica = Valkey::replica_of(&servers, &master, &[]);
    let sentinel = Valkey::sentinel(&servers, "blocks", &master, 1, &[]);
    let told = || {
        let reply = sentinel.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "blocks"]);
        format!("{}:{}", reply.list()[0].text(), reply.list()[1].text())
    };
    assert_eq!(told(), master.address());
    until("the sentinel knows the replica", || {
        sentinel
            .ask(&["SENTINEL", "MASTER", "blocks"])
            .list()
            .windows(2)
            .find(|pair| pair[0].text() == "num-slaves")
            .and_then(|pair| (pair[1].text() == "1").then_some(()))
    });
    master.kill();
    until("the replica is the master", || (told() == replica.address()).then_some(()));
    until("and takes writes", || replica.ask(&["SET", "a", "2"]).is_ok().then_some(()));
}

#[test]
fn a_cluster_serves_its_slots_moves_one_and_loses_those_of_a_dead_node_alone() {
    let Some(servers) = servers() else { return };
    let mut cluster = Cluster::start(&servers, 3, &[]);
    let keys: Vec<String> = (0..3).map(|node| key_of(&cluster, node)).collect();
    for (index, key) in keys.iter().enumerate() {
        assert!(set(&cluster.node(index).address(), key, "1").is_ok());
        assert!(set(&cluster.node((index + 1) % 3).address(), key, "1").text().starts_with("MOVED"));
    }
    let slot = cluster.slot(&keys[0]);
    cluster.begin_move(slot, 1);
    assert_eq!(cluster.node(0).ask(&["GET", &keys[0]]).text(), "1", "what has not moved yet is served");
    cluster.move_keys(slot, 1);
    assert!(cluster.node(0).ask(&["GET", &keys[0]]).text().starts_with("ASK"));
    cluster.end_move(slot, 1);
    assert!(cluster.node(0).ask(&["GET", &keys[0]]).text().starts_with("MOVED"));
    assert_eq!(cluster.node(1).ask(&["GET", &keys[0]]).text(), "1");

    let address = cluster.node(2).address();
    cluster.node_mut(2).kill();
    until("the others see that it failed", || {
        cluster.node(0).ask(&["CLUSTER", "INFO"]).text().contains("cluster_slots_fail:5462").then_some(())
    });
    assert!(cluster.node(1).ask(&["SET", &keys[1], "2"]).is_ok(), "their own slots are served");
    cluster.node_mut(2).restart();
    cluster.await_agreement();
    assert_eq!(cluster.node(2).address(), address);
    assert_eq!(cluster.owner(cluster.slot(&keys[2])), Some(2));
}

#[test]
fn a_clusters_replica_takes_the_place_of_its_master() {
    let Some(servers) = servers() else { return };
    let mut cluster = Cluster::start(&servers, 3, &[]);
    let key = key_of(&cluster, 0);
    let replica = cluster.add_replica(&servers, 0);
    assert!(cluster.node(0).ask(&["SET", &key, "1"]).is_ok());
    assert_eq!(cluster.node(0).ask(&["WAIT", "1", "5000"]).integer(), 1);
    cluster.node_mut(0).kill();
    until("the replica serves", || cluster.node(replica).ask(&["SET", &key, "2"]).is_ok().then_some(()));
    assert_eq!(cluster.owner(cluster.slot(&key)), Some(replica));
}

#[test]
fn a_cluster_tells_its_clients_the_proxy_before_a_node() {
    let Some(servers) = servers() else { return };
    let cluster = Cluster::start(&servers, 3, &[]);
    let proxy = Proxy::to(&cluster.node(1).address());
    cluster.announce(1, proxy.port());
    let key = key_of(&cluster, 1);
    let moved = cluster.node(0).ask(&["GET", &key]).text();
    assert_eq!(moved.split(' ').next_back(), Some(&proxy.address()[..]), "{moved}");
    assert!(set(&proxy.address(), &key, "1").is_ok());
    assert_eq!(proxy.connections(), 1);
}

/// A key of one node's slots.
fn key_of(cluster: &Cluster, node: usize) -> String {
    let keys = (0..).map(|number| format!("key{number}"));
    let owned = |key: &String| cluster.owner(cluster.slot(key)) == Some(node);
    keys.take(1000).find(owned).expect("one of a thousand keys")
}
