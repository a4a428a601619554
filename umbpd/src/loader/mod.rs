//! From a tier's lines in the config to an open plugin.
//!
//! States: Declared (named in config) → Loaded (the shared object is in) → Running; a tier that does not get there
//! keeps the state that it reached and the reason. Errors of the config, a held lock and a size that cannot be had
//! refuse the daemon's start; what the environment lacks obeys the tier's `required`.
//!
//! Modules in reading order: [`find`] (which file), [`bring_up`] (on the tier's own thread).

pub mod bring_up;
pub mod find;

use umbp_config::ConfigErrors;

/// Why a tier does not serve.
#[derive(Debug)]
pub enum Failure {
    /// The config is wrong; shown with file and line.
    Config(ConfigErrors),
    /// It refuses the start whatever `required` says: a held lock, or a size that cannot be had.
    Refuse(String),
    /// Something is missing in the environment; obeys `required`.
    Environment(String),
}

impl Failure {
    /// One paragraph for a person.
    pub fn text(&self) -> String {
        match self {
            Self::Config(errors) => errors.lines(),
            Self::Refuse(text) | Self::Environment(text) => text.clone(),
        }
    }
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
