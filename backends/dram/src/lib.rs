//! Storage tier in host memory: sealed memfd segments that the daemon shares with its clients.
//!
//! It provides memory and nothing else: the host allocates extents in it and moves the bytes, so every operation is
//! answered with "unsupported". It does not know blocks, keys or namespaces.
//!
//! Modules in reading order: [`options`] (the options' text, checked), [`limits`] (what the machine lets this process
//! take: cgroup, free memory, file size), [`holders`] (who still maps a former pool), [`numa`] (where pages come
//! from), [`segment`] (one memfd: created, pre-faulted, locked, sealed), [`backend`] (owns the segments).

pub mod backend;
pub mod holders;
pub mod limits;
pub mod numa;
pub mod options;
pub mod segment;

pub use backend::Dram;
