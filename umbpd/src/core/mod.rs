//! The engine's thread: calls the engine, carries out what it wants done, and takes what tiers report.
//!
//! Everything here runs on one thread, as local tasks of one runtime, so the engine needs no lock and a request is
//! answered without a second wake-up. Nothing here blocks: plugins are called on their tiers' threads.
//!
//! Modules in reading order: `hub` (the engine and what is around it), [`seat`] (what it knows of a tier and of a
//! session), `actions` (carrying out), [`reports`] (taking in), `ask` (waiting for shared tiers), [`ticker`] (time),
//! `status`.

mod actions;
mod ask;
mod hub;
pub mod reports;
pub mod seat;
mod status;
pub mod ticker;

pub use ask::Question;
pub use hub::{Facts, Hub};
