//! Values from the environment and from flags, put in place of the file's.
//!
//! `UMBP_<SECTION>__<KEY>`, or `UMBP_<SECTION>__<NAME>__<KEY>` for tiers, movers and tenants, with hyphens of a name as
//! underscores. Only names with `__` are config, and `UMBP_SOCKET`, an alias of `daemon.socket`.

use crate::error::{ConfigError, Problem, Remedy, closest};
use crate::raw::{Fields, Raw};
use crate::schema::{KEYS, Section};
use crate::setting::{Origin, Place};

/// Prefix of every variable of ours.
const PREFIX: &str = "UMBP_";
/// Alias of `daemon.socket`, for clients and daemon alike.
pub const SOCKET_VARIABLE: &str = "UMBP_SOCKET";
/// The flag that names the socket.
pub const SOCKET_FLAG: &str = "--socket";

/// Puts variables in place, then the flag. The later of two that name one key wins.
pub(crate) fn apply(
    fields: &mut [Fields],
    variables: &[(String, String)],
    socket_flag: Option<&str>,
    errors: &mut Vec<ConfigError>,
) {
    let mut ours: Vec<_> = variables.iter().filter(|(name, _)| is_config(name)).collect();
    ours.sort_by_key(|(name, _)| (name != SOCKET_VARIABLE, name.as_str()));
    for (name, text) in ours {
        let place = Place { origin: Origin::Variable(name.clone()), span: None };
        match target(fields, name) {
            Some((index, key)) => {
                fields[index].values.insert(key, Raw::outside(text, place));
            }
            None => {
                let problem = (Problem::UnknownVariable, remedy(fields, name));
                errors.push(ConfigError::new(name, "", problem, place, None));
            }
        }
    }
    let daemon = fields.iter_mut().find(|fields| fields.section == Section::Daemon);
    if let (Some(daemon), Some(text)) = (daemon, socket_flag) {
        let place = Place { origin: Origin::Flag(SOCKET_FLAG), span: None };
        daemon.values.insert("socket", Raw::outside(text, place));
    }
}

fn is_config(name: &str) -> bool {
    name == SOCKET_VARIABLE || name.strip_prefix(PREFIX).is_some_and(|rest| rest.contains("__"))
}

fn target(fields: &[Fields], variable: &str) -> Option<(usize, &'static str)> {
    let wanted = if variable == SOCKET_VARIABLE { "UMBP_DAEMON__SOCKET" } else { variable };
    let mut known = names(fields);
    known.find(|(name, ..)| name == wanted).map(|(_, index, key)| (index, key))
}

/// Every variable that there is in this deployment, with its table's index and its key.
fn names(fields: &[Fields]) -> impl Iterator<Item = (String, usize, &'static str)> {
    let tables = fields.iter().enumerate().filter(|(_, table)| !table.section.is_list() || table.name().is_some());
    tables.flat_map(|(index, table)| {
        let keys = KEYS.iter().filter(|key| key.section == table.section && key.variable);
        keys.map(move |key| {
            let section = upper(table.section.name());
            let own = table.name().filter(|_| table.section.is_list()).map(|name| format!("{}__", upper(name)));
            (format!("{PREFIX}{section}__{}{}", own.unwrap_or_default(), upper(key.name)), index, key.name)
        })
    })
}

fn upper(name: &str) -> String {
    name.to_ascii_uppercase().replace('-', "_")
}

fn remedy(fields: &[Fields], variable: &str) -> Remedy {
    let file_only = KEYS.iter().filter(|key| !key.variable);
    if let Some(key) = file_only.clone().find(|key| variable.ends_with(&format!("__{}", upper(key.name)))) {
        return Remedy::text(format!("unset it; \"{}\" is set in the file alone", key.name));
    }
    let known: Vec<String> = names(fields).map(|(name, ..)| name).collect();
    match closest(variable, known.iter().map(String::as_str)) {
        Some(name) => Remedy::did_you_mean(name),
        None => {
            Remedy::text("unset it; variables of the config read UMBP_<SECTION>__<KEY> or UMBP_TIER__<NAME>__<KEY>")
        }
    }
}
