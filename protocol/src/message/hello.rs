//! What both sides say of themselves when a session starts, and how the daemon refuses.

use serde::{Deserialize, Serialize};
use umbp_connector_core::namespace::NamespaceDescriptor;

use super::{NamespaceId, SessionId};

/// First message of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Oldest and newest protocol version of the client.
    pub versions: (u16, u16),
    /// Name and version of the client, for logs and status.
    pub client: String,
    /// The tenant wanted, among those that config allows to this uid; none = the first of these.
    pub tenant: Option<String>,
    /// The namespace of the keys to come; none = this session only asks for status.
    pub namespace: Option<NamespaceDescriptor>,
    /// This process's session before.
    pub previous_session: Option<SessionId>,
    /// The daemon's life that gave `previous_session` its number: in another life the number is somebody else's.
    #[serde(default)]
    pub previous_boot_id: u64,
    /// The process has unmapped all that `previous_session` mapped: no thread of it writes there any more.
    pub all_unmapped: bool,
}

/// Answer to [`Hello`]; the tenant's generation table travels beside it as one fd. Segments follow as events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The version spoken from now on.
    pub version: u16,
    /// The daemon's version.
    pub daemon: String,
    /// This life of the daemon.
    pub boot_id: u64,
    /// This session.
    pub session: SessionId,
    /// The tenant it belongs to.
    pub tenant: String,
    /// Number of the namespace, if Hello named one.
    pub namespace: Option<NamespaceId>,
    /// Words (u64) of the generation table.
    pub generation_words: u64,
    /// Limits that the client keeps.
    pub limits: Limits,
    /// The tiers, in order.
    pub tiers: Vec<TierName>,
}

/// Limits that the client keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Most keys in one message.
    pub keys: u32,
    /// Most bytes of one frame.
    pub frame_bytes: u32,
    /// Life of a lease, in milliseconds.
    pub lease_ms: u32,
    /// Longest hold, in milliseconds.
    pub hold_ms: u32,
    /// Largest block, in bytes.
    pub block_bytes: u64,
    /// Loads from DRAM are to be checked against their checksum too.
    pub verify_dram: bool,
}

/// A tier's name and backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierName {
    /// Name in the config.
    pub name: String,
    /// Its backend.
    pub backend: String,
}

/// An error that concerns the whole request, or the whole session where the daemon closes it afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For programs: "version", "tenant", "frame", "argument", "limit", "draining".
    pub code: String,
    /// For people: names what was asked, what is expected, and the remedy.
    pub message: String,
}
