//! `umbpd check`: asks each plugin to check its options, without opening anything.

use umbp_config::{BackendRef, Config, Options};
use umbp_plugin_api::backend::Role;
use umbp_plugin_api::host::{CheckError, Plugin};

use super::bring_up::{check_role, load_failure, options_failure};
use super::{Failure, find};
use crate::engine::api::TierIndex;

/// Resolves every tier's and mover's options. Answers notices: a plugin that is missing though its tier is not
/// required, and what [`Config::notices`] says.
pub fn plugins(config: &mut Config) -> Result<Vec<String>, Failure> {
    let folders = find::folders(&config.daemon.plugin_dirs);
    let mut notices = config.notices();
    for at in 0..config.tiers.len() {
        let tier = &config.tiers[at];
        let loaded = find::file_of(&tier.backend, &folders)
            .and_then(|path| Plugin::load(&path).map_err(|error| load_failure(&error)));
        let plugin = match loaded {
            Ok(plugin) => plugin,
            Err(failure) if !*tier.required => {
                notices.push(format!("tier \"{}\" will not serve: {}", *tier.name, failure.text()));
                continue;
            }
            Err(failure) => return Err(named(&format!("tier \"{}\"", *tier.name), failure)),
        };
        check_role(config, TierIndex(at as u8), plugin.info())?;
        let resolved =
            plugin.check_options(&tier.options.text).map_err(|error| options_failure(config, tier, error))?;
        resolve(&mut config.tiers[at].options, &resolved, &plugin)?;
    }
    for at in 0..config.movers.len() {
        check_mover(config, at, &folders, &mut notices)?;
    }
    Ok(notices)
}

fn check_mover(
    config: &mut Config,
    at: usize,
    folders: &[std::path::PathBuf],
    notices: &mut Vec<String>,
) -> Result<(), Failure> {
    let mover = &config.movers[at];
    let backend: &BackendRef = &mover.backend;
    let loaded =
        find::file_of(backend, folders).and_then(|path| Plugin::load(&path).map_err(|error| load_failure(&error)));
    let plugin = match loaded {
        Ok(plugin) => plugin,
        Err(failure) => {
            notices.push(format!("mover \"{}\" will not serve: {}", *mover.name, failure.text()));
            return Ok(());
        }
    };
    if plugin.info().role != Role::Mover {
        let (key, value) = (format!("mover.{}.backend", *mover.name), format!("\"{backend}\""));
        let problem = "this backend is a storage tier, not a mover";
        let place = &mover.backend.place;
        return Err(Failure::Config(config.error_at(&key, &value, place, problem, "declare it under [[tier]]")));
    }
    match plugin.check_options(&mover.options.text) {
        Ok(resolved) => resolve(&mut config.movers[at].options, &resolved, &plugin),
        Err(CheckError::Options(error)) => {
            let owner = format!("mover.{}", *mover.name);
            Err(Failure::Config(config.options_error(&owner, &mover.options, &error.message, error.span)))
        }
        Err(CheckError::Panicked(text)) => {
            Err(named(&format!("mover \"{}\"", *mover.name), Failure::Environment(format!("check_options panicked: {text}"))))
        }
    }
}

fn resolve(options: &mut Options, resolved: &str, plugin: &Plugin) -> Result<(), Failure> {
    let info = plugin.info();
    options.resolve(resolved, &format!("{} {}", info.name, info.version)).map_err(|reason| {
        Failure::Environment(format!("plugin {} answered options that are not TOML: {reason}", info.path.display()))
    })
}

fn named(whom: &str, failure: Failure) -> Failure {
    match failure {
        Failure::Environment(text) => Failure::Environment(format!("{whom}: {text}")),
        Failure::Refuse(text) => Failure::Refuse(format!("{whom}: {text}")),
        config => config,
    }
}
