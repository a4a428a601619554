//! The stable ABI between `umbpd` and its backends.
//!
//! A backend's author implements one safe trait, [`Backend`], and exports it from a thin `cdylib` with one macro.
//! The contract that both sides keep is in `CONTRACT.md`, clauses P1 to P12.
//!
//! Modules in reading order: [`types`] (plain structs and numbers that cross the boundary), [`backend`] (what an
//! author implements), [`checksum`] (the one checksum of a block), [`extents`] (free space in a linear area).

pub mod backend;
pub mod checksum;
pub mod extents;
pub mod types;

pub use backend::{Backend, Host, HostServices, Info, OpenConfig, OpenError, Opened, OptionsError, Role, Segment};
pub use types::{Completion, Operation, Run, Status, Submitted};
