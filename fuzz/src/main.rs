//! Mutated input for the decoders of frames and of NVMe records.
//!
//! cargo-fuzz needs a nightly compiler; this runs on stable, in the same build as the tests, so it has no coverage
//! feedback. In its place, an input whose outcome was not seen before joins the corpus of the run. A finding is a
//! panic, a single allocation out of proportion, or a call that does not return; its input is saved, and
//! `--input FILE` runs it alone.
//!
//! Modules in reading order: [`targets`] (what is fed, and what must hold), [`mutate`], [`harness`].

mod harness;
mod mutate;
mod targets;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: harness::Measured = harness::Measured;

/// Feeds mutated input to the decoders.
#[derive(Parser)]
struct Arguments {
    /// Seconds for each target.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed of the mutations; a run prints its own.
    #[arg(long)]
    seed: Option<u64>,
    /// One target alone.
    #[arg(long)]
    target: Option<String>,
    /// Runs one saved input on the target and ends.
    #[arg(long, requires = "target")]
    input: Option<PathBuf>,
    /// Writes the seeds that the encoders make into the corpus, and ends.
    #[arg(long)]
    write_corpus: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("fuzz: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let all = targets::all();
    let names: Vec<_> = all.iter().map(|target| target.name).collect();
    let wanted = |target: &&targets::Target| arguments.target.as_ref().is_none_or(|name| name == target.name);
    let chosen: Vec<_> = all.iter().filter(wanted).collect();
    if chosen.is_empty() {
        return Err(format!("no target of this name; there are {}", names.join(", ")));
    }
    let seed = arguments.seed.unwrap_or_else(harness::fresh_seed);
    for target in chosen {
        if arguments.write_corpus {
            harness::write_corpus(target)?;
        } else if let Some(input) = &arguments.input {
            let bytes = std::fs::read(input).map_err(|e| format!("read {}: {e}", input.display()))?;
            harness::run_one(target, &bytes).map_err(|finding| format!("{}: {finding}", target.name))?;
            println!("fuzz {}: the input is handled", target.name);
        } else {
            harness::run(target, seed, Duration::from_secs(arguments.seconds))?;
        }
    }
    Ok(())
}
