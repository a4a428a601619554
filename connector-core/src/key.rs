//! The identity of one KV block: namespace, rank, group and block hash, in binary and in text form.
//!
//! Binary form of a [`LocalKey`] (all integers little-endian, [`LOCAL_KEY_BYTES`] bytes):
//!
//! | bytes | field |
//! |---|---|
//! | 0..32 | block hash, zero-padded |
//! | 32 | length of the block hash in bytes, 1 to 32; 0 means "no key" (a root has no parent) |
//! | 33 | zero |
//! | 34..36 | KV cache group |
//! | 36..44 | ranks: tp, pcp, dcp, pp |
//!
//! On the wire, over the plugin ABI and in indexes the namespace is a number that the daemon gave it, in front of the
//! local key; in text it stands as its name or its digest ([`TextKey`]).

use std::fmt;

/// Bytes of a [`LocalKey`] in binary form.
pub const LOCAL_KEY_BYTES: usize = 44;
/// The longest block hash, in bytes (SHA-256).
pub const BLOCK_HASH_MAX_BYTES: usize = 32;

/// Digest of a namespace descriptor: SHA-256 of its injective encoding (see [`crate::namespace`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespaceDigest(pub [u8; 32]);

/// Content hash of a token prefix, 1 to 32 bytes, as the engine computed it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash {
    bytes: [u8; BLOCK_HASH_MAX_BYTES],
    len: u8,
}

/// A rank of the engine that holds a shard of a block. Ranks that hold equal bytes use one canonical rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank {
    /// Tensor parallel.
    pub tp: u16,
    /// Prefill context parallel.
    pub pcp: u16,
    /// Decode context parallel.
    pub dcp: u16,
    /// Pipeline parallel.
    pub pp: u16,
}

/// A KV cache group: layers that share a block table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u16);

/// A block's identity inside one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocalKey {
    /// Content hash of the token prefix that ends with this block.
    pub hash: BlockHash,
    /// The KV cache group.
    pub group: GroupId,
    /// The rank that holds this shard.
    pub rank: Rank,
}

/// Why a key is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A hash of no bytes, or longer than [`BLOCK_HASH_MAX_BYTES`].
    #[error("block hash has {0} bytes, expected 1 to 32")]
    HashLength(usize),
    /// Bytes beyond the hash's length, or the reserved byte, are not zero: two binary forms would name one key.
    #[error("binary key is not canonical: padding is not zero")]
    NotCanonical,
    /// The text form lacks a field or has one that is not a number or hex.
    #[error("text key {text:?}: {reason}")]
    Text {
        /// The whole text.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl BlockHash {
    /// A hash of 1 to [`BLOCK_HASH_MAX_BYTES`] bytes.
    pub fn new(hash: &[u8]) -> Result<Self, KeyError> {
        if hash.is_empty() || hash.len() > BLOCK_HASH_MAX_BYTES {
            return Err(KeyError::HashLength(hash.len()));
        }
        let mut bytes = [0; BLOCK_HASH_MAX_BYTES];
        bytes[..hash.len()].copy_from_slice(hash);
        Ok(Self { bytes, len: hash.len() as u8 })
    }

    /// Reads hex digits of either case; none for anything else, or for a length that no hash has.
    pub fn from_hex(text: &str) -> Option<Self> {
        if !text.len().is_multiple_of(2) || text.len() > 2 * BLOCK_HASH_MAX_BYTES {
            return None;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
        let byte = |pair: &[u8]| Some((digit(pair[0])? << 4) | digit(pair[1])?);
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks_exact(2).map(byte).collect();
        Self::new(&bytes?).ok()
    }

    /// The hash's own bytes, without padding.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl LocalKey {
    /// The binary form.
    pub fn to_bytes(&self) -> [u8; LOCAL_KEY_BYTES] {
        let mut out = [0; LOCAL_KEY_BYTES];
        out[..32].copy_from_slice(&self.hash.bytes);
        out[32] = self.hash.len;
        out[34..36].copy_from_slice(&self.group.0.to_le_bytes());
        let Rank { tp, pcp, dcp, pp } = self.rank;
        for (cell, rank) in out[36..].chunks_exact_mut(2).zip([tp, pcp, dcp, pp]) {
            cell.copy_from_slice(&rank.to_le_bytes());
        }
        out
    }

    /// Reads the binary form; `Ok(None)` for the form of "no key" (all zero).
    pub fn from_bytes(bytes: &[u8; LOCAL_KEY_BYTES]) -> Result<Option<Self>, KeyError> {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let len = usize::from(bytes[32]);
        if len == 0 {
            return if bytes.iter().all(|b| *b == 0) { Ok(None) } else { Err(KeyError::NotCanonical) };
        }
        if len > BLOCK_HASH_MAX_BYTES {
            return Err(KeyError::HashLength(len));
        }
        if bytes[33] != 0 || bytes[len..32].iter().any(|b| *b != 0) {
            return Err(KeyError::NotCanonical);
        }
        Ok(Some(Self {
            hash: BlockHash::new(&bytes[..len])?,
            group: GroupId(word(34)),
            rank: Rank { tp: word(36), pcp: word(38), dcp: word(40), pp: word(42) },
        }))
    }
}

/// Prefix of every text key: the store, the engine, the version of the form.
const TEXT_PREFIX: &str = "umbp:vllm:v1:";
/// Names in front of the numbers of a text key, in order, after the namespace.
const TEXT_FIELDS: [&str; 5] = ["tp", "pcp", "dcp", "pp", "g"];

/// A key in text form: `umbp:vllm:v1:<namespace>:tp0:pcp0:dcp0:pp0:g0:<hash hex>`.
///
/// The namespace is any text but the empty one, colons included, since the six fields behind it hold none and are
/// read from the right. One key has one text: numbers without leading zeros, hex in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TextKey<'a> {
    /// The namespace's name, or its digest in hex.
    pub namespace: &'a str,
    /// Identity inside the namespace.
    pub local: LocalKey,
}

impl<'a> TextKey<'a> {
    /// Reads the text form.
    pub fn parse(text: &'a str) -> Result<Self, KeyError> {
        let bad = |reason| KeyError::Text { text: text.to_owned(), reason };
        let rest = text.strip_prefix(TEXT_PREFIX).ok_or_else(|| bad("expected \"umbp:vllm:v1:\" in front"))?;
        let mut fields = rest.rsplitn(TEXT_FIELDS.len() + 2, ':');
        let hash = fields.next().and_then(parse_hex).ok_or_else(|| bad("the hash is not 1 to 32 bytes of hex"))?;
        let mut numbers = [0; TEXT_FIELDS.len()];
        for (number, name) in numbers.iter_mut().zip(TEXT_FIELDS).rev() {
            let digits = fields.next().and_then(|field| field.strip_prefix(name));
            *number = digits.and_then(parse_number).ok_or_else(|| bad("expected tp, pcp, dcp, pp, g with numbers"))?;
        }
        let namespace = fields.next().filter(|text| !text.is_empty()).ok_or_else(|| bad("the namespace is empty"))?;
        let [tp, pcp, dcp, pp, group] = numbers;
        Ok(Self { namespace, local: LocalKey { hash, group: GroupId(group), rank: Rank { tp, pcp, dcp, pp } } })
    }
}

impl fmt::Display for TextKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LocalKey { hash, group, rank: Rank { tp, pcp, dcp, pp } } = self.local;
        let namespace = self.namespace;
        write!(f, "{TEXT_PREFIX}{namespace}:tp{tp}:pcp{pcp}:dcp{dcp}:pp{pp}:g{}:{hash}", group.0)
    }
}

/// Decimal without sign or leading zeros.
fn parse_number(text: &str) -> Option<u16> {
    let canonical = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if canonical { text.parse().ok() } else { None }
}

/// The one spelling of a hash: hex in lower case.
fn parse_hex(text: &str) -> Option<BlockHash> {
    if text.bytes().any(|byte| byte.is_ascii_uppercase()) { None } else { BlockHash::from_hex(text) }
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Display for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(self.as_bytes()).fmt(f)
    }
}

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockHash({self})")
    }
}

impl fmt::Display for NamespaceDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0).fmt(f)
    }
}

impl fmt::Debug for NamespaceDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NamespaceDigest({self})")
    }
}
