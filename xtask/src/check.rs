//! `check`: everything but the tests. Each part runs even if an earlier one failed.

use crate::shell::{self, Result};
use crate::{test, tidy};

/// Format, clippy, tidy, docs, deny.
pub(crate) fn check() -> Result {
    let parts = [
        ("format", format as fn() -> Result),
        ("clippy", clippy),
        ("tidy", tidy::tidy),
        ("docs", docs),
        ("deny", deny),
    ];
    let mut failed = Vec::new();
    for (name, part) in parts {
        if let Err(message) = part() {
            shell::say(&message);
            failed.push(name);
        }
    }
    if failed.is_empty() {
        shell::say("check: all well");
        return Ok(());
    }
    Err(format!("check failed: {}", failed.join(", ")))
}

fn format() -> Result {
    let own = shell::run(shell::cargo().args(["fmt", "--all", "--check"]));
    outside_manifests().iter().fold(own, |before, manifest| {
        before.and(shell::run(shell::cargo().args(["fmt", "--check", "--manifest-path", manifest])))
    })
}

fn clippy() -> Result {
    const DENY: [&str; 5] = ["--all-targets", "--quiet", "--", "-D", "warnings"];
    shell::run(shell::cargo().args(["clippy", "--workspace"]).args(DENY))?;
    let target = shell::target()?;
    outside_manifests().iter().try_for_each(|manifest| {
        let own = target.join("outside/check").display().to_string();
        shell::run(shell::cargo().args(["clippy", "--manifest-path", manifest, "--target-dir", &own]).args(DENY))
    })
}

/// Crates outside the workspace, which its own commands pass over.
fn outside_manifests() -> Vec<String> {
    let paths = test::OUTSIDE.iter().map(|folder| format!("{folder}/Cargo.toml"));
    paths.filter(|manifest| shell::root().join(manifest).exists()).collect()
}

fn docs() -> Result {
    let mut command = shell::cargo();
    command.args(["doc", "--workspace", "--no-deps", "--document-private-items", "--keep-going", "--quiet"]);
    shell::run(command.env("RUSTDOCFLAGS", "-D warnings"))
}

/// Bans, licenses and sources. Advisories need the network's database and are looked at by hand.
fn deny() -> Result {
    if !shell::has_subcommand("deny") {
        shell::say(
            "cargo-deny is not installed: bans, licenses and sources are not checked (cargo install cargo-deny)",
        );
        return Ok(());
    }
    shell::run(shell::cargo().args(["deny", "--offline", "check", "bans", "licenses", "sources"]))
}
