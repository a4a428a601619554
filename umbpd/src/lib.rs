//! The daemon as a library: plugin loader, tier engine, sessions, admin page.
//!
//! What it does not do: it moves no block bytes (backends and clients do), decides nothing in a plugin's place, and
//! opens no plugin except through `umbp_plugin_api::host`.
//!
//! Modules in reading order: [`engine`] (which block is where, sans I/O); [`tier`] (the thread that owns a plugin);
//! [`loader`] (from config to an open plugin); [`generations`] (the shared tables); [`core`] (the engine's thread:
//! carries out what the engine wants done); [`session`] (one client each); [`admin`], [`metrics`] (the page for operators);
//! [`daemon`] (start, serve, drain, stop); [`embedded`] (inside an engine's process), [`fork`];
//! [`check`] (`umbpd check`); [`process`], [`args`], [`command`] (the program around it).

pub mod admin;
pub mod args;
pub mod check;
pub mod command;
pub mod core;
pub mod daemon;
pub mod embedded;
pub mod engine;
pub mod fork;
pub mod generations;
pub mod loader;
pub mod metrics;
pub mod process;
pub mod session;
pub mod tier;

pub use daemon::{Daemon, StartError, StartOptions};
