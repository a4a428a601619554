//! What the kit stores: blocks whose bytes follow from their number.

use crate::checksum;
use crate::types::KEY_BYTES;

/// Sizes of real blocks, from 72 KiB (8 heads of 64, 16 tokens) to 40 MiB (80 layers, 128 tokens), those of latent
/// attention that are no multiple of 4 KiB among them; and odd ones, down to 61 bytes.
pub(super) const SIZES: [u64; 14] = [
    61,
    4096,
    4096 + 61,
    73_728,
    147_456,
    294_912,
    562_176,
    640_256,
    1_124_352,
    2_097_152,
    2_561_024,
    5_122_048,
    41_943_040 - 61,
    41_943_040,
];

/// Bytes that one step of the content fills.
const STEP_BYTES: usize = 64 << 10;

/// A namespace of the kit's.
pub(super) struct Namespace {
    pub(super) digest: [u8; 32],
    pub(super) descriptor: &'static [u8],
}

/// Two namespaces; digest and descriptor are opaque to a backend.
pub(super) const NAMESPACES: [Namespace; 2] = [
    Namespace { digest: [0xa7; 32], descriptor: b"{\"kit\":\"first\"}" },
    Namespace { digest: [0x3b; 32], descriptor: b"{\"kit\":\"second\",\"odd\":\"\xff\x00\n\"}" },
];

/// A block, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// What tells it from all others of a check.
    pub(super) number: u64,
    /// Index into [`NAMESPACES`].
    pub(super) namespace: usize,
    pub(super) length: u64,
}

impl Block {
    pub(super) const fn new(number: u64, length: u64) -> Self {
        Self { number, namespace: 0, length }
    }

    pub(super) const fn within(self, namespace: usize) -> Self {
        Self { namespace, ..self }
    }

    /// Never all zero, which means "no parent".
    pub(super) fn key(&self) -> [u8; KEY_BYTES] {
        key_of(self.number)
    }

    /// Blocks form one chain by their number; number 0 is the root.
    pub(super) fn parent(&self) -> [u8; KEY_BYTES] {
        self.number.checked_sub(1).map_or([0; KEY_BYTES], key_of)
    }

    pub(super) fn depth(&self) -> u32 {
        self.number as u32
    }

    pub(super) fn recency(&self) -> u64 {
        // Neither in the order of numbers nor of sizes, and beyond 32 bits.
        mixed(self.number) >> 8
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let seed = mixed(self.number ^ ((self.namespace as u64) << 56));
        let mut step = Vec::with_capacity(STEP_BYTES);
        let mut word = seed;
        while step.len() < STEP_BYTES {
            word = mixed(word);
            step.extend_from_slice(&word.to_le_bytes());
        }
        let mut bytes = Vec::with_capacity(self.length as usize);
        while (bytes.len() as u64) < self.length {
            // Each step begins with its own place, so that two of one block are never taken for each other.
            step[..8].copy_from_slice(&(seed ^ bytes.len() as u64).to_le_bytes());
            let rest = self.length as usize - bytes.len();
            bytes.extend_from_slice(&step[..rest.min(STEP_BYTES)]);
        }
        bytes
    }

    pub(super) fn checksum(&self, bytes: &[u8]) -> u64 {
        checksum::of_block(&NAMESPACES[self.namespace].digest, &self.key(), bytes)
    }
}

fn key_of(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [0x20; KEY_BYTES];
    key[4..12].copy_from_slice(&mixed(number).to_le_bytes());
    key[12..20].copy_from_slice(&number.to_be_bytes());
    key
}

/// SplitMix64: one step from a number to another that looks unlike it.
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
