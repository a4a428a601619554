//! The remote backend through its seam, on real servers. Tests end with a word, and do nothing, where none is named.

mod conformance;
mod rig;
mod tls;
mod trouble;
mod worthless;
