//! The nvme backend through its seam, with real files on the disk of the build.

mod common;
mod conformance;
mod io;
mod recovery;
