//! Free units and living blocks of one path: memory alone, every call short, so that `submit` may use it.

use std::collections::BTreeMap;

use umbp_plugin_api::extents::Extents;

use crate::format::{RECORD_BYTES, Record, UNIT_BYTES, fingerprint, units_of};

/// What is known in memory of a block: enough to tell a current location from a stale one. Keys stay on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Live {
    /// Sequence of its put record.
    pub(crate) generation: u64,
    /// Payload, in bytes.
    pub(crate) length: u32,
    /// Local namespace id.
    pub(crate) namespace: u32,
    /// Of the key.
    pub(crate) fingerprint: u32,
}

impl Live {
    /// The block that a put record tells of.
    pub(crate) fn of(record: &Record) -> Self {
        let Record { generation, length, namespace, ref key, .. } = *record;
        Self { generation, length, namespace, fingerprint: fingerprint(key) }
    }
}

/// Where a block lies, for the host: 40 bits of unit, 8 of path, 16 of tag. Never 0.
pub(crate) fn location(path: u8, unit: u64, generation: u64) -> u64 {
    unit | u64::from(path) << 40 | u64::from(tag(generation)) << 48
}

/// Path, unit and tag of a location.
pub(crate) fn parts(location: u64) -> (u8, u64, u16) {
    ((location >> 40) as u8, location & ((1 << 40) - 1), (location >> 48) as u16)
}

/// The part of a generation that a location carries; never 0.
pub(crate) fn tag(generation: u64) -> u16 {
    (generation % 65_535) as u16 + 1
}

/// Bytes of files other than data, journals and snapshots: superblock, lock, folder, and the file system's own maps.
const FIXED_BYTES: u64 = 64 << 10;
/// Bytes of metadata that a block may cost at worst: its record in the old snapshot, the old journal, the new snapshot
/// and the new journal.
const METADATA_BYTES_PER_BLOCK: u64 = 4 * RECORD_BYTES as u64;

/// Bookkeeping of one path.
pub(crate) struct Space {
    /// Units of the whole path.
    units: u64,
    /// Free units up to the high water; all beyond it are taken, so that what was freed is used before the file grows.
    area: Extents,
    live: BTreeMap<u64, Live>,
    /// Units of an earlier life that no record has claimed yet; `None` once recovery has ended.
    unseen: Option<Extents>,
    /// Units up to which the data file has been written.
    high_water: u64,
    /// Stores that hold units and have no record yet.
    pending: u64,
    resident_bytes: u64,
    capacity: u64,
    journal_floor: u64,
}

impl Space {
    /// `capacity` bytes in all, of which an earlier life has written the first `high_water` units of data.
    pub(crate) fn new(capacity: u64, high_water: u64, journal_floor: u64) -> Self {
        let units = capacity / UNIT_BYTES;
        let high_water = high_water.min(units);
        let mut area = Extents::new(units);
        let unseen = area.claim(0, units).then(|| Extents::new(high_water));
        Self {
            units,
            area,
            live: BTreeMap::new(),
            unseen,
            high_water,
            pending: 0,
            resident_bytes: 0,
            capacity,
            journal_floor,
        }
    }

    /// Takes units for a payload; `metadata` is what journals and snapshots take up now, in bytes. `None`: no room,
    /// data and metadata counted together.
    pub(crate) fn reserve(&mut self, length: u64, metadata: u64) -> Option<u64> {
        let units = units_of(length);
        if self.metadata_bound(metadata, 0) + self.high_water * UNIT_BYTES > self.capacity {
            return None;
        }
        let start = self.area.allocate(units).or_else(|| {
            self.grow(length, metadata);
            self.area.allocate(units)
        })?;
        self.pending += 1;
        Some(start)
    }

    /// Lets the data file grow by room for a payload. It never gets shorter: it grows only as far as leaves room for
    /// the metadata of the blocks that it will hold, not just of those that are there now.
    fn grow(&mut self, length: u64, metadata: u64) {
        let high_water = self.high_water + units_of(length);
        let bound = self.metadata_bound(metadata, self.blocks_to_come(high_water, length));
        if high_water <= self.units && high_water * UNIT_BYTES + bound <= self.capacity {
            self.area.release(self.high_water, units_of(length));
            self.high_water = high_water;
        }
    }

    /// Blocks that so many units may come to hold: of half the size of those stored so far, and of this one.
    fn blocks_to_come(&self, units: u64, length: u64) -> u64 {
        let mean = (self.resident_bytes + length) / (self.live.len() as u64 + 1);
        units / units_of(mean.min(length) / 2).max(1)
    }

    fn metadata_bound(&self, metadata: u64, to_come: u64) -> u64 {
        let blocks = (self.live.len() as u64 + self.pending + 1).max(to_come);
        let planned = blocks * METADATA_BYTES_PER_BLOCK + 3 * self.journal_floor;
        let present = metadata + blocks * RECORD_BYTES as u64 + self.journal_floor;
        FIXED_BYTES + planned.max(present)
    }

    /// A reserved store came to nothing.
    pub(crate) fn abandon(&mut self, unit: u64, length: u64) {
        self.pending -= 1;
        self.area.release(unit, units_of(length));
    }

    /// A reserved store has its record.
    pub(crate) fn publish(&mut self, unit: u64, block: Live) {
        self.pending -= 1;
        self.insert(unit, block);
    }

    fn insert(&mut self, unit: u64, block: Live) {
        self.resident_bytes += u64::from(block.length);
        self.live.insert(unit, block);
    }

    /// The block that begins at `unit`.
    pub(crate) fn find(&self, unit: u64) -> Option<Live> {
        self.live.get(&unit).copied()
    }

    /// Makes a block unreadable. Its units stay taken until [`Self::release`].
    pub(crate) fn forget(&mut self, unit: u64) -> Option<Live> {
        let block = self.live.remove(&unit)?;
        self.resident_bytes -= u64::from(block.length);
        Some(block)
    }

    /// The deletion of a forgotten block failed: it is back.
    pub(crate) fn restore(&mut self, unit: u64, block: Live) {
        self.insert(unit, block);
    }

    /// A forgotten block's units may be used again.
    pub(crate) fn release(&mut self, unit: u64, length: u64) {
        self.area.release(unit, units_of(length));
    }

    /// Takes the longest free stretch below the high water; answers its start and units.
    pub(crate) fn take_free(&mut self) -> Option<(u64, u64)> {
        let units = self.area.largest_free();
        self.area.allocate(units).map(|start| (start, units))
    }

    /// Such a stretch is free again.
    pub(crate) fn give_free(&mut self, (start, units): (u64, u64)) {
        self.area.release(start, units);
    }

    /// A block of an earlier life; false if its units are not all of that life's, or claimed already.
    pub(crate) fn recover(&mut self, unit: u64, block: Live) -> bool {
        let claimed = self.unseen.as_mut().is_some_and(|unseen| unseen.claim(unit, units_of(u64::from(block.length))));
        if claimed {
            self.insert(unit, block);
        }
        claimed
    }

    /// All records were read: what none claimed is free. At most `limit` ranges a call; true when done.
    pub(crate) fn end_recovery(&mut self, limit: usize) -> bool {
        let Some(unseen) = self.unseen.as_mut() else { return true };
        for _ in 0..limit {
            let longest = unseen.largest_free();
            let Some(start) = unseen.allocate(longest) else {
                self.unseen = None;
                return true;
            };
            self.area.release(start, longest);
        }
        false
    }

    /// Recovery has ended, or there was nothing to recover.
    pub(crate) fn recovered(&self) -> bool {
        self.unseen.is_none()
    }

    /// At most `limit` blocks of a namespace that begin at `from` or later among the next blocks in unit order; also
    /// answers where to go on, `None` at the end.
    pub(crate) fn of_namespace(&self, from: u64, namespace: u32, limit: usize) -> (Vec<u64>, Option<u64>) {
        let mut next = None;
        let mut found = Vec::new();
        for (seen, (&unit, block)) in self.live.range(from..).enumerate() {
            if seen == limit {
                next = Some(unit);
                break;
            }
            if block.namespace == namespace {
                found.push(unit);
            }
        }
        (found, next)
    }

    /// Free bytes of the data area.
    pub(crate) fn free_bytes(&self) -> u64 {
        (self.area.free_units() + self.units - self.high_water) * UNIT_BYTES
    }

    /// Blocks and their payload bytes.
    pub(crate) fn resident(&self) -> (u64, u64) {
        (self.live.len() as u64, self.resident_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn block(generation: u64, length: u32) -> Live {
        Live { generation, length, namespace: 0, fingerprint: 0 }
    }

    #[test]
    fn data_and_metadata_together_stay_within_the_capacity() {
        let mut space = Space::new(MIB, 0, 16 << 10);
        assert!(space.end_recovery(1));
        let mut taken = 0;
        while space.reserve(4096, 0).is_some() {
            taken += 1;
        }
        assert!(taken * (4096 + METADATA_BYTES_PER_BLOCK) + FIXED_BYTES + 3 * (16 << 10) <= MIB);
        assert!(taken > 150, "{taken}");
    }

    /// K1, K3.
    #[test]
    fn a_path_that_was_filled_and_emptied_can_be_filled_again() {
        for (first, then) in [(4096_u64, 4096_u64), (131_072, 131_072), (131_072, 65_536)] {
            let mut space = Space::new(64 * MIB, 0, 512 << 10);
            assert!(space.end_recovery(1));
            // Never more than one block, while the file grows: what is free below is taken by nobody.
            let (mut taken, mut units) = (Vec::new(), 0);
            while let Some(unit) = space.reserve(first, 0) {
                space.abandon(unit, first);
                if !space.area.claim(unit, units_of(first)) {
                    break;
                }
                taken.push(unit);
                units += units_of(first);
            }
            assert_eq!(units, space.high_water);
            assert!(taken.into_iter().all(|unit| space.area.release(unit, units_of(first))));
            let mut stored = 0;
            while let Some(unit) = space.reserve(then, 0) {
                stored += then;
                space.publish(unit, block(unit + 1, then as u32));
            }
            let share = stored * 100 / (64 * MIB);
            assert!(share > if first == 4096 { 75 } else { 90 }, "{first} {then}: {share} %");
        }
    }

    #[test]
    fn until_recovery_has_ended_units_of_an_earlier_life_are_not_given_out() {
        let mut space = Space::new(MIB, 100, 0);
        assert!(space.recover(10, block(1, 8192)) && !space.recover(11, block(2, 1)));
        assert_eq!(space.reserve(4096, 0), Some(100));
        assert!(!space.recover(100, block(3, 1)), "beyond the earlier life");
        while !space.end_recovery(1) {}
        let (found, freed) = (space.find(10), space.reserve(10 * 4096, 0));
        assert_eq!((found, freed), (Some(block(1, 8192)), Some(0)));
        assert_eq!(space.resident(), (1, 8192));
    }

    #[test]
    fn a_freed_unit_of_an_earlier_life_is_free_only_once() {
        let mut space = Space::new(MIB, 4, 0);
        assert!(space.recover(0, block(1, 4096)));
        assert!(space.forget(0).is_some());
        space.release(0, 4096);
        assert_eq!(space.reserve(4096, 0), Some(0));
        while !space.end_recovery(8) {}
        assert_ne!(space.reserve(4096, 0), Some(0));
    }
}
