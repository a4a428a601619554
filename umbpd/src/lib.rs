//! The daemon as a library: plugin loader, tier engine, sessions.
//!
//! Modules in reading order: [`engine`] (which block is where, sans I/O), [`check`] (`umbpd check`).

pub mod check;
pub mod engine;
