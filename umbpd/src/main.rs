//! `umbpd`: the KV-cache store daemon.
fn main() {}
