//! Registered addresses: absolute ranges in, runs of the client's regions out.

use std::collections::BTreeMap;

use umbp_client::{RegionId, Run};

/// Ranges of engine memory by their first address. They may not overlap.
#[derive(Default)]
pub(crate) struct Memory {
    ranges: BTreeMap<u64, (u64, RegionId)>,
}

impl Memory {
    /// The range already there that shares an address with this one.
    pub(crate) fn overlapping(&self, address: u64, length: u64) -> Option<(u64, u64)> {
        let end = address.saturating_add(length);
        let (start, (known, _)) = self.ranges.range(..end).next_back()?;
        (start + known > address).then_some((*start, *known))
    }

    pub(crate) fn insert(&mut self, address: u64, length: u64, region: RegionId) {
        self.ranges.insert(address, (length, region));
    }

    /// The region that begins there.
    pub(crate) fn remove(&mut self, address: u64) -> Option<RegionId> {
        self.ranges.remove(&address).map(|(_, region)| region)
    }

    pub(crate) fn get(&self, address: u64) -> Option<RegionId> {
        self.ranges.get(&address).map(|(_, region)| *region)
    }

    /// The run at an address. One outside every range names no region, so that its block fails and no other.
    pub(crate) fn run(&self, address: u64, length: u64) -> Run {
        match self.ranges.range(..=address).next_back() {
            Some((start, (_, region))) => Run { region: *region, offset: address - start, length },
            None => Run { region: RegionId(u64::MAX), offset: 0, length },
        }
    }
}
