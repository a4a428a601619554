//! Where a block's bytes lie in engine memory: regions registered by the engine, in; runs, out.
//!
//! An engine describes one region per layer, with the distance between blocks that its configuration implies, and
//! registers the tensor that it really allocated. Where the tensor's blocks are smaller than the configured ones, a
//! configured block is several of the tensor's, one after the other: sub-blocks, one run each. A larger real distance,
//! or one that does not divide the bytes of a block, is a mistake of the registration and refused as a whole.

use crate::key::GroupId;

/// Most regions of one layout: far above the layers of any model, times two for K and V apart.
pub const REGIONS_MAX: usize = 16_384;
/// Most runs of one block. Beyond it a registration is a mistake (a stride in tokens, say), not a layout.
pub const RUNS_PER_BLOCK_MAX: u64 = 1 << 20;

/// One layer's region, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The layer's name.
    pub layer: String,
    /// The KV cache group whose block table the layer uses.
    pub group: GroupId,
    /// Distance between blocks as configured, in bytes.
    pub block_stride: u64,
    /// Bytes of one block that are to be kept; at most `block_stride`.
    pub block_bytes: u64,
    /// Start in the object that holds all groups, in bytes.
    pub object_offset: u64,
}

/// The tensor that an engine allocated for a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Address of block 0.
    pub base: u64,
    /// Distance between the tensor's own blocks, in bytes.
    pub block_stride: u64,
}

/// A stretch of engine memory that holds part of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Index of the region among those that the layout was made of.
    pub region: u32,
    /// Where it starts.
    pub address: u64,
    /// Its length, in bytes.
    pub length: u64,
    /// Start inside the object, in bytes.
    pub object_offset: u64,
}

/// Why a registration is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// More regions than [`REGIONS_MAX`].
    #[error("{0} regions, at most {REGIONS_MAX} are possible")]
    TooMany(usize),
    /// No tensor for a layer.
    #[error("layer {layer:?} is not registered: register a tensor for every layer of the layout")]
    NotRegistered {
        /// The layer.
        layer: String,
    },
    /// Bytes or distances that no tensor has.
    #[error("layer {layer:?}: a block of {block_bytes} bytes every {block_stride} bytes cannot be")]
    Impossible {
        /// The layer.
        layer: String,
        /// Bytes of one block.
        block_bytes: u64,
        /// Distance between blocks.
        block_stride: u64,
    },
    /// The tensor's blocks are farther apart than configured.
    #[error("layer {layer:?}: the tensor's block stride of {real} bytes exceeds the configured {configured}")]
    StrideTooLarge {
        /// The layer.
        layer: String,
        /// The tensor's.
        real: u64,
        /// The configured.
        configured: u64,
    },
    /// The tensor's smaller blocks do not make up a configured one.
    #[error("layer {layer:?}: a block of {block_bytes} bytes is no whole number of the tensor's {real}-byte blocks")]
    StrideDoesNotDivide {
        /// The layer.
        layer: String,
        /// The tensor's.
        real: u64,
        /// Bytes of one block.
        block_bytes: u64,
    },
    /// Two layers of one name.
    #[error("layer {layer:?} stands in the layout twice")]
    Twice {
        /// The layer.
        layer: String,
    },
}

/// Why a block has no runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// Block ids count from 0.
    #[error("block_id must be non-negative")]
    Negative,
    /// No layer is of this group.
    #[error("unknown group {}", .0.0)]
    UnknownGroup(GroupId),
    /// The block would lie beyond the end of the address space.
    #[error("block {0} lies beyond the address space")]
    Beyond(i64),
}

#[derive(Clone, Copy, Debug)]
struct Placed {
    group: GroupId,
    base: u64,
    /// Runs of one block.
    pieces: u64,
    /// Length of each run, in bytes.
    piece: u64,
    /// Distance between blocks, in bytes.
    step: u64,
    /// Start in the object of all groups, and in the object of its own group.
    offset: u64,
    group_offset: u64,
}

/// Registered regions, ready to be asked for runs. Immutable.
#[derive(Clone, Debug)]
pub struct Layout {
    placed: Vec<Placed>,
    layers: Vec<String>,
    /// (group, bytes of a block of it), in group order.
    groups: Vec<(GroupId, u64)>,
    object_bytes: u64,
}

impl Layout {
    /// Puts regions and tensors together; all or nothing.
    pub fn register(regions: &[Region], tensor: impl Fn(&str) -> Option<Registered>) -> Result<Self, RegisterError> {
        if regions.len() > REGIONS_MAX {
            return Err(RegisterError::TooMany(regions.len()));
        }
        let mut layout = Self { placed: Vec::new(), layers: Vec::new(), groups: Vec::new(), object_bytes: 0 };
        let mut names = std::collections::HashSet::new();
        for region in regions {
            let layer = region.layer.clone();
            if !names.insert(region.layer.as_str()) {
                return Err(RegisterError::Twice { layer });
            }
            let tensor = tensor(&region.layer).ok_or(RegisterError::NotRegistered { layer })?;
            layout.place(region, tensor)?;
        }
        layout.groups.sort_unstable_by_key(|(group, _)| *group);
        Ok(layout)
    }

    fn place(&mut self, region: &Region, tensor: Registered) -> Result<(), RegisterError> {
        let (piece, pieces) = pieces(region, tensor)?;
        let end = region.object_offset.checked_add(region.block_bytes);
        let step = tensor.block_stride.checked_mul(pieces);
        let (Some(end), Some(step)) = (end, step) else { return Err(impossible(region)) };
        let known = self.groups.iter().position(|(group, _)| *group == region.group);
        let at = known.unwrap_or_else(|| {
            self.groups.push((region.group, 0));
            self.groups.len() - 1
        });
        let group_offset = self.groups[at].1;
        self.groups[at].1 = group_offset.checked_add(region.block_bytes).ok_or_else(|| impossible(region))?;
        self.object_bytes = self.object_bytes.max(end);
        self.layers.push(region.layer.clone());
        let (base, offset) = (tensor.base, region.object_offset);
        self.placed.push(Placed { group: region.group, base, pieces, piece, step, offset, group_offset });
        Ok(())
    }

    /// The layer of a run's region.
    pub fn layer(&self, region: u32) -> Option<&str> {
        self.layers.get(region as usize).map(String::as_str)
    }

    /// The groups that have a layer, in order.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> {
        self.groups.iter().map(|(group, _)| *group)
    }

    /// Bytes of a block: of one group, or of all groups together.
    pub fn object_bytes(&self, group: Option<GroupId>) -> Option<u64> {
        match group {
            None => Some(self.object_bytes),
            Some(group) => self.groups.iter().find(|(known, _)| *known == group).map(|(_, bytes)| *bytes),
        }
    }

    /// The runs of a block, in the order of the regions. With a group, its regions alone, and offsets count within
    /// the group; without one, all regions, and offsets are the layout's.
    pub fn runs(&self, block_id: i64, group: Option<GroupId>) -> Result<Vec<Run>, QueryError> {
        let mut runs = Vec::new();
        self.runs_into(block_id, group, &mut runs)?;
        Ok(runs)
    }

    /// As [`Self::runs`], appended to a list of the caller's; unchanged on an error.
    pub fn runs_into(&self, block_id: i64, group: Option<GroupId>, runs: &mut Vec<Run>) -> Result<(), QueryError> {
        let block = u64::try_from(block_id).map_err(|_| QueryError::Negative)?;
        if let Some(group) = group.filter(|group| self.object_bytes(Some(*group)).is_none()) {
            return Err(QueryError::UnknownGroup(group));
        }
        let before = runs.len();
        for (index, placed) in self.placed.iter().enumerate() {
            if group.is_some_and(|group| group != placed.group) {
                continue;
            }
            let start = block.checked_mul(placed.step).and_then(|at| at.checked_add(placed.base));
            let Some(start) = start.filter(|start| start.checked_add(placed.step).is_some()) else {
                runs.truncate(before);
                return Err(QueryError::Beyond(block_id));
            };
            let offset = if group.is_some() { placed.group_offset } else { placed.offset };
            runs.extend((0..placed.pieces).map(|piece| Run {
                region: index as u32,
                address: start + piece * placed.piece,
                length: placed.piece,
                object_offset: offset + piece * placed.piece,
            }));
        }
        Ok(())
    }
}

/// Length and number of the runs of one block of a region.
fn pieces(region: &Region, tensor: Registered) -> Result<(u64, u64), RegisterError> {
    let (configured, real, block_bytes) = (region.block_stride, tensor.block_stride, region.block_bytes);
    if block_bytes == 0 || real == 0 || block_bytes > configured {
        return Err(impossible(region));
    }
    let layer = region.layer.clone();
    if real > configured {
        return Err(RegisterError::StrideTooLarge { layer, real, configured });
    }
    if real == configured {
        return Ok((block_bytes, 1));
    }
    if !block_bytes.is_multiple_of(real) {
        return Err(RegisterError::StrideDoesNotDivide { layer, real, block_bytes });
    }
    match block_bytes / real {
        pieces if pieces > RUNS_PER_BLOCK_MAX => Err(impossible(region)),
        pieces => Ok((real, pieces)),
    }
}

fn impossible(region: &Region) -> RegisterError {
    let Region { layer, block_bytes, block_stride, .. } = region;
    RegisterError::Impossible { layer: layer.clone(), block_bytes: *block_bytes, block_stride: *block_stride }
}
