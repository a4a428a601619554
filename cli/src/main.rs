//! `umbp`: the command line of the store.
fn main() {}
