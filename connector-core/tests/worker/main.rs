//! The worker's side of the connector: golden traces of the reference, and what every history keeps.

#[path = "../common/mod.rs"]
mod common;
mod golden;
mod script;
