//! Where tests get their shared objects: really built, really opened.
//!
//! `UMBP_TEST_PLUGINS` names a folder of shared objects that `cargo xtask test` has built. What is not there (always,
//! with features of its own, or when a test is run by itself) is built here, once per process and under a file lock,
//! with the cargo that runs the tests. Panics with cargo's words where that fails: this is for tests alone.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Built in this process already.
static BUILT: Mutex<BTreeMap<(PathBuf, String), PathBuf>> = Mutex::new(BTreeMap::new());

/// The shared object (or else the program) of the crate in `folder`, built with these features in addition to its
/// defaults. The file and its folder can be written by their owner alone, as the loader demands.
pub fn built(folder: impl AsRef<Path>, features: &[&str]) -> PathBuf {
    built_with(folder, features, "dev")
}

/// As [`built`], with another profile of cargo.
pub fn built_with(folder: impl AsRef<Path>, features: &[&str], profile: &str) -> PathBuf {
    let folder = folder.as_ref();
    let folder = fs::canonicalize(folder).unwrap_or_else(|e| panic!("find the crate in {folder:?}: {e}"));
    let variant = if profile == "dev" { features.join("+") } else { format!("{}@{profile}", features.join("+")) };
    // The lock is held while cargo runs, so that two tests of one process do not build the same thing twice.
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = built.get(&(folder.clone(), variant.clone())) {
        return path.clone();
    }
    let path = prepared(&folder, &variant).unwrap_or_else(|| build(&folder, features, profile, &variant));
    built.insert((folder, variant), path.clone());
    path
}

/// What `cargo xtask test` has laid ready.
fn prepared(folder: &Path, variant: &str) -> Option<PathBuf> {
    let ready = PathBuf::from(std::env::var_os("UMBP_TEST_PLUGINS")?);
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).ok()?;
    let file = ready.join(file_name(&format!("lib{}", library_name(&manifest)?), "so", variant));
    file.is_file().then_some(file)
}

/// `libname.so`, or `libname+feature.so` for a variant.
fn file_name(stem: &str, extension: &str, variant: &str) -> String {
    let separator = if variant.is_empty() || variant.starts_with('@') { "" } else { "+" };
    let dot = if extension.is_empty() { "" } else { "." };
    format!("{stem}{separator}{variant}{dot}{extension}")
}

/// The name of the library in a manifest: that of `[lib]`, else the package's.
fn library_name(manifest: &str) -> Option<String> {
    let (mut section, mut package, mut library) = ("", None, None);
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if let Some(value) = line.strip_prefix("name").map(str::trim_start).and_then(|l| l.strip_prefix('=')) {
            let name = value.trim().trim_matches('"').replace('-', "_");
            match section {
                "[package]" => package = Some(name),
                "[lib]" => library = Some(name),
                _ => {}
            }
        }
    }
    library.or(package)
}

fn build(folder: &Path, features: &[&str], profile: &str, variant: &str) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(folder).args(["build", "--offline", "--message-format=json-render-diagnostics"]);
    command.args(["--profile", profile, "--features", &features.join(",")]);
    let output = command.output().unwrap_or_else(|e| panic!("run cargo in {folder:?}: {e}"));
    let messages = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "build {folder:?} with features {features:?}:\n{errors}");
    let artifact = artifact(&messages).unwrap_or_else(|| panic!("{folder:?} makes neither a cdylib nor a program"));
    keep(&artifact, variant).unwrap_or_else(|e| panic!("copy {artifact:?}: {e}"))
}

/// The last shared object or program in cargo's messages, one JSON object a line: the one that was asked for comes
/// after all that it needs.
fn artifact(messages: &str) -> Option<PathBuf> {
    let made = messages.lines().filter(|line| line.contains(r#""reason":"compiler-artifact""#));
    let mut made = made.filter_map(|line| {
        // A crate may be a library besides.
        if line.split_once(r#""kind":["#)?.1.split_once(']')?.0.contains(r#""cdylib""#) {
            let files = line.split_once(r#""filenames":["#)?.1.split_once(']')?.0;
            files.split(',').map(|file| file.trim_matches('"')).find(|file| file.ends_with(".so"))
        } else {
            Some(line.split_once(r#""executable":""#)?.1.split_once('"')?.0)
        }
    });
    made.next_back().map(PathBuf::from)
}

/// Copies it to `fixtures` in the target folder under a name of its own, since the next variant overwrites it there.
fn keep(artifact: &Path, variant: &str) -> std::io::Result<PathBuf> {
    let nowhere = || std::io::Error::other("it lies nowhere");
    let target = artifact.parent().and_then(Path::parent).ok_or_else(nowhere)?;
    let fixtures = target.join("fixtures");
    fs::create_dir_all(&fixtures)?;
    fs::set_permissions(&fixtures, Permissions::from_mode(0o755))?;
    // Other test processes copy too. A file arrives by rename, so one that is mapped stays whole.
    let lock = File::create(fixtures.join(".lock"))?;
    lock.lock()?;
    let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let name = file_name(&text(artifact.file_stem()), &text(artifact.extension()), variant);
    let (kept, fresh) = (fixtures.join(&name), fixtures.join(format!(".{name}.new")));
    fs::copy(artifact, &fresh)?;
    fs::set_permissions(&fresh, Permissions::from_mode(0o755))?;
    fs::rename(&fresh, &kept)?;
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_the_variant() {
        for (variant, expected) in [("", "libx.so"), ("a+b", "libx+a+b.so"), ("@release", "libx@release.so")] {
            assert_eq!(file_name("libx", "so", variant), expected);
        }
        assert_eq!(file_name("host", "", "grown"), "host+grown");
    }

    #[test]
    fn the_library_has_the_name_of_its_section_or_of_the_package() {
        let package = "[package]\nname = \"umbp-plugin-x\"\n[dependencies]\nname = { path = \"..\" }\n";
        assert_eq!(library_name(package).as_deref(), Some("umbp_plugin_x"));
        let named = format!("{package}[lib]\nname = \"other\"\n");
        assert_eq!(library_name(&named).as_deref(), Some("other"));
    }

    #[test]
    fn the_artifact_is_the_last_cdylib_or_program() {
        let messages = r#"{"reason":"compiler-artifact","target":{"kind":["proc-macro"]},"filenames":["/t/libm.so"],"executable":null}
{"reason":"compiler-artifact","target":{"kind":["lib"]},"filenames":["/t/libl.rlib"],"executable":null}
{"reason":"compiler-artifact","target":{"kind":["cdylib"]},"filenames":["/t/libb.so"],"executable":null}"#;
        assert_eq!(artifact(messages), Some(PathBuf::from("/t/libb.so")));
        let program =
            r#"{"reason":"compiler-artifact","target":{"kind":["bin"]},"filenames":["/t/p"],"executable":"/t/p"}"#;
        assert_eq!(artifact(program), Some(PathBuf::from("/t/p")));
        let both = r#"{"reason":"compiler-artifact","target":{"kind":["cdylib","rlib"]},"filenames":["/t/libc.so","/t/libc.rlib"],"executable":null}"#;
        assert_eq!(artifact(both), Some(PathBuf::from("/t/libc.so")));
        assert_eq!(artifact(""), None);
    }
}
