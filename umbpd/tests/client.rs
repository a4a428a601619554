//! The real client of the engine side against the real daemon.

mod common;

use common::DEADLINE;
use common::client::{Client as Bare, descriptor};
use common::daemon::Place;
use rustix::process::Signal;
use umbp_client::{Client, LoadBlock, Options, Outcome, RegionId, Run, StoreBlock};
use umbp_connector_core::key::{BlockHash, GroupId, LocalKey, Rank};
use umbp_plugin_api::built::built;

const BLOCK_BYTES: u64 = 64 << 10;
const BLOCKS: u64 = 64;

/// An engine: memory for all blocks, twice, so that what comes back can be compared with what went.
struct Engine {
    client: Client,
    memory: Box<[u8]>,
    region: RegionId,
}

impl Engine {
    fn new(socket: &std::path::Path) -> Self {
        let mut memory = vec![0u8; (2 * BLOCKS * BLOCK_BYTES) as usize].into_boxed_slice();
        for number in 0..BLOCKS {
            let at = (number * BLOCK_BYTES) as usize;
            memory[at..at + BLOCK_BYTES as usize].copy_from_slice(&Bare::content(number, BLOCK_BYTES));
        }
        let client = Client::connect(Options::new(socket, Some(descriptor()))).expect("attached");
        // SAFETY: the memory is dropped after the client, and touched only while no job is open.
        let region = unsafe { client.register(memory.as_mut_ptr(), memory.len() as u64) }.expect("registered");
        Self { client, memory, region }
    }

    /// A block in two runs, whose halves lie the other way round in engine memory.
    fn runs(&self, number: u64, base: u64) -> Vec<Run> {
        let (half, start) = (BLOCK_BYTES / 2, base + number * BLOCK_BYTES);
        [start, start + half].map(|offset| Run { region: self.region, offset, length: half }).to_vec()
    }

    fn store(&self) -> Vec<Outcome> {
        let block = |number| StoreBlock {
            key: key(number),
            parent: (number > 0).then(|| key(number - 1)),
            depth: number as u32,
            runs: self.runs(number, 0),
        };
        let job = self.client.store(&(0..BLOCKS).map(block).collect::<Vec<_>>()).expect("a job");
        self.client.wait(job, DEADLINE).expect("it ends").outcomes
    }

    /// Loads all into the other half of memory; blocks that loaded are compared byte for byte.
    fn load(&mut self) -> Vec<Outcome> {
        let base = BLOCKS * BLOCK_BYTES;
        let block = |number| LoadBlock { key: key(number), runs: self.runs(number, base) };
        let job = self.client.load(&(0..BLOCKS).map(block).collect::<Vec<_>>()).expect("a job");
        let outcomes = self.client.wait(job, DEADLINE).expect("it ends").outcomes;
        let (stored, loaded) = self.memory.split_at_mut(base as usize);
        for (number, outcome) in outcomes.iter().enumerate() {
            let range = number * BLOCK_BYTES as usize..(number + 1) * BLOCK_BYTES as usize;
            if matches!(outcome, Outcome::Loaded { .. }) {
                assert!(stored[range.clone()] == loaded[range.clone()], "wrong bytes for block {number}");
            }
            loaded[range].fill(0);
        }
        outcomes
    }
}

fn key(number: u64) -> LocalKey {
    let hash = BlockHash::new(&number.to_be_bytes()).expect("a hash");
    LocalKey { hash, group: GroupId(0), rank: Rank::default() }
}

fn loaded(outcomes: &[Outcome]) -> usize {
    outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Loaded { .. })).count()
}

#[test]
fn an_engine_stores_and_loads_and_outlives_its_daemon() {
    let place = Place::new("32MiB", "");
    let daemon = place.serve();
    let mut engine = Engine::new(&daemon.socket);
    assert!(engine.store().iter().all(|outcome| matches!(outcome, Outcome::Stored { .. })));
    assert_eq!(loaded(&engine.load()), BLOCKS as usize);
    daemon.signal(Signal::KILL);
    daemon.wait();
    let daemon = place.serve();
    assert!(engine.client.wait_attached(DEADLINE), "it attaches by itself");
    common::until("a miss of the new daemon", || (loaded(&engine.load()) == 0).then_some(()));
    assert!(engine.store().iter().all(|outcome| matches!(outcome, Outcome::Stored { .. })));
    assert_eq!(loaded(&engine.load()), BLOCKS as usize);
    daemon.until("leases given back", |status| status["leases"]["read"] == 0 && status["leases"]["write"] == 0);
}

fn with_nvme() -> Place {
    let plugin = built(common::workspace().join("backends/nvme/plugin"), &[]);
    let tier = format!(
        "[[tier]]\nname = \"nvme\"\nbackend = \"{}\"\ncapacity = \"256MiB\"\n[tier.options]\npaths = [\"PATH/nvme\"]\n",
        plugin.display()
    );
    let place = Place::new("32MiB", &tier);
    let toml = std::fs::read_to_string(place.config()).expect("config");
    place.write(&toml.replace("PATH", &place.path().display().to_string()));
    place
}

/// kill -9 and SIGTERM alike: blocks whose copy below was made hit again in the next life, byte for byte.
#[test]
fn e3_blocks_on_nvme_hit_again_after_kill_9_and_after_a_clean_stop() {
    let place = with_nvme();
    let daemon = place.serve();
    let mut engine = Engine::new(&daemon.socket);
    assert!(engine.store().iter().all(|outcome| matches!(outcome, Outcome::Stored { .. })));
    let mut daemon = daemon;
    for kill in [true, false] {
        daemon.until("copies below", |status| {
            let nvme = &status["tiers"][1];
            nvme["resident_blocks"] == BLOCKS && nvme["in_flight"] == 0
        });
        if kill {
            daemon.signal(Signal::KILL);
            daemon.wait();
        } else {
            assert!(daemon.stop().status.success());
        }
        daemon = place.serve();
        let status = daemon.until("recovery", |status| {
            status["tiers"][1]["recovery"].as_str().is_some_and(|text| text.starts_with("done"))
        });
        assert_eq!(status["tiers"][1]["recovery"], format!("done, {BLOCKS} blocks"), "{status:#}");
        assert!(engine.client.wait_attached(DEADLINE), "it attaches by itself");
        common::until("all hit", || (loaded(&engine.load()) == BLOCKS as usize).then_some(()));
    }
}

#[test]
fn k7_a_second_daemon_on_the_same_nvme_path_refuses_naming_the_pid() {
    let place = with_nvme();
    let daemon = place.serve();
    let toml = std::fs::read_to_string(place.config()).expect("config");
    place.write(&toml.replace("umbpd.sock", "second.sock"));
    let refused = place.refused();
    assert!(!refused.status.success() && refused.text.contains(&daemon.pid().to_string()), "{refused:?}");
    assert!(daemon.stop().status.success());
    drop(place.serve());
}

/// A block of a tenant that is no longer configured is not served (its namespace is counted).
#[test]
fn recovered_blocks_of_a_tenant_no_longer_configured_are_not_served() {
    let place = with_nvme();
    let toml = std::fs::read_to_string(place.config()).expect("config");
    let daemon = place.serve();
    let mut engine = Engine::new(&daemon.socket);
    engine.store();
    daemon.until("copies below", |status| status["tiers"][1]["resident_blocks"] == BLOCKS);
    assert!(daemon.stop().status.success());
    let own = rustix::process::getuid().as_raw();
    place.write(&format!("{toml}[[tenant]]\nname = \"other\"\nuids = [{own}]\n"));
    let daemon = place.serve();
    let done = |status: &serde_json::Value| {
        status["tiers"][1]["recovery"].as_str().is_some_and(|text| text.starts_with("done"))
    };
    let status = daemon.until("recovery", done);
    assert_eq!(status["tiers"][1]["namespaces_left_out"], 1, "{status:#}");
    assert!(engine.client.wait_attached(DEADLINE));
    assert_eq!(loaded(&engine.load()), 0);
}
