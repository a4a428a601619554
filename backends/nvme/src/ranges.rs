//! Sets of unit ranges, as the bookkeeping of what is on disk needs them: neighbours joined, overlaps taken out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

use rustix::fs::SeekFrom;

use crate::format::UNIT_BYTES;

/// Most holes of a data file that are looked for at open; what lies behind them counts as on disk until it is punched.
const HOLES_MAX: usize = 1 << 16;

/// Disjoint ranges of units. Every call is O(log n) in their number, for each range that it touches.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    by_start: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
    units: u64,
}

impl Ranges {
    /// Units in all ranges.
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    /// End of the last range.
    pub(crate) fn end(&self) -> u64 {
        self.by_start.last_key_value().map_or(0, |(start, length)| start + length)
    }

    /// Adds a range, of which some may be in already.
    pub(crate) fn insert(&mut self, start: u64, length: u64) {
        if length == 0 {
            return;
        }
        self.remove(start, length);
        let (mut from, mut to) = (start, start + length);
        if let Some((s, l)) = self.by_start.range(..start).next_back().map(|(&s, &l)| (s, l))
            && s + l == start
        {
            self.drop_range(s, l);
            from = s;
        }
        if let Some(&l) = self.by_start.get(&to) {
            self.drop_range(to, l);
            to += l;
        }
        self.add_range(from, to - from);
    }

    /// Takes out whatever of `start..start + length` is in; answers how many units that were.
    pub(crate) fn remove(&mut self, start: u64, length: u64) -> u64 {
        let (end, before) = (start + length, self.units);
        if length == 0 {
            return 0;
        }
        while let Some((s, l)) = self.last_below(end).filter(|(s, l)| s + l > start) {
            let stop = s + l;
            self.drop_range(s, l);
            self.add_range(end, stop.saturating_sub(end));
            if s < start {
                self.add_range(s, start - s);
                break;
            }
        }
        before - self.units
    }

    /// Units of `start..start + length` that are in.
    pub(crate) fn overlap(&self, start: u64, length: u64) -> u64 {
        let end = start + length;
        let first = self.by_start.range(..start).next_back().map_or(start, |(&s, _)| s);
        self.by_start.range(first..end).map(|(&s, &l)| (s + l).min(end).saturating_sub(s.max(start))).sum()
    }

    /// Start of the shortest range of at least so many units.
    pub(crate) fn best_fit(&self, length: u64) -> Option<u64> {
        self.by_length.range((length, 0)..).next().map(|&(_, start)| start)
    }

    /// The longest range: its start and length.
    pub(crate) fn longest(&self) -> Option<(u64, u64)> {
        self.by_length.last().map(|&(length, start)| (start, length))
    }

    /// Some range that overlaps `start..end`, cut to it: its start and length.
    pub(crate) fn within(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let (s, l) = self.last_below(end).filter(|(s, l)| s + l > start)?;
        let from = s.max(start);
        Some((from, (s + l).min(end) - from))
    }

    fn last_below(&self, end: u64) -> Option<(u64, u64)> {
        self.by_start.range(..end).next_back().map(|(&s, &l)| (s, l))
    }

    fn add_range(&mut self, start: u64, length: u64) {
        if length > 0 {
            self.by_start.insert(start, length);
            self.by_length.insert((length, start));
            self.units += length;
        }
    }

    fn drop_range(&mut self, start: u64, length: u64) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
        self.units -= length;
    }
}

/// The whole units of a data file that are holes; none where the file system cannot tell.
pub(crate) fn holes(data: &File, length: u64) -> Ranges {
    let (mut found, mut at) = (Ranges::default(), 0);
    for _ in 0..HOLES_MAX {
        let Some(hole) = rustix::fs::seek(data, SeekFrom::Hole(at)).ok().filter(|hole| *hole < length) else { break };
        let next = rustix::fs::seek(data, SeekFrom::Data(hole)).unwrap_or(length).min(length);
        let (first, last) = (hole.div_ceil(UNIT_BYTES), next / UNIT_BYTES);
        found.insert(first, last.saturating_sub(first));
        if next <= hole {
            break;
        }
        at = next;
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_hold_exactly_what_was_put_in_and_not_taken_out(
            steps in prop::collection::vec((any::<bool>(), 0_u64..60, 0_u64..12), 0..60)
        ) {
            let (mut ranges, mut model) = (Ranges::default(), BTreeSet::new());
            for (add, start, length) in steps {
                let there = (start..start + length).filter(|unit| model.contains(unit)).count() as u64;
                prop_assert_eq!(ranges.overlap(start, length), there);
                if add {
                    ranges.insert(start, length);
                    model.extend(start..start + length);
                } else {
                    prop_assert_eq!(ranges.remove(start, length), there);
                    model.retain(|unit| !(start..start + length).contains(unit));
                }
                prop_assert_eq!(ranges.units(), model.len() as u64);
                let all: BTreeSet<u64> = ranges.by_start.iter().flat_map(|(&s, &l)| s..s + l).collect();
                prop_assert_eq!(&all, &model);
            }
        }
    }
}
