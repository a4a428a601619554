//! `test`: the shared objects that tests open, then all tests, then one line that sums them up.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::artifacts::{self, Artifacts};
use crate::shell::{self, Result};

/// Plugins built outside the workspace, as third parties would. Their lock files are their own.
pub(crate) const OUTSIDE: [&str; 1] = ["examples/backend-filesystem"];
/// Tests of one run that pass, fail, or are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Those that passed.
    pub(crate) passed: u64,
    /// Those that failed, or were ended.
    pub(crate) failed: u64,
    /// Those left out.
    pub(crate) ignored: u64,
}

/// Builds everything, gathers the shared objects in one folder, and runs the tests with `UMBP_TEST_PLUGINS` naming
/// it and `UMBP_TEST_BIN` the folder of the programs. Needs no root, no network (once fetched) and no GPU.
pub(crate) fn test(filters: &[String]) -> Result {
    let start = Instant::now();
    let target = shell::target()?;
    let made = artifacts::build(&["--workspace", "--lib", "--bins", "--tests", "--examples"])?;
    let programs = folder_of_programs(&made)?;
    let plugins = target.join("test-plugins");
    // What a branch no longer builds must not be found.
    let _ = std::fs::remove_dir_all(&plugins);
    artifacts::install(&made.shared_objects, &plugins)?;
    artifacts::install(&build_outside(&target)?, &plugins)?;
    let mut commands = vec![runner(filters)];
    if filters.is_empty() && shell::has_subcommand("nextest") {
        let mut doc = shell::cargo();
        doc.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
        commands.push(doc);
    }
    let (mut tally, mut first_error) = (Tally::default(), None);
    for command in &mut commands {
        command.env("UMBP_TEST_PLUGINS", &plugins).env("UMBP_TEST_BIN", &programs);
        let (counted, ended) = run_counting(command)?;
        tally = tally.plus(counted);
        first_error = first_error.or(ended.err());
    }
    let ok = first_error.is_none() && tally.failed == 0;
    if ok && tally.passed == 0 {
        first_error = Some(format!("no test ran; the filter was {filters:?}"));
    }
    println!("{}", tally.line(ok, start.elapsed().as_secs_f64()));
    first_error.map_or(Ok(()), Err)
}

/// The folder of umbpd and umbp, which tests of other crates start.
pub(crate) fn folder_of_programs(made: &Artifacts) -> Result<PathBuf> {
    let umbpd = made.programs.iter().find(|p| p.ends_with("umbpd")).ok_or("the build made no umbpd")?;
    Ok(umbpd.parent().unwrap_or(umbpd).to_path_buf())
}

/// Builds plugins outside the workspace: release mode and folders of their own, so that layouts that depend on the
/// profile or on unified features would show.
fn build_outside(target: &std::path::Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for folder in OUTSIDE {
        let manifest = shell::root().join(folder).join("Cargo.toml").display().to_string();
        let own = target.join("outside").join(folder.replace('/', "-")).display().to_string();
        let arguments = ["--release", "--manifest-path", &manifest, "--target-dir", &own];
        files.extend(artifacts::build(&arguments)?.shared_objects);
    }
    Ok(files)
}

/// cargo-nextest where it is installed (a process for each test, and a hung one is ended), else cargo test.
fn runner(filters: &[String]) -> Command {
    let mut command = shell::cargo();
    if shell::has_subcommand("nextest") {
        command.args(["nextest", "run", "--workspace", "--no-fail-fast", "--status-level", "pass"]);
        command.args(["--final-status-level", "slow", "--no-tests", "pass"]).args(filters);
    } else {
        command.args(["test", "--workspace", "--no-fail-fast", "--"]).args(filters);
    }
    command
}

/// Runs, passes both streams on, and adds up the result lines.
pub(crate) fn run_counting(command: &mut Command) -> Result<(Tally, Result)> {
    let line = shell::line(command);
    shell::say(&line);
    let context = |e: std::io::Error| format!("run `{line}`: {e}");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(context)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let errors = std::thread::spawn(move || stderr.map_or(Tally::default(), |s| pass_on(s, |l| eprintln!("{l}"))));
    let tally = stdout.map_or(Tally::default(), |s| pass_on(s, |l| println!("{l}")));
    let tally = tally.plus(errors.join().map_err(|_| format!("the reader of `{line}` panicked"))?);
    let status = child.wait().map_err(context)?;
    let ended = if status.success() { Ok(()) } else { Err(format!("`{line}` failed ({status})")) };
    Ok((tally, ended))
}

fn pass_on(stream: impl std::io::Read, print: impl Fn(&str)) -> Tally {
    let mut tally = Tally::default();
    let mut reader = BufReader::new(stream);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
        let line = String::from_utf8_lossy(&bytes);
        let line = line.trim_end_matches('\n');
        match Tally::read(line) {
            // Summed up in the last line; a reader that adds all result lines must not count these twice.
            Some(_) if line.starts_with("test result:") => {}
            _ => print(line),
        }
        tally = tally.plus(Tally::read(line).unwrap_or_default());
        bytes.clear();
    }
    tally
}

impl Tally {
    /// The sum.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            ignored: self.ignored + other.ignored,
        }
    }

    /// Reads a result line of cargo test (`test result: ok. 3 passed; ...`) or of nextest (`Summary [...] ...`).
    fn read(line: &str) -> Option<Self> {
        // nextest indents its own line, and what a failed test printed: there a "test result" is that test's own.
        if !line.starts_with("test result:") && !line.trim_start().starts_with("Summary [") {
            return None;
        }
        let words: Vec<&str> = line.split([' ', ',', ';', '(', ')']).filter(|w| !w.is_empty()).collect();
        let count = |names: &[&str]| -> u64 {
            let pairs = words.windows(2).filter(|pair| names.contains(&pair[1]));
            pairs.filter_map(|pair| pair[0].parse::<u64>().ok()).sum()
        };
        Some(Self {
            passed: count(&["passed"]),
            failed: count(&["failed"]) + count(&["timed"]),
            ignored: count(&["ignored", "skipped"]),
        })
    }

    /// The line that test runners know.
    pub(crate) fn line(self, ok: bool, seconds: f64) -> String {
        let word = if ok { "ok" } else { "FAILED" };
        let Self { passed, failed, ignored } = self;
        format!(
            "test result: {word}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; 0 filtered out; \
             finished in {seconds:.2}s"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_of_both_runners_are_read() {
        let check = |line: &str, passed, failed, ignored| {
            assert_eq!(Tally::read(line), Some(Tally { passed, failed, ignored }), "{line}");
        };
        check("test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.0s", 5, 0, 1);
        check("test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 9 filtered out", 2, 3, 0);
        check("     Summary [   0.005s] 3 tests run: 3 passed, 0 skipped", 3, 0, 0);
        check("     Summary [   2.1s] 8 tests run: 5 passed (1 slow), 2 failed, 1 timed out, 4 skipped", 5, 3, 4);
        assert_eq!(Tally::read("test a::b ... ok"), None);
        assert_eq!(Tally::read("    test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured"), None);
    }

    #[test]
    fn the_sum_reads_back_as_itself() {
        let tally = Tally { passed: 12, failed: 1, ignored: 2 };
        assert_eq!(Tally::read(&tally.line(false, 1.5)), Some(tally));
    }
}
