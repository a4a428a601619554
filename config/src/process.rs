//! The facts of the process and its host, for those who do not bring their own.

use std::path::{Component, Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use crate::check::Source;
use crate::defaults::HostFacts;

/// cgroup v1 writes a number near 2^63 where there is no limit.
const UNLIMITED_BYTES: u64 = 1 << 60;

impl Source {
    /// The process's own environment and host. Variables that are not UTF-8 are left out.
    pub fn of_process(file: Option<PathBuf>, socket: Option<String>) -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self { file, variables: std::env::vars_os().filter_map(text).collect(), socket, host: host_facts() }
    }
}

/// Own user, and the memory that can be had: the least of MemAvailable, what the cgroups leave, and the longest file,
/// since a segment of memory counts as one.
pub fn host_facts() -> HostFacts {
    let memory = memory_available(Path::new("/proc"), Path::new("/sys/fs/cgroup"));
    let file = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    HostFacts { uid: rustix::process::getuid().as_raw(), memory_available: memory.min(file) }
}

/// Memory that this process can have, as the dram backend reckons it before it takes any: the least of MemAvailable and
/// what its cgroup and all parents leave, of v2 and of v1. Zero where MemAvailable cannot be read. `cgroup` is the mount
/// of v2, or the folder of the v1 mounts.
pub fn memory_available(proc: &Path, cgroup: &Path) -> u64 {
    let text = |name: &str| std::fs::read_to_string(proc.join(name)).unwrap_or_default();
    let memory = field(&text("meminfo"), "MemAvailable:").and_then(|kilobytes| kilobytes.checked_mul(1024));
    memory.unwrap_or(0).min(cgroups_leave(cgroup, &text("self/cgroup")))
}

/// The files of a cgroup's memory, and the lines of `memory.stat` on cached file contents.
struct Names {
    most: &'static str,
    used: &'static str,
    cold: [&'static str; 2],
}

const V1: Names = Names {
    most: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cold: ["total_active_file ", "total_inactive_file "],
};
const V2: Names = Names { most: "memory.max", used: "memory.current", cold: ["active_file ", "inactive_file "] };

/// The least that the groups of `own` (the text of `/proc/self/cgroup`) leave; `u64::MAX` where none has a limit.
fn cgroups_leave(root: &Path, own: &str) -> u64 {
    let mut least = u64::MAX;
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (mount, names) = match controllers {
            "" => (root.to_owned(), V2),
            _ if controllers.split(',').any(|name| name == "memory") => (root.join("memory"), V1),
            _ => continue,
        };
        // In a container the path may be the host's while the mount shows the own group at its root: folders that are
        // not there have no limit, and the root is always asked.
        let path: PathBuf = Path::new(path).components().filter(|part| matches!(part, Component::Normal(_))).collect();
        let left = path.ancestors().filter_map(|group| group_leaves(&mount.join(group), &names));
        least = left.fold(least, u64::min);
    }
    least
}

fn group_leaves(group: &Path, names: &Names) -> Option<u64> {
    let text = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
    // "max" is no number.
    let most = number(names.most).filter(|most| *most < UNLIMITED_BYTES)?;
    // Cached file contents are charged to the group, but given up for the asking.
    let stat = text("memory.stat").unwrap_or_default();
    let cold: u64 = names.cold.iter().filter_map(|name| field(&stat, name)).sum();
    let used = number(names.used).unwrap_or(0).saturating_sub(cold);
    Some(most.saturating_sub(used))
}

/// The first number of the line that begins with `name`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}
