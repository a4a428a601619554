//! What a store is answered that asks for room, and those that wait for room which is under way.

use super::Space;
use crate::format::{UNIT_BYTES, units_of};

/// What a store is answered that asks for units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Its units begin here.
    At(u64),
    /// There will be room once what is to be punched was punched, or once recovery has ended: it is counted as waiting,
    /// until [`Space::wait_ended`].
    Awaited,
    /// None, not even then.
    Full,
}

impl Space {
    /// Takes units for a payload; `metadata` is what journals and snapshots take up now, in bytes. Data and metadata
    /// are counted together.
    pub(crate) fn reserve(&mut self, length: u64, metadata: u64) -> Room {
        let units = units_of(length);
        if self.waiting.0 == 0
            && let Some(start) = self.take(units, metadata)
        {
            return Room::At(start);
        }
        if !self.room_to_come(units, metadata, self.waiting) {
            return Room::Full;
        }
        self.waiting = (self.waiting.0 + 1, self.waiting.1 + units);
        Room::Awaited
    }

    /// The same again for the first of those that wait. It goes on waiting only if no punch has failed since it began
    /// to, when [`Self::punch_failures`] were `failures`.
    pub(crate) fn reserve_awaited(&mut self, length: u64, metadata: u64, failures: u64) -> Room {
        let units = units_of(length);
        match self.take(units, metadata) {
            Some(start) => Room::At(start),
            None if failures == self.punch_failures && self.room_to_come(units, metadata, (0, 0)) => Room::Awaited,
            None => Room::Full,
        }
    }

    /// A store waits no longer, whatever came of it.
    pub(crate) fn wait_ended(&mut self, length: u64) {
        self.waiting = (self.waiting.0 - 1, self.waiting.1 - units_of(length));
    }

    /// Some store waits for room.
    pub(crate) fn waited_for(&self) -> bool {
        self.waiting.0 > 0
    }

    /// How often punching has failed.
    pub(crate) fn punch_failures(&self) -> u64 {
        self.punch_failures
    }

    /// Whether there will be room for so many units, and for the stores before it, once all that is free was punched.
    fn room_to_come(&mut self, units: u64, metadata: u64, (stores, before): (u64, u64)) -> bool {
        if self.strangers && !self.recovered() {
            return true;
        }
        let coming = self.unpunched.units() + self.punching;
        let on_disk = self.on_disk() - coming + before + units;
        let scattered = self.scattered + coming;
        let bytes = on_disk * UNIT_BYTES + self.bound(metadata, on_disk, stores + 1, scattered);
        if !self.punches || bytes > self.capacity || self.area.largest_free() + self.punching < units {
            return false;
        }
        let grown = self.over(metadata, self.on_disk() + before + units);
        if grown > 0 {
            self.want(grown);
        }
        true
    }

    /// Recovery may free units of blocks that are nobody's any more.
    pub(crate) fn expect_strangers(&mut self) {
        self.strangers = true;
    }
}
