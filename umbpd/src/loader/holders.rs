//! Which processes keep memory of a daemon that is no more.
//!
//! A dead daemon's segments are charged as long as a client maps them. Clients unmap by themselves soon after they
//! lose the daemon; one that does not is named.

use std::collections::BTreeMap;
use std::fs;

/// How the segments' memfds are called in `/proc/<pid>/maps`.
const MARK: &str = "memfd:umbp";
/// Most processes that are named.
const HOLDERS_MAX: usize = 8;

/// Other processes that map memory of a umbp daemon, with the bytes of address space, the largest first. Processes
/// that this user may not look into are left out.
pub fn holders() -> Vec<(u32, u64)> {
    let own = std::process::id();
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()).filter(|p| *p != own)
        else {
            continue;
        };
        let Ok(maps) = fs::read_to_string(entry.path().join("maps")) else { continue };
        let bytes = mapped_bytes(&maps);
        if bytes > 0 {
            found.insert(pid, bytes);
        }
    }
    let mut found: Vec<(u32, u64)> = found.into_iter().collect();
    found.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    found.truncate(HOLDERS_MAX);
    found
}

/// For a message; empty where nobody holds anything.
pub fn describe(holders: &[(u32, u64)]) -> String {
    let one = |(pid, bytes): &(u32, u64)| format!("pid {pid} ({} MiB)", bytes >> 20);
    let all: Vec<String> = holders.iter().map(one).collect();
    if all.is_empty() { String::new() } else { format!("; processes that still map segments: {}", all.join(", ")) }
}

fn mapped_bytes(maps: &str) -> u64 {
    let length = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        u64::from_str_radix(end, 16).ok()?.checked_sub(u64::from_str_radix(start, 16).ok()?)
    };
    maps.lines().filter(|line| line.contains(MARK)).filter_map(length).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mappings_of_segments_count() {
        let maps = "7f00-8f00 rw-s 00000000 00:01 7 /memfd:umbp-dram-0 (deleted)\n\
                    1000-2000 r--p 00000000 00:01 8 /usr/lib/libc.so.6\n\
                    a000-b000 r--s 00000000 00:01 9 /memfd:umbp-dram-1 (deleted)\n";
        assert_eq!(mapped_bytes(maps), 0x1000 + 0x1000);
        assert_eq!(describe(&[(7, 3 << 20)]), "; processes that still map segments: pid 7 (3 MiB)");
        assert_eq!(describe(&[]), "");
    }
}
