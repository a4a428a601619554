//! Who still maps the memory of a daemon that is gone.
//!
//! A memfd lives as long as a process maps it, and so long it is charged: a daemon that restarts may find its own
//! former pool in its way, until the clients have noticed and unmapped.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::limits::rounded;

/// Longest wait for clients of an earlier daemon to unmap.
pub const UNMAP_WAIT_MS: u64 = 1_500;

/// Between two looks at what is mapped, which nobody signals.
const LOOK_AGAIN_MS: u64 = 20;

/// Most holders that a message names.
const NAMED_MAX: usize = 5;

/// How a mapping of a pool's segment is listed.
const MAPPED_AS: &str = "/memfd:umbp-";

/// The daemon's name in `/proc/<pid>/comm`. What a living daemon maps is its pool, and in nobody's way.
const DAEMON: &str = "umbpd";

/// A process that maps segments of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Process id.
    pub pid: u32,
    /// Name of its program.
    pub name: String,
    /// Bytes of segments that it maps.
    pub bytes: u64,
}

/// Other processes that map segments of a daemon that is no more, as far as this process may look: a daemon of
/// another user, or one that hides its maps from this one, does not vouch for its segments.
pub fn holders(proc: &Path) -> Vec<Holder> {
    let own = std::process::id();
    let processes = std::fs::read_dir(proc).into_iter().flatten().flatten();
    let (mut living, mut clients) = (BTreeSet::new(), Vec::new());
    for entry in processes {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()).filter(|pid| *pid != own);
        let Some(pid) = pid else { continue };
        let Ok(maps) = std::fs::read_to_string(entry.path().join("maps")) else { continue };
        let segments = segments_in(&maps);
        let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default().trim().to_owned();
        if name == DAEMON {
            living.extend(segments.iter().map(|(inode, _)| *inode));
        } else if !segments.is_empty() {
            clients.push((pid, name, segments));
        }
    }
    let orphaned = |segments: &[(u64, u64)]| {
        segments.iter().filter(|(inode, _)| !living.contains(inode)).map(|(_, bytes)| bytes).sum::<u64>()
    };
    let all = clients.into_iter().map(|(pid, name, segments)| Holder { pid, name, bytes: orphaned(&segments) });
    let mut found: Vec<Holder> = all.filter(|holder| holder.bytes > 0).collect();
    found.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    found
}

/// Inode, and bytes of address space, of each mapping of a segment in the text of a `maps` file.
fn segments_in(maps: &str) -> Vec<(u64, u64)> {
    // address range, permissions, offset, device, inode, name
    let mapping = |line: &str| {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let bytes = u64::from_str_radix(end, 16).ok()?.checked_sub(u64::from_str_radix(start, 16).ok()?)?;
        Some((fields.nth(3)?.parse().ok()?, bytes))
    };
    maps.lines().filter(|line| line.contains(MAPPED_AS)).filter_map(mapping).collect()
}

/// Waits until nothing is short any more, as long as others map enough to make up for what is. Answers who still does
/// when the wait is over; nothing where waiting helped, or could not.
pub fn wait_for_unmap(proc: &Path, wait: Duration, shortage: impl Fn() -> u64) -> Option<String> {
    let deadline = Instant::now() + wait;
    loop {
        let short = shortage();
        let held = holders(proc);
        if short == 0 || held.iter().map(|holder| holder.bytes).sum::<u64>() < short {
            return None;
        }
        if Instant::now() >= deadline {
            return Some(named(&held));
        }
        std::thread::park_timeout(Duration::from_millis(LOOK_AGAIN_MS));
    }
}

fn named(held: &[Holder]) -> String {
    let words = held.iter().take(NAMED_MAX).map(|h| format!("process {} ({}, {})", h.pid, h.name, rounded(h.bytes)));
    let mut words: Vec<String> = words.collect();
    if held.len() > NAMED_MAX {
        words.push(format!("{} more", held.len() - NAMED_MAX));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::fs;

    const MAPS: &str = "7f0000000000-7f0000400000 rw-s 00000000 00:01 5  /memfd:umbp-dram-1 (deleted)\n\
                        7f0000400000-7f0000500000 rw-s 00000000 00:01 5  /memfd:other (deleted)\n\
                        7f0000500000-7f0000600000 r--s 00000000 00:01 6  /memfd:umbp-dram-2 (deleted)\n";

    fn machine(maps: &str) -> tempfile::TempDir {
        let proc = tempfile::tempdir().expect("a folder for the processes");
        for (pid, maps) in [("4000000", maps), ("4000001", "7f00-7f01 r--p 0 0 0 /bin/x\n"), ("self", maps)] {
            fs::create_dir(proc.path().join(pid)).expect("a process");
            fs::write(proc.path().join(pid).join("maps"), maps).expect("its maps");
            fs::write(proc.path().join(pid).join("comm"), "engine\n").expect("its name");
        }
        proc
    }

    /// The shortage at each look, the last one for ever; how many looks it took, and the words of the answer.
    fn check(maps: &str, wait: Duration, shortages: &[u64], looks: usize, words: Option<&str>) {
        let proc = machine(maps);
        let taken = Cell::new(0);
        let shortage = || {
            let at = taken.replace(taken.get() + 1);
            shortages[at.min(shortages.len() - 1)]
        };
        let answer = wait_for_unmap(proc.path(), wait, shortage);
        assert_eq!(answer.as_deref(), words);
        assert_eq!(taken.get(), looks);
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn who_maps_segments_is_named_with_the_bytes_when_the_wait_is_over() {
        let words = "process 4000000 (engine, 5.0 MiB)";
        check(MAPS, Duration::ZERO, &[5 << 20], 1, Some(words));
    }

    #[test]
    fn nobody_waits_where_nothing_is_short_or_too_little_is_mapped() {
        check(MAPS, LONG, &[0], 1, None);
        check("", LONG, &[1], 1, None);
        check(MAPS, LONG, &[(5 << 20) + 1], 1, None);
    }

    #[test]
    fn what_a_living_daemon_maps_is_in_nobodys_way() {
        let proc = machine(MAPS);
        let daemon = proc.path().join("4000002");
        fs::create_dir(&daemon).expect("a process");
        fs::write(daemon.join("maps"), MAPS.lines().next().expect("a segment")).expect("its maps");
        fs::write(daemon.join("comm"), "umbpd\n").expect("its name");
        let found = holders(proc.path());
        assert_eq!(found, [Holder { pid: 4_000_000, name: "engine".to_owned(), bytes: 1 << 20 }]);
    }

    #[test]
    fn the_wait_ends_when_nothing_is_short_any_more() {
        check(MAPS, LONG, &[4096, 4096, 0], 3, None);
    }
}
