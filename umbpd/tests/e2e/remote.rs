//! A tier that hosts share: real daemons, the real plugin, real servers.
//!
//! What a lookup may wait for is set long where a test wants all that is there, and is the default where it wants the
//! opposite. The tests end with a word, and do nothing, where no server is named.

mod policy;
mod share;
mod trouble;

use serde_json::Value;
use umbp_plugin_api::built::built;
use umbp_protocol::message::Found;

use crate::common::daemon::{Daemon, Place};
use crate::common::workspace;
use crate::rig::{Engine, key};

/// A lookup waits for all answers.
const PATIENT: &str = "lookup_budget = \"1s\"\nnegative_ttl = \"0ms\"\n";
/// Its index among the tiers of [`deployment`].
const REMOTE: usize = 1;

/// A DRAM tier over a remote one; `tier` is more of the tier's own TOML, `options` its options.
fn deployment(dram: &str, tier: &str, options: &str) -> Place {
    Place::new(dram, &remote_tier(tier, options))
}

fn remote_tier(tier: &str, options: &str) -> String {
    let plugin = built(workspace().join("backends/remote/plugin"), &[]);
    format!(
        "[[tier]]\nname = \"remote\"\nbackend = \"{}\"\ncapacity = \"4GiB\"\nrequired = false\n{tier}[tier.options]\n\
         {options}\n",
        plugin.display()
    )
}

/// One Valkey server, no other option.
fn single(address: &str) -> String {
    format!("engine = \"redis\"\nmode = \"single\"\naddresses = [\"{address}\"]\n")
}

fn tier(status: &Value) -> &Value {
    &status["tiers"][REMOTE]
}

/// A counter of the plugin's; 0 where it has not counted yet.
fn counted(status: &Value, name: &str) -> u64 {
    tier(status)["counters"][name].as_u64().unwrap_or(0)
}

/// A counter of the lookups that go on to the tier.
fn asked(status: &Value, name: &str) -> u64 {
    tier(status)["ask"][name].as_u64().unwrap_or_else(|| panic!("ask.{name} in {status:#}"))
}

/// So many blocks are known to be there, and nothing is under way.
fn await_copies(daemon: &Daemon, blocks: u64) {
    daemon.until("copies in the remote tier", |status| {
        let tier = tier(status);
        tier["resident_blocks"] == blocks && tier["in_flight"] == 0 && tier["queued_blocks"] == 0
    });
}

/// Which of these blocks a lookup finds, and in which tier.
fn found(engine: &Engine, numbers: &[u64]) -> Vec<Option<u8>> {
    let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
    let answers = engine.client.lookup(&keys, 0);
    answers.into_iter().map(|answer| if let Found::Hit { tier, .. } = answer { Some(tier) } else { None }).collect()
}

/// Looks blocks up, then loads them; every one comes from the remote tier, byte for byte.
fn load_from_remote(engine: &mut Engine, numbers: &[u64]) {
    assert_eq!(found(engine, numbers), vec![Some(REMOTE as u8); numbers.len()]);
    let outcomes = engine.load(numbers);
    let right = |outcome: &umbp_client::Outcome| matches!(outcome, umbp_client::Outcome::Loaded { tier: 1, .. });
    assert!(outcomes.iter().all(right), "{:?}", crate::rig::summary(&outcomes));
}
