//! `check`: everything but the tests. Each part runs even if an earlier one failed.

use crate::shell::{self, Result};
use crate::tidy;

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
    shell::run(shell::cargo().args(["fmt", "--all", "--check"]))
}

fn clippy() -> Result {
    shell::run(shell::cargo().args(["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]))
}

fn docs() -> Result {
    let mut command = shell::cargo();
    command.args(["doc", "--workspace", "--no-deps", "--document-private-items", "--quiet"]);
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
