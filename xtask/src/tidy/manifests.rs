//! Who depends on whom.

use super::Violation;

/// A crate of ours, and those of ours that it may use.
const MAY_USE: [(&str, &[&str]); 19] = [
    ("umbp-connector-core", &[]),
    ("umbp-protocol", &["umbp-connector-core"]),
    ("umbp-plugin-api", &[]),
    ("umbp-config", &[]),
    // The checksum alone; without features.
    ("umbp-client", &["umbp-connector-core", "umbp-protocol", "umbp-plugin-api"]),
    ("umbp-backend-dram", &["umbp-plugin-api"]),
    ("umbp-backend-nvme", &["umbp-plugin-api"]),
    ("umbp-backend-gpu-direct", &["umbp-plugin-api"]),
    ("umbp-backend-remote", &["umbp-plugin-api"]),
    ("umbp-plugin-dram", &["umbp-backend-dram", "umbp-plugin-api"]),
    ("umbp-plugin-nvme", &["umbp-backend-nvme", "umbp-plugin-api"]),
    ("umbp-plugin-gpu-direct", &["umbp-backend-gpu-direct", "umbp-plugin-api"]),
    ("umbp-plugin-remote", &["umbp-backend-remote", "umbp-plugin-api"]),
    ("umbpd", &["umbp-config", "umbp-connector-core", "umbp-plugin-api", "umbp-protocol"]),
    ("umbp-cli", &["umbp-client", "umbp-config", "umbp-connector-core", "umbp-plugin-api", "umbp-protocol", "umbpd"]),
    ("umbp-python", &["umbp-client", "umbp-config", "umbp-connector-core", "umbp-protocol", "umbpd"]),
    ("umbp-fuzz", &["umbp-backend-nvme", "umbp-connector-core", "umbp-protocol"]),
    // A dependency of tests alone.
    ("umbp-testkit", &[]),
    ("xtask", &[]),
];
/// Crates outside the workspace use the ABI and nothing else.
const OUTSIDE_MAY_USE: [&str; 1] = ["umbp-plugin-api"];
/// Dependencies that one crate alone may name.
const ALONE: [(&str, &[&str]); 2] =
    [("abi_stable", &["umbp-plugin-api"]), ("libloading", &["umbp-plugin-api", "umbp-backend-gpu-direct"])];

/// Checks one Cargo.toml; dependencies of tests are free.
pub(super) fn check(file: &str, text: &str, violations: &mut Vec<Violation>) {
    let mut report = |line: usize, rule, text: String| {
        violations.push(Violation { file: file.to_owned(), line, rule, text });
    };
    let table = match text.parse::<toml::Table>() {
        Ok(table) => table,
        Err(e) => return report(1, "manifest", format!("not TOML: {e}")),
    };
    let Some(name) = table.get("package").and_then(|p| p.get("name")).and_then(|n| n.as_str()) else { return };
    let Some(dependencies) = table.get("dependencies").and_then(|d| d.as_table()) else { return };
    let is_ours = |name: &str| name == "umbpd" || name.starts_with("umbp-");
    let allowed = MAY_USE.iter().find(|(own, _)| *own == name).map_or(&OUTSIDE_MAY_USE[..], |(_, allowed)| *allowed);
    for (used, details) in dependencies {
        let line = line_of(text, used);
        if is_ours(used) && !allowed.contains(&used.as_str()) {
            report(line, "direction", format!("{name} must not depend on {used}"));
        }
        if let Some((_, owners)) = ALONE.iter().find(|(alone, owners)| alone == used && !owners.contains(&name)) {
            report(line, "direction", format!("{used} is named by {} alone", owners.join(", ")));
        }
        let has_features = details.get("features").and_then(|f| f.as_array()).is_some_and(|f| !f.is_empty());
        if name == "umbp-client" && used == "umbp-plugin-api" && has_features {
            report(line, "direction", "the client leaves the features of umbp-plugin-api off".to_owned());
        }
    }
}

fn line_of(text: &str, dependency: &str) -> usize {
    text.lines().position(|line| line.starts_with(dependency)).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_dependency_against_the_direction_is_found() {
        let check = |name: &str, dependencies: &str, expected: &[usize]| {
            let text = format!("[package]\nname = \"{name}\"\n[dependencies]\n{dependencies}\n");
            let mut violations = Vec::new();
            super::check("Cargo.toml", &text, &mut violations);
            let lines: Vec<_> = violations.iter().map(|v| v.line).collect();
            assert_eq!(lines, expected, "{name}: {dependencies}");
        };
        check("umbp-protocol", "umbp-connector-core = { workspace = true }", &[]);
        check("umbp-connector-core", "serde = \"1\"\numbp-protocol = { workspace = true }", &[5]);
        check("xtask", "umbp-config = { workspace = true }", &[4]);
        check("umbpd", "abi_stable = { workspace = true }", &[4]);
        check("umbp-client", "umbp-plugin-api = { workspace = true, features = [\"abi\"] }", &[4]);
        check("backend-filesystem", "umbp-plugin-api = { path = \"../x\" }\numbp-config = \"1\"", &[5]);
    }
}
