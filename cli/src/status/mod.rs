//! `umbp status`: the daemon's own account of itself, for people or, with `--json`, as it came.
//!
//! Modules in reading order: [`ask`] (one session that asks for nothing else), [`table`] (for people).

pub(crate) mod ask;
mod table;

use std::path::Path;

use miette::IntoDiagnostic;

/// `umbp status`
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Prints the daemon's JSON object, and nothing else, on standard output.
    #[arg(long)]
    json: bool,
}

/// Asks and prints.
pub(crate) fn run(arguments: &Arguments, socket: &Path) -> miette::Result<()> {
    let status = ask::ask(socket)?;
    if arguments.json {
        println!("{}", serde_json::to_string(&status).into_diagnostic()?);
    } else {
        print!("{}", table::table(&status));
    }
    Ok(())
}
