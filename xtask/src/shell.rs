//! Running programs, each announced in one line, and the folders of the workspace.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A failure is one sentence for a person.
pub(crate) type Result<T = ()> = std::result::Result<T, String>;

/// Says in one line what is done now.
pub(crate) fn say(text: &str) {
    eprintln!("xtask: {text}");
}

/// The cargo that runs us.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// The workspace's folder.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// The target folder, wherever cargo's configuration puts it.
pub(crate) fn target() -> Result<PathBuf> {
    let output = output(cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata printed no JSON: {e}"))?;
    let folder = metadata["target_directory"].as_str().ok_or("cargo metadata names no target_directory")?;
    Ok(PathBuf::from(folder))
}

/// Where what is fetched once for tests is kept: `UMBP_CACHE_DIR`, else `umbp` in the user's cache folder.
pub(crate) fn cache_folder() -> Result<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || variable("HOME").map(|home| home.join(".cache"));
    let folder = variable("UMBP_CACHE_DIR").or_else(|| Some(variable("XDG_CACHE_HOME").or_else(home)?.join("umbp")));
    folder.ok_or_else(|| "neither UMBP_CACHE_DIR nor HOME is set: nowhere to keep what tests need".to_owned())
}

/// The command as a person would type it.
pub(crate) fn line(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(name).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Announces a command, runs it, and fails unless it ends well.
pub(crate) fn run(command: &mut Command) -> Result {
    say(&line(command));
    let status = command.status().map_err(|e| format!("start `{}`: {e}", line(command)))?;
    if status.success() { Ok(()) } else { Err(format!("`{}` failed ({status})", line(command))) }
}

/// Runs a command silently and keeps what it prints; its standard error is shown.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    let output = command.stderr(Stdio::inherit()).output().map_err(|e| format!("start `{}`: {e}", line(command)))?;
    if output.status.success() { Ok(output) } else { Err(format!("`{}` failed ({})", line(command), output.status)) }
}

/// Whether cargo has a subcommand of this name.
pub(crate) fn has_subcommand(name: &str) -> bool {
    let found = cargo().args([name, "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}
