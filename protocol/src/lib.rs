//! Messages and framing between the engine side and `umbpd`, over one Unix stream socket.
//!
//! What it does not do: it opens no socket, keeps no session, and moves no KV byte; those stay in shared memory.
//!
//! Modules in reading order: [`message`] (what is asked, answered and pushed), [`frame`] (a message's envelope, and
//! frames out of a stream of bytes), [`columns`] (a message's body: columns of a hot one, JSON of a cold one),
//! [`fds`] (file descriptors beside a frame).

pub mod columns;
pub mod fds;
pub mod frame;
pub mod message;

pub use columns::{
    DecodeError, decode_event, decode_reply, decode_request, encode_event, encode_reply, encode_request,
};
pub use frame::{Decoder, Frame, FrameError, Kind};
