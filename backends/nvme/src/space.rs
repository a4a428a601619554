//! Free units and living blocks of one path: memory alone, every call short, so that `submit` may use it.

use umbp_plugin_api::extents::Extents;

use crate::format::{RECORD_BYTES, Record, UNIT_BYTES, fingerprint, units_of};
pub(crate) use crate::live::Live;
use crate::live::LiveTable;
use crate::ranges::Ranges;

mod waits;

pub(crate) use waits::Room;

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

/// Bytes of the file system's map that a unit may cost once the data file has holes: an extent, in half full nodes.
const MAP_BYTES_PER_UNIT: u64 = 24;
/// Free units on disk beyond this share of all are punched without anybody asking.
const UNPUNCHED_SHARE: u64 = 8;
/// Share of the capacity that is punched ahead when a store was refused for want of it.
const AHEAD_SHARE: u64 = 64;
/// Most units of one punch, 16 MiB.
const PUNCH_UNITS_MAX: u64 = 4096;

/// Bookkeeping of one path. On disk are the units that are taken, and those that are free and were not punched since.
pub(crate) struct Space {
    area: Extents,
    live: LiveTable,
    /// Units of an earlier life that no record has claimed yet; `None` once recovery has ended.
    unseen: Option<Extents>,
    /// Units of an earlier life that no record has claimed yet and that are not on disk.
    holes: Ranges,
    /// Free units that are still on disk. Data may use them at once; metadata only when they have been punched.
    unpunched: Ranges,
    /// Bytes that are to be punched because a store was refused.
    wanted: u64,
    /// Units taken to be punched now; they count as on disk.
    punching: u64,
    /// Punches that failed, in this life.
    punch_failures: u64,
    /// Stores that wait for room, and their units. They go in their order, so that none starves.
    waiting: (u64, u64),
    /// Some blocks of the earlier life are nobody's any more, so that the rest of recovery may free units.
    strangers: bool,
    /// The file system can punch.
    punches: bool,
    /// Units that may lie scattered on the disk, since holes were there before them.
    scattered: u64,
    /// Stores that hold units and have no record yet.
    pending: u64,
    resident_bytes: u64,
    /// Bytes of files that snapshots replaced and that could not be removed.
    left_bytes: u64,
    capacity: u64,
    journal_floor: u64,
}

impl Space {
    /// `capacity` bytes in all; an earlier life has left `high_water` units of data, of which `holes` are not on disk.
    pub(crate) fn new(capacity: u64, high_water: u64, mut holes: Ranges, journal_floor: u64) -> Self {
        let units = capacity / UNIT_BYTES;
        let high_water = high_water.min(units);
        let mut area = Extents::new(units);
        let unseen = area.claim(0, high_water).then(|| Extents::new(high_water));
        if unseen.is_none() {
            holes = Ranges::default();
        }
        holes.remove(high_water, units.max(holes.end()) - high_water);
        Self {
            area,
            live: LiveTable::new(units),
            unseen,
            scattered: if holes.units() > 0 { high_water } else { 0 },
            holes,
            unpunched: Ranges::default(),
            wanted: 0,
            punching: 0,
            punch_failures: 0,
            waiting: (0, 0),
            strangers: false,
            punches: true,
            pending: 0,
            resident_bytes: 0,
            left_bytes: 0,
            capacity,
            journal_floor,
        }
    }

    /// At open the data file takes up so many bytes: what is beyond its units is the file system's map. It grows from
    /// there only as holes are filled, so that a restart leaves as much room as there was. Where the figures do not
    /// agree, since not all holes were found, the worst is reckoned with.
    pub(crate) fn measured(&mut self, bytes: u64) {
        if let Some(map) = bytes.checked_sub(self.on_disk() * UNIT_BYTES) {
            let pieces = (2 * map).div_ceil(MAP_BYTES_PER_UNIT) + self.holes.units();
            self.scattered = self.scattered.min(pieces);
        }
    }

    fn take(&mut self, units: u64, metadata: u64) -> Option<u64> {
        let on_disk = self.on_disk();
        let mut start = self.area.allocate(units)?;
        let now = self.over(metadata, on_disk);
        let grown = self.over(metadata, on_disk + units - self.unpunched.overlap(start, units));
        if grown > 0 {
            self.area.release(start, units);
            let reusable = self.unpunched.best_fit(units).filter(|_| now == 0);
            let Some(found) = reusable.filter(|found| self.area.claim(*found, units)) else {
                self.want(grown);
                return None;
            };
            start = found;
        }
        self.unpunched.remove(start, units);
        self.pending += 1;
        Some(start)
    }

    /// Has so many bytes punched, and some ahead, beside those that are being punched.
    fn want(&mut self, bytes: u64) {
        let ahead = self.capacity / AHEAD_SHARE;
        let missing = (bytes + ahead).saturating_sub(self.punching * UNIT_BYTES);
        self.wanted = self.wanted.max(missing).min(self.unpunched.units() * UNIT_BYTES);
    }

    /// Units of data on disk.
    pub(crate) fn on_disk(&self) -> u64 {
        self.area.units() - self.area.free_units() + self.unpunched.units() - self.holes.units()
    }

    /// Something is to be punched.
    pub(crate) fn punch_due(&self) -> bool {
        self.punch_units() > 0
    }

    fn punch_units(&self) -> u64 {
        let excess = self.unpunched.units().saturating_sub(self.area.units() / UNPUNCHED_SHARE);
        if self.punches { self.wanted.div_ceil(UNIT_BYTES).max(excess).min(self.unpunched.units()) } else { 0 }
    }

    /// All that is free and on disk is to be punched.
    pub(crate) fn want_all(&mut self) {
        self.wanted = self.unpunched.units() * UNIT_BYTES;
    }

    /// A range to punch now, if one is due: taken until [`Self::punched`].
    pub(crate) fn take_to_punch(&mut self) -> Option<(u64, u64)> {
        let (due, (start, length)) = (self.punch_units(), self.unpunched.longest()?);
        let units = due.min(length).min(PUNCH_UNITS_MAX);
        if !self.area.claim(start, units) {
            return None;
        }
        self.unpunched.remove(start, units);
        self.wanted = self.wanted.saturating_sub(units * UNIT_BYTES);
        self.punching += units;
        Some((start, units))
    }

    /// A range that was to be punched is free again: no longer on disk, or, if that failed, as before.
    pub(crate) fn punched(&mut self, start: u64, units: u64, done: bool) {
        self.punching -= units;
        self.punch_failures += u64::from(!done);
        if done {
            self.scattered += units;
            self.area.release(start, units);
        } else {
            self.free(start, units);
        }
    }

    /// The file system cannot punch; true when that is news. What was written once counts as on disk from now on.
    pub(crate) fn never_punch(&mut self) -> bool {
        self.wanted = 0;
        std::mem::replace(&mut self.punches, false)
    }

    fn free(&mut self, start: u64, units: u64) {
        if self.area.release(start, units) {
            self.unpunched.insert(start, units);
        }
    }

    /// Bytes beyond the capacity with one block more and `on_disk` units of data.
    fn over(&self, metadata: u64, on_disk: u64) -> u64 {
        (on_disk * UNIT_BYTES + self.metadata_bound(metadata, on_disk)).saturating_sub(self.capacity)
    }

    /// What metadata takes at worst with one block more and `on_disk` units of data.
    fn metadata_bound(&self, metadata: u64, on_disk: u64) -> u64 {
        self.bound(metadata, on_disk, 1, self.scattered)
    }

    fn bound(&self, metadata: u64, on_disk: u64, more: u64, scattered: u64) -> u64 {
        let blocks = self.live.len() + self.pending + more;
        let planned = blocks * METADATA_BYTES_PER_BLOCK + 3 * self.journal_floor;
        let present = metadata + blocks * RECORD_BYTES as u64 + self.journal_floor;
        FIXED_BYTES + self.left_bytes + planned.max(present) + scattered.min(on_disk) * MAP_BYTES_PER_UNIT
    }

    /// So many bytes of metadata are there beside those that are reckoned with, until they can be removed.
    pub(crate) fn left_behind(&mut self, bytes: u64) {
        self.left_bytes = bytes;
    }

    /// A reserved store came to nothing.
    pub(crate) fn abandon(&mut self, unit: u64, length: u64) {
        self.pending -= 1;
        self.free(unit, units_of(length));
    }

    /// A reserved store has its record.
    pub(crate) fn publish(&mut self, unit: u64, block: Live) {
        self.pending -= 1;
        self.insert(unit, block);
    }

    /// A block that the table refuses is a miss, and its units stay taken in this life.
    fn insert(&mut self, unit: u64, block: Live) {
        if self.live.insert(unit, block) {
            self.resident_bytes += u64::from(block.length);
        }
    }

    /// The block that begins at `unit`.
    pub(crate) fn find(&self, unit: u64) -> Option<Live> {
        self.live.get(unit)
    }

    /// Makes a block unreadable. Its units stay taken until [`Self::release`].
    pub(crate) fn forget(&mut self, unit: u64) -> Option<Live> {
        let block = self.live.remove(unit)?;
        self.resident_bytes -= u64::from(block.length);
        Some(block)
    }

    /// The deletion of a forgotten block failed: it is back.
    pub(crate) fn restore(&mut self, unit: u64, block: Live) {
        self.insert(unit, block);
    }

    /// A forgotten block's units may be used again.
    pub(crate) fn release(&mut self, unit: u64, length: u64) {
        self.free(unit, units_of(length));
    }

    /// A block of an earlier life; false if its units are not all of that life's, or claimed already.
    pub(crate) fn recover(&mut self, unit: u64, block: Live) -> bool {
        let claimed = LiveTable::takes(&block)
            && self.unseen.as_mut().is_some_and(|unseen| unseen.claim(unit, units_of(u64::from(block.length))));
        if claimed {
            // Should its units be a hole, after a power loss: counted, and its checksum tells.
            self.holes.remove(unit, units_of(u64::from(block.length)));
            self.insert(unit, block);
        }
        claimed
    }

    /// A block of an earlier life that nobody may read any more: its units are free at once.
    pub(crate) fn reclaim(&mut self, unit: u64, length: u64) {
        let units = units_of(length);
        if self.unseen.as_mut().is_some_and(|unseen| unseen.claim(unit, units)) {
            self.free_unseen(unit, units);
        }
    }

    fn free_unseen(&mut self, start: u64, units: u64) {
        self.free(start, units);
        while let Some((hole, length)) = self.holes.within(start, start + units) {
            self.holes.remove(hole, length);
            self.unpunched.remove(hole, length);
        }
    }

    /// All records were read: what none claimed is free. At most `limit` ranges a call; true when done.
    pub(crate) fn end_recovery(&mut self, limit: usize) -> bool {
        for _ in 0..limit {
            let Some(unseen) = self.unseen.as_mut() else { return true };
            let longest = unseen.largest_free();
            let Some(start) = unseen.allocate(longest) else {
                self.unseen = None;
                return true;
            };
            self.free_unseen(start, longest);
        }
        false
    }

    /// Recovery has ended, or there was nothing to recover.
    pub(crate) fn recovered(&self) -> bool {
        self.unseen.is_none()
    }

    /// Units of blocks of a namespace, among a slice of all blocks from `from` on that is bounded by `limit`; also
    /// answers where to go on, `None` at the end.
    pub(crate) fn of_namespace(&self, from: u64, namespace: u32, limit: usize) -> (Vec<u64>, Option<u64>) {
        let (found, next) = self.live.slice(from, limit);
        (found.into_iter().filter(|(_, block)| block.namespace == namespace).map(|(unit, _)| unit).collect(), next)
    }

    /// Free bytes of the data area.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.area.free_units() * UNIT_BYTES
    }

    /// Blocks and their payload bytes.
    pub(crate) fn resident(&self) -> (u64, u64) {
        (self.live.len(), self.resident_bytes)
    }
}

#[cfg(test)]
mod tests;
