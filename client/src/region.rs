//! Engine memory that jobs may name: registered ranges, and runs resolved to spans of addresses.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::options::Error;

/// Most regions of one client; above the layers of any model.
pub const REGIONS_MAX: usize = 65_536;

/// A registered range of engine memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionId(pub u64);

/// A stretch of a region that holds part of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The region.
    pub region: RegionId,
    /// Start in it, in bytes.
    pub offset: u64,
    /// Length, in bytes.
    pub length: u64,
}

/// A stretch of engine memory that was inside a registered region when its job began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) address: usize,
    pub(crate) length: usize,
}

#[derive(Debug)]
struct Registered {
    address: usize,
    length: u64,
}

#[derive(Debug, Default)]
struct Inner {
    ranges: HashMap<u64, (Registered, Arc<AtomicUsize>)>,
}

/// The registered regions, and how many open jobs use each.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    inner: Mutex<Inner>,
    released: Condvar,
    next: AtomicU64,
}

/// The regions that a job uses; dropping it lets them go.
#[derive(Debug)]
pub(crate) struct RegionsInUse {
    regions: Arc<Regions>,
    uses: Vec<(u64, Arc<AtomicUsize>)>,
}

impl Drop for RegionsInUse {
    fn drop(&mut self) {
        let _inner = self.regions.inner.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, uses) in &self.uses {
            uses.fetch_sub(1, Ordering::AcqRel);
        }
        self.regions.released.notify_all();
    }
}

impl Regions {
    pub(crate) fn register(&self, address: *mut u8, length: u64) -> Result<RegionId, Error> {
        let argument = |field, value: String, remedy| Err(Error::Argument { field, value, remedy });
        let fits = usize::try_from(length).is_ok_and(|length| (address as usize).checked_add(length).is_some());
        if address.is_null() || length == 0 || !fits {
            return argument("region", format!("{address:p} + {length}"), "name a range of this process's memory");
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.ranges.len() >= REGIONS_MAX {
            let (what, open) = ("regions", REGIONS_MAX + 1);
            return Err(Error::Busy { what, open, limit: REGIONS_MAX });
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        inner.ranges.insert(id, (Registered { address: address as usize, length }, Arc::default()));
        Ok(RegionId(id))
    }

    /// No new job uses the region from now on. True once no open job does either, false when `timeout` passed first.
    pub(crate) fn unregister(&self, region: RegionId, timeout: Duration) -> bool {
        let end = Instant::now() + timeout;
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((_, uses)) = inner.ranges.remove(&region.0) else { return true };
        while uses.load(Ordering::Acquire) > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            inner = self.released.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Resolves the runs of all blocks of a job: for each block the range of its spans (empty where a run is wrong)
    /// and its length. Neighbours that touch are joined.
    pub(crate) fn resolve<'a>(self: &Arc<Self>, blocks: impl Iterator<Item = &'a [Run]>) -> Resolved {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let mut spans: Vec<Span> = Vec::new();
        let mut used: HashMap<u64, Arc<AtomicUsize>> = HashMap::new();
        let mut resolved = Vec::new();
        // Runs of one region often follow each other, and a job has tens of thousands of them.
        let (mut last, mut address, mut length) = (None, 0, 0);
        for runs in blocks {
            let (from, mut bytes) = (spans.len(), 0_u64);
            spans.reserve(runs.len());
            let good = runs.iter().all(|run| {
                if last != Some(run.region) {
                    let Some((range, uses)) = inner.ranges.get(&run.region.0) else { return false };
                    (last, address, length) = (Some(run.region), range.address, range.length);
                    used.entry(run.region.0).or_insert_with(|| Arc::clone(uses));
                }
                let inside = run.offset.checked_add(run.length).is_some_and(|end| end <= length);
                if !inside || run.length == 0 {
                    return false;
                }
                push_joined(&mut spans, from, address + run.offset as usize, run.length as usize);
                bytes = bytes.saturating_add(run.length);
                true
            });
            if !good || bytes == 0 {
                spans.truncate(from);
                bytes = 0;
            }
            resolved.push((from..spans.len(), bytes));
        }
        for uses in used.values() {
            uses.fetch_add(1, Ordering::AcqRel);
        }
        let in_use = RegionsInUse { regions: Arc::clone(self), uses: used.into_iter().collect() };
        Resolved { spans, blocks: resolved, in_use }
    }
}

fn push_joined(spans: &mut Vec<Span>, from: usize, address: usize, length: usize) {
    match spans[from..].last_mut() {
        Some(last) if last.address + last.length == address => last.length += length,
        _ => spans.push(Span { address, length }),
    }
}

/// A job's runs as addresses.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) spans: Vec<Span>,
    pub(crate) blocks: Vec<(Range<usize>, u64)>,
    pub(crate) in_use: RegionsInUse,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(region: RegionId, offset: u64, length: u64) -> Run {
        Run { region, offset, length }
    }

    #[test]
    fn k14_one_bad_run_spoils_its_block_and_no_other() {
        let mut memory = vec![0_u8; 100];
        let base = memory.as_mut_ptr() as usize;
        let regions = Arc::new(Regions::default());
        let id = regions.register(memory.as_mut_ptr(), 100).expect("registered");
        let blocks = [
            vec![run(id, 0, 10), run(id, 10, 10), run(id, 50, 50)],
            vec![run(id, 0, 10), run(id, 91, 10)],
            vec![run(id, u64::MAX, 2)],
            vec![run(RegionId(99), 0, 1)],
            vec![run(id, 5, 0)],
            vec![],
            vec![run(id, 99, 1)],
        ];
        let resolved = regions.resolve(blocks.iter().map(Vec::as_slice));
        let lengths: Vec<u64> = resolved.blocks.iter().map(|(_, bytes)| *bytes).collect();
        assert_eq!(lengths, [70, 0, 0, 0, 0, 0, 1]);
        let spans = &resolved.spans[resolved.blocks[0].0.clone()];
        assert_eq!(spans, [Span { address: base, length: 20 }, Span { address: base + 50, length: 50 }]);
    }

    #[test]
    fn a_region_is_not_let_go_while_a_job_uses_it() {
        let mut memory = vec![0_u8; 8];
        let regions = Arc::new(Regions::default());
        let id = regions.register(memory.as_mut_ptr(), 8).expect("registered");
        let runs = [run(id, 0, 8)];
        let resolved = regions.resolve([runs.as_slice()].into_iter());
        assert!(!regions.unregister(id, Duration::ZERO));
        let other = regions.register(memory.as_mut_ptr(), 8).expect("registered");
        drop(resolved);
        assert!(regions.unregister(other, Duration::ZERO));
        let after = regions.resolve([runs.as_slice()].into_iter());
        assert_eq!(after.blocks[0].1, 0, "a region that was given up resolves no run");
    }
}
