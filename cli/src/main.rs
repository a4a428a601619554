//! `umbp`: the command line of the store.
//!
//! Modules in reading order: [`status`], [`replay`], [`mod@bench`], [`plugin`], [`size`] (arguments with units).

mod bench;
mod plugin;
mod replay;
mod size;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Looks at a running umbpd, sends work through it, and checks plugins.
#[derive(Debug, Parser)]
#[command(name = "umbp", version)]
struct Arguments {
    /// The daemon's socket [default: this user's own].
    #[arg(long, global = true, value_name = "PATH", env = "UMBP_SOCKET")]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows the tiers, their counters, and who is attached.
    Status(status::Arguments),
    /// Sends the requests of a trace through the daemon and verifies every byte that comes back; or, with --sizes, tells
    /// the hit ratio of eviction policies by size, without a daemon.
    Replay(replay::Arguments),
    /// Measures.
    #[command(subcommand)]
    Bench(bench::Command),
    /// Looks at backend plugins.
    #[command(subcommand)]
    Plugin(plugin::Command),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let socket = || arguments.socket.clone().unwrap_or_else(default_socket);
    let done = match &arguments.command {
        Command::Status(status) => status::run(status, &socket()).map(|()| true),
        Command::Replay(replay) => replay::run(replay, socket()),
        Command::Bench(bench) => bench::run(bench, &socket()).map(|()| true),
        Command::Plugin(plugin) => Ok(plugin::run(plugin)),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(report) => {
            eprintln!("{report:?}");
            ExitCode::FAILURE
        }
    }
}

/// Where umbpd listens if it was told nothing either.
fn default_socket() -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    umbp_config::default_socket(&|name| std::env::var(name).ok(), uid)
}
