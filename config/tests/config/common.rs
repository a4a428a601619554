//! Helpers of the tests: a file in a folder of its own, an environment of their own.

use std::path::PathBuf;

use umbp_config::{Config, ConfigErrors, HostFacts, Source};

/// A small deployment that is right.
pub(crate) const GOOD: &str = r#"
[daemon]
socket = "umbpd.sock"
plugin_dirs = ["plugins", "/opt/umbp"]
[[tier]]
name = "dram"
backend = "dram"
capacity = "1GiB"
[tier.options]
hugepages = "auto"
[[tier]]
name = "nvme"
backend = "nvme"
capacity = "8GiB"
required = false
[[tenant]]
name = "default"
uids = [1000]
quota = { dram = "50%", nvme = "4GiB" }
"#;

/// A host with 8 GiB free, and user 1000.
pub(crate) fn source() -> Source {
    Source { file: None, variables: Vec::new(), socket: None, host: HostFacts { uid: 1000, memory_available: 8 << 30 } }
}

/// A file `umbp.toml` in a folder of its own.
pub(crate) struct Deployment {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) source: Source,
}

impl Deployment {
    pub(crate) fn new(toml: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("umbp.toml");
        std::fs::write(&file, toml).unwrap();
        Self { folder, source: Source { file: Some(file), ..source() } }
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.source.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.source.file.clone().unwrap()
    }

    pub(crate) fn load(&self) -> Result<Config, ConfigErrors> {
        Config::load(&self.source)
    }
}

/// As a terminal without colour shows it.
pub(crate) fn rendered(errors: &ConfigErrors) -> String {
    let mut out = String::new();
    let theme = miette::GraphicalTheme::unicode_nocolor();
    miette::GraphicalReportHandler::new_themed(theme).with_width(200).render_report(&mut out, errors).unwrap();
    out
}
