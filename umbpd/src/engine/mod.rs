//! The tier engine: which block is where, who may touch it, and what leaves first. Sans I/O: calls in, answers and
//! actions out; time is an argument; it never touches block bytes and never calls a plugin.

pub mod api;
