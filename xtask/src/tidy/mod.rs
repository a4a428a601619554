//! `tidy`: the rules of the house that can be checked by text. Every violation is printed with file, line and rule.
//!
//! A line may be let off with a reason, on it or above it: `// tidy: allow <rule>: <reason>`.
//!
//! Modules in reading order: [`mask`] (Rust text without comments and literals), [`lines`] (rules on lines and
//! sizes), [`manifests`] (who depends on whom).

mod lines;
mod manifests;
mod mask;

use std::fmt;
use std::path::{Path, PathBuf};

use crate::shell::{self, Result};

/// Folders that hold no text of ours.
const SKIPPED: [&str; 6] = ["target", ".git", "node_modules", ".venv", "__pycache__", "shared"];
/// Endings of the files that are read.
const READ: [&str; 8] = ["rs", "toml", "md", "py", "sh", "yml", "yaml", "json"];

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Violation {
    file: String,
    line: usize,
    rule: &'static str,
    text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, rule, text } = self;
        write!(f, "{file}:{line}: [{rule}] {text}")
    }
}

/// Checks the whole tree.
pub(crate) fn tidy() -> Result {
    let root = shell::root();
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let mut violations = Vec::new();
    for path in &files {
        let Ok(text) = std::fs::read_to_string(path) else { continue };
        let name = path.strip_prefix(&root).unwrap_or(path).display().to_string();
        lines::check(&name, &text, &mut violations);
        if name.ends_with("Cargo.toml") {
            manifests::check(&name, &text, &mut violations);
        }
    }
    for violation in &violations {
        println!("{violation}");
    }
    shell::say(&format!("tidy: {} files, {} violations", files.len(), violations.len()));
    if violations.is_empty() { Ok(()) } else { Err("tidy: rules of the house are broken".to_owned()) }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("read {}: {e}", folder.display()))?;
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let Ok(kind) = entry.file_type() else { continue };
        let is_read = path.extension().is_some_and(|e| READ.iter().any(|read| e == *read)) || name == "run";
        if kind.is_dir() && !SKIPPED.iter().any(|skipped| name == *skipped) {
            collect(&path, files)?;
        } else if kind.is_file() && is_read {
            files.push(path);
        }
    }
    Ok(())
}
