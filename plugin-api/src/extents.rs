//! Free space in a linear area, in units: best fit, neighbours joined at once.
//!
//! Used by the tier engine for the segments of the mappable pool and by backends for a file's data area. A request
//! takes exactly its units, so the only waste is the rounding to a unit and what fragmentation leaves unusable.
//! Every call is O(log n) in the number of free ranges.

use std::collections::{BTreeMap, BTreeSet};

/// Free ranges of `0..units`.
#[derive(Clone, Debug)]
pub struct Extents {
    by_start: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
    units: u64,
    free: u64,
}

impl Extents {
    /// An area of `units`, all free.
    pub fn new(units: u64) -> Self {
        let mut area = Self { by_start: BTreeMap::new(), by_length: BTreeSet::new(), units, free: 0 };
        if units > 0 {
            area.insert(0, units);
            area.free = units;
        }
        area
    }

    /// Size of the area, in units.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Free units, in all.
    pub fn free_units(&self) -> u64 {
        self.free
    }

    /// The longest free range, in units.
    pub fn largest_free(&self) -> u64 {
        self.by_length.last().map_or(0, |&(length, _)| length)
    }

    /// Takes the shortest free range that holds `length` units; answers its start. `None` when no range is long
    /// enough, or for a length of 0.
    pub fn allocate(&mut self, length: u64) -> Option<u64> {
        if length == 0 {
            return None;
        }
        let &(found, start) = self.by_length.range((length, 0)..).next()?;
        self.remove(start, found);
        if found > length {
            self.insert(start + length, found - length);
        }
        self.free -= length;
        Some(start)
    }

    /// Takes exactly `start..start + length`, as recovery does; false, and nothing changed, if any of it is taken.
    pub fn claim(&mut self, start: u64, length: u64) -> bool {
        let Some(end) = start.checked_add(length) else { return false };
        let Some((&found, &found_length)) = self.by_start.range(..=start).next_back() else { return false };
        if length == 0 || found + found_length < end {
            return false;
        }
        self.remove(found, found_length);
        if found < start {
            self.insert(found, start - found);
        }
        if end < found + found_length {
            self.insert(end, found + found_length - end);
        }
        self.free -= length;
        true
    }

    /// Gives a range back; false, and nothing changed, if any of it is free already or outside the area.
    pub fn release(&mut self, start: u64, length: u64) -> bool {
        let Some(end) = start.checked_add(length).filter(|end| *end <= self.units) else { return false };
        let before = self.by_start.range(..=start).next_back().map(|(&s, &l)| (s, l));
        let after = self.by_start.range(start..).next().map(|(&s, &l)| (s, l));
        if length == 0 || before.is_some_and(|(s, l)| s + l > start) || after.is_some_and(|(s, _)| s < end) {
            return false;
        }
        let (mut from, mut to) = (start, end);
        if let Some((s, l)) = before.filter(|(s, l)| s + l == start) {
            self.remove(s, l);
            from = s;
        }
        if let Some((s, l)) = after.filter(|(s, _)| *s == end) {
            self.remove(s, l);
            to = s + l;
        }
        self.insert(from, to - from);
        self.free += length;
        true
    }

    fn insert(&mut self, start: u64, length: u64) {
        self.by_start.insert(start, length);
        self.by_length.insert((length, start));
    }

    fn remove(&mut self, start: u64, length: u64) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_range_joins_both_neighbours() {
        let mut area = Extents::new(10);
        let [a, b, c] = [3, 3, 4].map(|n| area.allocate(n).expect("fits"));
        assert_eq!((a, b, c, area.free_units()), (0, 3, 6, 0));
        assert!(area.release(a, 3) && area.release(c, 4));
        assert_eq!(area.largest_free(), 4);
        assert!(area.release(b, 3));
        assert_eq!((area.largest_free(), area.free_units()), (10, 10));
    }

    #[test]
    fn a_double_release_changes_nothing() {
        let mut area = Extents::new(8);
        let at = area.allocate(8).expect("fits");
        assert!(area.release(at, 8));
        assert!(!area.release(at, 8) && !area.release(2, 2) && !area.release(7, 2));
        assert_eq!(area.free_units(), 8);
    }

    #[test]
    fn claim_takes_the_middle_once() {
        let mut area = Extents::new(8);
        assert!(area.claim(2, 3));
        assert!(!area.claim(4, 2) && !area.claim(0, 3) && !area.claim(7, 2));
        assert_eq!((area.free_units(), area.largest_free()), (5, 3));
    }

    #[test]
    fn best_fit_leaves_the_long_range_whole() {
        let mut area = Extents::new(20);
        assert!(area.claim(4, 1));
        assert_eq!(area.allocate(3), Some(0));
        assert_eq!(area.largest_free(), 15);
    }
}
