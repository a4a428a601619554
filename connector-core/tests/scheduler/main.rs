//! The scheduler's side: the golden traces, and what holds beyond them.

#[path = "../common/mod.rs"]
mod common;

mod golden;
mod read;
mod script;
