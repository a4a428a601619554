//! Which resident blocks no prompt can reach.

use std::collections::{HashMap, HashSet};

use crate::replay::report::ratio;
use crate::replay::tiers::{ChainBlock, chain};
use crate::replay::trace::Request;

/// Every block of the requests once, with its parent; a parent stands before its children.
pub(crate) fn unique_blocks(requests: &[Request]) -> Vec<ChainBlock> {
    let mut seen = HashSet::new();
    requests.iter().flat_map(|request| chain(&request.ids)).filter(|block| seen.insert(block.id)).collect()
}

/// Share of the resident blocks with an ancestor that is not resident.
pub(crate) fn orphan_share(blocks: &[ChainBlock], is_resident: &[bool]) -> f64 {
    let mut is_reachable = HashMap::with_capacity(blocks.len());
    let (mut resident, mut orphans) = (0, 0);
    for (ChainBlock { id, parent, .. }, here) in blocks.iter().zip(is_resident) {
        let way = parent.is_none_or(|parent| is_reachable.get(&parent).copied().unwrap_or(false));
        is_reachable.insert(*id, *here && way);
        resident += u64::from(*here);
        orphans += u64::from(*here && !way);
    }
    ratio(orphans, resident)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_behind_a_gap_is_an_orphan() {
        let requests = [Request { ids: vec![0, 1, 2] }, Request { ids: vec![0, 3] }];
        let blocks = unique_blocks(&requests);
        let links: Vec<_> = blocks.iter().map(|block| (block.id, block.parent, block.depth)).collect();
        assert_eq!(links, [(0, None, 0), (1, Some(0), 1), (2, Some(1), 2), (3, Some(0), 1)]);
        let check = |resident: [bool; 4], expected: f64| assert_eq!(orphan_share(&blocks, &resident), expected);
        check([true; 4], 0.0);
        check([false; 4], 0.0);
        check([true, false, true, true], 1.0 / 3.0);
        check([false, true, true, true], 1.0);
        check([true, true, false, false], 0.0);
    }
}
