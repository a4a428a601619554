//! When blocks go to the remote tier, what a clear does there, and three tiers.

use umbp_testkit::servers::servers;
use umbp_testkit::valkey::Valkey;

use super::{PATIENT, asked, await_copies, deployment, found, remote_tier, single, tier};
use crate::common::daemon::Place;
use crate::common::workspace;
use crate::rig::{BLOCK_BYTES, Engine, is_loaded, summary};
use umbp_plugin_api::built::built;

#[test]
fn with_on_evict_a_block_goes_there_when_it_leaves_the_first_tier() {
    let Some(servers) = servers() else { return };
    let valkey = Valkey::single(&servers, &[]);
    let tier_text = format!("{PATIENT}write = \"on-evict\"\n");
    let daemon_place = deployment("16MiB", &tier_text, &single(&valkey.address()));
    let daemon = daemon_place.serve();
    let mut engine = Engine::new(&daemon.socket);
    engine.store_all(&[1, 2, 3]);
    daemon.until("nothing is under way", |status| tier(status)["in_flight"] == 0);
    assert!(valkey.keys("*").is_empty(), "all are in the first tier");
    // Slowly, so that each has time to go down: twice what the first tier holds.
    let mut stored = 3;
    for start in (100..612).step_by(8) {
        let numbers: Vec<u64> = (start..start + 8).collect();
        engine.store_all(&numbers);
        stored += 8;
        daemon.until("demotions are done", |status| tier(status)["in_flight"] == 0);
    }
    let there = valkey.keys("*").len() as u64;
    let held = 16 * (1 << 20) / BLOCK_BYTES;
    assert!(there > 0 && there <= stored, "{there} of {stored}");
    assert!(there + held >= stored - 64, "what left is there: {there} there, at most {held} here, of {stored}");
}

#[test]
fn with_after_hits_a_block_goes_there_once_it_has_been_loaded_so_often() {
    let Some(servers) = servers() else { return };
    let valkey = Valkey::single(&servers, &[]);
    let tier_text = format!("{PATIENT}write = {{ after_hits = 2 }}\n");
    let place = deployment("16MiB", &tier_text, &single(&valkey.address()));
    let daemon = place.serve();
    let mut engine = Engine::new(&daemon.socket);
    engine.store_all(&[1, 2, 3]);
    let load = |engine: &mut Engine, number| assert!(is_loaded(engine.load(&[number])[0]));
    load(&mut engine, 1);
    load(&mut engine, 2);
    daemon.until("nothing is under way", |status| tier(status)["in_flight"] == 0);
    assert!(valkey.keys("*").is_empty(), "none was loaded twice");
    load(&mut engine, 2);
    await_copies(&daemon, 1);
    assert_eq!(valkey.keys("*").len(), 1);
}

/// K12: what is cleared is a miss from then on, here, though another host's copies may still lie there.
#[test]
fn a_cleared_namespace_is_not_asked_for_again() {
    let Some(servers) = servers() else { return };
    let valkey = Valkey::single(&servers, &[]);
    let options = single(&valkey.address());
    let (one, other) = (deployment("16MiB", PATIENT, &options), deployment("16MiB", PATIENT, &options));
    let (first, second) = (one.serve(), other.serve());
    Engine::new(&first.socket).store_all(&[1, 2, 3, 4]);
    await_copies(&first, 4);
    let mut engine = Engine::new(&second.socket);
    assert_eq!(found(&engine, &[1, 2]), [Some(1); 2]);
    engine.client.clear().expect("cleared");
    second.until("what is known there is deleted", |status| tier(status)["resident_blocks"] == 0);
    valkey_has(&valkey, 2);
    assert_eq!(found(&engine, &[1, 2, 3, 4]), [None; 4], "neither what was known nor what was not");
    engine.store_all(&[3]);
    await_copies(&second, 1);
    assert_eq!(found(&engine, &[3]), [Some(0)]);
}

fn valkey_has(valkey: &Valkey, objects: usize) {
    crate::common::until("the deletes reach the server", || (valkey.keys("*").len() == objects).then_some(()));
}

#[test]
fn a_tier_that_has_the_block_answers_before_the_remote_one_is_asked() {
    let Some(servers) = servers() else { return };
    let valkey = Valkey::single(&servers, &[]);
    let nvme = built(workspace().join("backends/nvme/plugin"), &[]);
    let tiers = format!(
        "[[tier]]\nname = \"nvme\"\nbackend = \"{}\"\ncapacity = \"64MiB\"\ndeadline = \"60s\"\n[tier.options]\n\
         paths = [\"PATH/nvme\"]\n{}",
        nvme.display(),
        remote_tier(PATIENT, &single(&valkey.address())).replace("\"remote\"", "\"far\"")
    );
    let place = Place::new("16MiB", &tiers);
    let toml = std::fs::read_to_string(place.config()).expect("config");
    place.write(&toml.replace("PATH", &place.path().display().to_string()));
    let daemon = place.serve();
    let mut engine = Engine::new(&daemon.socket);
    let numbers: Vec<u64> = (0..512).collect();
    for part in numbers.chunks(32) {
        engine.store_all(part);
        daemon.until("copies in both tiers below", |status| {
            let tiers = &status["tiers"];
            tiers[1]["resident_blocks"] == part[31] + 1 && tiers[2]["resident_blocks"] == part[31] + 1
        });
    }
    let places = found(&engine, &numbers);
    let count = |tier: Option<u8>| places.iter().filter(|place| **place == tier).count();
    assert!(count(Some(1)) > 0 && count(Some(2)) == 0 && count(None) == 0, "the nearer one is named: {places:?}");
    let below: Vec<u64> =
        numbers.iter().zip(&places).filter(|(_, place)| **place == Some(1)).map(|(number, _)| *number).collect();
    let outcomes = engine.load(&below[..32]);
    assert!(outcomes.iter().all(|outcome| is_loaded(*outcome)), "{:?}", summary(&outcomes));
    let status = daemon.status();
    assert_eq!(status["tiers"][2]["ask"]["asked"], 0, "all were here: {status:#}");
}

/// A lookup of blocks that are here asks nobody; one of others asks once, and believes the answer for a while.
#[test]
fn only_keys_that_are_not_here_are_asked_for_and_a_no_is_believed_for_a_while() {
    let Some(servers) = servers() else { return };
    let valkey = Valkey::single(&servers, &[]);
    let times = "lookup_budget = \"1s\"\nnegative_ttl = \"60s\"\n";
    let place = deployment("16MiB", times, &single(&valkey.address()));
    let daemon = place.serve();
    let mut engine = Engine::new(&daemon.socket);
    engine.store_all(&[1, 2, 3]);
    assert_eq!(found(&engine, &[1, 2, 3]), [Some(0); 3]);
    assert_eq!(asked(&daemon.status(), "asked"), 0);
    assert_eq!(found(&engine, &[1, 9]), [Some(0), None]);
    assert_eq!(found(&engine, &[9]), [None]);
    let status = daemon.status();
    assert_eq!((asked(&status, "asked"), asked(&status, "known_absent")), (1, 1), "{status:#}");
}
