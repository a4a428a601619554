//! The scheduler's side: the golden traces, and what holds beyond them.

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod cases;
mod engine;
mod exceptions;
mod golden;
mod groups;
mod histories;
mod read;
mod script;
mod spoil;
mod truth;
