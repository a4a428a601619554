//! `umbp plugin check`: the conformance kit on a shared object.

use std::path::PathBuf;

use umbp_plugin_api::kit::{self, KitOptions};

/// `umbp plugin`
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Runs the conformance kit on a backend's shared object.
    Check {
        /// The shared object.
        file: PathBuf,
        /// The backend's options as TOML text; {work} stands for a fresh empty folder, as in: paths = ["{work}"]
        #[arg(long, value_name = "TOML", default_value = "")]
        options: String,
    },
}

/// Prints the kit's report; false where the backend does not conform.
pub(crate) fn run(command: &Command) -> bool {
    let Command::Check { file, options } = command;
    // A bare file name would be searched in the system's library folders.
    let path = std::path::absolute(file).unwrap_or_else(|_| file.clone());
    let report = kit::run(&path, &KitOptions::new(options));
    println!("{report}");
    report.conforms()
}
