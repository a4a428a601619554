//! `umbpd check FILE`: all that can be known of a deployment without opening a tier.
//!
//! Beyond what the config's own checks say: each backend's file is found and is a plugin of this API, plays the role
//! that it is named for, the first tier's is mappable, keys of shared tiers are those of shared backends, and each
//! accepts its options. Constructors of the plugins run; no tier is opened, no folder or socket made.

use std::path::{Path, PathBuf};

use umbp_config::{BackendRef, Config, ConfigError, ConfigErrors, Options, Place, Setting, plugin_search};
use umbp_plugin_api::Role;
use umbp_plugin_api::host::{CheckError, Plugin, PluginInfo};

/// What a person is told of each mover that loads.
pub const NO_MOVER_IS_USED: &str = "this umbpd copies through no mover, and engines copy in their own process";

/// A tier or mover, for as long as it is looked at.
struct Part {
    /// `tier.<name>` or `mover.<name>`.
    owner: String,
    backend: Setting<BackendRef>,
    role: Role,
    /// The daemon does not start without it.
    required: bool,
    options: Options,
}

/// Why a part does not pass.
enum Fault {
    /// Its plugin is missing, cannot be loaded or is broken: a fault of the environment, which obeys `required`.
    Missing(ConfigErrors),
    /// The config is wrong.
    Wrong(ConfigErrors),
}

/// Checks a deployment; answers its resolved form, TOML with a comment on each value's origin, with what there is to
/// know in front, as comments. `binary` is the daemon's own file. Blocks for file I/O and the plugins' constructors.
pub fn check(mut config: Config, binary: Option<&Path>) -> Result<String, ConfigErrors> {
    let folders = plugin_search(&config.daemon.plugin_dirs, binary);
    let mut errors: Vec<ConfigError> = Vec::new();
    let mut lines: Vec<String> = Vec::new();
    let mut known: Vec<(BackendRef, bool)> = Vec::new();
    let mut resolved: Vec<Options> = Vec::new();
    let mut shared: Vec<usize> = Vec::new();
    for (at, mut part) in parts(&config).into_iter().enumerate() {
        match look_at(&config, &mut part, &folders) {
            Ok(info) => {
                // Tiers are the first of the parts.
                match config.tiers.get(at) {
                    Some(_) if info.shared => shared.push(at),
                    Some(tier) => errors.extend(config.check_unshared(tier).err().into_iter().flat_map(|e| e.errors)),
                    None => {}
                }
                known.push((part.backend.value.clone(), info.mappable));
                lines.push(format!("# {}: {}", part.owner, describe(&info)));
                if part.role == Role::Mover {
                    lines.push(format!("# note: {} will not be used: {NO_MOVER_IS_USED}", part.owner));
                }
            }
            Err(Fault::Missing(fault)) if !part.required => {
                lines.push(format!("# note: {} will not serve: {}", part.owner, in_one_line(&fault)));
            }
            Err(Fault::Missing(fault) | Fault::Wrong(fault)) => errors.extend(fault.errors),
        }
        resolved.push(part.options);
    }
    let mappable = |backend: &BackendRef| known.iter().find(|(name, _)| name == backend).map(|(_, mappable)| *mappable);
    if let Err(error) = config.check_first_tier(&mappable) {
        errors.extend(error.errors);
    }
    if !errors.is_empty() {
        errors.sort_by_key(|error| error.place.span.as_ref().map_or(usize::MAX, |span| span.start));
        return Err(ConfigErrors { errors });
    }
    lines.extend(config.notices().into_iter().map(|notice| format!("# note: {notice}")));
    shared.into_iter().for_each(|at| config.tiers[at].resolve_shared());
    let mut options = resolved.into_iter();
    let owners = config.tiers.iter_mut().map(|tier| &mut tier.options);
    for (own, resolved) in owners.chain(config.movers.iter_mut().map(|mover| &mut mover.options)).zip(&mut options) {
        *own = resolved;
    }
    Ok(format!("{}\n\n{}", lines.join("\n"), config.to_toml()))
}

fn parts(config: &Config) -> Vec<Part> {
    let tiers = config.tiers.iter().map(|tier| Part {
        owner: format!("tier.{}", *tier.name),
        backend: tier.backend.clone(),
        role: Role::Storage,
        required: *tier.required,
        options: tier.options.clone(),
    });
    let movers = config.movers.iter().map(|mover| Part {
        owner: format!("mover.{}", *mover.name),
        backend: mover.backend.clone(),
        role: Role::Mover,
        required: *mover.required,
        options: mover.options.clone(),
    });
    tiers.chain(movers).collect()
}

/// Finds, loads and asks one backend; its resolved options are kept in the part.
fn look_at(config: &Config, part: &mut Part, folders: &[PathBuf]) -> Result<PluginInfo, Fault> {
    let at = |problem: &str, remedy: &str| {
        let (key, value) = (format!("{}.backend", part.owner), format!("\"{}\"", part.backend.value));
        config.error_at(&key, &value, &part.backend.place, problem, remedy)
    };
    let path = locate(&part.backend, folders).ok_or_else(|| Fault::Missing(not_found(config, part, folders)))?;
    let plugin = Plugin::load(&path).map_err(|error| {
        Fault::Missing(at(&error.to_string(), "name a backend plugin; `umbp plugin check FILE` tells more of one"))
    })?;
    let info = plugin.info().clone();
    if info.role != part.role {
        return Err(match part.role {
            Role::Storage => {
                let problem = "this backend moves bytes and stores none";
                Fault::Wrong(at(problem, "name it in a [[mover]], not in a [[tier]]"))
            }
            // Nothing is missing without it, since no mover is used.
            Role::Mover => {
                Fault::Missing(at("this backend is a storage tier", "name it in a [[tier]], not in a [[mover]]"))
            }
        });
    }
    let resolved = plugin.check_options(&part.options.text).map_err(|error| match error {
        CheckError::Options(error) => {
            Fault::Wrong(config.options_error(&part.owner, &part.options, &error.message, error.span))
        }
        // A fault of the plugin, not of the config: obeys `required`, as at start.
        CheckError::Panicked(reason) => {
            let problem = format!("it panicked over its options: {reason}");
            Fault::Missing(at(&problem, "report it to the backend's author"))
        }
    })?;
    part.options.resolve(&resolved, &format!("{} {}", info.name, info.version)).map_err(|reason| {
        let problem = format!("the options that it resolved are not TOML: {reason}");
        Fault::Wrong(config.error_at(
            &part.owner,
            "",
            &part.backend.place,
            &problem,
            "report it to the backend's author",
        ))
    })?;
    Ok(info)
}

fn in_one_line(errors: &ConfigErrors) -> String {
    errors.lines().replace('\n', "; ")
}

/// The file of a backend: the first of its candidates that exists.
pub fn locate(backend: &BackendRef, folders: &[PathBuf]) -> Option<PathBuf> {
    backend.candidates(folders).into_iter().find(|path| path.exists())
}

fn not_found(config: &Config, part: &Part, folders: &[PathBuf]) -> ConfigErrors {
    let (key, value) = (format!("{}.backend", part.owner), format!("\"{}\"", part.backend.value));
    let place: &Place = &part.backend.place;
    match &part.backend.value {
        BackendRef::Path(_) => config.error_at(&key, &value, place, "no such file", "name an existing shared object"),
        BackendRef::Bare(_) => {
            let searched: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
            let files = part.backend.candidates(&[PathBuf::new()]);
            let file = files.first().map(|file| file.display().to_string()).unwrap_or_default();
            let remedy = format!(
                "put {file} into one of the plugin folders ({}), add its folder to daemon.plugin_dirs, or name its \
                 absolute path",
                searched.join(", ")
            );
            config.error_at(&key, &value, place, "no plugin folder has this backend", &remedy)
        }
    }
}

/// One line on a plugin.
fn describe(info: &PluginInfo) -> String {
    let role = match info.role {
        Role::Storage => "storage",
        Role::Mover => "mover",
    };
    let traits = [(info.mappable, ", mappable"), (info.persistent, ", persistent"), (info.shared, ", shared")];
    let traits: String = traits.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect();
    let (major, minor) = info.api;
    let (name, version, path) = (&info.name, &info.version, info.path.display());
    format!("backend {name} {version} ({role}{traits}; plugin API {major}.{minor}) from {path}")
}
