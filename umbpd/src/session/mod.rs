//! One client each: who it is, what it asks, what it gets.
//!
//! A session is a local task on the engine's thread. It ends at the close of its socket or at the end of its process,
//! whichever is first; when a frame is wrong it ends with a reason, and the daemon lives. Fds from a client are closed
//! and end the session.
//!
//! Modules in reading order: [`listen`] (the socket and its lock), [`peer`] (the process behind a connection),
//! [`outbox`] (what waits to be sent), [`mod@line`] (bytes in and out), [`hello`] (who it is), [`answer`] (what it asks),
//! `lookup` (which may have to wait), [`turned_away`] (who is not served), [`serve`] (its life).

pub mod answer;
pub mod hello;
pub mod line;
pub mod listen;
mod lookup;
pub mod outbox;
pub mod peer;
pub mod serve;
pub mod turned_away;

use umbp_protocol::message::Refusal;

/// Sessions at one time; more are refused.
pub const SESSIONS_MAX: usize = 1024;
/// A tenant may have an equal share of them, but at least so many: the engines and ranks of one host.
pub const SESSIONS_PER_TENANT_LEAST: usize = 64;
/// Connections at one time, those that have not said Hello included; more are turned away.
pub const CONNECTIONS_MAX: usize = SESSIONS_MAX + 64;

/// A refusal.
pub(crate) fn refusal(code: &str, message: impl Into<String>) -> Refusal {
    Refusal { code: code.to_owned(), message: message.into() }
}
