//! Storage tier on a local disk: io_uring and O_DIRECT where the machine grants them, else threads and the page
//! cache. What it stores outlives the daemon; see `FORMAT.md` beside this crate for the bytes on disk.
//!
//! What this crate does not do: it picks no victims, keeps no map from keys to blocks (the host's location leads to a
//! block), and computes no checksum of its own over payloads: it verifies the one it was given.
//!
//! How an operation travels: `submit` reserves space or looks up the location, then hands over to the driver thread
//! of the path, which splits it into pieces and keeps a bounded number of them in flight. A load then goes to the
//! verifying threads; a store goes to the keeper thread, which appends its record. Every operation carries a ticket
//! whose drop completes it, so that none is lost, not even in a panic.
//!
//! Modules in reading order: [`mod@format`] (bytes on disk), [`options`], `live` (living blocks), `ranges`, `space`
//! (which units are free, and which are on disk), `folder` (lock, superblock, files), `namespaces`, `journal`,
//! `patience` (tries of reads that fail), `recovery`, `compact` (sync windows and snapshots), `ticket`, `queue`,
//! `transfer`, `inbox`, [`port`] (how pieces reach the disk, and where faults are injected), `piece`, `driver`,
//! `keeper`, `verify`, `store` (one path), `punch` (room given back), `regions`, `launch` (threads begin and end),
//! `submit`, [`backend`] (the seam to the host).

pub mod backend;
mod compact;
mod driver;
mod folder;
pub mod format;
mod inbox;
mod journal;
mod keeper;
mod launch;
mod live;
mod namespaces;
pub mod options;
mod patience;
mod piece;
pub mod port;
mod punch;
mod queue;
mod ranges;
mod recovery;
mod regions;
mod space;
mod store;
mod submit;
mod ticket;
mod transfer;
mod verify;

pub use backend::Nvme;
