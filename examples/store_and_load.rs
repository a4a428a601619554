//! The engine side in one file: attach to a daemon that serves, store a few blocks, load them into other memory, compare.
//!
//! `cargo run -p umbp-client --example store_and_load -- /run/user/1000/umbp/umbpd.sock`

use std::error::Error;
use std::time::Duration;

use umbp_client::{Client, LoadBlock, Options, Outcome, Run, StoreBlock};
use umbp_connector_core::key::{BlockHash, GroupId, LocalKey, Rank};
use umbp_connector_core::namespace::NamespaceDescriptor;

const BLOCKS: usize = 4;
const BLOCK_BYTES: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    let socket = std::env::args_os().nth(1).ok_or("give the path of the daemon's socket")?;
    // Whatever decides what a block's bytes mean belongs in here: engines with equal descriptors share blocks.
    let namespace = NamespaceDescriptor::default().with("model", "example").with("block_bytes", BLOCK_BYTES);
    let client = Client::connect(Options::new(socket, Some(namespace)))?;

    // An engine registers its KV memory once. Here the first half is stored, and the second half is loaded into.
    let mut memory = vec![0_u8; 2 * BLOCKS * BLOCK_BYTES];
    for (block, bytes) in memory.chunks_mut(BLOCK_BYTES).take(BLOCKS).enumerate() {
        bytes.fill(block as u8 + 1);
    }
    // SAFETY: `memory` outlives the client's use of it (unregistered below), and no job runs while it is looked at.
    let region = unsafe { client.register(memory.as_mut_ptr(), memory.len() as u64)? };
    let run = |block: usize| Run { region, offset: (block * BLOCK_BYTES) as u64, length: BLOCK_BYTES as u64 };

    // A chain: each block names the one before it, so that eviction takes tails first.
    let keys: Vec<LocalKey> = (0..BLOCKS).map(key).collect::<Result<_, _>>()?;
    let stores: Vec<StoreBlock> = (0..BLOCKS)
        .map(|n| StoreBlock {
            key: keys[n],
            parent: n.checked_sub(1).map(|before| keys[before]),
            depth: n as u32,
            runs: vec![run(n)],
        })
        .collect();
    let stored = client.wait(client.store(&stores)?, PATIENCE).ok_or("the store takes too long")?;
    println!("stored: {:?}", stored.outcomes);

    println!("found: {:?}", client.lookup(&keys, 1000));
    let loads: Vec<LoadBlock> = (0..BLOCKS).map(|n| LoadBlock { key: keys[n], runs: vec![run(BLOCKS + n)] }).collect();
    let loaded = client.wait(client.load(&loads)?, PATIENCE).ok_or("the load takes too long")?;
    println!("loaded: {:?}", loaded.outcomes);

    if !client.unregister(region, PATIENCE) {
        return Err("a job still uses the memory".into());
    }
    // A block that is not `Loaded` is computed instead, whatever the reason; its memory holds anything.
    let (from, to) = memory.split_at(BLOCKS * BLOCK_BYTES);
    let all = loaded.outcomes.iter().all(|outcome| matches!(outcome, Outcome::Loaded { .. }));
    if !all || from != to {
        return Err("not every block came back".into());
    }
    println!("every byte came back");
    Ok(())
}

/// An engine takes the hash of the tokens up to the block's end.
fn key(block: usize) -> Result<LocalKey, Box<dyn Error>> {
    Ok(LocalKey { hash: BlockHash::new(&(block as u64 + 1).to_le_bytes())?, group: GroupId(0), rank: Rank::default() })
}
