//! The ranks of an engine, and which of them hold equal bytes.
//!
//! An engine's workers are laid out as [pp, pcp, tp], tp innermost. Decode context parallelism partitions the tp ranks
//! of one such row; it adds none. A block is in the store only if every rank's shard of it is.

use std::ops::Range;

use crate::key::Rank;

/// Most workers of one engine.
pub const WORKERS_MAX: u32 = 65_536;

/// Sizes of an engine's model-parallel dimensions, and which ranks hold equal bytes. Each size is at least 1, and dcp
/// divides tp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RankTopology {
    tp: u16,
    pp: u16,
    pcp: u16,
    dcp: u16,
    /// tp ranks in a row that hold the same heads.
    copies: u16,
}

/// Why sizes or a rank are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// A dimension has no ranks.
    #[error("{name}_size is 0: every parallel size is at least 1")]
    Zero {
        /// The dimension.
        name: &'static str,
    },
    /// More workers than [`WORKERS_MAX`].
    #[error("{0} workers, at most {WORKERS_MAX} are possible")]
    TooMany(u64),
    /// dcp partitions the tp ranks.
    #[error("dcp_size {dcp} does not divide tp_size {tp}: decode context parallelism partitions the tp ranks")]
    DcpDoesNotDivide {
        /// Tensor parallel size.
        tp: u16,
        /// Decode context parallel size.
        dcp: u16,
    },
    /// No such worker.
    #[error("worker {index} is outside 0..{workers}")]
    NoSuchWorker {
        /// The worker's index.
        index: u32,
        /// How many there are.
        workers: u32,
    },
    /// Heads are neither shared out evenly nor copied evenly.
    #[error("{heads} KV heads and tp_size {tp}: one has to divide the other")]
    Heads {
        /// KV heads of the whole model.
        heads: u16,
        /// Tensor parallel size.
        tp: u16,
    },
    /// The copies of a head do not make up whole dcp groups.
    #[error("{heads} KV heads on tp_size {tp} are {copies} copies of each, which dcp_size {dcp} does not divide")]
    HeadCopies {
        /// KV heads of the whole model.
        heads: u16,
        /// Tensor parallel size.
        tp: u16,
        /// tp ranks that hold the same head.
        copies: u16,
        /// Decode context parallel size.
        dcp: u16,
    },
}

impl RankTopology {
    /// Sizes, checked; each rank has bytes of its own.
    pub fn new(tp: u16, pp: u16, pcp: u16, dcp: u16) -> Result<Self, TopologyError> {
        for (size, name) in [(tp, "tp"), (pp, "pp"), (pcp, "pcp"), (dcp, "dcp")] {
            if size == 0 {
                return Err(TopologyError::Zero { name });
            }
        }
        let workers = u64::from(tp) * u64::from(pp) * u64::from(pcp);
        if workers > u64::from(WORKERS_MAX) {
            return Err(TopologyError::TooMany(workers));
        }
        if !tp.is_multiple_of(dcp) {
            return Err(TopologyError::DcpDoesNotDivide { tp, dcp });
        }
        Ok(Self { tp, pp, pcp, dcp, copies: 1 })
    }

    /// One worker.
    pub fn single() -> Self {
        Self { tp: 1, pp: 1, pcp: 1, dcp: 1, copies: 1 }
    }

    /// Tensor parallel size.
    pub fn tp(&self) -> u16 {
        self.tp
    }

    /// Pipeline parallel size.
    pub fn pp(&self) -> u16 {
        self.pp
    }

    /// Prefill context parallel size.
    pub fn pcp(&self) -> u16 {
        self.pcp
    }

    /// Decode context parallel size.
    pub fn dcp(&self) -> u16 {
        self.dcp
    }

    /// tp ranks in a row that hold the same heads.
    pub fn copies(&self) -> u16 {
        self.copies
    }

    /// Number of workers. The product was checked.
    pub fn workers(&self) -> u32 {
        u32::from(self.tp) * u32::from(self.pp) * u32::from(self.pcp)
    }

    /// The rank of a worker, by its index in the engine.
    pub fn rank(&self, index: u32) -> Result<Rank, TopologyError> {
        let workers = self.workers();
        if index >= workers {
            return Err(TopologyError::NoSuchWorker { index, workers });
        }
        let (tp_size, pcp_size) = (u32::from(self.tp), u32::from(self.pcp));
        let tp = (index % tp_size) as u16;
        let pcp = (index / tp_size % pcp_size) as u16;
        let pp = (index / (tp_size * pcp_size)) as u16;
        Ok(Rank { tp, pcp, dcp: tp % self.dcp, pp })
    }

    /// The ranks of all workers, in their order.
    pub fn ranks(&self) -> Vec<Rank> {
        (0..self.workers()).filter_map(|index| self.rank(index).ok()).collect()
    }

    /// The same, for a model of so many KV heads: ranks that hold the same heads share their keys.
    pub fn with_heads(self, heads: u16) -> Result<Self, TopologyError> {
        Ok(Self { copies: HeadMapping::new(&self, heads)?.copies, ..self })
    }

    /// The same, for an engine that says how many tp ranks in a row hold equal bytes, in all of its groups. A number
    /// that does not divide tp, or that stands beside dcp, where it says nothing of who has which tokens, is not
    /// relied on: then each rank has keys of its own, which costs room, never bytes.
    #[must_use]
    pub fn with_replicas(self, replicas: u16) -> Self {
        let distinct = Self { copies: 1, ..self };
        if replicas == 0 || self.dcp > 1 || !self.tp.is_multiple_of(replicas) {
            return distinct;
        }
        distinct.with_heads(self.tp / replicas).unwrap_or(distinct)
    }

    /// The rank that stands for this one in keys: the first that holds the same bytes. With decode context parallelism
    /// the ranks of a head share out the tokens, so that only those of one dcp rank hold equal bytes.
    #[must_use]
    pub fn canonical(&self, rank: Rank) -> Rank {
        if self.copies == 1 {
            return rank;
        }
        let dcp = rank.tp % self.dcp;
        Rank { tp: rank.tp / self.copies * self.copies + dcp, dcp, ..rank }
    }

    /// The rank in the keys that a worker writes and reads, by its index in the engine.
    pub fn key_rank(&self, index: u32) -> Result<Rank, TopologyError> {
        Ok(self.canonical(self.rank(index)?))
    }

    /// The ranks whose shards make up a block, in the order of the workers, which is the order in which keys are asked:
    /// one of each that hold equal bytes.
    pub fn key_ranks(&self) -> Vec<Rank> {
        let mut ranks = self.ranks();
        ranks.retain(|rank| self.canonical(*rank) == *rank);
        ranks
    }
}

/// Which KV heads a tensor-parallel rank holds.
///
/// With at least as many heads as ranks each rank has its own run of them. With fewer, each head is on several ranks in
/// a row, which hold equal bytes but for what decode context parallelism shares out. MLA is one head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadMapping {
    heads: u16,
    tp: u16,
    /// tp ranks that hold the same head.
    copies: u16,
}

impl HeadMapping {
    /// For a model of so many KV heads.
    pub fn new(topology: &RankTopology, heads: u16) -> Result<Self, TopologyError> {
        let (tp, dcp) = (topology.tp, topology.dcp);
        if heads == 0 || (!heads.is_multiple_of(tp) && !tp.is_multiple_of(heads)) {
            return Err(TopologyError::Heads { heads, tp });
        }
        let copies = if heads >= tp { 1 } else { tp / heads };
        if !copies.is_multiple_of(dcp) {
            return Err(TopologyError::HeadCopies { heads, tp, copies, dcp });
        }
        Ok(Self { heads, tp, copies })
    }

    /// The heads that a tp rank holds.
    pub fn heads(&self, tp: u16) -> Range<u16> {
        let each = (self.heads / self.tp).max(1);
        let first = tp / self.copies * each;
        first..first + each
    }

    /// tp ranks that hold the same head.
    pub fn copies(&self) -> u16 {
        self.copies
    }
}
