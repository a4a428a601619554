//! The nvme backend through its seam, with real files on the disk of the build.

mod apart;
mod common;
mod conformance;
mod faults;
mod faulty;
mod format;
mod hangs;
mod history;
mod io;
mod leftovers;
mod places;
mod power;
mod power_cut;
mod rate;
mod recovery;
mod seam;
mod shapes;
mod space;
mod torn;
mod unreadable;
mod waits;
