//! A tier that other hosts share: lookups ask it for what is not here, and wait for it within its budget.
//!
//! This host remembers so little of the tier that blocks which it has stored itself are soon as unknown to it as another
//! host's.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::Value;
use umbp_protocol::encode_request;
use umbp_protocol::message::{Found, Reply, Request};

use crate::common::client::Client;
use crate::common::daemon::{Daemon, Place};
use crate::common::shared_fixture;

const BLOCK_BYTES: u64 = 64 << 10;
/// More than the shared tier's 1 MiB and the first tier hold.
const BLOCKS: u64 = 100;

fn with_shared(behaviour: &str, keys: &str) -> Place {
    let tier = format!(
        "[[tier]]\nname = \"far\"\nbackend = \"{}\"\ncapacity = \"1MiB\"\ndeadline = \"120s\"\n{keys}[tier.options]\n\
         behaviour = \"{behaviour}\"\n",
        shared_fixture().display()
    );
    Place::new("4MiB", &tier)
}

fn far(status: &Value, path: &str) -> u64 {
    status.pointer(&format!("/tiers/1/{path}")).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path}: {status:#}"))
}

/// Blocks that were stored first, and that no tier knows of any more.
fn unknown(daemon: &Daemon) -> Client {
    let mut client = Client::new(&daemon.socket);
    for number in 0..BLOCKS {
        assert!(client.store(number, BLOCK_BYTES));
        daemon.until("its copy", |status| far(status, "queued_blocks") == 0 && far(status, "in_flight") == 0);
    }
    let status = daemon.status();
    assert_eq!(far(&status, "stored"), BLOCKS, "{status:#}");
    assert!(far(&status, "resident_blocks") < 17 && far(&status, "evicted") > 80, "{status:#}");
    assert_eq!((far(&status, "blocks"), far(&status, "ask/asked")), (BLOCKS, 0), "forgotten, and not deleted");
    client
}

fn is_hit(found: &Found) -> bool {
    matches!(found, Found::Hit { tier: 1, .. })
}

/// Sends lookups one behind the other, and takes the replies as they come.
fn ask_at_once(client: &mut Client, lookups: &[&[u64]]) -> Vec<Vec<Found>> {
    for (id, numbers) in (1_000..).zip(lookups) {
        let keys = numbers.iter().map(|number| client.key(*number)).collect();
        client.stream.write_all(&encode_request(id, &Request::Lookup { hold_ms: 0, keys })).expect("sent");
    }
    let reply = |client: &mut Client| match client.reply() {
        Reply::Lookup { found } => found,
        other => panic!("Lookup was answered with {other:?}"),
    };
    lookups.iter().map(|_| reply(client)).collect()
}

/// J4: hits and misses add up to what was asked, here and there.
#[test]
fn what_no_tier_here_knows_is_asked_for_hits_in_the_same_lookup_and_loads() {
    let place = with_shared("works", "lookup_budget = \"1s\"\n");
    let daemon = place.serve();
    let mut client = unknown(&daemon);
    // A tenth of the first tier may be held.
    let numbers: Vec<u64> = (0..6).collect();
    let found = client.lookup(&numbers, 1000);
    assert!(found.iter().all(|found| matches!(found, Found::Hit { tier: 1, held: true })), "{found:?}");
    for number in numbers {
        assert_eq!(client.load(number, BLOCK_BYTES), Some(1), "byte for byte");
    }
    let never = [BLOCKS + 1, BLOCKS + 2];
    for _ in 0..2 {
        assert!(client.lookup(&never, 0).iter().all(|found| matches!(found, Found::Miss(_))));
    }
    let status = daemon.status();
    let asks = ["asked", "found", "absent", "known_absent"].map(|name| far(&status, &format!("ask/{name}")));
    assert_eq!(asks, [8, 6, 2, 2], "{status:#}");
    assert_eq!((&status["asked"], &status["misses"]["absent"]), (&10.into(), &4.into()), "{status:#}");
    assert_eq!(status["faults"], 0);
}

/// G3: the one that waits is overtaken by what is here, in its own session and in others; it gets its answer all
/// the same.
#[test]
fn a_lookup_that_waits_delays_no_other_one() {
    let place = with_shared("asks-trickle", "lookup_budget = \"1s\"\n");
    let daemon = place.serve();
    let mut client = unknown(&daemon);
    let last = BLOCKS - 1;
    // An ask is answered each time that the tier's figures are asked for, every half second if nobody does.
    let replies = ask_at_once(&mut client, &[&[0, last], &[last], &[last]]);
    assert!(replies[..2].iter().all(|found| matches!(found[..], [Found::Hit { tier: 0, .. }])), "{replies:?}");
    assert_eq!(replies[2].len(), 2, "the first of them comes last");
    let mut other = Client::new(&daemon.socket);
    let status = daemon.status();
    assert_eq!((far(&status, "ask/asked"), &status["faults"]), (1, &0.into()));
    assert!(matches!(other.lookup(&[last], 0)[..], [Found::Hit { tier: 0, .. }]));
}

/// D4: what hangs costs a lookup its budget, and no more.
#[test]
fn a_tier_that_does_not_answer_costs_one_budget_and_its_late_answer_is_taken_in() {
    let place = with_shared("never-completes", "lookup_budget = \"1s\"\nwrite = \"on-evict\"\n");
    let daemon = place.serve();
    let mut client = Client::new(&daemon.socket);
    let begun = Instant::now();
    assert!(matches!(client.lookup(&[1], 0)[..], [Found::Miss(_)]));
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_millis(900), "{waited:?}: it was waited for");
    let begun = Instant::now();
    for number in 0..40 {
        assert!(matches!(client.lookup(&[number], 0)[..], [Found::Miss(_)]));
    }
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?} for 40 lookups", begun.elapsed());
    let status = daemon.status();
    assert_eq!((far(&status, "ask/asked"), far(&status, "ask/in_flight")), (40, 40), "{status:#}");
    drop(daemon);

    let place = with_shared("asks-trickle", "lookup_budget = \"1ms\"\nnegative_ttl = \"0ms\"\n");
    let daemon = place.serve();
    let mut client = unknown(&daemon);
    client.lookup(&[0], 0);
    // The status asks for the tier's figures, which lets an answer through.
    daemon.until("the late answer", |status| far(status, "ask/found") == 1);
    assert!(client.lookup(&[0], 0).iter().all(is_hit));
    assert_eq!(far(&daemon.status(), "ask/late"), 1);
}

/// J2: the key is named, and why it is refused.
#[test]
fn keys_of_a_shared_tier_are_refused_at_start_where_the_backend_is_none() {
    let fixture = crate::common::fixture();
    let shared = shared_fixture().display().to_string();
    let place = with_shared("works", "negative_ttl = \"2s\"\n");
    let toml = std::fs::read_to_string(place.config()).expect("config");
    place.write(&toml.replace(&shared, &fixture.display().to_string()));
    let refused = place.refused();
    assert!(refused.text.contains("tier.far.negative_ttl") && refused.text.contains("not shared"), "{}", refused.text);
}
