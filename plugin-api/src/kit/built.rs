//! Where UMBP's own tests find the shared objects that they open.
//!
//! `cargo xtask test` builds them all first and names their folder in [`FOLDER`]. A test that is run by itself builds
//! the one that it needs, one process at a time.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variable with the folder of prebuilt shared objects.
pub const FOLDER: &str = "UMBP_TEST_PLUGINS";

/// What a shared object is built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// A package of UMBP's workspace.
    Package(&'a str),
    /// A crate outside the workspace, by its folder below the workspace's root: built in release mode, in a target
    /// folder and with features of its own, as a third party would.
    Outside(&'a str),
}

/// The shared object `file`, such as `libumbp_backend_dram.so`, built if it was not yet.
///
/// # Panics
/// With cargo's words, if it cannot be built. For tests.
pub fn built(source: Source<'_>, file: &str) -> PathBuf {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let path = PathBuf::from(folder).join(file);
        assert!(path.exists(), "{} is not there: {FOLDER} names a folder without it", path.display());
        return path;
    }
    build(source, file).unwrap_or_else(|reason| panic!("{file} cannot be built from {source:?}: {reason}"))
}

fn build(source: Source<'_>, file: &str) -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("plugin-api is in no workspace")?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |given| root.join(given));
    let io = |what: &str| {
        let what = what.to_owned();
        move |error: std::io::Error| format!("{what}: {error}")
    };
    fs::create_dir_all(&target).map_err(io("create the target folder"))?;
    // Held until the file is in its place; test programs run at the same time.
    let lock = File::create(target.join("test-plugins.lock")).map_err(io("create the lock"))?;
    lock.lock().map_err(io("take the lock"))?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["build", "--quiet"]);
    let made = match source {
        Source::Package(name) => {
            cargo.args(["--package", name]).arg("--target-dir").arg(&target);
            target.join("debug")
        }
        Source::Outside(folder) => {
            let own = target.join("outside").join(folder.replace('/', "-"));
            cargo.args(["--release", "--manifest-path"]).arg(root.join(folder).join("Cargo.toml"));
            cargo.arg("--target-dir").arg(&own);
            own.join("release")
        }
    };
    let output = cargo.output().map_err(io("start cargo"))?;
    if !output.status.success() {
        return Err(format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    install(&made.join(file), &target.join("test-plugins-one-by-one"))
}

/// Copies it where only its owner can write, whatever the umask is: the loader refuses others.
fn install(file: &Path, folder: &Path) -> Result<PathBuf, String> {
    let io = |error: std::io::Error| format!("copy {} into {}: {error}", file.display(), folder.display());
    let name = file.file_name().ok_or("it has no name")?;
    let path = folder.join(name);
    fs::create_dir_all(folder).map_err(io)?;
    fs::set_permissions(folder, Permissions::from_mode(0o755)).map_err(io)?;
    let bytes = fs::read(file).map_err(io)?;
    // A process that has it mapped keeps the old one; an equal one is left alone.
    if fs::read(&path).is_ok_and(|old| old == bytes) {
        return Ok(path);
    }
    let fresh = folder.join(format!(".{}.new", name.to_string_lossy()));
    fs::write(&fresh, bytes).map_err(io)?;
    fs::set_permissions(&fresh, Permissions::from_mode(0o755)).map_err(io)?;
    fs::rename(&fresh, &path).map_err(io)?;
    Ok(path)
}
