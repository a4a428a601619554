//! The tier engine: which block is where, who may touch it, and what leaves first. Sans I/O: calls in, answers and
//! actions out; time is an argument; it never touches block bytes and never calls a plugin.
//!
//! Life of a block: Absent, Writing (leased to a writer), Resident (with readers counted), Absent again; and
//! Quarantined for an extent that a dead or late writer may still touch. First writer wins; every doubt is a miss.
//!
//! The daemon's loop: call a method, carry out [`Engine::actions`] in order, send the answer; call [`Engine::tick`]
//! after each batch of calls and when the time that it answered last has come. No call touches more than a bounded
//! number of entries: requests come in slices of [`KEYS_PER_SLICE_MAX`] keys under one lease, and what expires, is
//! reclaimed or is recovered goes in slices too.
//!
//! Modules in reading order: [`api`] (what goes in and out); `state`, `moves` (the tables, and the moves that all
//! else is made of); `index`, `tier`, `pool`, `slab` (entries, copies, extents, slots); `policy`, `order` (what leaves
//! first, and how its policy is told), `prefix_lru`, `s3_fifo`, `chain_hazard`, `list`, `ghosts` (the policies);
//! `namespace`, `session`, `lease`; `store`, `load`, `hold` (the calls of clients); `evict`, `admit`, `background`,
//! `lower`, `complete`, `deletes`, `recover`, `ask` (the traffic with tiers); `orphans`, `clear`, `tick`, `status`.
//!
//! How the daemon calls it. A client's Reserve, with its keys cut into slices:
//!
//! ```text
//! lease = lease_begin(session, LeaseKind::Write, now)      None: refuse the request ("limit")
//! answers += reserve(session, lease, slice, now)           for each slice
//! (lease, lease_ms) = lease_finish(lease, now)             0 if nothing was reserved
//! ```
//!
//! A Lookup where shared tiers serve ([`Engine::asks_others`]) asks before it looks; every key counts once, in `lookup`:
//!
//! ```text
//! ticket = ask_begin(now)
//! ask(session, ticket, slice, now)                         for each slice
//! wait for Answered { ticket }, until asked(ticket).until  where asked(ticket).left > 0
//! ask_end(ticket)
//! answers += lookup(session, hold_ms, slice, now)          for each slice
//! ```
//!
//! Acquire goes as Reserve does, with `LeaseKind::Read`. Commit, Release and Abort with items are cut into calls; without
//! items they are called again while they answer a full slice. A persistent tier is set Running, then told its
//! recovered namespaces by `namespace`, then its blocks come by `recovered` and `recovery_done`. A rejected operation
//! is a completion with the status of its rejection; one that was Busy stays with the tier's runner.

pub mod api;

mod admit;
mod ask;
mod background;
mod chain_hazard;
mod clear;
mod complete;
mod deletes;
mod evict;
mod ghosts;
mod hold;
mod index;
mod lease;
mod list;
mod load;
mod lower;
mod moves;
mod namespace;
mod order;
mod orphans;
mod policy;
mod pool;
mod prefix_lru;
mod recover;
mod s3_fifo;
mod session;
mod slab;
mod state;
mod status;
mod store;
mod tick;
mod tier;

#[cfg(test)]
mod tests;

pub use ask::{ASKS_WAITING_MAX, PRESENT_OTHER_NS, REMEMBERED_MAX};
pub use clear::ClearSlice;
pub use complete::{DEGRADED_AFTER_MISSES, PROBE_EVERY_NS, PUT_TRIES_MAX};
pub use deletes::DELETE_RETRY_NS;
pub use evict::{EVICTIONS_PER_BLOCK_MAX, EVICTIONS_PER_CALL_MAX, RECLAIM_SLICE_ENTRIES};
pub use lease::{EXPIRY_SLICE_ITEMS, LEASED_ITEMS_PER_SESSION_MAX, LEASES_PER_SESSION_MAX, LeaseKind};
pub use namespace::{NAMESPACES_MAX, parse_stored_descriptor};
pub use pool::{SEGMENTS_MAX, UNIT_BYTES};
pub use session::SessionInfo;
pub use state::{DEPTH_MAX, Engine, KEYS_PER_SLICE_MAX};
pub use tier::LIMIT_RAISE_EVERY_NS;
