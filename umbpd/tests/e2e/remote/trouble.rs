//! Servers that hang, die, refuse, or are cut off.

use std::time::{Duration, Instant};

use umbp_client::Outcome;
use umbp_testkit::network::{Network, Side};
use umbp_testkit::servers::servers;
use umbp_testkit::valkey::Valkey;

use super::{REMOTE, asked, await_copies, counted, deployment, found, load_from_remote, single, tier};
use crate::common::until;
use crate::rig::{Engine, is_loaded, is_stored, summary};

/// Of each kind, while the server hangs.
const ROUNDS: u64 = 200;

/// D4, F9: local lookups and loads make no call that waits for a server that hangs: none is asked for them, and the
/// few lookups that do ask wait for their budget once, not each. The circuit opens within the deadline, and closes
/// by itself when the server goes on.
#[test]
fn a_hung_server_costs_local_blocks_nothing_and_is_taken_back_when_it_answers() {
    let Some(servers) = servers() else { return };
    let valkey = Valkey::single(&servers, &[]);
    let options =
        format!("{}timeout = \"300ms\"\nbreaker_failures = 3\nbreaker_pause = \"200ms\"\n", single(&valkey.address()));
    let place = deployment("16MiB", "negative_ttl = \"0ms\"\n", &options);
    let daemon = place.serve();
    let mut engine = Engine::new(&daemon.socket);
    engine.store_all(&[1, 2, 3, 4]);
    await_copies(&daemon, 4);
    let before = daemon.status();
    valkey.stop();
    for _ in 0..ROUNDS {
        assert_eq!(found(&engine, &[1, 2, 3, 4]), [Some(0); 4]);
        assert!(engine.load(&[1, 2, 3, 4]).into_iter().all(is_loaded));
    }
    assert_eq!(asked(&daemon.status(), "asked"), asked(&before, "asked"), "nothing was asked for them");
    // Others do ask, and are misses.
    let began = Instant::now();
    for number in 0..ROUNDS {
        assert_eq!(found(&engine, &[1000 + number]), [None]);
    }
    let took = began.elapsed();
    eprintln!("{ROUNDS} lookups of what is not here, beside a hung server: {took:?}");
    let status = daemon.until("the circuit is open", |status| counted(status, "breaker.opened") > 0);
    // The first waits for its budget; while it is known that the tier is late, and while its circuit is open, none does.
    eprintln!("{}", tier(&status)["ask"]);
    for _ in 0..ROUNDS {
        assert!(engine.load(&[1, 2, 3, 4]).into_iter().all(is_loaded));
    }
    // Stores go on; their copies are given up, and counted.
    engine.store_all(&[5, 6, 7]);
    valkey.cont();
    until("a lookup is answered again", || {
        let status = daemon.status();
        let answered = asked(&status, "absent");
        found(&engine, &[5000]);
        (asked(&daemon.status(), "absent") > answered).then_some(())
    });
    engine.store_all(&[8, 9]);
    daemon.until("stores reach it again", |status| tier(status)["stored"].as_u64() >= Some(6));
}

#[test]
fn a_server_that_dies_and_returns_is_misses_and_then_hits_without_a_restart() {
    let Some(servers) = servers() else { return };
    let mut valkey = Valkey::single(&servers, &[]);
    let options = format!("{}breaker_pause = \"100ms\"\n", single(&valkey.address()));
    let place = deployment("16MiB", super::PATIENT, &options);
    let other = deployment("16MiB", super::PATIENT, &options);
    let (daemon, second) = (place.serve(), other.serve());
    let (mut engine, mut far) = (Engine::new(&daemon.socket), Engine::new(&second.socket));
    engine.store_all(&[1, 2, 3]);
    await_copies(&daemon, 3);
    assert_eq!(found(&far, &[1, 2, 3]), [Some(REMOTE as u8); 3]);
    valkey.kill();
    let outcomes = far.load(&[1, 2, 3]);
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Missed(_))), "{:?}", summary(&outcomes));
    assert!(far.store(&[1]).into_iter().all(is_stored), "stores go on");
    valkey.restart();
    until("what is stored reaches the server that came back", || {
        // Each its own block: what was given up while it was away is not tried again by itself.
        let number = 100 + tier(&daemon.status())["stored"].as_u64().unwrap_or(0) + valkey.keys("*").len() as u64;
        engine.store(&[number]);
        (!valkey.keys("*").is_empty()).then_some(())
    });
    engine.store_all(&[50, 51]);
    daemon.until("copies there", |status| tier(status)["in_flight"] == 0 && tier(status)["queued_blocks"] == 0);
    // Its own circuit closes by its own probe.
    until("the other host finds them too", || (found(&far, &[50, 51]) == [Some(REMOTE as u8); 2]).then_some(()));
    load_from_remote(&mut far, &[50, 51]);
}

/// K3, K10: each state of a server that refuses has its own word in the counters; the daemon serves on.
#[test]
fn a_server_that_refuses_is_told_by_name_and_is_misses() {
    let Some(servers) = servers() else { return };
    let secret = Valkey::single(&servers, &["requirepass right"]);
    let full = Valkey::single(&servers, &["maxmemory 3mb", "maxmemory-policy noeviction"]);
    let master = Valkey::single(&servers, &[]);
    let replica = Valkey::replica_of(&servers, &master, &[]);
    let cases = [(&secret, "auth"), (&full, "full"), (&replica, "readonly")];
    for (server, word) in cases {
        let place = deployment("16MiB", super::PATIENT, &single(&server.address()));
        let daemon = place.serve();
        let mut engine = Engine::new(&daemon.socket);
        engine.store_all(&(0..64).collect::<Vec<_>>());
        daemon.until(word, |status| {
            let counters = tier(status)["counters"].as_object();
            let told = counters.is_some_and(|all| all.iter().any(|(name, count)| name.contains(word) && *count != 0));
            told || (word == "full" && tier(status)["limit_found"].as_u64() > Some(0))
        });
        let outcomes = engine.load(&(0..64).collect::<Vec<_>>());
        assert!(outcomes.iter().all(|outcome| is_loaded(*outcome)), "{word}: {:?}", summary(&outcomes));
    }
}

/// F9: two hosts and a cable that loses everything: neither a reset nor a refusal, only silence.
#[test]
fn a_network_that_swallows_everything_is_misses_until_it_delivers_again() {
    let (Some(servers), Some(network)) = (servers(), Network::new()) else { return };
    let valkey = Valkey::in_network(&servers, &network, Side::Far, &[]);
    let options = format!(
        "{}timeout = \"300ms\"\nconnect_timeout = \"300ms\"\nbreaker_pause = \"100ms\"\n",
        single(&valkey.address())
    );
    let place = deployment("16MiB", super::PATIENT, &options);
    let mut command = network.command(Side::Near, env!("CARGO_BIN_EXE_umbpd"));
    command.arg("--config").arg(place.config());
    let daemon = place.try_serve(command).unwrap_or_else(|refused| panic!("it serves: {refused:?}"));
    let mut engine = Engine::new(&daemon.socket);
    engine.store_all(&[1, 2, 3]);
    await_copies(&daemon, 3);
    network.lose();
    let began = Instant::now();
    assert_eq!(found(&engine, &[70, 71, 72]), [None; 3]);
    assert!(engine.load(&[1, 2, 3]).into_iter().all(is_loaded));
    assert!(began.elapsed() < Duration::from_secs(20), "nothing hangs");
    network.deliver();
    until("it is asked again and answers", || {
        let answered = asked(&daemon.status(), "absent");
        found(&engine, &[80]);
        (asked(&daemon.status(), "absent") > answered).then_some(())
    });
}
