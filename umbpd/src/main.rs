//! `umbpd`: the KV-cache store daemon.

use clap::Parser as _;

fn main() -> std::process::ExitCode {
    umbpd::command::run(umbpd::args::Args::parse())
}
