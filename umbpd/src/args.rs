//! The command line of `umbpd`.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Keeps KV-cache blocks of LLM engines in tiers: host memory, local disk, and what plugins add.
///
/// Without --config it serves on an embedded default: a DRAM tier and an NVMe tier of this user's own.
#[derive(Debug, Parser)]
#[command(name = "umbpd", version, args_conflicts_with_subcommands = true)]
pub struct Args {
    /// The deployment's TOML file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The socket to serve on; wins over file and environment.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Prints the resolved configuration and where each value came from, then exits.
    #[arg(long)]
    pub print_config: bool,
    /// What to do instead of serving.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What to do instead of serving.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Checks a configuration and each plugin's options; prints the resolved form. Opens no tier.
    Check {
        /// The deployment's TOML file.
        file: PathBuf,
    },
}
