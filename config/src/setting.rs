//! A value that knows where it came from.

use std::fmt;
use std::ops::{Deref, Range};
use std::path::PathBuf;
use std::sync::Arc;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line (from 1) of the config file.
    File {
        /// The file, as it was named.
        path: Arc<PathBuf>,
        /// The line.
        line: usize,
    },
    /// An environment variable.
    Variable(String),
    /// A flag of the command line.
    Flag(&'static str),
    /// Nobody set it: our default.
    Default,
    /// The default deployment that serves where no file is named.
    EmbeddedDefault,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
            Self::Default => f.write_str("default"),
            Self::EmbeddedDefault => f.write_str("embedded default"),
        }
    }
}

/// Where a value stands: its origin, and its bytes in the file's text where it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where it came from.
    pub origin: Origin,
    /// Byte range in the text of the file, or of the embedded default.
    pub span: Option<Range<usize>>,
}

impl Place {
    /// Nobody set it.
    pub const DEFAULT: Self = Self { origin: Origin::Default, span: None };
}

/// A checked value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Where it came from.
    pub place: Place,
}

impl<T> Setting<T> {
    /// A value that nobody set.
    pub fn default_of(value: T) -> Self {
        Self { value, place: Place::DEFAULT }
    }
}

impl<T> Deref for Setting<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// The text that a deployment was read from.
#[derive(Debug)]
pub(crate) struct SourceText {
    /// The file; none = the embedded default.
    pub(crate) path: Option<Arc<PathBuf>>,
    /// The whole text.
    pub(crate) text: String,
}

impl SourceText {
    /// The name under which diagnostics print it.
    pub(crate) fn name(&self) -> String {
        self.path.as_ref().map_or_else(|| "embedded default".to_owned(), |path| path.display().to_string())
    }

    /// The line (from 1) in which a byte lies.
    pub(crate) fn line(&self, at: usize) -> usize {
        1 + self.text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count()
    }

    /// The place of a byte range of this text.
    pub(crate) fn place(&self, span: Range<usize>) -> Place {
        let origin = match &self.path {
            Some(path) => Origin::File { path: Arc::clone(path), line: self.line(span.start) },
            None => Origin::EmbeddedDefault,
        };
        Place { origin, span: Some(span) }
    }
}
