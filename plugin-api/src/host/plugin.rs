//! Loading: from a path to a root module whose version and layout are known to fit.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abi_stable::library::{AbiHeaderRef, LibraryError};
use abi_stable::std_types::{ROption, RStr};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::abi::object::{RootRef, role};
use crate::abi::plain::{Emit, Records, record};
use crate::abi::preflight::{API_MAJOR, FLAGS_KNOWN, FLAGS_REQUIRED, MAGIC, PREFLIGHT_SYMBOL, Preflight, ROOT_SYMBOL};
use crate::abi::raw::{ConfigRaw, OpenedRaw, Text};
use crate::backend::{HostServices, OpenConfig, OpenError, Opened, OptionsError, Role};
use crate::types::Status;

use super::error::{CheckError, HostOpenError, LoadError};
use super::hosted::{Failure, HostedBackend};
use super::services::Context;
use super::{elf, trust};

/// Longest name or version of a plugin that is believed, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// What a plugin says of itself without `open`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginInfo {
    /// The name by which config asks for it.
    pub name: String,
    /// Its own version.
    pub version: String,
    /// Its role.
    pub role: Role,
    /// It provides segments, so it can be the first tier.
    pub mappable: bool,
    /// It recovers what an earlier life stored.
    pub persistent: bool,
    /// Other hosts see what it stores.
    pub shared: bool,
    /// Major and minor version of the plugin API that it was built against.
    pub api: (u32, u32),
    /// The file, with links resolved.
    pub path: PathBuf,
}

/// A loaded plugin. The library stays loaded until the process ends, also when this value is dropped.
#[derive(Clone)]
pub struct Plugin {
    root: RootRef,
    info: PluginInfo,
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Plugin").field(&self.info).finish()
    }
}

impl Plugin {
    /// Loads a plugin, or says why not. Blocks for file I/O. Each file is loaded once per process; loading a path
    /// again, even after the file was replaced in place, may answer the library that is loaded already.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let real = trust::checked(path)?;
        check_symbols(path, &real)?;
        // RTLD_NOW: a missing symbol is found here, not in the middle of a call. RTLD_LOCAL: two plugins never see
        // each other's symbols.
        // SAFETY: running the constructors of a trusted file (owner and mode are checked) that exports our symbols.
        let library = unsafe { Library::open(Some(&real), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| LoadError::Linker { path: path.to_owned(), reason: linker_reason(&error) })?;
        // Never closed: threads, statics and texts of the plugin may be used until the process ends.
        let library: &'static Library = Box::leak(Box::new(library));
        let preflight = preflight(path, library)?;
        let root = root_module(path, library, &preflight)?;
        let info = info(path, real, root, &preflight)?;
        Ok(Self { root, info })
    }

    /// What it says of itself.
    pub fn info(&self) -> &PluginInfo {
        &self.info
    }

    /// Checks an options' TOML text; answers it resolved, every option with its value. Opens nothing.
    pub fn check_options(&self, text: &str) -> Result<String, CheckError> {
        let (mut resolved, mut failure) = (None, Failure::default());
        let mut collect = |kind: u32, records: Records<'_>| match kind {
            record::BYTES => resolved = Some(String::from_utf8_lossy(records.as_bytes()).into_owned()),
            record::ERROR => failure.take(records),
            _ => {}
        };
        let status = Status(self.root.check_options()(RStr::from_str(text), Emit::into(&mut collect)));
        match (status, resolved) {
            (Status::OK, Some(resolved)) => Ok(resolved),
            (Status::PANICKED, _) => Err(CheckError::Panicked(failure.message)),
            _ => Err(CheckError::Options(failure.options(text))),
        }
    }

    /// Opens one tier. May block. The services are kept until the process ends (see [`HostServices`]).
    pub fn open(
        &self,
        config: &OpenConfig,
        services: Arc<dyn HostServices>,
    ) -> Result<(HostedBackend, Opened), HostOpenError> {
        let raw = ConfigRaw {
            tier: Text::of(config.tier.as_bytes()),
            options: Text::of(config.options.as_bytes()),
            capacity: config.capacity,
            slots: config.slots,
            reserved: 0,
        };
        let context = Context::leak(services);
        let (mut opened, mut failure) = (None, Failure::default());
        let mut collect = |kind: u32, records: Records<'_>| match kind {
            record::OPENED => {
                let raw: OpenedRaw = records.first();
                // SAFETY: the plugin lends the report during this call.
                let report = unsafe { raw.report.string() };
                opened = Some(Opened {
                    alignment: raw.alignment,
                    largest_payload: raw.largest_payload,
                    file_extent: raw.file_extent != 0,
                    report,
                });
            }
            record::ERROR => failure.take(records),
            _ => {}
        };
        let table = context.table();
        let object =
            self.root.open()(Records::of(std::slice::from_ref(&raw)), table.records(), Emit::into(&mut collect));
        match (object, opened) {
            (ROption::RSome(object), Some(opened)) => {
                let backend = HostedBackend::new(object, context);
                check_opened(&opened)?;
                Ok((backend, opened))
            }
            (ROption::RSome(_), None) => {
                Err(HostOpenError::Contract("open succeeded without saying what it found out".to_owned()))
            }
            (ROption::RNone, _) => Err(failure.open(&config.options)),
        }
    }
}

/// The engine divides by these figures.
fn check_opened(opened: &Opened) -> Result<(), HostOpenError> {
    if opened.alignment.is_power_of_two() && opened.largest_payload > 0 {
        return Ok(());
    }
    Err(HostOpenError::Contract(format!(
        "open answered alignment {} (must be a power of two) and largest payload {} (must be above 0)",
        opened.alignment, opened.largest_payload
    )))
}

fn check_symbols(path: &Path, real: &Path) -> Result<(), LoadError> {
    let file = File::open(real).map_err(|source| LoadError::Unreadable { path: path.to_owned(), source })?;
    match elf::missing(&file, &[PREFLIGHT_SYMBOL, ROOT_SYMBOL]) {
        Ok(None) => Ok(()),
        Ok(Some(symbol)) => Err(LoadError::NotAPlugin { path: path.to_owned(), symbol }),
        Err(reason) => Err(LoadError::NotLoadable { path: path.to_owned(), reason }),
    }
}

/// libloading's own text says only which call failed; the linker's words are its source.
fn linker_reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn preflight(path: &Path, library: &'static Library) -> Result<Preflight, LoadError> {
    let damaged = |reason: String| LoadError::Preflight { path: path.to_owned(), reason };
    // SAFETY: the symbol's type is frozen; only its address is taken here, and a null address is refused.
    let symbol = unsafe { library.get::<*const Preflight>(PREFLIGHT_SYMBOL) }
        .map_err(|error| LoadError::Linker { path: path.to_owned(), reason: linker_reason(&error) })?;
    if symbol.is_null() || !symbol.is_aligned() {
        return Err(damaged("its address is not one".to_owned()));
    }
    // SAFETY: a static of at least this size in every plugin of every version; plain integers.
    let preflight = unsafe { symbol.read() };
    if preflight.magic != MAGIC {
        return Err(damaged("its first bytes are not UMBPPLUG".to_owned()));
    }
    if (preflight.size as usize) < size_of::<Preflight>() {
        return Err(damaged(format!("it claims {} bytes", preflight.size)));
    }
    let (major, minor) = (preflight.api_major, preflight.api_minor);
    if major != API_MAJOR {
        return Err(LoadError::Major { path: path.to_owned(), major, minor });
    }
    let flags = preflight.flags & FLAGS_REQUIRED & !FLAGS_KNOWN;
    if flags != 0 {
        return Err(LoadError::Flags { path: path.to_owned(), major, minor, flags });
    }
    Ok(preflight)
}

/// abi_stable's own loaders keep one library per type of root module, so that a second plugin would silently be the
/// first: each library's header is upgraded by hand instead.
fn root_module(path: &Path, library: &'static Library, preflight: &Preflight) -> Result<RootRef, LoadError> {
    // SAFETY: the preflight's major version fixes what the symbol is; `AbiHeaderRef` is the pointer to it.
    let header = unsafe { library.get::<AbiHeaderRef>(ROOT_SYMBOL) }
        .map_err(|error| LoadError::Linker { path: path.to_owned(), reason: linker_reason(&error) })?;
    let root = (*header).upgrade().and_then(|header| header.init_root_module::<RootRef>());
    let (path, major, minor) = (path.to_owned(), preflight.api_major, preflight.api_minor);
    root.map_err(|error| match error {
        LibraryError::RootModule { .. } => {
            LoadError::Root { path, major, minor, reason: "its root module could not be made".to_owned() }
        }
        other => LoadError::Layout { path, major, minor, detail: other.to_string() },
    })
}

fn info(path: &Path, real: PathBuf, root: RootRef, preflight: &Preflight) -> Result<PluginInfo, LoadError> {
    let (major, minor) = (preflight.api_major, preflight.api_minor);
    let unusable = |reason: String| LoadError::Root { path: path.to_owned(), major, minor, reason };
    let role = match root.role() {
        role::STORAGE => Role::Storage,
        role::MOVER => Role::Mover,
        other => return Err(unusable(format!("its role {other} is not known here; use a newer umbpd"))),
    };
    let (name, version) = (root.name().as_str(), root.version().as_str());
    if name.is_empty() || name.len() > NAME_BYTES_MAX || version.len() > NAME_BYTES_MAX {
        return Err(unusable(format!("its name or version is empty or longer than {NAME_BYTES_MAX} bytes")));
    }
    Ok(PluginInfo {
        name: name.to_owned(),
        version: version.to_owned(),
        role,
        mappable: root.mappable(),
        persistent: root.persistent(),
        shared: root.shared(),
        api: (major, minor),
        path: real,
    })
}

impl Failure {
    /// As an options error whose span lies inside `text`, on character boundaries.
    fn options(self, text: &str) -> OptionsError {
        let clip = |at: u64| {
            let mut at = usize::try_from(at).unwrap_or(usize::MAX).min(text.len());
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            at
        };
        let start = clip(self.span.start);
        OptionsError { span: start..clip(self.span.end).max(start), message: self.message }
    }

    /// As the error of an `open`, whose options were `text`.
    pub(super) fn open(self, text: &str) -> HostOpenError {
        use crate::abi::raw::error_kind as kind;
        HostOpenError::Open(match self.kind {
            kind::OPTIONS => OpenError::Options(self.options(text)),
            kind::LOCKED => OpenError::Locked(self.message),
            kind::TOO_LARGE => OpenError::TooLarge(self.message),
            kind::PANICKED => return HostOpenError::Panicked(self.message),
            0 => return HostOpenError::Contract("a call failed without a reason".to_owned()),
            _ => OpenError::Environment(self.message),
        })
    }
}
