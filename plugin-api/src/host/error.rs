//! Every way in which a plugin is refused, as a sentence with the path and the remedy.

use std::path::PathBuf;

use crate::abi::{API_MAJOR, API_MINOR};
use crate::backend::{OpenError, OptionsError};

/// Why a file was not taken as a plugin. None of its code ran, except where the variant says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No such file.
    #[error("backend library {path:?} not found; check the tier's `backend` and daemon.plugin_dirs")]
    NotFound {
        /// The file.
        path: PathBuf,
    },
    /// The file, or its folder, cannot be examined.
    #[error("backend library {path:?} cannot be read; check its permissions")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A folder, a device, a pipe.
    #[error("backend library {path:?} is not a regular file; name the shared object itself")]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// Somebody else could change the file.
    #[error(
        "backend library {path:?} is not trusted: {place:?} belongs to uid {owner}, neither root nor this process \
         (uid {own}); chown it, since a plugin runs inside the daemon"
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// The file or its folder.
        place: PathBuf,
        /// Who owns the place.
        owner: u32,
        /// Who we are.
        own: u32,
    },
    /// Somebody else may change the file.
    #[error(
        "backend library {path:?} is not trusted: {place:?} has mode {mode:04o} and can be written by others; run \
         `chmod go-w` on it, since a plugin runs inside the daemon"
    )]
    Mode {
        /// The file.
        path: PathBuf,
        /// The file or its folder.
        place: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// No ELF shared object of this machine.
    #[error("backend library {path:?} is not a loadable shared object: {reason}")]
    NotLoadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A library, but not ours.
    #[error(
        "{path:?} is a shared library but not a umbp backend plugin (it exports no {symbol}); a backend is a cdylib \
         with umbp_plugin_api::export_backend!"
    )]
    NotAPlugin {
        /// The file.
        path: PathBuf,
        /// What it lacks.
        symbol: &'static str,
    },
    /// The dynamic linker refused; constructors of the libraries it needs may have run.
    #[error("backend plugin {path:?} cannot be loaded: {reason}")]
    Linker {
        /// The file.
        path: PathBuf,
        /// The linker's own words: a missing library or symbol.
        reason: String,
    },
    /// The preflight static is not one.
    #[error("backend plugin {path:?} has a damaged preflight record ({reason}); rebuild it")]
    Preflight {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Another major version of the API.
    #[error(
        "backend plugin {path:?} was built for plugin API {major}.{minor}; this host speaks {API_MAJOR}.{API_MINOR}. \
         Rebuild it against umbp-plugin-api {API_MAJOR}.x"
    )]
    Major {
        /// The file.
        path: PathBuf,
        /// The plugin's major version.
        major: u32,
        /// The plugin's minor version.
        minor: u32,
    },
    /// It asks for something that this host does not know.
    #[error(
        "backend plugin {path:?} (plugin API {major}.{minor}) needs host features {flags:#06x} that this host, which \
         speaks {API_MAJOR}.{API_MINOR}, does not have; use a newer umbpd or an older build of the plugin"
    )]
    Flags {
        /// The file.
        path: PathBuf,
        /// The plugin's major version.
        major: u32,
        /// The plugin's minor version.
        minor: u32,
        /// The unknown ones.
        flags: u32,
    },
    /// Same version, other types.
    #[error(
        "backend plugin {path:?} (plugin API {major}.{minor}) has an incompatible type layout for this host \
         ({API_MAJOR}.{API_MINOR}), so it was built against a modified umbp-plugin-api or abi_stable; rebuild it \
         against the released {API_MAJOR}.x"
    )]
    Layout {
        /// The file.
        path: PathBuf,
        /// The plugin's major version.
        major: u32,
        /// The plugin's minor version.
        minor: u32,
        /// abi_stable's report: a page or more, for a debug log.
        detail: String,
    },
    /// The root module says something that this host does not understand.
    #[error("backend plugin {path:?} (plugin API {major}.{minor}) cannot be used: {reason}")]
    Root {
        /// The file.
        path: PathBuf,
        /// The plugin's major version.
        major: u32,
        /// The plugin's minor version.
        minor: u32,
        /// What it is.
        reason: String,
    },
}

/// Why options were not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The options are wrong.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The plugin is.
    #[error("backend panicked: {0}")]
    Panicked(String),
}

/// Why `open` or `segment_create` failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostOpenError {
    /// The backend said so.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The backend panicked.
    #[error("backend panicked: {0}")]
    Panicked(String),
    /// The backend broke the contract.
    #[error("backend broke the plugin contract: {0}")]
    Contract(String),
}

impl HostOpenError {
    /// A failure of the environment, which obeys the tier's `required`; all others refuse the start.
    pub fn is_environment(&self) -> bool {
        matches!(self, Self::Open(OpenError::Environment(_)))
    }
}
