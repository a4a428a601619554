//! What can be wrong with a deployment, and how it is told: key, value, place, remedy.

use std::fmt;
use std::sync::Arc;

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};

use crate::setting::{Origin, Place, SourceText};

/// Similarity (Jaro-Winkler, 0 to 1) from which a name is offered as "did you mean".
const SIMILAR: f64 = 0.75;

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The file cannot be read.
    #[error("cannot read the file: {0}")]
    Unreadable(String),
    /// The text is not TOML.
    #[error("not TOML: {0}")]
    Syntax(String),
    /// No such key in this section.
    #[error("unknown key")]
    UnknownKey,
    /// A variable with `__` in its name that names no key.
    #[error("names no key of the config")]
    UnknownVariable,
    /// Another type of TOML value is needed.
    #[error("expected {expected}, found {found}")]
    WrongType {
        /// What is needed.
        expected: &'static str,
        /// What stands there.
        found: &'static str,
    },
    /// Text that does not read as this kind of value.
    #[error("not a {0}")]
    NotA(&'static str),
    /// A number without its unit.
    #[error("a {0} needs a unit")]
    NoUnit(&'static str),
    /// A number with decimals.
    #[error("a {0} is a whole number of its unit")]
    NotWhole(&'static str),
    /// A unit that we do not know.
    #[error("unknown unit {unit:?}, expected one of {known}")]
    BadUnit {
        /// The unit.
        unit: String,
        /// The units that there are.
        known: String,
    },
    /// A number beyond 64 bits.
    #[error("this {0} is beyond every machine")]
    TooBig(&'static str),
    /// Text that is none of a few words.
    #[error("expected one of {0}")]
    NotOneOf(String),
    /// A value that cannot be.
    #[error("{0}")]
    Impossible(String),
    /// A key that must be there.
    #[error("missing")]
    Missing,
    /// A name or number given twice.
    #[error("{0}")]
    Twice(String),
    /// Refused by the backend that the options are for.
    #[error("{0}")]
    Options(String),
}

/// What to do about it. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy(String);

impl Remedy {
    /// In words.
    pub fn text(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// A value or name that was probably meant.
    pub fn did_you_mean(name: &str) -> Self {
        Self(format!("did you mean \"{name}\"?"))
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug)]
pub struct ConfigError {
    /// The key's path, such as `tier.dram.capacity`; the file's name where the fault is the file's.
    pub key: String,
    /// The value as written; empty where there is none.
    pub value: String,
    /// What is wrong.
    pub problem: Problem,
    /// What to do about it.
    pub remedy: Remedy,
    /// Where it stands.
    pub place: Place,
    source: Option<NamedSource<Arc<str>>>,
}

impl ConfigError {
    pub(crate) fn new(
        key: impl Into<String>,
        value: impl Into<String>,
        (problem, remedy): (Problem, Remedy),
        place: Place,
        source: Option<&Arc<SourceText>>,
    ) -> Self {
        let source = source
            .filter(|_| place.span.is_some())
            .map(|source| NamedSource::new(source.name(), Arc::from(source.text.as_str())).with_language("toml"));
        Self { key: key.into(), value: value.into(), problem, remedy, place, source }
    }

    /// Key, value and problem, without place and remedy: the same for file, environment and flag.
    pub fn message(&self) -> String {
        let Self { key, value, problem, .. } = self;
        if value.is_empty() { format!("{key}: {problem}") } else { format!("{key} = {value}: {problem}") }
    }

    /// The remedy's text.
    pub fn remedy(&self) -> &str {
        &self.remedy.0
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())?;
        match &self.place.origin {
            Origin::Variable(_) | Origin::Flag(_) => write!(f, " (from {})", self.place.origin),
            Origin::File { .. } | Origin::Default | Origin::EmbeddedDefault => Ok(()),
        }
    }
}

impl std::error::Error for ConfigError {}

impl Diagnostic for ConfigError {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(&self.remedy.0))
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.source.as_ref().map(|source| source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = self.place.span.clone()?;
        self.source.as_ref()?;
        Some(Box::new(std::iter::once(LabeledSpan::new_with_span(Some(self.problem.to_string()), span))))
    }
}

/// All that is wrong with a deployment, in the order of the file.
#[derive(Clone, Debug)]
pub struct ConfigErrors {
    /// At least one.
    pub errors: Vec<ConfigError>,
}

impl ConfigErrors {
    /// One line for each error: place, key, value, problem, remedy.
    pub fn lines(&self) -> String {
        let line = |error: &ConfigError| format!("{}: {}; {}", error.place.origin, error.message(), error.remedy());
        self.errors.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        Self { errors: vec![error] }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errors.len() {
            1 => f.write_str("the config has an error"),
            count => write!(f, "the config has {count} errors"),
        }
    }
}

impl std::error::Error for ConfigErrors {}

impl Diagnostic for ConfigErrors {
    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        Some(Box::new(self.errors.iter().map(|error| error as &dyn Diagnostic)))
    }
}

/// The one of `known` that is most like `name`, if any is like it at all.
pub(crate) fn closest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let score = |known: &str| strsim::jaro_winkler(&name.to_lowercase(), &known.to_lowercase());
    let scored = known.into_iter().map(|known| (score(known), known));
    scored.filter(|(score, _)| *score >= SIMILAR).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, known)| known)
}
