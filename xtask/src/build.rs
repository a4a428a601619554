//! `build` and `serve`.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::artifacts;
use crate::shell::{self, Result};

/// What a user runs.
pub(crate) const PACKAGES: [&str; 5] =
    ["umbpd", "umbp-cli", "umbp-plugin-dram", "umbp-plugin-nvme", "umbp-plugin-remote"];

/// Where a build put what a user runs.
pub(crate) struct Dist {
    /// The daemon.
    pub(crate) umbpd: PathBuf,
    /// The command line.
    pub(crate) umbp: PathBuf,
}

/// Builds in release mode into `dist/bin` and `dist/plugins`; umbpd looks for plugins beside its own folder.
pub(crate) fn build() -> Result<Dist> {
    let mut arguments = vec!["--release"];
    arguments.extend(PACKAGES.iter().flat_map(|package| ["--package", package]));
    let made = artifacts::build(&arguments)?;
    let dist = shell::target()?.join("dist");
    artifacts::install(&made.programs, &dist.join("bin"))?;
    artifacts::install(&made.shared_objects, &dist.join("plugins"))?;
    shell::say(&format!("built {0}/bin and {0}/plugins", dist.display()));
    Ok(Dist { umbpd: dist.join("bin/umbpd"), umbp: dist.join("bin/umbp") })
}

/// Builds, then becomes umbpd. Without arguments it runs on its embedded default config.
pub(crate) fn serve(arguments: &[String]) -> Result {
    let mut command = Command::new(build()?.umbpd);
    command.args(arguments);
    shell::say(&shell::line(&command));
    Err(format!("start `{}`: {}", shell::line(&command), command.exec()))
}
