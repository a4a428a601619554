//! All automation of the workspace. It depends on none of the other crates, so that it builds when they do not.
//!
//! Modules in reading order: [`shell`] (running programs, folders), [`artifacts`] (what cargo built, and where it is
//! put), [`build`] (`build` and `serve`), [`demo`], [`mod@test`], [`remote`] (tests with real servers), [`wheel`] (the
//! Python package), [`vllm`] (tests with a real engine), [`check`], [`fuzz`], [`tidy`] (rules of the house).

mod artifacts;
mod build;
mod check;
mod demo;
mod fuzz;
mod remote;
mod shell;
mod test;
mod tidy;
mod vllm;
mod wheel;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// All automation of the workspace.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Builds umbpd, umbp and the plugins (release) into the folder `dist` under the target folder.
    Build,
    /// Builds, then runs umbpd on the embedded default config; more arguments go to umbpd.
    Serve {
        /// Arguments of umbpd.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Builds, serves on a temporary socket, replays a generated multi-turn workload, prints the report, stops.
    Demo {
        /// Conversations to generate.
        #[arg(long, default_value_t = demo::CONVERSATIONS)]
        conversations: u32,
    },
    /// Builds the shared objects that tests open, then runs all tests, or those whose name contains a filter.
    Test {
        /// Parts of test names.
        filters: Vec<String>,
    },
    /// Tests of what hosts share, with a real Valkey and a real S3 server. The first run fetches about 50 MB.
    TestRemote {
        /// Parts of test names.
        filters: Vec<String>,
    },
    /// Builds the Python package, with programs and plugins in it (needs maturin).
    Wheel {
        /// How optimised it is.
        #[arg(long, value_enum, default_value_t = wheel::Profile::Release)]
        profile: wheel::Profile,
        /// The program.
        #[arg(long, default_value = "maturin")]
        maturin: String,
    },
    /// Tests of the Python package, with a real vLLM engine on the CPU. The first run fetches about 1 GB.
    TestVllm {
        /// Arguments of pytest: files, or -k and parts of test names.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Format, clippy, tidy, docs, and cargo-deny where it is installed.
    Check,
    /// The rules of the house that can be checked by text (a part of `check`).
    Tidy,
    /// Feeds mutated input to the decoders of frames and of NVMe records.
    Fuzz {
        /// Seconds for each target.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Seed of the mutations; a run prints its own.
        #[arg(long)]
        seed: Option<u64>,
        /// One target alone.
        #[arg(long)]
        target: Option<String>,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Task::Build => build::build().map(drop),
        Task::Serve { arguments } => build::serve(&arguments),
        Task::Demo { conversations } => demo::demo(conversations),
        Task::Test { filters } => test::test(&filters),
        Task::TestRemote { filters } => remote::test(&filters),
        Task::Wheel { profile, maturin } => wheel::wheel(profile, &maturin).map(drop),
        Task::TestVllm { arguments } => vllm::test(&arguments),
        Task::Check => check::check(),
        Task::Tidy => tidy::tidy(),
        Task::Fuzz { seconds, seed, target } => fuzz::fuzz(seconds, seed, target.as_deref()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
