//! The mappable pool: segments, whose they are, and which of their extents are free.

use std::collections::{BTreeMap, BTreeSet};

use umbp_plugin_api::extents::Extents;
use umbp_protocol::message::{SegmentId, SessionId};

/// Extents are multiples of this many bytes, the same as payloads in files.
pub const UNIT_BYTES: u64 = 4096;
/// Most segments at one time.
pub const SEGMENTS_MAX: usize = 4096;

/// Where an extent lies: index of its segment, and its first unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) segment: u32,
    pub(super) unit: u32,
}

impl Place {
    pub(super) fn packed(self) -> u64 {
        u64::from(self.segment) << 32 | u64::from(self.unit)
    }

    pub(super) fn unpacked(packed: u64) -> Self {
        Self { segment: (packed >> 32) as u32, unit: packed as u32 }
    }
}

pub(super) struct Segment {
    pub(super) id: SegmentId,
    pub(super) bytes: u64,
    pub(super) tenant: Option<u16>,
    extents: Extents,
    /// Sessions that have not unmapped it yet; `Some` once it is withdrawn.
    withdrawn_from: Option<BTreeSet<SessionId>>,
}

/// Free room of one owner, shortest sufficient segment first.
#[derive(Default)]
struct Room {
    by_largest: BTreeSet<(u64, u32)>,
    free_units: u64,
}

/// All segments. A tenant's extents come from its own segments; one that no tenant has needed yet becomes its own.
pub(super) struct Pool {
    segments: Vec<Option<Segment>>,
    by_id: BTreeMap<SegmentId, u32>,
    owned: Vec<Room>,
    unowned: Room,
}

impl Pool {
    pub(super) fn new(tenants: usize) -> Self {
        Self {
            segments: Vec::new(),
            by_id: BTreeMap::new(),
            owned: (0..tenants).map(|_| Room::default()).collect(),
            unowned: Room::default(),
        }
    }

    fn room(&mut self, tenant: Option<u16>) -> &mut Room {
        match tenant {
            Some(tenant) => &mut self.owned[usize::from(tenant)],
            None => &mut self.unowned,
        }
    }

    /// False if there are too many segments, the number is known, or it holds no whole unit.
    pub(super) fn add(&mut self, id: SegmentId, bytes: u64, tenant: Option<u16>) -> bool {
        let units = bytes / UNIT_BYTES;
        if self.by_id.contains_key(&id) || self.by_id.len() >= SEGMENTS_MAX || units == 0 || units > u64::from(u32::MAX)
        {
            return false;
        }
        let segment = Segment { id, bytes, tenant, extents: Extents::new(units), withdrawn_from: None };
        let index = match self.segments.iter().position(Option::is_none) {
            Some(index) => {
                self.segments[index] = Some(segment);
                index
            }
            None => {
                self.segments.push(Some(segment));
                self.segments.len() - 1
            }
        } as u32;
        self.by_id.insert(id, index);
        let room = self.room(tenant);
        room.by_largest.insert((units, index));
        room.free_units += units;
        true
    }

    pub(super) fn segments_of(&self, tenant: u16) -> Vec<(SegmentId, u64)> {
        self.segments
            .iter()
            .flatten()
            .filter(|segment| segment.tenant == Some(tenant) && segment.withdrawn_from.is_none())
            .map(|segment| (segment.id, segment.bytes))
            .collect()
    }

    /// Units that the tenant could still take, were they in one piece.
    pub(super) fn free_units(&self, tenant: u16) -> u64 {
        self.owned[usize::from(tenant)].free_units + self.unowned.free_units
    }

    /// An extent, and the segment that became the tenant's by it.
    pub(super) fn allocate(&mut self, tenant: u16, units: u64) -> Option<(Place, Option<(SegmentId, u64)>)> {
        let fits = |room: &Room| room.by_largest.range((units, 0)..).next().map(|&(_, index)| index);
        if let Some(index) = fits(&self.owned[usize::from(tenant)]) {
            return self.take(index, units).map(|place| (place, None));
        }
        let index = fits(&self.unowned)?;
        let segment = self.segments[index as usize].as_mut()?;
        let (free, key) = (segment.extents.free_units(), (segment.extents.largest_free(), index));
        segment.tenant = Some(tenant);
        let new = (segment.id, segment.bytes);
        self.unowned.by_largest.remove(&key);
        self.unowned.free_units -= free;
        self.owned[usize::from(tenant)].by_largest.insert(key);
        self.owned[usize::from(tenant)].free_units += free;
        self.take(index, units).map(|place| (place, Some(new)))
    }

    fn take(&mut self, index: u32, units: u64) -> Option<Place> {
        let segment = self.segments[index as usize].as_mut()?;
        let before = segment.extents.largest_free();
        let unit = segment.extents.allocate(units)? as u32;
        let (after, tenant) = (segment.extents.largest_free(), segment.tenant);
        let room = self.room(tenant);
        room.free_units -= units;
        if before != after {
            room.by_largest.remove(&(before, index));
            room.by_largest.insert((after, index));
        }
        Some(Place { segment: index, unit })
    }

    /// Gives an extent back. False, and nothing changed, if it was not taken: an error of the engine's own.
    pub(super) fn release(&mut self, place: Place, units: u64) -> bool {
        let index = place.segment;
        let Some(segment) = self.segments[index as usize].as_mut() else { return false };
        let before = segment.extents.largest_free();
        if !segment.extents.release(u64::from(place.unit), units) {
            return false;
        }
        let (after, tenant) = (segment.extents.largest_free(), segment.tenant);
        let room = self.room(tenant);
        room.free_units += units;
        if before != after {
            room.by_largest.remove(&(before, index));
            room.by_largest.insert((after, index));
        }
        true
    }

    /// Number and offset, in bytes, of an extent.
    pub(super) fn address(&self, place: Place) -> (SegmentId, u64) {
        let id = self.segments[place.segment as usize].as_ref().map_or(SegmentId(u32::MAX), |segment| segment.id);
        (id, u64::from(place.unit) * UNIT_BYTES)
    }

    /// Withdraws an empty segment of another tenant; answers it and its owner. `sessions` are the owner's.
    pub(super) fn withdraw_empty(&mut self, wanted_by: u16) -> Option<(SegmentId, u16)> {
        let (index, tenant) = self.segments.iter().enumerate().find_map(|(index, segment)| {
            let segment = segment.as_ref()?;
            let tenant = segment.tenant.filter(|tenant| *tenant != wanted_by)?;
            let empty = segment.extents.free_units() == segment.extents.units();
            (empty && segment.withdrawn_from.is_none()).then_some((index as u32, tenant))
        })?;
        let segment = self.segments[index as usize].as_mut()?;
        let units = segment.extents.units();
        segment.withdrawn_from = Some(BTreeSet::new());
        let id = segment.id;
        let room = self.room(Some(tenant));
        room.by_largest.remove(&(units, index));
        room.free_units -= units;
        Some((id, tenant))
    }

    pub(super) fn withdrawing(&self) -> bool {
        self.segments.iter().flatten().any(|segment| segment.withdrawn_from.is_some())
    }

    pub(super) fn wait_for(&mut self, id: SegmentId, session: SessionId) {
        if let Some(waiting) = self.by_id.get(&id).and_then(|index| self.segments[*index as usize].as_mut()) {
            waiting.withdrawn_from.get_or_insert_default().insert(session);
        }
    }

    /// Sessions that have not unmapped a withdrawn segment.
    pub(super) fn waiting_for(&self, id: SegmentId) -> Vec<SessionId> {
        let segment = self.by_id.get(&id).and_then(|index| self.segments[*index as usize].as_ref());
        segment.and_then(|segment| segment.withdrawn_from.as_ref()).into_iter().flatten().copied().collect()
    }

    /// A session has unmapped the segment (all of them, for `None`). Answers segments that nobody maps any more.
    pub(super) fn unmapped(&mut self, session: Option<SessionId>, only: Option<SegmentId>) -> Vec<SegmentId> {
        let mut done = Vec::new();
        for slot in &mut self.segments {
            let Some(segment) = slot.as_mut().filter(|segment| only.is_none_or(|id| id == segment.id)) else {
                continue;
            };
            let Some(waiting) = segment.withdrawn_from.as_mut() else { continue };
            if let Some(session) = session {
                waiting.remove(&session);
            }
            if waiting.is_empty() {
                self.by_id.remove(&segment.id);
                done.push(segment.id);
                *slot = None;
            }
        }
        done
    }

    /// Free bytes of all segments that may hold blocks.
    pub(super) fn free_bytes(&self) -> u64 {
        (self.unowned.free_units + self.owned.iter().map(|room| room.free_units).sum::<u64>()) * UNIT_BYTES
    }

    /// Bytes of all segments that may hold blocks.
    pub(super) fn total_bytes(&self) -> u64 {
        let active = self.segments.iter().flatten().filter(|segment| segment.withdrawn_from.is_none());
        active.map(|segment| segment.extents.units() * UNIT_BYTES).sum()
    }
}
