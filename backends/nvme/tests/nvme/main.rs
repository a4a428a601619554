//! The nvme backend through its seam, with real files on the disk of the build.

mod common;
mod conformance;
mod faults;
mod faulty;
mod format;
mod io;
mod recovery;
mod space;
