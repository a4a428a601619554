//! `fuzz`: runs the fuzz harness, a program of the workspace's own on stable Rust.

use crate::shell::{self, Result};

/// Builds the harness and runs it for a number of seconds.
pub(crate) fn fuzz(seconds: u64, seed: Option<u64>, target: Option<&str>) -> Result {
    let mut command = shell::cargo();
    command.args(["run", "--quiet", "--package", "umbp-fuzz", "--", "--seconds", &seconds.to_string()]);
    if let Some(seed) = seed {
        command.args(["--seed", &seed.to_string()]);
    }
    if let Some(target) = target {
        command.args(["--target", target]);
    }
    shell::run(&mut command)
}
