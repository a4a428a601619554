//! A storage tier that hosts share: blocks as objects in Valkey, Redis or S3-compatible storage.
//!
//! Modules in reading order: [`options`], [`objects`] (what the tier needs of an engine), [`mod@redis`], [`s3`],
//! `engine` (one of both); [`header`], `names` (what an object is, and what it is called); [`breaker`], `words`,
//! `calls` (what stands between the tier and its engine: circuit breakers, retries, the words for the log);
//! `store` (put, get, exists, delete), `parts`; `flight` (operations under way), `backend`; [`keep`] (the shared object's
//! allocator); `bare` (for benchmarks).

mod backend;
mod bare;
pub mod breaker;
mod calls;
mod engine;
mod flight;
pub mod header;
pub mod keep;
mod names;
pub mod objects;
pub mod options;
mod parts;
pub mod redis;
pub mod s3;
mod store;
mod words;

pub use backend::Remote;
