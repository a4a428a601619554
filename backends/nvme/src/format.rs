//! Bytes on disk, as FORMAT.md lays them out: pure functions, which never panic whatever they are given.

use crc_fast::{CrcAlgorithm, Digest};
use umbp_plugin_api::types::KEY_BYTES;

/// Payloads begin at multiples of this many bytes.
pub const UNIT_BYTES: u64 = 4096;
/// Length of a superblock.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// Length of a record.
pub const RECORD_BYTES: usize = 152;
/// Version of everything in the folder.
pub const FORMAT_VERSION: u32 = 1;
/// Most namespaces of one store; another is refused with `NO_SPACE`.
pub const NAMESPACES_MAX: usize = 1024;
/// Longest descriptor; a longer one is refused with `INVALID`.
pub const DESCRIPTOR_MAX_BYTES: usize = 64 << 10;

const SUPERBLOCK_MAGIC: &[u8; 8] = b"UMBPNVME";
const NAMESPACES_MAGIC: &[u8; 8] = b"UMBPNSPC";
const NAMESPACES_HEADER_BYTES: usize = 24;
const NAMESPACE_HEADER_BYTES: usize = 40;

/// Why bytes were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Fewer or more bytes than the thing has.
    #[error("wrong length")]
    Length,
    /// It is something else.
    #[error("not a file of this backend (wrong magic)")]
    Magic,
    /// Written by another version.
    #[error("format version {0}; this backend reads {FORMAT_VERSION}")]
    Version(u32),
    /// Bytes changed, or belong to another store or file.
    #[error("checksum does not match")]
    Checksum,
    /// The checksum matches, but a field makes no sense.
    #[error("a field is out of range")]
    Field,
}

/// Units that a payload takes.
pub fn units_of(length: u64) -> u64 {
    length.div_ceil(UNIT_BYTES)
}

/// Which file a record stands in; goes into its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Salt {
    bytes: [u8; 25],
}

impl Salt {
    /// For records of `journal.<sequence>`.
    pub fn journal(uuid: &[u8; 16], sequence: u64) -> Self {
        Self::new(uuid, b'J', sequence)
    }

    /// For records of `snapshot.<sequence>`.
    pub fn snapshot(uuid: &[u8; 16], sequence: u64) -> Self {
        Self::new(uuid, b'S', sequence)
    }

    fn new(uuid: &[u8; 16], kind: u8, sequence: u64) -> Self {
        let mut bytes = [0; 25];
        bytes[..16].copy_from_slice(uuid);
        bytes[16] = kind;
        bytes[17..].copy_from_slice(&sequence.to_le_bytes());
        Self { bytes }
    }
}

/// First thing in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Random at creation.
    pub uuid: [u8; 16],
    /// Index of the path when last opened.
    pub path_index: u32,
    /// Number of paths when last opened.
    pub path_count: u32,
    /// Bytes of this path, metadata included, when last opened.
    pub capacity: u64,
}

impl Superblock {
    /// The bytes of the file.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut out = [0; SUPERBLOCK_BYTES];
        out[..8].copy_from_slice(SUPERBLOCK_MAGIC);
        out[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&(UNIT_BYTES as u32).to_le_bytes());
        out[16..32].copy_from_slice(&self.uuid);
        out[32..36].copy_from_slice(&self.path_index.to_le_bytes());
        out[36..40].copy_from_slice(&self.path_count.to_le_bytes());
        out[40..48].copy_from_slice(&self.capacity.to_le_bytes());
        let sum = crc32c(&[&out[..SUPERBLOCK_BYTES - 4]]);
        out[SUPERBLOCK_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        out
    }
}

/// Reads a superblock. Magic and version are judged before the checksum, so that a stranger's file is told apart from
/// a damaged one.
pub fn decode_superblock(bytes: &[u8]) -> Result<Superblock, FormatError> {
    if bytes.len() < 16 || &bytes[..8] != SUPERBLOCK_MAGIC {
        return Err(FormatError::Magic);
    }
    if bytes.len() != SUPERBLOCK_BYTES {
        return Err(FormatError::Length);
    }
    let matches = u32_at(bytes, SUPERBLOCK_BYTES - 4) == crc32c(&[&bytes[..SUPERBLOCK_BYTES - 4]]);
    if u32_at(bytes, 8) != FORMAT_VERSION {
        return Err(if matches { FormatError::Version(u32_at(bytes, 8)) } else { FormatError::Checksum });
    }
    if !matches {
        return Err(FormatError::Checksum);
    }
    if u64::from(u32_at(bytes, 12)) != UNIT_BYTES {
        return Err(FormatError::Field);
    }
    Ok(Superblock {
        uuid: array_at(bytes, 16),
        path_index: u32_at(bytes, 32),
        path_count: u32_at(bytes, 36),
        capacity: u64_at(bytes, 40),
    })
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A block was stored.
    Put = 1,
    /// A block was deleted.
    Delete = 2,
    /// A journal begins; keeps the sequence going where nothing else does.
    Start = 3,
}

/// One entry of a journal or snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// What happened.
    pub kind: Kind,
    /// One higher for each record appended to the store.
    pub sequence: u64,
    /// A put's own sequence; in a delete, that of the put it ends.
    pub generation: u64,
    /// Where the payload begins.
    pub unit: u64,
    /// Payload, in bytes.
    pub length: u32,
    /// Local namespace id.
    pub namespace: u32,
    /// CRC-64/NVME of the block.
    pub checksum: u64,
    /// Larger is more recent.
    pub recency: u64,
    /// Distance from the chain's root.
    pub depth: u32,
    /// Key inside the namespace.
    pub key: [u8; KEY_BYTES],
    /// Parent's key.
    pub parent: [u8; KEY_BYTES],
}

impl Record {
    /// The first record of a journal.
    pub fn start() -> Self {
        Self {
            kind: Kind::Start,
            sequence: 0,
            generation: 0,
            unit: 0,
            length: 0,
            namespace: 0,
            checksum: 0,
            recency: 0,
            depth: 0,
            key: [0; KEY_BYTES],
            parent: [0; KEY_BYTES],
        }
    }

    /// The end of the block whose put had `generation`.
    pub fn delete(generation: u64, unit: u64, length: u32, namespace: u32) -> Self {
        Self { kind: Kind::Delete, generation, unit, length, namespace, ..Self::start() }
    }

    /// Its bytes in the file that `salt` names.
    pub fn encode(&self, salt: &Salt) -> [u8; RECORD_BYTES] {
        let mut out = [0; RECORD_BYTES];
        out[4] = self.kind as u8;
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out[16..24].copy_from_slice(&self.generation.to_le_bytes());
        out[24..32].copy_from_slice(&self.unit.to_le_bytes());
        out[32..36].copy_from_slice(&self.length.to_le_bytes());
        out[36..40].copy_from_slice(&self.namespace.to_le_bytes());
        out[40..48].copy_from_slice(&self.checksum.to_le_bytes());
        out[48..56].copy_from_slice(&self.recency.to_le_bytes());
        out[56..60].copy_from_slice(&self.depth.to_le_bytes());
        out[60..104].copy_from_slice(&self.key);
        out[104..148].copy_from_slice(&self.parent);
        let sum = crc32c(&[&salt.bytes, &out[4..]]);
        out[..4].copy_from_slice(&sum.to_le_bytes());
        out
    }
}

/// Reads a record of the file that `salt` names.
pub fn decode_record(bytes: &[u8], salt: &Salt) -> Result<Record, FormatError> {
    if bytes.len() != RECORD_BYTES {
        return Err(FormatError::Length);
    }
    if u32_at(bytes, 0) != crc32c(&[&salt.bytes, &bytes[4..]]) {
        return Err(FormatError::Checksum);
    }
    let kind = match bytes[4] {
        1 => Kind::Put,
        2 => Kind::Delete,
        3 => Kind::Start,
        _ => return Err(FormatError::Field),
    };
    let record = Record {
        kind,
        sequence: u64_at(bytes, 8),
        generation: u64_at(bytes, 16),
        unit: u64_at(bytes, 24),
        length: u32_at(bytes, 32),
        namespace: u32_at(bytes, 36),
        checksum: u64_at(bytes, 40),
        recency: u64_at(bytes, 48),
        depth: u32_at(bytes, 56),
        key: array_at(bytes, 60),
        parent: array_at(bytes, 104),
    };
    if record.kind == Kind::Put && (record.length == 0 || record.unit >= 1 << 40) {
        return Err(FormatError::Field);
    }
    Ok(record)
}

/// A namespace as the file holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredNamespace {
    /// Number in records of this store.
    pub local: u32,
    /// SHA-256 of the descriptor's encoding, as the host gave it.
    pub digest: [u8; 32],
    /// Opaque bytes.
    pub descriptor: Vec<u8>,
}

/// The `namespaces` file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceTable {
    /// The next local id to give.
    pub next: u32,
    /// All that are in use.
    pub entries: Vec<StoredNamespace>,
}

impl NamespaceTable {
    /// The bytes of the file.
    pub fn encode(&self, uuid: &[u8; 16]) -> Vec<u8> {
        let mut out = NAMESPACES_MAGIC.to_vec();
        for word in [FORMAT_VERSION, self.entries.len() as u32, self.next, 0] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for entry in &self.entries {
            out.extend_from_slice(&entry.local.to_le_bytes());
            out.extend_from_slice(&(entry.descriptor.len() as u32).to_le_bytes());
            out.extend_from_slice(&entry.digest);
            out.extend_from_slice(&entry.descriptor);
        }
        let sum = crc32c(&[uuid, &out]);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }
}

/// Reads a `namespaces` file.
pub fn decode_namespaces(bytes: &[u8], uuid: &[u8; 16]) -> Result<NamespaceTable, FormatError> {
    if bytes.len() < NAMESPACES_HEADER_BYTES + 4 {
        return Err(FormatError::Length);
    }
    let (body, sum) = bytes.split_at(bytes.len() - 4);
    if &body[..8] != NAMESPACES_MAGIC {
        return Err(FormatError::Magic);
    }
    if u32_at(sum, 0) != crc32c(&[uuid, body]) {
        return Err(FormatError::Checksum);
    }
    if u32_at(body, 8) != FORMAT_VERSION {
        return Err(FormatError::Version(u32_at(body, 8)));
    }
    let count = u32_at(body, 12) as usize;
    if count > NAMESPACES_MAX {
        return Err(FormatError::Field);
    }
    let mut table = NamespaceTable { next: u32_at(body, 16), entries: Vec::with_capacity(count) };
    let mut rest = &body[NAMESPACES_HEADER_BYTES..];
    for _ in 0..count {
        if rest.len() < NAMESPACE_HEADER_BYTES {
            return Err(FormatError::Length);
        }
        let length = u32_at(rest, 4) as usize;
        let (header, tail) = rest.split_at(NAMESPACE_HEADER_BYTES);
        if length > DESCRIPTOR_MAX_BYTES || tail.len() < length {
            return Err(FormatError::Length);
        }
        let (descriptor, tail) = tail.split_at(length);
        let (local, digest) = (u32_at(header, 0), array_at(header, 8));
        table.entries.push(StoredNamespace { local, digest, descriptor: descriptor.to_vec() });
        rest = tail;
    }
    if rest.is_empty() { Ok(table) } else { Err(FormatError::Length) }
}

/// A short form of a key, by which a wrong location is told from the right one without reading the disk.
pub fn fingerprint(key: &[u8; KEY_BYTES]) -> u32 {
    crc32c(&[key])
}

fn crc32c(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}

// The callers have checked the length; what is missing reads as zero rather than panicking.
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    if let Some(found) = bytes.get(at..at + N) {
        out.copy_from_slice(found);
    }
    out
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}
