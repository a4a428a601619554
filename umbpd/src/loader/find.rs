//! Which file a backend's name means.

use std::path::{Path, PathBuf};

use umbp_config::BackendRef;

use super::Failure;

/// The file of a backend: an absolute path is that file; a bare name is searched in the folders, in order.
pub fn file_of(backend: &BackendRef, folders: &[PathBuf]) -> Result<PathBuf, Failure> {
    let candidates = backend.candidates(folders);
    if let BackendRef::Path(path) = backend {
        return Ok(path.clone());
    }
    if let Some(found) = candidates.iter().find(|path| path.exists()) {
        return Ok(found.clone());
    }
    let tried: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
    let remedy = "put the plugin there, add its folder to daemon.plugin_dirs, or give its absolute path as backend";
    let tried = if tried.is_empty() { "no folder to search".to_owned() } else { tried.join(", ") };
    Err(Failure::Environment(format!("no plugin for backend \"{backend}\" ({tried}); {remedy}")))
}

/// Folders to search: those of the config, then `../plugins` of the program's folder; none = of this process's own.
pub fn folders(plugin_dirs: &[PathBuf], program: Option<&Path>) -> Vec<PathBuf> {
    let own = if program.is_none() { std::env::current_exe().ok() } else { None };
    umbp_config::plugin_search(plugin_dirs, program.or(own.as_deref()))
}
