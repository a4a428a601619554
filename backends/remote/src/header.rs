//! The header that every object begins with: what it is, whose, and how much of it there should be.
//!
//! Little-endian, of a fixed length, with a checksum of its own at its end. A change of its layout is a new version,
//! and an object of another version is a miss.
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 8 | magic `UMBPOBJ\0` |
//! | 8 | 2 | version of the format |
//! | 10 | 1 | kind: 1 whole, 2 manifest, 3 part |
//! | 11 | 1 | zero |
//! | 12 | 4 | depth of the block in its chain |
//! | 16 | 32 | digest of the namespace |
//! | 48 | 44 | key |
//! | 92 | 44 | parent's key, zero for a root |
//! | 136 | 8 | bytes of the block |
//! | 144 | 8 | CRC-64/NVME of the block |
//! | 152 | 8 | bytes of each part but the last; 0 where whole |
//! | 160 | 4 | number of parts; 0 where whole |
//! | 164 | 4 | which part this is, from 0; 0 where it is none |
//! | 168 | 8 | id of the upload that the parts belong to; 0 where whole |
//! | 176 | 8 | CRC-64/NVME of the 176 bytes before |

use crc_fast::{CrcAlgorithm, checksum};
use umbp_plugin_api::types::KEY_BYTES;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 184;
/// The longest block, in bytes.
pub const BLOCK_MAX_BYTES: u64 = 64 << 20;
/// Most parts of one block: the longest block in the smallest parts.
pub const PARTS_MAX: u32 = 1024;

const MAGIC: &[u8; 8] = b"UMBPOBJ\0";
const VERSION: u16 = 1;
const CHECKED_BYTES: usize = HEADER_BYTES - 8;

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A block in one piece: its bytes follow.
    Whole,
    /// A block in parts, each an object of its own: nothing follows.
    Manifest,
    /// One of these parts: its bytes follow.
    Part,
}

/// A header as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the object is.
    pub kind: Kind,
    /// Digest of the block's namespace.
    pub namespace: [u8; 32],
    /// The block's key.
    pub key: [u8; KEY_BYTES],
    /// Its parent's key, zero for a root.
    pub parent: [u8; KEY_BYTES],
    /// Distance from the chain's root.
    pub depth: u32,
    /// Bytes of the block.
    pub length: u64,
    /// The block's checksum.
    pub checksum: u64,
    /// Bytes of each part but the last.
    pub part_bytes: u64,
    /// Number of parts.
    pub parts: u32,
    /// Which part.
    pub part: u32,
    /// Which upload.
    pub upload: u64,
}

/// Why bytes are no header of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsound {
    /// It ends too early, or goes on for too long.
    Truncated,
    /// Somebody else's object.
    Foreign,
    /// Another version of the format.
    Version,
    /// It does not match its own checksum, or says what cannot be.
    Corrupt,
    /// Another block's, or another part's.
    OtherKey,
}

impl Unsound {
    /// The counter that tells of it.
    pub fn counter(self) -> &'static str {
        match self {
            Self::Truncated => "object.truncated",
            Self::Foreign => "object.foreign",
            Self::Version => "object.version",
            Self::Corrupt => "object.corrupt",
            Self::OtherKey => "object.other_key",
        }
    }
}

impl Header {
    /// As it is stored.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let kind = match self.kind {
            Kind::Whole => 1,
            Kind::Manifest => 2,
            Kind::Part => 3,
        };
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = kind;
        bytes[12..16].copy_from_slice(&self.depth.to_le_bytes());
        bytes[16..48].copy_from_slice(&self.namespace);
        bytes[48..92].copy_from_slice(&self.key);
        bytes[92..136].copy_from_slice(&self.parent);
        bytes[136..144].copy_from_slice(&self.length.to_le_bytes());
        bytes[144..152].copy_from_slice(&self.checksum.to_le_bytes());
        bytes[152..160].copy_from_slice(&self.part_bytes.to_le_bytes());
        bytes[160..164].copy_from_slice(&self.parts.to_le_bytes());
        bytes[164..168].copy_from_slice(&self.part.to_le_bytes());
        bytes[168..176].copy_from_slice(&self.upload.to_le_bytes());
        let check = checksum(CrcAlgorithm::Crc64Nvme, &bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads the start of an object. What follows the header is not looked at.
    pub fn decode(bytes: &[u8]) -> Result<Self, Unsound> {
        // What is too short for a header is ours, cut, where it begins as ours do.
        let magic = &bytes[..bytes.len().min(MAGIC.len())];
        if magic != &MAGIC[..magic.len()] {
            return Err(Unsound::Foreign);
        }
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else { return Err(Unsound::Truncated) };
        if u16::from_le_bytes(field(bytes, 8)) != VERSION {
            return Err(Unsound::Version);
        }
        let check = checksum(CrcAlgorithm::Crc64Nvme, &bytes[..CHECKED_BYTES]);
        if u64::from_le_bytes(field(bytes, CHECKED_BYTES)) != check || bytes[11] != 0 {
            return Err(Unsound::Corrupt);
        }
        let kind = match bytes[10] {
            1 => Kind::Whole,
            2 => Kind::Manifest,
            3 => Kind::Part,
            _ => return Err(Unsound::Corrupt),
        };
        let header = Self {
            kind,
            namespace: field(bytes, 16),
            key: field(bytes, 48),
            parent: field(bytes, 92),
            depth: u32::from_le_bytes(field(bytes, 12)),
            length: u64::from_le_bytes(field(bytes, 136)),
            checksum: u64::from_le_bytes(field(bytes, 144)),
            part_bytes: u64::from_le_bytes(field(bytes, 152)),
            parts: u32::from_le_bytes(field(bytes, 160)),
            part: u32::from_le_bytes(field(bytes, 164)),
            upload: u64::from_le_bytes(field(bytes, 168)),
        };
        if header.adds_up() { Ok(header) } else { Err(Unsound::Corrupt) }
    }

    fn adds_up(&self) -> bool {
        let length = self.length != 0 && self.length <= BLOCK_MAX_BYTES;
        let cut = || {
            self.part_bytes != 0
                && self.parts <= PARTS_MAX
                && self.length.div_ceil(self.part_bytes) == u64::from(self.parts)
        };
        length
            && match self.kind {
                Kind::Whole => (self.part_bytes, self.parts, self.part, self.upload) == (0, 0, 0, 0),
                Kind::Manifest => cut() && self.part == 0,
                Kind::Part => cut() && self.part < self.parts,
            }
    }

    /// Bytes of the whole object, header included.
    pub fn object_bytes(&self) -> u64 {
        let payload = match self.kind {
            Kind::Whole => self.length,
            Kind::Manifest => 0,
            Kind::Part => self.bytes_of_part(self.part),
        };
        HEADER_BYTES as u64 + payload
    }

    /// Bytes of one of the parts.
    pub fn bytes_of_part(&self, part: u32) -> u64 {
        let start = u64::from(part).saturating_mul(self.part_bytes);
        self.length.saturating_sub(start).min(self.part_bytes)
    }

    /// Where the block lies, for the host: the same on every host, and of no other block. Never 0.
    pub fn location(&self) -> u64 {
        location(&self.namespace, &self.key, self.length, self.checksum, self.upload)
    }
}

/// [`Header::location`] of a block that is known otherwise. `upload` is 0 where it is whole.
pub fn location(namespace: &[u8; 32], key: &[u8; KEY_BYTES], length: u64, block_checksum: u64, upload: u64) -> u64 {
    let mut bytes = [0; 32 + KEY_BYTES + 24];
    bytes[..32].copy_from_slice(namespace);
    bytes[32..76].copy_from_slice(key);
    bytes[76..84].copy_from_slice(&length.to_le_bytes());
    bytes[84..92].copy_from_slice(&block_checksum.to_le_bytes());
    bytes[92..].copy_from_slice(&upload.to_le_bytes());
    checksum(CrcAlgorithm::Crc64Nvme, &bytes).max(1)
}

/// A field of a known place and length.
fn field<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

#[cfg(test)]
mod tests {
    use proptest::array::{uniform4, uniform32};
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = [u8; KEY_BYTES]> {
        (uniform32(any::<u8>()), uniform4(any::<u8>()), uniform4(any::<u8>()), uniform4(any::<u8>())).prop_map(
            |(a, b, c, d)| {
                let mut key = [0; KEY_BYTES];
                key[..32].copy_from_slice(&a);
                key[32..36].copy_from_slice(&b);
                key[36..40].copy_from_slice(&c);
                key[40..].copy_from_slice(&d);
                key
            },
        )
    }

    fn header() -> impl Strategy<Value = Header> {
        let shape = (0..3u8, 1..=BLOCK_MAX_BYTES, (64 << 10)..=BLOCK_MAX_BYTES, any::<u32>(), any::<u64>());
        let block = (uniform32(any::<u8>()), key(), key(), any::<u32>(), any::<u64>());
        (shape, block).prop_map(|((kind, length, part_bytes, part, upload), block)| {
            let (namespace, key, parent, depth, checksum) = block;
            let parts = length.div_ceil(part_bytes) as u32;
            let (kind, part_bytes, parts, part, upload) = match kind {
                0 => (Kind::Whole, 0, 0, 0, 0),
                1 => (Kind::Manifest, part_bytes, parts, 0, upload),
                _ => (Kind::Part, part_bytes, parts, part % parts, upload),
            };
            Header { kind, namespace, key, parent, depth, length, checksum, part_bytes, parts, part, upload }
        })
    }

    proptest! {
        #[test]
        fn a_header_comes_back_as_it_was_written(header in header(), more in 0..64usize) {
            let mut bytes = header.encode().to_vec();
            bytes.resize(HEADER_BYTES + more, 0xa5);
            prop_assert_eq!(Header::decode(&bytes), Ok(header));
        }

        #[test]
        fn a_header_with_any_bits_changed_is_none(
            header in header(), at in 0..HEADER_BYTES, bits in 1..=255u8,
        ) {
            let mut bytes = header.encode();
            bytes[at] ^= bits;
            let wanted = match at {
                0..8 => Unsound::Foreign,
                8..10 => Unsound::Version,
                _ => Unsound::Corrupt,
            };
            prop_assert_eq!(Header::decode(&bytes), Err(wanted));
        }

        #[test]
        fn a_cut_header_is_none(header in header(), length in 0..HEADER_BYTES) {
            prop_assert_eq!(Header::decode(&header.encode()[..length]), Err(Unsound::Truncated));
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Header::decode(&bytes);
        }

        #[test]
        fn what_cannot_be_is_refused_though_its_checksum_is_right(
            kind in 0..8u8, numbers in uniform4(any::<u64>()), parts in any::<u32>(),
        ) {
            let mut bytes = [0; HEADER_BYTES];
            bytes[..8].copy_from_slice(MAGIC);
            bytes[8] = 1;
            bytes[10] = kind;
            bytes[136..144].copy_from_slice(&numbers[0].to_le_bytes());
            bytes[152..160].copy_from_slice(&numbers[1].to_le_bytes());
            bytes[160..164].copy_from_slice(&parts.to_le_bytes());
            let check = checksum(CrcAlgorithm::Crc64Nvme, &bytes[..CHECKED_BYTES]);
            bytes[CHECKED_BYTES..].copy_from_slice(&check.to_le_bytes());
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert!(header.adds_up() && header.object_bytes() <= BLOCK_MAX_BYTES + HEADER_BYTES as u64);
            }
        }

        #[test]
        fn parts_are_the_block(header in header()) {
            let sum: u64 = (0..header.parts).map(|part| header.bytes_of_part(part)).sum();
            prop_assert_eq!(sum, if header.kind == Kind::Whole { 0 } else { header.length });
        }

        #[test]
        fn a_location_is_one_blocks_alone(header in header(), other in header()) {
            prop_assert_ne!(header.location(), 0);
            prop_assert_eq!(header.location() == other.location(), header == other);
        }
    }
}
