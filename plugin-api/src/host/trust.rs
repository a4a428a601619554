//! Who could change the file? A plugin runs inside the daemon, so only root and the daemon's own user may.
//!
//! Checked are the file, its folder, and, where the path is a symbolic link, the folder of the link. A bit for the
//! group counts as "others" (an ACL with a writer shows as that bit too). A check and a later dlopen are two steps;
//! the check of the folder is what keeps others from the gap.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::error::LoadError;

/// Bits of a mode with which somebody else writes.
const OTHERS_WRITE: u32 = 0o022;

/// The file's real path, once everything about it is trusted.
pub(super) fn checked(path: &Path) -> Result<PathBuf, LoadError> {
    let unreadable = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
            LoadError::NotFound { path: path.to_owned() }
        }
        _ => LoadError::Unreadable { path: path.to_owned(), source },
    };
    let real = std::fs::canonicalize(path).map_err(unreadable)?;
    let file = std::fs::metadata(&real).map_err(unreadable)?;
    if !file.is_file() {
        return Err(LoadError::NotAFile { path: path.to_owned() });
    }
    let own = rustix::process::geteuid().as_raw();
    check(path, &real, &file, own)?;
    let mut folders = vec![folder_of(&real)];
    let named = std::fs::canonicalize(folder_of(path)).map_err(unreadable)?;
    if !folders.contains(&named) {
        folders.push(named);
    }
    for folder in folders {
        let found = std::fs::metadata(&folder).map_err(unreadable)?;
        check(path, &folder, &found, own)?;
    }
    Ok(real)
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn check(path: &Path, place: &Path, found: &Metadata, own: u32) -> Result<(), LoadError> {
    let (path, place) = (path.to_owned(), place.to_owned());
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    if owner != 0 && owner != own {
        return Err(LoadError::Owner { path, place, owner, own });
    }
    if mode & OTHERS_WRITE != 0 {
        return Err(LoadError::Mode { path, place, mode });
    }
    Ok(())
}
