//! The facts of the process and its host, for those who do not bring their own.

use std::path::{Path, PathBuf};

use crate::check::Source;
use crate::defaults::HostFacts;

impl Source {
    /// The process's own environment and host. Variables that are not UTF-8 are left out.
    pub fn of_process(file: Option<PathBuf>, socket: Option<String>) -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self { file, variables: std::env::vars_os().filter_map(text).collect(), socket, host: host_facts() }
    }
}

/// Own user and available memory: MemAvailable, or what the cgroup (v2) leaves, if that is less.
pub fn host_facts() -> HostFacts {
    let memory = mem_available(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default());
    let group = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let left = cgroup_left(Path::new("/sys/fs/cgroup"), &group);
    HostFacts { uid: rustix::process::getuid().as_raw(), memory_available: memory.unwrap_or(0).min(left) }
}

/// `MemAvailable:   123 kB`, in bytes.
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The least that this cgroup and its ancestors leave below `memory.max`; `u64::MAX` where none sets one.
fn cgroup_left(root: &Path, own: &str) -> u64 {
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::/")) else { return u64::MAX };
    let number =
        |folder: &Path, file: &str| std::fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
    let own = root.join(path);
    let folders = own.ancestors().take_while(|folder| folder.starts_with(root));
    let left = folders.filter_map(|folder| {
        let used = number(folder, "memory.current").unwrap_or(0);
        number(folder, "memory.max").map(|most| most.saturating_sub(used))
    });
    left.min().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_available_is_read_in_bytes() {
        assert_eq!(mem_available("MemTotal: 9 kB\nMemAvailable:   123 kB\n"), Some(125_952));
        assert_eq!(mem_available("nothing"), None);
    }

    #[test]
    fn the_tightest_cgroup_of_the_chain_counts() {
        let root = tempfile::tempdir().unwrap();
        let leaf = root.path().join("a/b");
        std::fs::create_dir_all(&leaf).unwrap();
        std::fs::write(leaf.join("memory.max"), "max\n").unwrap();
        std::fs::write(root.path().join("a/memory.max"), "1000\n").unwrap();
        std::fs::write(root.path().join("a/memory.current"), "400\n").unwrap();
        assert_eq!(cgroup_left(root.path(), "0::/a/b\n"), 600);
        assert_eq!(cgroup_left(root.path(), "1:cpu:/a\n"), u64::MAX);
    }
}
