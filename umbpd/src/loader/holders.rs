//! Which processes keep memory of a daemon that is no more.
//!
//! A dead daemon's segments are charged as long as a client maps them. Clients unmap by themselves soon after they
//! lose the daemon; one that does not is named.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// How the segments' memfds are called in `/proc/<pid>/maps`.
const MARK: &str = "memfd:umbp";
/// The daemon's name in `/proc/<pid>/comm`.
const DAEMON: &str = "umbpd";
/// Most processes that are named.
const HOLDERS_MAX: usize = 8;

/// What one process maps: (inode, bytes of address space) of each mapping of a segment.
type Mappings = Vec<(u64, u64)>;

/// Other processes that map segments of a daemon that is no more, with the bytes of address space, the largest
/// first. Processes that this user may not look into are left out, so a daemon that hides its maps from us does not
/// vouch for its segments.
pub fn holders() -> Vec<(u32, u64)> {
    let own = std::process::id();
    let mut clients: BTreeMap<u32, Mappings> = BTreeMap::new();
    let mut living: BTreeSet<u64> = BTreeSet::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()).filter(|p| *p != own)
        else {
            continue;
        };
        let Ok(maps) = fs::read_to_string(entry.path().join("maps")) else { continue };
        let found = segments_in(&maps);
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if name.trim() == DAEMON {
            living.extend(found.iter().map(|(inode, _)| *inode));
        } else if !found.is_empty() {
            clients.insert(pid, found);
        }
    }
    orphans(&clients, &living)
}

/// Bytes that each client maps of segments that no living daemon has.
fn orphans(clients: &BTreeMap<u32, Mappings>, living: &BTreeSet<u64>) -> Vec<(u32, u64)> {
    let bytes =
        |found: &Mappings| found.iter().filter(|(inode, _)| !living.contains(inode)).map(|(_, bytes)| bytes).sum();
    let all = clients.iter().map(|(pid, found)| (*pid, bytes(found)));
    let mut orphans: Vec<(u32, u64)> = all.filter(|(_, bytes)| *bytes > 0).collect();
    orphans.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    orphans.truncate(HOLDERS_MAX);
    orphans
}

/// For a message; empty where nobody holds anything.
pub fn describe(holders: &[(u32, u64)]) -> String {
    let one = |(pid, bytes): &(u32, u64)| format!("pid {pid} ({} MiB)", bytes >> 20);
    let all: Vec<String> = holders.iter().map(one).collect();
    if all.is_empty() { String::new() } else { format!("; processes that still map segments: {}", all.join(", ")) }
}

fn segments_in(maps: &str) -> Mappings {
    // address range, permissions, offset, device, inode, name
    let mapping = |line: &str| {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let bytes = u64::from_str_radix(end, 16).ok()?.checked_sub(u64::from_str_radix(start, 16).ok()?)?;
        Some((fields.nth(3)?.parse().ok()?, bytes))
    };
    maps.lines().filter(|line| line.contains(MARK)).filter_map(mapping).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mappings_of_segments_count() {
        let maps = "7f00-8f00 rw-s 00000000 00:01 7 /memfd:umbp-dram-0 (deleted)\n\
                    1000-2000 r--p 00000000 00:01 8 /usr/lib/libc.so.6\n\
                    a000-b000 r--s 00000000 00:01 9 /memfd:umbp-dram-1 (deleted)\n";
        assert_eq!(segments_in(maps), [(7, 0x1000), (9, 0x1000)]);
        assert_eq!(describe(&[(7, 3 << 20)]), "; processes that still map segments: pid 7 (3 MiB)");
        assert_eq!(describe(&[]), "");
    }

    #[test]
    fn what_a_living_daemon_maps_too_is_no_orphan() {
        let clients = BTreeMap::from([(5, vec![(7, 10), (8, 20)]), (6, vec![(7, 10)])]);
        assert_eq!(orphans(&clients, &BTreeSet::from([7])), [(5, 20)]);
        assert_eq!(orphans(&clients, &BTreeSet::new()), [(5, 30), (6, 10)]);
    }
}
