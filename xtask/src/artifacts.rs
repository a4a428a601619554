//! What a cargo build made, and putting it where it is looked for.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::shell::{self, Result};

/// The one shared object of ours that is no plugin.
const PYTHON_MODULE: &str = "_umbp";

/// Programs and shared objects of one build.
#[derive(Default)]
pub(crate) struct Artifacts {
    /// Executables that are not tests.
    pub(crate) programs: Vec<PathBuf>,
    /// Shared objects of `cdylib` targets, the Python module left out.
    pub(crate) shared_objects: Vec<PathBuf>,
}

/// Runs `cargo build` with these arguments and reads what it made.
pub(crate) fn build(arguments: &[&str]) -> Result<Artifacts> {
    let mut command = shell::cargo();
    command.arg("build").args(arguments);
    shell::say(&shell::line(&command));
    let output = shell::output(command.arg("--message-format=json-render-diagnostics"))?;
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

/// Reads cargo's messages, one JSON object a line.
fn parse(messages: &str) -> Artifacts {
    let mut made = Artifacts::default();
    for line in messages.lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] == true {
            continue;
        }
        if let Some(program) = message["executable"].as_str() {
            made.programs.push(program.into());
        }
        // Some dependencies from the registry make a shared object too.
        let is_ours = message["package_id"].as_str().is_some_and(|id| id.starts_with("path+"));
        let kinds = message["target"]["kind"].as_array();
        let is_plugin = is_ours
            && kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind == "cdylib"))
            && message["target"]["name"] != PYTHON_MODULE;
        let files = message["filenames"].as_array().into_iter().flatten().filter_map(|f| f.as_str());
        made.shared_objects.extend(files.filter(|f| is_plugin && f.ends_with(".so")).map(PathBuf::from));
    }
    made
}

/// Copies files into a folder that only its owner can write. Each arrives by rename: a daemon that runs from there
/// keeps the file it has mapped.
pub(crate) fn install(files: &[PathBuf], folder: &Path) -> Result {
    let context = |what: &str, path: &Path, e: std::io::Error| format!("{what} {}: {e}", path.display());
    fs::create_dir_all(folder).map_err(|e| context("create", folder, e))?;
    fs::set_permissions(folder, Permissions::from_mode(0o755)).map_err(|e| context("set mode of", folder, e))?;
    for file in files {
        let name = file.file_name().ok_or_else(|| format!("{} names no file", file.display()))?;
        let fresh = folder.join(format!(".{}.new", name.to_string_lossy()));
        fs::copy(file, &fresh).map_err(|e| context("copy", file, e))?;
        fs::set_permissions(&fresh, Permissions::from_mode(0o755)).map_err(|e| context("set mode of", &fresh, e))?;
        fs::rename(&fresh, folder.join(name)).map_err(|e| context("rename", &fresh, e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_and_shared_objects_of_plugins_count() {
        let made = parse(
            r#"{"reason":"compiler-artifact","target":{"kind":["lib"]},"profile":{"test":false},"filenames":["/t/liba.rlib"],"executable":null}
{"reason":"compiler-artifact","target":{"kind":["proc-macro"]},"profile":{"test":false},"filenames":["/t/libm.so"],"executable":null}
{"reason":"compiler-artifact","package_id":"registry+https://x#c","target":{"kind":["lib","cdylib"]},"profile":{"test":false},"filenames":["/t/libc.so"],"executable":null}
{"reason":"compiler-artifact","package_id":"path+file:///b#1","target":{"kind":["cdylib"]},"profile":{"test":false},"filenames":["/t/libb.so"],"executable":null}
{"reason":"compiler-artifact","target":{"kind":["bin"]},"profile":{"test":false},"filenames":["/t/umbpd"],"executable":"/t/umbpd"}
{"reason":"compiler-artifact","target":{"kind":["bin"]},"profile":{"test":true},"filenames":["/t/umbpd-1"],"executable":"/t/umbpd-1"}
not JSON
{"reason":"build-finished","success":true}"#,
        );
        assert_eq!(made.programs, [PathBuf::from("/t/umbpd")]);
        assert_eq!(made.shared_objects, [PathBuf::from("/t/libb.so")]);
    }

    #[test]
    fn an_installed_file_replaces_the_old_one_and_only_its_owner_can_write_it() {
        let folder = tempfile::tempdir().unwrap();
        let (source, dist) = (folder.path().join("libx.so"), folder.path().join("dist"));
        for content in ["old", "new"] {
            fs::write(&source, content).unwrap();
            fs::set_permissions(&source, Permissions::from_mode(0o666)).unwrap();
            install(std::slice::from_ref(&source), &dist).unwrap();
            assert_eq!(fs::read_to_string(dist.join("libx.so")).unwrap(), content);
        }
        assert_eq!(fs::metadata(dist.join("libx.so")).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(fs::read_dir(&dist).unwrap().count(), 1, "nothing but the file is left behind");
    }
}
