//! One file holds one block: a header of [`HEADER_BYTES`], then the payload.
//!
//! The header, little-endian: magic (8 bytes), namespace digest (32), key (44), parent (44), depth (4), zero (4),
//! length (8), checksum of the block (8), recency (8), location (8), checksum of the header so far (8).

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use umbp_plugin_api::checksum;
use umbp_plugin_api::types::KEY_BYTES;

/// Length of the header.
pub const HEADER_BYTES: usize = 176;

const MAGIC: [u8; 8] = *b"UMBPFS01";

/// Bytes that the header's own checksum covers.
const COVERED_BYTES: usize = HEADER_BYTES - 8;

/// What is known of a block besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Digest of its namespace.
    pub namespace: [u8; 32],
    /// Key inside the namespace.
    pub key: [u8; KEY_BYTES],
    /// Parent's key.
    pub parent: [u8; KEY_BYTES],
    /// Distance from the root.
    pub depth: u32,
    /// Bytes of the payload.
    pub length: u64,
    /// CRC-64/NVME of the block, as the daemon gave it.
    pub checksum: u64,
    /// Larger is more recent.
    pub recency: u64,
    /// A number that this backend gave to this very file; a later put of the same key has another.
    pub location: u64,
}

impl Header {
    /// The header as it stands in the file.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(self.namespace);
        bytes.extend(self.key);
        bytes.extend(self.parent);
        bytes.extend(self.depth.to_le_bytes());
        bytes.extend([0; 4]);
        for word in [self.length, self.checksum, self.recency, self.location] {
            bytes.extend(word.to_le_bytes());
        }
        let own = checksum::of_block(&self.namespace, &self.key, &bytes);
        bytes.extend(own.to_le_bytes());
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&bytes);
        header
    }

    /// Reads a header; `None` if it is damaged.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let mut reader = Fields(bytes);
        if reader.take::<8>() != MAGIC {
            return None;
        }
        let (namespace, key, parent) = (reader.take(), reader.take(), reader.take());
        let depth = u32::from_le_bytes(reader.take());
        let _zero: [u8; 4] = reader.take();
        let [length, checksum, recency, location, own] = [(); 5].map(|()| u64::from_le_bytes(reader.take()));
        let header = Self { namespace, key, parent, depth, length, checksum, recency, location };
        (own == checksum::of_block(&namespace, &key, &bytes[..COVERED_BYTES])).then_some(header)
    }
}

/// Takes fixed pieces off the front.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut piece = [0; N];
        let (front, rest) = self.0.split_at(N);
        piece.copy_from_slice(front);
        self.0 = rest;
        piece
    }
}

/// Opens a block's file and reads its header; `None` for a header that is damaged.
pub fn open(path: &Path) -> io::Result<(File, Option<Header>)> {
    let mut file = File::open(path)?;
    let mut bytes = [0; HEADER_BYTES];
    let header = match file.read_exact(&mut bytes) {
        Ok(()) => Header::decode(&bytes),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
        Err(error) => return Err(error),
    };
    Ok((file, header))
}

/// Writes a file under another name, syncs it, and renames it: under its own name it is whole, or not there.
pub fn write_whole(path: &Path, temporary: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let write = || {
        let mut file = File::create(temporary)?;
        for part in parts {
            file.write_all(part)?;
        }
        file.sync_data()?;
        fs::rename(temporary, path)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(temporary);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_back_and_one_flipped_bit_is_seen() {
        let (namespace, key, parent) = ([7; 32], [1; KEY_BYTES], [2; KEY_BYTES]);
        let header =
            Header { namespace, key, parent, depth: 3, length: 4, checksum: 5, recency: u64::MAX, location: 6 };
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Some(header));
        for bit in 0..HEADER_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&damaged), None, "bit {bit}");
        }
    }
}
