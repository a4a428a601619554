//! What the kit needs to know about a backend.

use std::path::PathBuf;
use std::time::Duration;

/// Longest wait for one thing (a completion, a return from `open`), where the caller does not say.
const WAIT: Duration = Duration::from_secs(30);

/// How the kit opens a backend.
#[derive(Clone, Debug)]
pub struct KitOptions {
    /// The options' TOML text. `{work}` stands for a folder that is fresh for each storage; it exists and is empty.
    pub text: String,
    /// Where those folders are made; a folder of its own below the system's temporary folder where `None`.
    pub work: Option<PathBuf>,
    /// Operations in flight that the kit grants.
    pub slots: u32,
    /// Only checks whose name begins so, such as `p07`.
    pub only: Option<String>,
    /// Longest wait for one completion, or for one call that may block. A check has ten times as long.
    pub wait: Duration,
}

impl KitOptions {
    /// Options with this text, and the kit's own choice for the rest.
    pub fn new(text: &str) -> Self {
        Self { text: text.to_owned(), work: None, slots: 32, only: None, wait: WAIT }
    }

    /// The same, with the folders below `work`.
    pub fn in_folder(mut self, work: impl Into<PathBuf>) -> Self {
        self.work = Some(work.into());
        self
    }

    /// The same, with those checks alone whose name begins so.
    pub fn only(mut self, name: &str) -> Self {
        self.only = Some(name.to_owned());
        self
    }

    /// The same, waiting at most so long for one thing.
    pub fn waiting(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}
