//! What the machine lets this process take: cgroup limits, free memory, the longest file.
//!
//! Read before memory is taken, because the kernel answers afterwards with SIGBUS, SIGXFSZ or the OOM killer.

use std::fs;
use std::path::{Component, Path, PathBuf};

use rustix::process::{Resource, getrlimit};

/// cgroup v1 writes a number near 2^63 where there is no limit.
const UNLIMITED_BYTES: u64 = 1 << 60;

/// Where the figures are read from.
#[derive(Clone, Debug)]
pub struct Roots {
    /// Mount of procfs.
    pub proc: PathBuf,
    /// Mount of cgroup v2, or the folder of the v1 mounts.
    pub cgroup: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { proc: "/proc".into(), cgroup: "/sys/fs/cgroup".into() }
    }
}

/// One limit: how much may still be taken, and what an operator turns to get more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bytes that may still be taken.
    pub free: u64,
    /// Who says so, with the figures.
    pub source: String,
    /// What to change, besides the tier's capacity.
    pub knob: String,
}

/// All limits that apply to this process now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// On memory: cgroups, from the process's own to the root, and MemAvailable.
    pub memory: Vec<Limit>,
    /// On the length of one file; a memfd counts as one.
    pub file: Option<Limit>,
}

impl Limits {
    /// Reads the limits of this process.
    pub fn read() -> Self {
        Self { file: file_size(), ..Self::read_from(&Roots::default()) }
    }

    /// Reads the limits on memory below `roots`. What cannot be read does not limit.
    pub fn read_from(roots: &Roots) -> Self {
        let mut memory = cgroups(roots);
        memory.extend(available(&roots.proc));
        Self { memory, file: None }
    }

    /// Whether `needed` bytes of normal pages may be taken; else a sentence with needed, free and the knob.
    pub fn check_memory(&self, what: &str, needed: u64) -> Result<(), String> {
        refuse_beyond(self.memory.iter(), what, needed)
    }

    /// Bytes by which the tightest limit on memory falls short of `needed`.
    pub fn memory_shortage(&self, needed: u64) -> u64 {
        self.memory.iter().map(|limit| needed.saturating_sub(limit.free)).max().unwrap_or(0)
    }

    /// Whether a file of `needed` bytes may be made; else a sentence with needed, free and the knob.
    pub fn check_file(&self, what: &str, needed: u64) -> Result<(), String> {
        refuse_beyond(self.file.iter(), what, needed)
    }
}

fn refuse_beyond<'a>(limits: impl Iterator<Item = &'a Limit>, what: &str, needed: u64) -> Result<(), String> {
    match limits.min_by_key(|limit| limit.free).filter(|limit| needed > limit.free) {
        None => Ok(()),
        Some(Limit { free, source, knob }) => Err(format!(
            "{what} needs {}, but only {} are free ({source}): lower the tier's `capacity`, or {knob}",
            in_words(needed),
            in_words(*free),
        )),
    }
}

fn file_size() -> Option<Limit> {
    let free = getrlimit(Resource::Fsize).current?;
    Some(Limit {
        free,
        source: format!("RLIMIT_FSIZE is {}, and a memfd counts as a file", in_words(free)),
        knob: "raise RLIMIT_FSIZE (`ulimit -f`, LimitFSIZE= of the unit)".to_owned(),
    })
}

fn available(proc: &Path) -> Option<Limit> {
    let text = fs::read_to_string(proc.join("meminfo")).ok()?;
    let free = field(&text, "MemAvailable:")?.checked_mul(1024)?;
    Some(Limit {
        free,
        source: format!("MemAvailable in {}", proc.join("meminfo").display()),
        knob: "free memory on this host".to_owned(),
    })
}

/// Limits of the process's own memory cgroup and of all its parents, of v2 and of v1.
fn cgroups(roots: &Roots) -> Vec<Limit> {
    let text = fs::read_to_string(roots.proc.join("self/cgroup")).unwrap_or_default();
    let mut limits = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let (mount, version) = if controllers.is_empty() {
            (roots.cgroup.clone(), Version::Two)
        } else if controllers.split(',').any(|name| name == "memory") {
            (roots.cgroup.join("memory"), Version::One)
        } else {
            continue;
        };
        // Inside a container the path may be the host's, and the mount shows the container's own group at its root:
        // folders that are not there are passed over, and the root is always asked.
        let relative: PathBuf = Path::new(path).components().filter(|c| matches!(c, Component::Normal(_))).collect();
        limits.extend(relative.ancestors().filter_map(|group| limit_of(&mount.join(group), version)));
    }
    limits
}

#[derive(Clone, Copy)]
enum Version {
    One,
    Two,
}

fn limit_of(group: &Path, version: Version) -> Option<Limit> {
    let (limit, usage, cold) = match version {
        Version::Two => ("memory.max", "memory.current", ["active_file ", "inactive_file "]),
        Version::One => {
            ("memory.limit_in_bytes", "memory.usage_in_bytes", ["total_active_file ", "total_inactive_file "])
        }
    };
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    // "max" is no number, and so no limit.
    let most = number(limit).filter(|most| *most < UNLIMITED_BYTES)?;
    let used = number(usage).unwrap_or(0);
    // Cached file contents are charged to the group, but given up for the asking.
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let reclaimable: u64 = cold.iter().filter_map(|name| field(&stat, name)).sum();
    let knob = group.join(limit);
    Some(Limit {
        free: most.saturating_sub(used.saturating_sub(reclaimable)),
        source: format!("{} is {}", knob.display(), in_words(most)),
        knob: format!("raise {limit} (MemoryMax= of the unit, the container's memory limit)"),
    })
}

/// The first number of the line that begins with `name`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

/// Bytes, as a person reads them, with the exact number for one who compares.
pub fn in_words(bytes: u64) -> String {
    if bytes < 1 << 10 { format!("{bytes} bytes") } else { format!("{} ({bytes} bytes)", rounded(bytes)) }
}

/// Bytes, as a person reads them.
pub fn rounded(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    for (size, unit) in UNITS {
        if bytes >= size {
            #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
            return format!("{:.1} {unit}", bytes as f64 / size as f64);
        }
    }
    format!("{bytes} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Roots) {
        let folder = tempfile::tempdir().expect("a folder for the machine's files");
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("below the folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        let roots = Roots { proc: folder.path().join("proc"), cgroup: folder.path().join("cgroup") };
        (folder, roots)
    }

    /// F6, F7: each limit refuses what is beyond it, names needed, free and the knob, and lets pass what is not.
    fn check(files: &[(&str, &str)], free: u64, knob: &str) {
        let (_folder, roots) = machine(files);
        let limits = Limits::read_from(&roots);
        limits.check_memory("tier `dram`", free).expect("all that is free may be taken");
        let message = limits.check_memory("tier `dram`", free + 1).expect_err("one byte more may not");
        for words in ["tier `dram`", &in_words(free + 1), &in_words(free), "`capacity`", knob] {
            assert!(message.contains(words), "`{words}` is missing in: {message}");
        }
    }

    #[test]
    fn mem_available_limits() {
        check(
            &[("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    2048 kB\n"), ("proc/self/cgroup", "0::/\n")],
            2 * MIB,
            "MemAvailable",
        );
    }

    /// F6: a cgroup's limit.
    #[test]
    fn the_own_group_of_v2_limits_less_what_is_used_and_cannot_be_reclaimed() {
        check(
            &[
                ("proc/meminfo", "MemAvailable: 999999999 kB\n"),
                ("proc/self/cgroup", "0::/system.slice/umbpd.service\n"),
                ("cgroup/system.slice/umbpd.service/memory.max", "104857600\n"),
                ("cgroup/system.slice/umbpd.service/memory.current", "41943040\n"),
                (
                    "cgroup/system.slice/umbpd.service/memory.stat",
                    "anon 1\nactive_file 1048576\ninactive_file 9437184\n",
                ),
            ],
            70 * MIB,
            "umbpd.service/memory.max",
        );
    }

    #[test]
    fn a_parent_of_v2_limits_where_the_own_group_does_not() {
        check(
            &[
                ("proc/self/cgroup", "0::/a/b\n"),
                ("cgroup/a/b/memory.max", "max\n"),
                ("cgroup/a/memory.max", "8388608\n"),
                ("cgroup/a/memory.current", "4194304\n"),
            ],
            4 * MIB,
            "cgroup/a/memory.max",
        );
    }

    #[test]
    fn a_group_of_v1_limits_and_its_unlimited_parent_does_not() {
        check(
            &[
                ("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/pod/one\n0::/\n"),
                ("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("cgroup/memory/pod/one/memory.limit_in_bytes", "6291456\n"),
                ("cgroup/memory/pod/one/memory.usage_in_bytes", "2097152\n"),
                ("cgroup/memory/pod/one/memory.stat", "total_inactive_file 1048576\ninactive_file 7\n"),
            ],
            5 * MIB,
            "memory.limit_in_bytes",
        );
    }

    #[test]
    fn a_container_that_sees_its_own_group_as_the_root_is_limited_by_it() {
        check(
            &[("proc/self/cgroup", "0::/docker/of-the-host\n"), ("cgroup/memory.max", "3145728\n")],
            3 * MIB,
            "memory.max",
        );
    }

    #[test]
    fn nothing_readable_limits_nothing() {
        let (_folder, roots) = machine(&[]);
        assert_eq!(Limits::read_from(&roots), Limits::default());
        Limits::default().check_memory("tier", u64::MAX).expect("no limit");
    }

    #[test]
    fn this_machine_says_what_is_free() {
        let limits = Limits::read();
        let free = limits.memory.iter().map(|limit| limit.free).min().expect("MemAvailable at least");
        assert!(free > 0);
        limits.check_memory("tier", free + (1 << 50)).expect_err("a pebibyte more than is free");
    }
}
