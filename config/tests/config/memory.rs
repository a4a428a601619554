//! The embedded default and the dram backend reckon free memory by themselves, on either side of the plugin API. Where
//! they differed, the default would be a size that the backend refuses.

use std::fs;

use umbp_backend_dram::limits::{Limits, Roots};
use umbp_config::{Config, memory_available};

use crate::common::source;

const MIB: u64 = 1 << 20;

/// On a machine with these files this much can be had, says the config; the backend grants that and no byte more, and
/// the embedded default with it.
fn check(free: u64, files: &[(&str, &str)]) {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let roots = Roots { proc: folder.path().join("proc"), cgroup: folder.path().join("cgroup") };
    let available = memory_available(&roots.proc, &roots.cgroup);
    assert_eq!(available, free, "{files:?}");
    let limits = Limits::read_from(&roots);
    limits.check_memory("tier `dram`", available).unwrap();
    limits.check_memory("tier `dram`", available + 1).unwrap_err();
    let mut source = source();
    source.host.memory_available = available;
    let config = Config::load(&source).unwrap();
    limits.check_memory("tier `dram`", *config.tiers[0].capacity).unwrap();
}

const PLENTY: (&str, &str) = ("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:   1048576 kB\n");

#[test]
fn available_memory_limits() {
    check(1024 * MIB, &[PLENTY, ("proc/self/cgroup", "0::/\n")]);
}

#[test]
fn every_group_of_v2_limits_and_cached_files_are_free() {
    check(
        70 * MIB,
        &[
            PLENTY,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("cgroup/a/b/memory.max", "max\n"),
            ("cgroup/a/memory.max", "104857600\n"),
            ("cgroup/a/memory.current", "41943040\n"),
            ("cgroup/a/memory.stat", "anon 1\nactive_file 1048576\ninactive_file 9437184\n"),
        ],
    );
}

#[test]
fn a_group_of_v1_limits_and_its_unlimited_parent_does_not() {
    check(
        50 * MIB,
        &[
            PLENTY,
            ("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/pod/one\n0::/\n"),
            ("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("cgroup/memory/pod/one/memory.limit_in_bytes", "62914560\n"),
            ("cgroup/memory/pod/one/memory.usage_in_bytes", "20971520\n"),
            ("cgroup/memory/pod/one/memory.stat", "total_inactive_file 10485760\ninactive_file 7\n"),
        ],
    );
}

#[test]
fn a_container_that_sees_its_own_group_as_the_root_is_limited_by_it() {
    check(32 * MIB, &[PLENTY, ("proc/self/cgroup", "0::/docker/of-the-host\n"), ("cgroup/memory.max", "33554432\n")]);
    let v1 = "6:memory:/docker/of-the-host\n";
    check(32 * MIB, &[PLENTY, ("proc/self/cgroup", v1), ("cgroup/memory/memory.limit_in_bytes", "33554432\n")]);
}

/// Figures that cannot be read: the smallest default, and a backend that does not know of a limit either.
#[test]
fn nothing_readable_is_no_memory_that_is_known_of() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(memory_available(folder.path(), folder.path()), 0);
    let facts = umbp_config::host_facts();
    assert!(facts.memory_available > 0, "this machine says what is free");
}
