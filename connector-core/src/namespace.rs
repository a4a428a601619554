//! What must match, besides the tokens, for the bytes of a block to mean the same.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::key::NamespaceDigest;
use crate::topology::RankTopology;

/// Named properties of the engine that decide what a block's bytes mean: model, revision, KV layout, dtype, block
/// size, group shapes, parallel sizes, speculative model. Names and values are free text; order does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NamespaceDescriptor(pub BTreeMap<String, String>);

impl NamespaceDescriptor {
    /// The same descriptor with one more property.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.0.insert(name.to_owned(), value.to_string());
        self
    }

    /// The same descriptor with a property, if there is one. None and the empty text differ.
    #[must_use]
    fn with_some(self, name: &str, value: Option<&String>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// An injective encoding: count, then each name and value in name order, every one with its length in front
    /// (u32, little-endian). A LoRA name equal to a salt therefore never collides with it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = (self.0.len() as u32).to_le_bytes().to_vec();
        for text in self.0.iter().flat_map(|(name, value)| [name, value]) {
            out.extend_from_slice(&(text.len() as u32).to_le_bytes());
            out.extend_from_slice(text.as_bytes());
        }
        out
    }

    /// SHA-256 of [`Self::encode`].
    pub fn digest(&self) -> NamespaceDigest {
        NamespaceDigest(Sha256::digest(self.encode()).into())
    }
}

/// A tenant's namespace as tiers keep it: length of the tenant's name (u16, little-endian), the name, the descriptor
/// as [`NamespaceDescriptor::encode`] writes it. A longer name than 65,535 bytes is cut.
pub fn of_tenant(tenant: &str, descriptor: &[u8]) -> Vec<u8> {
    let name = &tenant.as_bytes()[..tenant.len().min(usize::from(u16::MAX))];
    [&(name.len() as u16).to_le_bytes(), name, descriptor].concat()
}

/// SHA-256 of [`of_tenant`]: what tells namespaces apart in tiers, and goes into the checksum of a block. The same
/// descriptor of two tenants has two.
pub fn tenant_digest(tenant: &str, descriptor: &[u8]) -> NamespaceDigest {
    NamespaceDigest(Sha256::digest(of_tenant(tenant, descriptor)).into())
}

/// Version of the properties that [`EngineIdentity`] writes; another one shares no block with this.
const IDENTITY_VERSION: u32 = 1;

/// What an engine says of itself, each property once. What identifies a prompt's content (adapters, salts, images) is
/// in the block hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineIdentity {
    /// A name chosen by the operator, beside everything else.
    pub key_namespace: Option<String>,
    /// The model's name or path.
    pub model: String,
    /// Its revision.
    pub revision: Option<String>,
    /// How the engine computes block hashes.
    pub block_hash: String,
    /// Order of the dimensions of a block, in the engine's words.
    pub kv_layout: Option<String>,
    /// Element type of the KV cache: two of one size are still two.
    pub kv_dtype: String,
    /// Tokens of a block, as configured.
    pub block_size: u64,
    /// Parallel sizes.
    pub topology: RankTopology,
    /// The KV cache groups, in the order of their ids.
    pub groups: Vec<GroupIdentity>,
    /// The drafter, whose layers are stored beside the model's.
    pub speculative: Option<SpeculativeIdentity>,
    /// Anything else that decides what bytes mean.
    pub extra: BTreeMap<String, String>,
}

/// One KV cache group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupIdentity {
    /// Kind of attention or state, in the engine's words.
    pub kind: String,
    /// Tokens of a block.
    pub block_size: u64,
    /// Each layer in the order of its bytes: its name, and every field of the engine that shapes them.
    pub layers: Vec<(String, BTreeMap<String, String>)>,
}

/// A drafter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpeculativeIdentity {
    /// The method's name.
    pub method: String,
    /// The draft model.
    pub model: Option<String>,
    /// Its revision.
    pub revision: Option<String>,
}

impl EngineIdentity {
    /// The descriptor: texts of others stand in values, or behind a prefix of their own, never where a name of ours
    /// could be. Of a group's layers it has a digest, since a descriptor is kept by every tier and bounded there.
    pub fn descriptor(&self) -> NamespaceDescriptor {
        let mut all = NamespaceDescriptor::default()
            .with("identity_version", IDENTITY_VERSION)
            .with("model", &self.model)
            .with("block_hash", &self.block_hash)
            .with("kv_dtype", &self.kv_dtype)
            .with("block_size", self.block_size)
            .with("tp", self.topology.tp())
            .with("pp", self.topology.pp())
            .with("pcp", self.topology.pcp())
            .with("dcp", self.topology.dcp())
            .with("tp_copies", self.topology.copies())
            .with("groups", self.groups.len())
            .with_some("key_namespace", self.key_namespace.as_ref())
            .with_some("revision", self.revision.as_ref())
            .with_some("kv_layout", self.kv_layout.as_ref());
        if let Some(drafter) = &self.speculative {
            all = all
                .with("speculative.method", &drafter.method)
                .with_some("speculative.model", drafter.model.as_ref())
                .with_some("speculative.revision", drafter.revision.as_ref());
        }
        for (index, group) in self.groups.iter().enumerate() {
            all = all
                .with(&format!("group.{index}.kind"), &group.kind)
                .with(&format!("group.{index}.block_size"), group.block_size)
                .with(&format!("group.{index}.layers"), group.layers.len())
                .with(&format!("group.{index}.layers_sha256"), group.layers_digest());
        }
        self.extra.iter().fold(all, |all, (name, value)| all.with(&format!("extra.{name}"), value))
    }
}

impl GroupIdentity {
    /// Digest of the layers in their order: of each its name and its fields, every part with its length in front.
    fn layers_digest(&self) -> NamespaceDigest {
        let mut hasher = Sha256::new();
        for (name, fields) in &self.layers {
            for part in [name.as_bytes(), &NamespaceDescriptor(fields.clone()).encode()] {
                hasher.update((part.len() as u64).to_le_bytes());
                hasher.update(part);
            }
        }
        NamespaceDigest(hasher.finalize().into())
    }
}
