//! Start, serve, drain, stop.
//!
//! Modules in reading order: `start` (lock, tiers, socket, in an order in which each refusal comes before the cost of
//! the next step), `run` (the engine's thread until told to stop), `stop` (drain and shut down).

mod run;
mod start;
mod stop;

pub use run::Ended;
pub use start::{Daemon, StartError, StartOptions};
