//! A storage tier that hosts share: blocks as objects in Valkey, Redis or S3-compatible storage.
//!
//! Modules in reading order: [`options`], [`objects`] (what the tier needs of an engine), [`s3`].

pub mod objects;
pub mod options;
pub mod s3;
