//! The worker's side of the connector: golden traces of the reference, and what every history keeps.

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod golden;
mod histories;
mod script;
