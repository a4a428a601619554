//! Start, serve, drain, stop.
//!
//! Modules in reading order: `start` (lock, movers, tiers, socket, in an order in which each refusal comes before the
//! cost of the next step), `movers` (loaded and told of), `run` (the engine's thread until told to stop), `stop` (drain and shut down).

mod movers;
mod run;
mod start;
mod stop;

pub use run::Ended;
pub(crate) use start::MORE_THREADS;
pub use start::{Daemon, StartError, StartOptions};
