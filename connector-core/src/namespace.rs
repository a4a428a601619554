//! What must match, besides the tokens, for the bytes of a block to mean the same.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::key::NamespaceDigest;

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
