//! What a scheduler is told once, and what follows from it.

use crate::topology::RankTopology;

/// Most KV cache groups of one engine.
pub const GROUPS_MAX: usize = 1024;

/// How the layers of a group use the blocks of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupKind {
    /// Every block of the prefix.
    Full,
    /// The last blocks that a window of so many tokens reaches.
    SlidingWindow {
        /// Tokens that one token sees, itself included.
        window: u64,
    },
    /// The state at the prefix's end.
    Mamba {
        /// States are kept at block boundaries that the engine names (`align`); else at every block's end (`all`).
        align: bool,
    },
    /// Nothing that outlives a step: never matched, stored or loaded.
    Scratch,
}

/// One KV cache group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// How it uses blocks.
    pub kind: GroupKind,
    /// Tokens of a block, as configured; with dcp a block of all but Mamba spans so many per dcp rank.
    pub block_size: u64,
    /// It holds layers of the drafter.
    pub eagle: bool,
}

/// What this engine does with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Loads and stores.
    Both,
    /// Loads alone.
    Consumer,
    /// Stores (and loads, as the reference does): no other than [`Self::Both`], and not told apart by `umbp.vllm`.
    Producer,
}

/// Switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Loads run beside the engine's steps, where the layout leaves a choice.
    pub load_async: bool,
    /// Lookups are submitted, and their answers taken in a later call.
    pub lookup_async: bool,
    /// Off: nothing ever matches.
    pub enable_lookup: bool,
    /// Blocks that decoding fills are stored too.
    pub save_decode_cache: bool,
    /// A match may end inside a block, at a multiple of the hash block. Of this crate alone: `umbp.vllm` leaves it off.
    pub enable_partial_hash_hits: bool,
    /// Loads, stores, or both.
    pub role: Role,
    /// KV events are made of what is stored and removed.
    pub events: bool,
    /// Objects that events follow, at most.
    pub kv_event_max_objects: usize,
    /// A drafter is in use: the last block of a match is computed anew.
    pub eagle: bool,
}

/// Everything that a scheduler is told once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The groups, by their id.
    pub groups: Vec<Group>,
    /// The ranks, of which all that have keys of their own must hold a block.
    pub topology: RankTopology,
    /// Workers that report each store event.
    pub num_workers: u32,
    /// Tokens of a hash, where it does not follow from the groups.
    pub prefix_match_unit: Option<u64>,
    /// Sliding windows and states are kept at multiples of so many tokens; 0 = only where a prompt may be replayed.
    pub retention_interval: Option<u64>,
    /// Switches.
    pub options: Options,
}

/// Why a config is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No group, or more than [`GROUPS_MAX`].
    #[error("{0} KV cache groups: 1 to {GROUPS_MAX} are possible")]
    Groups(usize),
    /// A block of no tokens.
    #[error("group {0}: block_size is 0, but a block has at least one token")]
    BlockSize(usize),
    /// A window in which a token does not see itself.
    #[error("group {0}: sliding_window is 0, but a token sees at least itself")]
    Window(usize),
    /// No group can be matched.
    #[error("no KV cache group keeps anything that could be stored")]
    NothingToStore,
    /// Sizes whose common multiple is no number of tokens.
    #[error("the groups' block sizes have no common multiple below 2^63 tokens")]
    TooLong,
    /// The hash block does not divide a group's block.
    #[error("prefix_match_unit {unit} does not divide the {span} tokens of a block of group {group}")]
    Unit {
        /// The hash block.
        unit: u64,
        /// The group.
        group: usize,
        /// Tokens of its block.
        span: u64,
    },
}

/// Sizes that follow from a [`Config`], in tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The scheduler's block (B): a common multiple of all groups' blocks.
    pub block: u64,
    /// Tokens of one hash (H).
    pub hash_block: u64,
    /// Tokens of a block, per group.
    pub spans: Vec<u64>,
    /// Steps in which a lookup asks, per group; none for a group that is not matched.
    pub units: Vec<Option<u64>>,
    /// Groups that are matched, loaded and stored.
    pub matched: Vec<usize>,
    /// A match ends at a multiple of this.
    pub alignment: u64,
    /// Several groups, and matches may end inside their blocks.
    pub fine: bool,
    /// Loads are asynchronous.
    pub load_async: bool,
}

pub(super) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Geometry {
    /// Derives the sizes, and refuses what cannot be.
    pub fn of(config: &Config) -> Result<Self, ConfigError> {
        let groups = &config.groups;
        if groups.is_empty() || groups.len() > GROUPS_MAX {
            return Err(ConfigError::Groups(groups.len()));
        }
        if let Some(at) = groups.iter().position(|group| group.block_size == 0) {
            return Err(ConfigError::BlockSize(at));
        }
        if let Some(at) = groups.iter().position(|group| group.kind == (GroupKind::SlidingWindow { window: 0 })) {
            return Err(ConfigError::Window(at));
        }
        let dcp = u64::from(config.topology.dcp());
        let is_mamba = |group: &Group| matches!(group.kind, GroupKind::Mamba { .. });
        let spans: Vec<u64> =
            groups.iter().map(|g| g.block_size.saturating_mul(if is_mamba(g) { 1 } else { dcp })).collect();
        let matched: Vec<usize> = (0..groups.len()).filter(|at| groups[*at].kind != GroupKind::Scratch).collect();
        let first = *matched.first().ok_or(ConfigError::NothingToStore)?;
        let mut block = 1_u64;
        for span in &spans {
            block =
                (block / gcd(block, *span)).checked_mul(*span).filter(|n| *n < 1 << 63).ok_or(ConfigError::TooLong)?;
        }
        let hash_block = if groups.len() == 1 || groups.iter().any(|g| g.kind == GroupKind::Mamba { align: false }) {
            block
        } else {
            let common = matched.iter().fold(0, |unit, at| gcd(unit, spans[*at]));
            config.prefix_match_unit.unwrap_or(common)
        };
        let states_at_every_end = groups.iter().any(|g| g.kind == GroupKind::Mamba { align: false });
        if !states_at_every_end
            && let Some(group) =
                matched.iter().copied().find(|at| hash_block == 0 || !spans[*at].is_multiple_of(hash_block))
        {
            return Err(ConfigError::Unit { unit: hash_block, group, span: spans[group] });
        }
        let partial = config.options.enable_partial_hash_hits;
        let shares = |at: &usize| {
            let long_enough = if dcp > 1 { spans[*at] >= hash_block } else { spans[*at] > hash_block };
            groups[*at].kind == (GroupKind::Mamba { align: true }) && long_enough
        };
        let window_differs =
            |at: &usize| matches!(groups[*at].kind, GroupKind::SlidingWindow { .. }) && spans[*at] != hash_block;
        let several = matched.len() > 1;
        let fine = partial && several && matched.iter().any(shares) && !matched.iter().any(window_differs);
        let inside = fine || (partial && !several && groups[first].kind == GroupKind::Full);
        let unit = |at: usize| {
            let is_matched = groups[at].kind != GroupKind::Scratch;
            is_matched.then_some(if inside { hash_block } else { spans[at] })
        };
        let alignment = match (fine, several) {
            (true, _) => hash_block,
            (false, false) => spans[first],
            (false, true) => block,
        };
        Ok(Self {
            block,
            hash_block,
            units: (0..groups.len()).map(unit).collect(),
            alignment,
            fine,
            load_async: config.options.load_async || groups.len() > 1 || groups.iter().any(is_mamba),
            matched,
            spans,
        })
    }
}
