//! A storage backend for `umbpd`: one file per block, in a directory.
//!
//! It is meant to be copied. It is complete (it keeps the whole contract, and the conformance kit passes), and plain:
//! it does not use direct I/O, batches nothing and syncs each block on its own, so it is not fast.
//!
//! Modules in reading order: [`options`] (the two options, checked), [`file`] (what one file looks like), [`store`]
//! (a directory of such files, and its accounts), [`pool`] (threads, and the promise that each operation completes
//! exactly once), [`backend`] (the trait that the daemon calls).

pub mod backend;
pub mod file;
pub mod options;
pub mod pool;
pub mod store;

pub use backend::Filesystem;

umbp_plugin_api::export_backend!(Filesystem);
