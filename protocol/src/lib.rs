//! Messages and framing between the engine side and `umbpd`, over one Unix stream socket.
//!
//! What it does not do: it opens no socket, keeps no session, and moves no KV byte; those stay in shared memory.
//!
//! Modules in reading order: [`message`] (what is asked, answered and pushed), [`frame`] (a message's envelope),
//! [`columns`] (hot messages as little-endian columns), [`fds`] (file descriptors beside a frame).

pub mod message;
