//! `/metrics`: all that the status counts, also beside a storm of stores, loads, cancelled jobs, bits that rot on disk
//! and clients that vanish (A9, J4, J5).

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use umbp_protocol::message::Found;
use umbpd::metrics::page;

use crate::child::Other;
use crate::common::daemon::{Daemon, Place};
use crate::common::until;
use crate::exposition::{Values, read, sum};
use crate::rig::{BLOCK_BYTES, Engine, is_settled, key, recovered, with_nvme};

/// Rounds of each engine of the storm.
const ROUNDS: u64 = 30;
const ENGINES: u64 = 3;
/// Blocks of a store; ten rounds of one engine fill the first tier twice.
const BLOCKS: u64 = 48;
/// Bytes between two that the storm spoils on disk: one in each block.
const ROT_BYTES: u64 = BLOCK_BYTES;
/// What the status has and the page has not, and why.
const NOT_ON_THE_PAGE: [(&str, &str); 4] = [
    ("pid", "it names the process, and counts nothing"),
    ("sessions[]", "a label for each session would be without a bound; their number is told"),
    ("evictions", "the sum of the tiers' evicted blocks"),
    ("orphan_share", "a quotient of two figures"),
];

/// A place whose admin page is on an address of its own.
fn with_admin() -> (Place, SocketAddr) {
    let place = with_nvme("16MiB", "32MiB", "");
    let address = TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr()).expect("an address");
    let toml = std::fs::read_to_string(place.config()).expect("config");
    place.write(&toml.replace("admin = \"off\"", &format!("admin = \"{address}\"")));
    (place, address)
}

/// The page's values by name and labels; every answer is a 200 and OpenMetrics text.
fn scrape(address: SocketAddr) -> Values {
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let (head, page) = answer.split_once("\r\n\r\n").expect("a body");
    assert!(head.starts_with("HTTP/1.0 200") && head.contains("application/openmetrics-text"), "{head}");
    read(page).unwrap_or_else(|wrong| panic!("{wrong}\n{page}"))
}

/// Stores more than fits, asks for what is there and what is not, holds without loading, cancels jobs under way.
fn storm(socket: &Path, engine: u64) {
    let mut own = Engine::new(socket);
    for round in 0..ROUNDS {
        let first = (engine * ROUNDS + round) * BLOCKS;
        let numbers: Vec<u64> = (first..first + BLOCKS).collect();
        own.store(&numbers);
        let asked: Vec<_> = (first.saturating_sub(4 * BLOCKS)..first + 2 * BLOCKS).map(key).collect();
        own.client.lookup(&asked, if round % 2 == 0 { 1 } else { 0 });
        own.load(&numbers.iter().map(|number| number.saturating_sub(3 * BLOCKS)).collect::<Vec<_>>());
        let job = own.begin_load(&numbers);
        own.client.cancel(job);
        own.end_load(job, &numbers);
    }
}

/// A bit flips in every block of the second tier's file.
fn rot(place: &Place) {
    let path = place.path().join("nvme/data");
    let file = OpenOptions::new().read(true).write(true).open(path).expect("the data file");
    let mut byte = [0];
    for at in (17..file.metadata().expect("its length").len()).step_by(ROT_BYTES as usize) {
        // Past its end, where the file has just become shorter, there is nothing to spoil.
        if file.read_at(&mut byte, at).is_ok_and(|length| length == 1) {
            file.write_all_at(&[byte[0] ^ 1], at).expect("spoilt");
        }
    }
}

/// A client that is in the middle of a job.
fn doomed_client(daemon: &Daemon, number: u64) -> Other {
    let mut other = Other::start(&daemon.socket, "churn");
    other.await_word("session");
    other.tell(&(1_000_000 * (number + 1)).to_string());
    other.await_word("loading");
    other
}

/// J4: what was asked is what hit and what missed, at every moment; J5: no counter ever decreases, and the page always
/// answers, also while clients die in the middle of their jobs and loads fail.
#[test]
fn j4_j5_counters_add_up_and_never_decrease_in_a_storm() {
    let (place, address) = with_admin();
    let daemon = place.serve();
    let running = AtomicU64::new(ENGINES);
    let mut scrapes = 0;
    let mut last = Values::new();
    std::thread::scope(|scope| {
        for engine in 0..ENGINES {
            let (socket, running) = (&daemon.socket, &running);
            scope.spawn(move || {
                storm(socket, engine);
                running.fetch_sub(1, Ordering::Release);
            });
        }
        let mut doomed = Vec::new();
        while running.load(Ordering::Acquire) > 0 {
            doomed.push(doomed_client(&daemon, scrapes));
            let values = scrape(address);
            for (name, before) in last.iter().filter(|(name, _): &(&String, _)| name.contains("_total")) {
                assert!(
                    values.get(name).is_some_and(|now| now >= before),
                    "{name} was {before}: {:?}",
                    values.get(name)
                );
            }
            let found = sum(&values, "umbp_hit_blocks_total") + sum(&values, "umbp_missed_blocks_total");
            assert_eq!(sum(&values, "umbp_asked_blocks_total"), found, "{values:#?}");
            scrapes += 1;
            rot(&place);
            last = values;
            doomed.drain(..).for_each(Other::kill);
        }
    });
    assert!(scrapes > 1, "{scrapes} scrapes beside the storm");
    let moved = ["hit_blocks", "missed_blocks", "tier_evicted_blocks", "load_missed_blocks", "tier_errors"];
    for family in moved.map(|name| format!("umbp_{name}_total")) {
        assert!(sum(&last, &family) > 0.0, "the storm moved {family}");
    }
    assert_eq!(sum(&last, "umbp_faults_total"), 0.0);
}

/// Paths of all values, lists by their items' first.
fn leaves(path: &str, value: &Value, found: &mut Vec<(String, String)>, at: &str) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let dot = if path.is_empty() { "" } else { "." };
                leaves(&format!("{path}{dot}{name}"), value, found, &format!("{at}/{name}"));
            }
        }
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(i, item)| leaves(&format!("{path}[]"), item, found, &format!("{at}/{i}")));
        }
        Value::String(_) => {}
        _ => found.push((path.to_owned(), at.to_owned())),
    }
}

fn changed(value: &Value) -> Value {
    match value {
        Value::Bool(is) => json!(!is),
        Value::Number(number) => json!(number.as_u64().unwrap_or(0) + 1_000_000),
        _ => json!(1_000_000),
    }
}

/// J4: a number of the status that the page does not tell would be missed only when it is needed; so each is on it, or
/// on a short list with the reason.
#[test]
fn j4_all_that_the_status_counts_is_on_the_page() {
    let place = with_nvme("16MiB", "64MiB", "");
    let daemon = place.serve();
    let mut engine = Engine::new(&daemon.socket);
    engine.store_all(&(0..64).collect::<Vec<_>>());
    engine.load(&[1, 1000]);
    daemon.until("settled", is_settled);
    drop(engine);
    assert!(daemon.stop().status.success());
    let daemon = place.serve();
    let _engine = Engine::new(&daemon.socket);
    let status = daemon.until("recovery", recovered);
    let before = page(status.clone()).expect("a page");
    read(&before).unwrap_or_else(|wrong| panic!("{wrong}\n{before}"));
    let mut all = Vec::new();
    leaves("", &status, &mut all, "");
    let is = |path: &str, known: &str| path == known || (known.ends_with("[]") && path.starts_with(known));
    let excused = |path: &str| NOT_ON_THE_PAGE.iter().any(|(known, _)| is(path, known));
    for (known, why) in NOT_ON_THE_PAGE {
        assert!(all.iter().any(|(path, _)| is(path, known)), "{known} is not there, though excused: {why}");
    }
    let is_told = |at: &str| {
        let mut status = status.clone();
        let leaf = status.pointer_mut(at).expect("it is there");
        *leaf = changed(leaf);
        page(status).expect("a page") != before
    };
    let forgotten: Vec<_> = all.iter().filter(|(path, at)| !excused(path) && !is_told(at)).collect();
    assert!(forgotten.is_empty(), "neither on the page nor excused: {forgotten:#?}");
    assert!(all.len() > 60, "{} values", all.len());
}

/// A9: of a chain only blocks 2 to 127 are there: no lookup reaches them, and the gauge says so until the head comes.
#[test]
fn a9_a_tail_without_its_head_is_told_until_the_head_is_stored() {
    let (place, address) = with_admin();
    let daemon = place.serve();
    let mut engine = Engine::with(&daemon.socket, 128, 4096, |_| {});
    engine.chain_blocks = 128;
    engine.store_all(&(2..128).collect::<Vec<_>>());
    // Whether a block is cut off is passed down its chain by slices.
    let told =
        |orphans: f64| until("orphans", || (sum(&scrape(address), "umbp_orphan_blocks") == orphans).then_some(()));
    told(126.0);
    engine.store_all(&[0, 1]);
    told(0.0);
    let keys: Vec<_> = (0..128).map(key).collect();
    assert!(engine.client.lookup(&keys, 0).iter().all(|found| matches!(found, Found::Hit { .. })));
}
