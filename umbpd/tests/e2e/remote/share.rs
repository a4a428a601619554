//! Two daemons and one server: what one stores, the other finds.

use umbp_connector_core::topology::RankTopology;
use umbp_testkit::s3::{BUCKET, REGION, S3, WRITER};
use umbp_testkit::servers::servers;
use umbp_testkit::valkey::Valkey;

use super::{PATIENT, REMOTE, await_copies, counted, deployment, found, load_from_remote, single, tier};
use crate::rig::{BLOCK_BYTES, Engine, is_loaded, is_stored, summary};

/// D6, E3: blocks outlive the host that stored them, and its own restart.
#[test]
fn what_one_host_stores_another_loads_after_the_first_is_gone() {
    let Some(servers) = servers() else { return };
    let valkey = Valkey::single(&servers, &[]);
    let options = single(&valkey.address());
    let (one, other) = (deployment("16MiB", PATIENT, &options), deployment("16MiB", PATIENT, &options));
    let numbers: Vec<u64> = (0..64).collect();
    let daemon = one.serve();
    let mut engine = Engine::new(&daemon.socket);
    engine.store_all(&numbers);
    await_copies(&daemon, 64);
    drop(engine);
    assert!(daemon.stop().status.success());
    let daemon = other.serve();
    let mut engine = Engine::new(&daemon.socket);
    load_from_remote(&mut engine, &numbers);
    drop(engine);
    drop(daemon);
    // The first again, with nothing in its memory.
    let daemon = one.serve();
    load_from_remote(&mut Engine::new(&daemon.socket), &numbers);
}

#[test]
fn what_one_host_stores_in_s3_another_loads_large_blocks_too() {
    let Some(servers) = servers() else { return };
    let s3 = S3::start(&servers);
    let options = format!(
        "engine = \"s3\"\nendpoint = \"{}\"\nregion = \"{REGION}\"\nbucket = \"{BUCKET}\"\nallow_http = true\n\
         credentials = \"file\"\ncredentials_file = \"PATH/credentials\"\npart_bytes = \"1MiB\"\ntimeout = \"10s\"\n",
        s3.endpoint()
    );
    let place = || {
        let place = deployment("64MiB", PATIENT, &options);
        let file = place.path().join("credentials");
        let text = format!(
            "[default]\naws_access_key_id = {}\naws_secret_access_key = {}\n",
            WRITER.access_key, WRITER.secret
        );
        std::fs::write(&file, text).expect("credentials");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, mode).expect("mode of the credentials");
        let toml = std::fs::read_to_string(place.config()).expect("config");
        place.write(&toml.replace("PATH", &place.path().display().to_string()));
        place
    };
    let (one, other) = (place(), place());
    let (first, second) = (one.serve(), other.serve());
    // Three parts and a bit.
    let large = (3 << 20) + 4096;
    let mut engine = Engine::with(&first.socket, 4, large, |_| {});
    engine.store_all(&[1, 2, 3, 4]);
    await_copies(&first, 4);
    load_from_remote(&mut Engine::with(&second.socket, 4, large, |_| {}), &[1, 2, 3, 4]);
    assert!(s3.keys().iter().all(|name| name.starts_with("umbp/")), "{:?}", s3.keys());
}

/// I5: the first writer wins between hosts as well: one object for a block, whoever stores it, and however often.
#[test]
fn identical_blocks_of_two_hosts_are_written_once() {
    let Some(servers) = servers() else { return };
    let valkey = Valkey::single(&servers, &[]);
    let options = single(&valkey.address());
    // Neither asks before it stores.
    let (one, other) = (deployment("16MiB", "", &options), deployment("16MiB", "", &options));
    let (first, second) = (one.serve(), other.serve());
    let (mut a, mut b) = (Engine::new(&first.socket), Engine::new(&second.socket));
    let numbers: Vec<u64> = (0..64).collect();
    let (job_a, job_b) = (a.begin_store(&numbers), b.begin_store(&numbers));
    for (engine, job) in [(&a, job_a), (&b, job_b)] {
        let outcomes = engine.client.wait(job, crate::common::DEADLINE).expect("it ends").outcomes;
        assert!(outcomes.iter().all(|outcome| is_stored(*outcome)), "{:?}", summary(&outcomes));
    }
    await_copies(&first, 64);
    await_copies(&second, 64);
    assert_eq!(valkey.keys("*").len(), 64);
    let present = counted(&first.status(), "put.present") + counted(&second.status(), "put.present");
    assert_eq!(present, 64, "each was there already for one of the two");
}

/// I5: with latent attention all tensor-parallel ranks hold the same bytes, and their keys are one.
#[test]
fn i5_equal_blocks_of_all_ranks_are_stored_once() {
    let Some(servers) = servers() else { return };
    let valkey = Valkey::single(&servers, &[]);
    let place = deployment("16MiB", PATIENT, &single(&valkey.address()));
    let daemon = place.serve();
    let topology = RankTopology::new(8, 1, 1, 1).expect("a topology").with_replicas(8);
    let ranks: std::collections::BTreeSet<_> = (0..8).map(|index| topology.key_rank(index).expect("a rank")).collect();
    assert_eq!(ranks.len(), 1, "the namespace says that all ranks are equal");
    let numbers: Vec<u64> = (0..32).collect();
    let mut engines: Vec<_> = (0..8).map(|_| Engine::new(&daemon.socket)).collect();
    let jobs: Vec<_> = engines.iter_mut().map(|engine| engine.begin_store(&numbers)).collect();
    for (engine, job) in engines.iter().zip(jobs) {
        engine.client.wait(job, crate::common::DEADLINE).expect("it ends");
    }
    await_copies(&daemon, 32);
    assert_eq!(valkey.keys("*").len(), 32);
    let fresh = deployment("16MiB", PATIENT, &single(&valkey.address()));
    let other = fresh.serve();
    load_from_remote(&mut Engine::new(&other.socket), &numbers);
}

/// H5: a namespace's blocks are another's misses in this tier too, though their keys are the same.
#[test]
fn h5_blocks_of_another_namespace_are_not_there() {
    let Some(servers) = servers() else { return };
    let valkey = Valkey::single(&servers, &[]);
    let options = single(&valkey.address());
    let (one, other) = (deployment("16MiB", PATIENT, &options), deployment("16MiB", PATIENT, &options));
    let (first, second) = (one.serve(), other.serve());
    Engine::new(&first.socket).store_all(&[1, 2, 3]);
    await_copies(&first, 3);
    let salted = Engine::with(&second.socket, 8, BLOCK_BYTES, |options| {
        let namespace = options.namespace.take().expect("a namespace");
        options.namespace = Some(namespace.with("salt", "another"));
    });
    assert_eq!(found(&salted, &[1, 2, 3]), [None; 3]);
    let tenant = other.path().join("tenant.toml");
    let toml = std::fs::read_to_string(other.config()).expect("config");
    std::fs::write(&tenant, format!("{toml}\n[[tenant]]\nname = \"another\"\n")).expect("written");
    drop(salted);
    drop(second);
    other.write(&std::fs::read_to_string(&tenant).expect("read"));
    let second = other.serve();
    let stranger = Engine::new(&second.socket);
    assert_eq!(found(&stranger, &[1, 2, 3]), [None; 3], "the same descriptor of another tenant is another namespace");
}

/// A7, A8, C8: the server evicts as it likes. What is gone is a miss, once, and is stored again.
#[test]
fn c8_a_vanished_object_is_a_miss_and_comes_back_when_it_is_stored_again() {
    let Some(servers) = servers() else { return };
    let valkey = Valkey::single(&servers, &[]);
    let options = single(&valkey.address());
    let (one, other) = (deployment("16MiB", PATIENT, &options), deployment("16MiB", PATIENT, &options));
    let (first, second) = (one.serve(), other.serve());
    Engine::new(&first.socket).store_all(&[1, 2, 3]);
    await_copies(&first, 3);
    let mut engine = Engine::new(&second.socket);
    assert_eq!(found(&engine, &[1, 2, 3]), [Some(REMOTE as u8); 3]);
    valkey.ask(&["FLUSHALL"]);
    let outcomes = engine.load(&[1, 2, 3]);
    assert!(!outcomes.iter().any(|outcome| is_loaded(*outcome)), "{:?}", summary(&outcomes));
    assert_eq!(found(&engine, &[1, 2, 3]), [None; 3], "at most one failing load for each lost block");
    engine.store_all(&[1, 2, 3]);
    await_copies(&second, 3);
    assert_eq!(valkey.keys("*").len(), 3);
}

/// A5, A6, E5: what is damaged, cut, foreign or of another version there is a miss, counted, and is replaced by the
/// next store.
#[test]
fn what_is_not_the_block_is_a_miss_and_is_healed_by_a_store() {
    let Some(servers) = servers() else { return };
    let valkey = Valkey::single(&servers, &[]);
    let options = single(&valkey.address());
    let (one, other) = (deployment("16MiB", PATIENT, &options), deployment("16MiB", PATIENT, &options));
    let numbers: Vec<u64> = (0..4).collect();
    let first = one.serve();
    Engine::new(&first.socket).store_all(&numbers);
    await_copies(&first, 4);
    drop(first);
    let names = valkey.keys("*");
    let last = (BLOCK_BYTES as usize) / 2;
    valkey.ask(&["SETRANGE", &names[0], &last.to_string(), "scribble"]);
    let whole = valkey.ask(&["GET", &names[1]]).bytes().expect("an object").to_vec();
    valkey.ask(&[b"SET", names[1].as_bytes(), &whole[..whole.len() - 1]]);
    valkey.ask(&["SET", &names[2], "somebody else's"]);
    let mut newer = whole.clone();
    newer[8] ^= 0x40;
    valkey.ask(&[b"SET", names[3].as_bytes(), &newer]);
    let second = other.serve();
    let mut engine = Engine::new(&second.socket);
    found(&engine, &numbers);
    let outcomes = engine.load(&numbers);
    assert!(!outcomes.iter().any(|outcome| is_loaded(*outcome)), "{:?}", summary(&outcomes));
    let status = second.status();
    let counters = tier(&status)["counters"].as_object().expect("counters");
    let wrong: u64 = counters
        .iter()
        .filter(|(name, _)| name.starts_with("object."))
        .map(|(_, count)| count.as_u64().unwrap_or(0))
        .sum();
    assert!(wrong >= 4, "each is counted: {counters:?}");
    engine.store_all(&numbers);
    await_copies(&second, 4);
    drop(engine);
    drop(second);
    let third = one.serve();
    load_from_remote(&mut Engine::new(&third.socket), &numbers);
}
