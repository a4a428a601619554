//! The golden traces: where they are, and how they are read.

#![allow(dead_code, reason = "each test uses its part")]

use std::path::{Path, PathBuf};

use serde_json::Value;

/// Names another folder with files of the same names.
pub(crate) const FOLDER_VARIABLE: &str = "UMBP_CONFORMANCE_DIR";

/// The lines of a golden file, and whether it is the shipped one.
pub(crate) fn golden(file: &str) -> (Vec<Value>, bool) {
    let other = std::env::var_os(FOLDER_VARIABLE);
    let shipped = other.is_none();
    let folder =
        other.map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance")), Into::into);
    (lines(&folder.join(file)), shipped)
}

/// The lines of a golden file that is shipped, whatever the environment says.
pub(crate) fn shipped(file: &str) -> Vec<Value> {
    lines(&PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance")).join(file))
}

pub(crate) fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let line = |(index, line)| {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{} line {}: {error}", path.display(), index + 1))
    };
    text.lines().enumerate().map(line).collect()
}

/// Replays every line; the test fails with all that differ, or if a shipped file has not `count` lines.
pub(crate) fn replay_all(file: &str, count: usize, replay: impl Fn(&Value) -> Result<(), String>) {
    let (cases, shipped) = golden(file);
    let name = |index: usize, case: &Value| match case["name"].as_str() {
        Some(name) => format!("line {} ({name})", index + 1),
        None => format!("line {}", index + 1),
    };
    let wrong: Vec<String> = cases
        .iter()
        .enumerate()
        .filter_map(|(index, case)| replay(case).err().map(|error| format!("{}: {error}", name(index, case))))
        .collect();
    assert!(wrong.is_empty(), "{} of {} in {file} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert!(!cases.is_empty(), "{file} is empty");
    assert!(!shipped || cases.len() == count, "{file} has {} lines, not {count}", cases.len());
}
