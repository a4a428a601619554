//! What an engine of the replay asks of the store. The daemon's form is in [`super::attached`]; tests have a double.

use std::path::PathBuf;

use crate::replay::memory::EngineMemory;

/// A block and its place in its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainBlock {
    pub(crate) id: u64,
    /// The block before it in the prompt; none for the first.
    pub(crate) parent: Option<u64>,
    /// Blocks before it.
    pub(crate) depth: u32,
}

/// The blocks of a prompt as a chain, head first.
pub(crate) fn chain(ids: &[u64]) -> Vec<ChainBlock> {
    let parents = std::iter::once(None).chain(ids.iter().copied().map(Some));
    let links = ids.iter().copied().zip(parents).zip(0..);
    links.map(|((id, parent), depth)| ChainBlock { id, parent, depth }).collect()
}

/// How the load of one block went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loaded {
    /// Its bytes are in its slot; the tier that served it.
    Good { tier: u8 },
    /// It is not there any more.
    Miss,
    /// It could not be read, in time or at all.
    Failed,
}

/// How the store of one block went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// Its bytes were copied, and it is visible.
    Good,
    /// It is there already, or another engine writes it now; no bytes moved.
    Present,
    /// There was no room: under pressure the tail of a chain is refused.
    Refused,
    /// It could not be written.
    Failed,
}

/// Why the replay cannot go on. What fails within a job fails its blocks, and the replay goes on.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub(crate) enum TiersError {
    #[error("no umbpd serves on {socket:?}")]
    #[diagnostic(help(
        "start one (`umbpd`; in the source tree `cargo xtask serve`), or name its socket with --socket or UMBP_SOCKET"
    ))]
    Connect {
        socket: PathBuf,
        #[source]
        source: umbp_client::Error,
    },
    #[error("begin a job")]
    Begin(#[from] umbp_client::Error),
    #[error("make a block's key")]
    Key(#[from] umbp_connector_core::key::KeyError),
    #[error("a transfer job does not end, long past its deadline: its memory cannot be used again")]
    Stuck,
}

/// The store as one engine sees it. Each call waits for its end; afterwards nobody else touches the memory.
pub(crate) trait Tiers {
    /// The engine's memory.
    fn memory(&mut self) -> &mut EngineMemory;
    /// How many blocks at the head are there now. They are held for a short time.
    fn lookup(&mut self, blocks: &[ChainBlock]) -> Result<usize, TiersError>;
    /// Loads each block into the slot of its index.
    fn load(&mut self, blocks: &[ChainBlock]) -> Result<Vec<Loaded>, TiersError>;
    /// Stores each block from the slot of its index.
    fn store(&mut self, blocks: &[ChainBlock]) -> Result<Vec<Stored>, TiersError>;
}
