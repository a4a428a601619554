//! The conformance kit: what the contract says, checked on a real backend.
//!
//! A backend's test is one line, and `umbp plugin check` runs the same:
//!
//! ```no_run
//! use umbp_plugin_api::kit::{KitOptions, assert_conforms};
//! assert_conforms("target/debug/libmy_backend.so".as_ref(), &KitOptions::new("path = \"{work}\""));
//! ```
//!
//! Each check is named after the clause that it pins, opens lives of its own on storage of its own, and runs on a
//! thread of its own: a backend that hangs or panics fails a check, not the kit. It measures no speed, and it cannot
//! see what a backend does on a medium that fails: that belongs to the backend's own tests.
//!
//! Modules in reading order: [`options`] (what the kit needs to know), [`report`] (what it found), [`subject`] (the
//! backend under test: a shared object, or a type in this process), `desk` (the host's side, which counts every
//! completion), `memory` (buffers), `blocks` (contents and sizes), `judge` (what came against what was wanted), `life`
//! (one open backend), `checks` (the clauses), `run` (each check on its thread).

mod blocks;
mod checks;
mod desk;
mod judge;
mod life;
mod memory;
pub mod options;
pub mod report;
mod run;
pub mod subject;

pub use options::KitOptions;
pub use report::{Check, Outcome, Report};
pub use run::{assert_conforms, assert_conforms_in_process, run, run_in_process};
