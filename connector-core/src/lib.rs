//! The connector's state machines, sans I/O: events in, actions out, time is an argument.
//!
//! What this crate holds: the identity of a KV block ([`key`], [`namespace`], [`topology`]), where its bytes lie in
//! engine memory ([`layout`]), the life of a transfer job ([`job`]), what is to be moved ([`plan`]), what the two sides
//! of the connector tell each other ([`metadata`]), the seam to whatever moves the bytes ([`runtime`]), the worker's side
//! ([`worker`]), and the scheduler's ([`scheduler`]).
//!
//! What it does not do: it does no I/O, reads no clock, starts no thread, and knows neither a socket nor an object of
//! an inference engine.
//!
//! Modules in reading order: [`key`], [`topology`], [`namespace`], [`layout`], [`job`], [`plan`], [`metadata`],
//! [`runtime`], [`worker`], [`scheduler`].

pub mod job;
pub mod key;
pub mod layout;
pub mod metadata;
pub mod namespace;
pub mod plan;
pub mod runtime;
pub mod scheduler;
pub mod topology;
pub mod worker;
