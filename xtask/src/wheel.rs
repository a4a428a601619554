//! `wheel`: the Python package with programs and plugins in it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::artifacts;
use crate::build::PACKAGES;
use crate::shell::{self, Result};

/// Where the package looks for its programs and plugins.
const BUNDLE: &str = "python/umbp/dist";

/// How optimised a wheel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Profile {
    /// For tests: what `cargo test` has built already.
    Dev,
    /// For users.
    Release,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Release => "release",
        }
    }
}

/// Builds programs, plugins and extension module into one wheel, and answers its path. `maturin` is the program.
pub(crate) fn wheel(profile: Profile, maturin: &str) -> Result<PathBuf> {
    // Before the programs are built, which takes minutes.
    shell::output(Command::new(maturin).arg("--version"))
        .map_err(|error| format!("{error}; maturin builds wheels: `pip install maturin`, or name it with --maturin"))?;
    let mut arguments = vec!["--profile", profile.name()];
    arguments.extend(PACKAGES.iter().flat_map(|package| ["--package", package]));
    let made = artifacts::build(&arguments)?;
    let bundle = shell::root().join(BUNDLE);
    // What is no longer built must not be shipped.
    remove(&bundle)?;
    artifacts::install(&made.programs, &bundle.join("bin"))?;
    artifacts::install(&made.shared_objects, &bundle.join("plugins"))?;
    let folder = shell::target()?.join("wheels").join(profile.name());
    remove(&folder)?;
    let mut command = Command::new(maturin);
    command.args(["build", "--locked", "--profile", profile.name(), "--out"]).arg(&folder);
    command.current_dir(shell::root().join("python"));
    shell::run(&mut command)?;
    let entries = std::fs::read_dir(&folder).map_err(|e| format!("read {}: {e}", folder.display()))?;
    let wheel = entries.flatten().map(|entry| entry.path()).find(|path| path.extension().is_some_and(|e| e == "whl"));
    let wheel = wheel.ok_or_else(|| format!("maturin left no wheel in {}", folder.display()))?;
    shell::say(&format!("built {}", wheel.display()));
    Ok(wheel)
}

/// A folder and all in it, if it is there.
fn remove(folder: &Path) -> Result {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("remove {}, whose files would be shipped: {error}", folder.display()))
        }
        _ => Ok(()),
    }
}
