//! The real daemon, real shared objects, real clients in processes of their own: what must hold when any of them dies,
//! stops, lies or is starved. The names of field cases stand in the tests' own names or comments.

#[path = "../common/mod.rs"]
mod common;

mod away;
mod child;
mod connector;
mod crash;
mod daemon_death;
mod embedded;
mod exposition;
mod faults;
mod field_cases;
mod holds;
mod hostile;
mod jobs;
mod killed_clients;
mod metrics;
mod parallel;
mod pressure;
mod remote;
mod restart;
mod rig;
mod runtime;
mod shared;
mod start;
mod stopped;
mod strangers;
mod worker;
