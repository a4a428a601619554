//! The one checksum of a block: CRC-64/NVME over namespace digest, binary key, length (u64, little-endian) and
//! payload. It is computed once, during the store copy, and checked wherever the bytes come back from a lower tier.
//!
//! Key and length go in so that bytes of another block, or a cut block, never match.

use crc_fast::{CrcAlgorithm, Digest};

use crate::types::KEY_BYTES;

/// A checksum under way.
#[derive(Clone)]
pub struct Checksum(Digest);

impl Checksum {
    /// Starts the checksum of a block of `length` bytes.
    pub fn new(namespace_digest: &[u8; 32], key: &[u8; KEY_BYTES], length: u64) -> Self {
        let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
        digest.update(namespace_digest);
        digest.update(key);
        digest.update(&length.to_le_bytes());
        Self(digest)
    }

    /// Takes the next bytes of the payload.
    pub fn update(&mut self, payload: &[u8]) {
        self.0.update(payload);
    }

    /// The checksum of all bytes taken.
    pub fn finish(&self) -> u64 {
        self.0.finalize()
    }
}

/// The checksum of a block whose payload is in one piece.
pub fn of_block(namespace_digest: &[u8; 32], key: &[u8; KEY_BYTES], payload: &[u8]) -> u64 {
    let mut checksum = Checksum::new(namespace_digest, key, payload.len() as u64);
    checksum.update(payload);
    checksum.finish()
}
