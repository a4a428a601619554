//! `/metrics` beside a storm of stores, loads, cancelled jobs and clients that vanish (J4, J5).

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::child::Other;
use crate::common::daemon::{Daemon, Place};
use crate::rig::{Engine, key, with_nvme};

/// Rounds of each engine of the storm.
const ROUNDS: u64 = 30;
const ENGINES: u64 = 3;
/// Blocks of a store; ten rounds of one engine fill the first tier twice.
const BLOCKS: u64 = 48;

/// A place whose admin page is on an address of its own.
fn with_admin() -> (Place, SocketAddr) {
    let place = with_nvme("16MiB", "32MiB", "");
    let address = TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr()).expect("an address");
    let toml = std::fs::read_to_string(place.config()).expect("config");
    place.write(&toml.replace("admin = \"off\"", &format!("admin = \"{address}\"")));
    (place, address)
}

/// The page's values by name and labels; every answer is a 200.
fn scrape(address: SocketAddr) -> BTreeMap<String, f64> {
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    let page = answer.split_once("\r\n\r\n").expect("a body").1;
    assert!(page.ends_with("# EOF\n"), "whole: {page}");
    let values = page.lines().filter(|line| !line.starts_with('#'));
    let value = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a value");
        (name.to_owned(), value.parse().expect("a number"))
    };
    values.map(value).collect()
}

fn sum(values: &BTreeMap<String, f64>, family: &str) -> f64 {
    let of = |name: &str| name.split('{').next() == Some(family);
    values.iter().filter(|(name, _)| of(name)).map(|(_, value)| value).sum()
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

/// A client that is in the middle of a job.
fn doomed_client(daemon: &Daemon, number: u64) -> Other {
    let mut other = Other::start(&daemon.socket, "churn");
    other.await_word("session");
    other.tell(&(1_000_000 * (number + 1)).to_string());
    other.await_word("loading");
    other
}

/// J4: what was asked is what hit and what missed, at every moment; J5: no counter ever decreases, and the page always
/// answers, also while clients die in the middle of their jobs.
#[test]
fn j4_j5_counters_add_up_and_never_decrease_in_a_storm() {
    let (place, address) = with_admin();
    let daemon = place.serve();
    let running = AtomicU64::new(ENGINES);
    let mut scrapes = 0;
    let mut last = BTreeMap::new();
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
            last = values;
            doomed.drain(..).for_each(Other::kill);
        }
    });
    assert!(scrapes > 10, "{scrapes} scrapes beside the storm");
    for family in ["umbp_hit_blocks_total", "umbp_missed_blocks_total", "umbp_tier_evicted_blocks_total"] {
        assert!(sum(&last, family) > 0.0, "the storm moved {family}");
    }
    assert_eq!(sum(&last, "umbp_faults_total"), 0.0);
}
