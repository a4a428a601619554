//! An engine (the real client, with memory for its blocks) and deployments with a second tier.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Pid;
use serde_json::Value;
use umbp_client::{Checksums, Client, JobId, LoadBlock, Options, Outcome, RegionId, Run, StoreBlock};
use umbp_connector_core::key::{BlockHash, GroupId, LocalKey, Rank};
use umbp_plugin_api::built::built;

use crate::common::client::{Client as Bare, descriptor};
use crate::common::daemon::Place;
use crate::common::{DEADLINE, fixture, workspace};

/// Bytes of a block where a test does not say otherwise.
pub(crate) const BLOCK_BYTES: u64 = 64 << 10;
/// What memory holds before a load, which no block's content is.
const UNTOUCHED: u8 = 0xee;

/// The real client and memory for `slots` blocks. What a block holds is a function of its number.
pub(crate) struct Engine {
    // Before the memory: the client's threads are gone when it is freed.
    pub(crate) client: Client,
    pub(crate) memory: Box<[u8]>,
    region: RegionId,
    block_bytes: u64,
    /// Blocks of a chain: a block's parent is the one of the number before, but for the first of each chain.
    pub(crate) chain_blocks: u64,
}

pub(crate) fn key(number: u64) -> LocalKey {
    let hash = BlockHash::new(&number.to_be_bytes()).expect("a hash");
    LocalKey { hash, group: GroupId(0), rank: Rank::default() }
}

impl Engine {
    pub(crate) fn new(socket: &Path) -> Self {
        Self::with(socket, 64, BLOCK_BYTES, |_| {})
    }

    /// Blocks of this size, in two runs each.
    pub(crate) fn with(socket: &Path, slots: u64, block_bytes: u64, set: impl FnOnce(&mut Options)) -> Self {
        let mut options = Options::new(socket, Some(descriptor()));
        options.checksums = Checksums::Policy;
        options.populate = false;
        set(&mut options);
        let mut memory = vec![0; (slots * block_bytes) as usize].into_boxed_slice();
        let client = Client::start(options).expect("started");
        assert!(client.wait_attached(DEADLINE), "it attaches once the daemon serves");
        // SAFETY: the memory is freed after the client, and touched only while no job names it.
        let region = unsafe { client.register(memory.as_mut_ptr(), memory.len() as u64) }.expect("registered");
        Self { client, memory, region, block_bytes, chain_blocks: 1 }
    }

    fn slots(&self) -> usize {
        self.memory.len() / self.block_bytes as usize
    }

    fn slot(&mut self, slot: usize) -> &mut [u8] {
        let bytes = self.block_bytes as usize;
        &mut self.memory[slot * bytes..(slot + 1) * bytes]
    }

    /// The second half of the slot comes first.
    pub(crate) fn runs(&self, slot: usize) -> Vec<Run> {
        let (first, start) = (self.block_bytes / 2, slot as u64 * self.block_bytes);
        let run = |offset, length| Run { region: self.region, offset, length };
        vec![run(start + first, self.block_bytes - first), run(start, first)]
    }

    /// Writes a block's content to a slot, as its runs read it.
    pub(crate) fn fill(&mut self, slot: usize, number: u64) {
        let content = Bare::content(number, self.block_bytes);
        let first = (self.block_bytes / 2) as usize;
        let memory = self.slot(slot);
        memory[first..].copy_from_slice(&content[..content.len() - first]);
        memory[..first].copy_from_slice(&content[content.len() - first..]);
    }

    fn holds(&mut self, slot: usize, number: u64) -> bool {
        let content = Bare::content(number, self.block_bytes);
        let first = (self.block_bytes / 2) as usize;
        let memory = self.slot(slot);
        memory[first..] == content[..content.len() - first] && memory[..first] == content[content.len() - first..]
    }

    /// Begins to store blocks, at most as many as there are slots.
    pub(crate) fn begin_store(&mut self, numbers: &[u64]) -> JobId {
        for (slot, number) in numbers.iter().enumerate() {
            self.fill(slot, *number);
        }
        let block = |(slot, number): (usize, &u64)| StoreBlock {
            key: key(*number),
            parent: (!number.is_multiple_of(self.chain_blocks)).then(|| key(number - 1)),
            depth: (number % self.chain_blocks) as u32,
            runs: self.runs(slot),
        };
        let blocks: Vec<_> = numbers.iter().enumerate().map(block).collect();
        self.client.store(&blocks).expect("a job")
    }

    /// Begins to load blocks, at most as many as there are slots.
    pub(crate) fn begin_load(&mut self, numbers: &[u64]) -> JobId {
        self.memory.fill(UNTOUCHED);
        let block = |(slot, number): (usize, &u64)| LoadBlock { key: key(*number), runs: self.runs(slot) };
        let blocks: Vec<_> = numbers.iter().enumerate().map(block).collect();
        self.client.load(&blocks).expect("a job")
    }

    /// Waits for a load; every block that loaded is compared byte for byte.
    pub(crate) fn end_load(&mut self, job: JobId, numbers: &[u64]) -> Vec<Outcome> {
        let outcomes = self.client.wait(job, DEADLINE).expect("it ends").outcomes;
        for (slot, (number, outcome)) in numbers.iter().zip(&outcomes).enumerate() {
            match outcome {
                Outcome::Loaded { .. } => assert!(self.holds(slot, *number), "wrong bytes for block {number}"),
                Outcome::Missed(_) => {
                    assert!(self.slot(slot).iter().all(|byte| *byte == UNTOUCHED), "a miss wrote to memory");
                }
                _ => {}
            }
        }
        outcomes
    }

    pub(crate) fn store(&mut self, numbers: &[u64]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(numbers.len());
        for part in numbers.chunks(self.slots()) {
            let job = self.begin_store(part);
            outcomes.extend(self.client.wait(job, DEADLINE).expect("it ends").outcomes);
        }
        outcomes
    }

    pub(crate) fn load(&mut self, numbers: &[u64]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(numbers.len());
        for part in numbers.chunks(self.slots()) {
            let job = self.begin_load(part);
            outcomes.extend(self.end_load(job, part));
        }
        outcomes
    }

    /// Stores blocks that are all new.
    pub(crate) fn store_all(&mut self, numbers: &[u64]) {
        let outcomes = self.store(numbers);
        assert!(outcomes.iter().all(|outcome| is_stored(*outcome)), "all are stored: {:?}", summary(&outcomes));
    }
}

/// Ends the loops of other threads when it goes, so that a claim that fails beside them fails its test: a scope waits
/// for its threads, and a loop that nobody ends would hang it.
pub(crate) struct Ends<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn is_stored(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Stored { .. })
}

pub(crate) fn is_loaded(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Loaded { .. })
}

/// Outcomes by kind, for messages.
pub(crate) fn summary(outcomes: &[Outcome]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for outcome in outcomes {
        *counts.entry(format!("{outcome:?}")).or_default() += 1;
    }
    counts
}

/// A DRAM tier over an NVMe tier in the place's own folder, and `more` of TOML. A disk that others keep busy too misses
/// no deadline.
pub(crate) fn with_nvme(dram: &str, nvme: &str, more: &str) -> Place {
    let plugin = built(workspace().join("backends/nvme/plugin"), &[]);
    let tier = format!(
        "[[tier]]\nname = \"nvme\"\nbackend = \"{}\"\ncapacity = \"{nvme}\"\ndeadline = \"60s\"\n[tier.options]\n\
         paths = [\"PATH/nvme\"]\n{more}",
        plugin.display()
    );
    let place = Place::new(dram, &tier);
    let toml = std::fs::read_to_string(place.config()).expect("config");
    place.write(&toml.replace("PATH", &place.path().display().to_string()));
    place
}

/// All copies below are made, `blocks` of them.
pub(crate) fn copied(status: &Value, blocks: u64) -> bool {
    let nvme = &status["tiers"][1];
    nvme["resident_blocks"] == blocks && nvme["in_flight"] == 0 && nvme["queued_blocks"] == 0
}

pub(crate) fn recovered(status: &Value) -> bool {
    status["tiers"][1]["recovery"].as_str().is_some_and(|text| text.starts_with("done"))
}

/// Nothing is queued for the second tier, and nothing in flight.
pub(crate) fn is_settled(status: &Value) -> bool {
    let nvme = &status["tiers"][1];
    nvme["in_flight"] == 0 && nvme["queued_blocks"] == 0
}

/// Bytes that a folder's files take on disk.
pub(crate) fn disk_use(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).expect("the folder");
    // A file that is just being replaced may be gone by now.
    let metadata = entries.filter_map(|entry| entry.expect("an entry").metadata().ok());
    metadata.map(|metadata| metadata.blocks() * 512).sum()
}

/// No lease, no hold, nothing quarantined.
pub(crate) fn is_quiet(status: &Value) -> bool {
    status["leases"]["read"] == 0
        && status["leases"]["write"] == 0
        && status["holds"]["now"] == 0
        && status["tiers"][0]["quarantined_bytes"] == 0
}

/// Open files and resident bytes of the daemon, as it tells them.
pub(crate) fn figures(status: &Value) -> (u64, u64) {
    let process = &status["process"];
    (process["open_fds"].as_u64().expect("fds"), process["rss_bytes"].as_u64().expect("bytes"))
}

/// Threads of a process.
pub(crate) fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads").count()
}

pub(crate) fn pid(child: &std::process::Child) -> Pid {
    Pid::from_child(child)
}

/// A second tier with this fault, over which at most 4 MiB wait for their copy.
pub(crate) fn with_fault(behaviour: &str) -> Place {
    let tier = format!(
        "[[tier]]\nname = \"low\"\nbackend = \"{}\"\ncapacity = \"1GiB\"\ndeadline = \"120s\"\nrequired = true\n\
         [tier.options]\nbehaviour = \"{behaviour}\"\n",
        fixture().display()
    );
    let place = Place::new("16MiB", &tier);
    let toml = std::fs::read_to_string(place.config()).expect("config");
    place.write(&format!("{toml}\n[limits]\nbackground = \"4MiB\"\n"));
    place
}
