//! Where pages come from: `mbind` on a fresh mapping, before its first touch.

use std::io;
use std::path::Path;

use crate::options::Numa;

/// Most nodes of a machine that Linux supports on any architecture.
pub const MAX_NODES: u32 = 1024;

const MASK_WORDS: usize = MAX_NODES as usize / 64;

/// Folder of the nodes.
const NODES: &str = "/sys/devices/system/node";

/// A placement that is ready for `mbind`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    mode: libc::c_int,
    mask: [u64; MASK_WORDS],
}

impl Placement {
    /// The placement that the options ask for; `None` where they ask for none, an error naming a node that is not
    /// there.
    pub fn resolve(numa: Numa) -> Result<Option<Self>, String> {
        Self::resolve_from(numa, Path::new(NODES))
    }

    fn resolve_from(numa: Numa, folder: &Path) -> Result<Option<Self>, String> {
        let mode = match numa {
            Numa::None => return Ok(None),
            Numa::Interleave => libc::MPOL_INTERLEAVE,
            // Preferred, not bound: a node that runs full is slower elsewhere; bound, the OOM killer would come.
            Numa::Node(_) => libc::MPOL_PREFERRED,
        };
        let listed = std::fs::read_to_string(folder.join("has_memory")).unwrap_or_else(|_| "0".to_owned());
        let mut mask = parse_list(&listed).ok_or_else(|| format!("{NODES}/has_memory reads {listed:?}"))?;
        if let Numa::Node(node) = numa {
            let (word, bit) = (node as usize / 64, 1_u64 << (node % 64));
            if mask[word] & bit == 0 {
                let listed = listed.trim();
                return Err(format!(
                    "numa = {node}: this machine has memory on nodes {listed} only; choose one of them"
                ));
            }
            mask = [0; MASK_WORDS];
            mask[word] = bit;
        }
        Ok(Some(Self { mode, mask }))
    }

    /// Applies it to the mapping at `address`, which nobody has touched yet.
    pub fn apply(&self, address: usize, length: usize) -> io::Result<()> {
        let no_flags: libc::c_ulong = 0;
        // SAFETY: mbind reads `MAX_NODES` bits of the mask, which lives here, and writes no memory of ours: it sets
        // the policy of pages in a range whose contents nobody relies on yet.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                address,
                length,
                libc::c_long::from(self.mode),
                self.mask.as_ptr(),
                // The kernel takes one bit less than it is told.
                libc::c_ulong::from(MAX_NODES) + 1,
                no_flags,
            )
        };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Reads a list such as `0-1,3`.
fn parse_list(text: &str) -> Option<[u64; MASK_WORDS]> {
    let mut mask = [0; MASK_WORDS];
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        if last >= MAX_NODES {
            return None;
        }
        for node in first..=last {
            mask[node as usize / 64] |= 1 << (node % 64);
        }
    }
    Some(mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(numa: Numa, listed: &str) -> Result<Option<Placement>, String> {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("has_memory"), listed).expect("a list of nodes");
        Placement::resolve_from(numa, folder.path())
    }

    #[test]
    fn a_list_of_nodes_becomes_a_mask() {
        let placement = check(Numa::Interleave, "0-1,3,64\n").expect("a list").expect("a placement");
        assert_eq!(placement.mask[..2], [0b1011, 1]);
        assert_eq!(check(Numa::Node(3), "0-1,3\n").expect("there").expect("a placement").mask[0], 0b1000);
        assert_eq!(check(Numa::None, "0\n"), Ok(None));
    }

    #[test]
    fn a_node_without_memory_is_named_with_those_that_have_some() {
        let message = check(Numa::Node(2), "0-1\n").expect_err("no such node");
        assert!(message.contains("numa = 2") && message.contains("0-1"), "{message}");
        check(Numa::Interleave, "0-5000\n").expect_err("more nodes than there can be");
    }
}
