//! Which keys are known, how they hang together, and where their copies are.
//!
//! An entry lives as long as it has a copy in some tier, or a child: a parent that is gone stays as a ghost, so that
//! links to it keep working when it comes back. Links run from child to parent only; a walk toward the root goes
//! down in depth at each step and therefore ends, whatever clients say.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use umbp_protocol::message::WireKey;

use super::api::TIERS_MAX;
use super::slab::{NONE, Slab, Words};

/// Tables that the keys are spread over: one that grows stalls the engine for its own share only.
const SHARDS: usize = 64;
/// Tiers whose copies an entry names itself; those of further tiers are kept beside the entries.
const TIERS_INLINE: usize = 2;

/// Bits of an entry's flags that count its resident copies.
const RESIDENT: u8 = 7;
/// The slot is in use.
const ALIVE: u8 = 128;
/// Lower tiers shall take the block, whatever its own place in its chain.
pub(super) const WANTED: u8 = 8;
/// Its parent is resident, and no prompt reaches that either.
pub(super) const CUT: u8 = 16;
/// A writer has it leased in the first tier.
const WRITING: u8 = 32;
/// Resident, and its parent, or one before that, is still being written: whether it is an orphan is not known yet.
const PENDING: u8 = 64;

/// Shares of the tables, each larger than the one before, the last nearly twice the first: then at any number of keys
/// some tables have just grown and some are about to, and what they hold unused is never half.
fn bounds() -> [u16; SHARDS - 1] {
    let part = |table: usize| (table as f64 / SHARDS as f64).exp2() - 1.0;
    std::array::from_fn(|table| (part(table + 1) * f64::from(u16::MAX)).round() as u16)
}

/// One known key.
#[repr(Rust, packed(4))]
pub(super) struct Entry {
    pub(super) key: WireKey,
    /// Checksum of the block; meaningful once a copy is resident.
    pub(super) checksum: u64,
    /// The engine's logical clock at the last use of this block or of a descendant.
    pub(super) stamp: u64,
    /// Payload, in bytes.
    pub(super) length: u32,
    depth: u16,
    /// Entry of the parent, or NONE.
    pub(super) parent: u32,
    /// Entries whose parent this is.
    pub(super) children: u32,
    /// Those of them that are resident in some tier.
    pub(super) resident_children: u32,
    /// Copy's slot in each of the first tiers, or NONE. See [`Index::copy`].
    copies: [u32; TIERS_INLINE],
    /// Loads through the first tier in which it did not stay.
    pub(super) loads: u8,
    /// See [`WANTED`] and what follows it; the number of resident copies.
    pub(super) flags: u8,
}

const _: () = assert!(size_of::<Entry>() == 92, "an entry's memory is most of what a block takes");

impl Entry {
    pub(super) fn depth(&self) -> u32 {
        u32::from(self.depth)
    }

    /// Number of resident copies.
    pub(super) fn resident(&self) -> u8 {
        self.flags & RESIDENT
    }
}

/// A depth as it is kept; deeper blocks are refused before.
fn short(depth: u32) -> u16 {
    u16::try_from(depth).unwrap_or(u16::MAX)
}

/// All entries.
pub(super) struct Index {
    entries: Slab<Entry>,
    /// Copy's slot, plus one, in each further tier; 0 for none.
    further: [Words<u32>; TIERS_MAX - TIERS_INLINE],
    tables: Vec<HashTable<u32>>,
    /// First of the hash's middle bits that go to each table but the first.
    bounds: [u16; SHARDS - 1],
    hasher: RandomState,
    /// Entries, ghosts included.
    pub(super) known: u64,
    /// Entries with a resident copy.
    pub(super) resident: u64,
    /// Resident entries whose parent is known, resident nowhere, and not being written.
    parted: u64,
    /// Resident entries marked [`CUT`].
    cut: u64,
    /// Resident entries marked [`PENDING`].
    pending: u64,
}

impl Index {
    pub(super) fn new() -> Self {
        Self {
            entries: Slab::new(),
            further: [const { Words::new() }; TIERS_MAX - TIERS_INLINE],
            tables: (0..SHARDS).map(|_| HashTable::new()).collect(),
            bounds: bounds(),
            hasher: RandomState::new(),
            known: 0,
            resident: 0,
            parted: 0,
            cut: 0,
            pending: 0,
        }
    }

    /// The middle bits choose the table: hashbrown uses the low bits for buckets and the top bits for tags.
    fn locate(&self, key: &WireKey) -> (usize, u64) {
        let hash = self.hasher.hash_one(key);
        (self.bounds.partition_point(|bound| *bound <= (hash >> 40) as u16), hash)
    }

    /// The entry's copy in a tier, or NONE.
    pub(super) fn copy(&self, slot: u32, tier: usize) -> u32 {
        match tier.checked_sub(TIERS_INLINE) {
            None => self.entries[slot].copies[tier],
            Some(further) => self.further[further].get(slot).wrapping_sub(1),
        }
    }

    /// The entry's copy in each tier, or NONE.
    pub(super) fn copies(&self, slot: u32) -> [u32; TIERS_MAX] {
        std::array::from_fn(|tier| self.copy(slot, tier))
    }

    /// No tier has a copy of the entry.
    pub(super) fn is_ghost(&self, slot: u32) -> bool {
        self.copies(slot) == [NONE; TIERS_MAX]
    }

    pub(super) fn set_copy(&mut self, slot: u32, tier: usize, copy: u32) {
        match tier.checked_sub(TIERS_INLINE) {
            None => self.entries[slot].copies[tier] = copy,
            Some(further) if self.further[further].get(slot) != copy.wrapping_add(1) => {
                self.further[further].set(slot, copy.wrapping_add(1));
            }
            Some(_) => {}
        }
    }

    pub(super) fn find(&self, key: &WireKey) -> Option<u32> {
        let (shard, hash) = self.locate(key);
        self.tables[shard].find(hash, |slot| self.entries[*slot].key == *key).copied()
    }

    /// The key's entry, made if it is not known, without parent or copies.
    pub(super) fn find_or_insert(&mut self, key: WireKey, depth: u32) -> u32 {
        if let Some(slot) = self.find(&key) {
            return slot;
        }
        let slot = self.entries.insert(Entry {
            key,
            checksum: 0,
            stamp: 0,
            length: 0,
            depth: short(depth),
            parent: NONE,
            children: 0,
            resident_children: 0,
            copies: [NONE; TIERS_INLINE],
            loads: 0,
            flags: ALIVE,
        });
        let (shard, hash) = self.locate(&key);
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.tables[shard].insert_unique(hash, slot, |other| hasher.hash_one(entries[*other].key));
        self.known += 1;
        slot
    }

    /// Says where an entry without copies hangs. `parent` is the parent's key, `None` for a root.
    pub(super) fn hang(&mut self, slot: u32, parent: Option<WireKey>, depth: u32) {
        let old = self.entries[slot].parent;
        let new = parent.map_or(NONE, |key| self.find_or_insert(key, depth.saturating_sub(1)));
        self.entries[slot].depth = short(depth);
        if new != NONE && self.entries[new].depth() >= depth {
            // Of a ghost that nobody has placed yet: each link falls in depth, always.
            self.entries[new].depth = short(depth.saturating_sub(1));
        }
        if new == old {
            return;
        }
        if new != NONE {
            self.entries[new].children += 1;
        }
        self.entries[slot].parent = new;
        if old != NONE {
            self.entries[old].children -= 1;
            self.collect(old);
        }
    }

    /// The parent's entry, where there is one and it lies nearer to the root.
    pub(super) fn above(&self, slot: u32) -> Option<u32> {
        let entry = &self.entries[slot];
        (entry.parent != NONE && self.entries[entry.parent].depth < entry.depth).then_some(entry.parent)
    }

    /// A copy of the entry became resident.
    pub(super) fn gained(&mut self, slot: u32) {
        self.entries[slot].flags += 1;
        if self.entries[slot].resident() > 1 {
            return;
        }
        self.resident += 1;
        if self.entries[slot].flags & WRITING == 0 {
            self.parted -= u64::from(self.entries[slot].resident_children);
        }
        let parent = self.entries[slot].parent;
        if parent != NONE {
            self.entries[parent].resident_children += 1;
            self.parted += u64::from(!self.stands(parent));
        }
        self.settle_unnoted(slot);
    }

    /// The entry is there, or about to be.
    fn stands(&self, slot: u32) -> bool {
        let entry = &self.entries[slot];
        entry.resident() > 0 || entry.flags & WRITING != 0
    }

    /// A writer has leased the entry, or has it no more. What hangs on it is no orphan meanwhile: a client commits in
    /// the order in which its copies end.
    pub(super) fn set_writing(&mut self, slot: u32, writing: bool) {
        let entry = &mut self.entries[slot];
        if (entry.flags & WRITING != 0) == writing {
            return;
        }
        entry.flags ^= WRITING;
        if entry.resident() == 0 {
            let children = u64::from(entry.resident_children);
            self.parted = if writing { self.parted - children } else { self.parted + children };
        }
    }

    /// Takes over from the parent as [`Index::settle_cut`] does, after the ancestors that are in doubt themselves, at
    /// most so many. Answers how many were looked at, and whether anything changed.
    pub(super) fn settle_path(&mut self, slot: u32, most: usize) -> (usize, bool) {
        let mut path = vec![slot];
        let mut at = slot;
        let in_doubt = |parent: &u32| self.entries[*parent].flags & (CUT | PENDING) != 0;
        while let Some(parent) = self.above(at).filter(in_doubt).filter(|_| path.len() < most) {
            path.push(parent);
            at = parent;
        }
        let mut changed = false;
        // Those above may be noted nowhere.
        for slot in path[1..].iter().rev() {
            let before = self.entries[*slot].flags;
            self.settle_unnoted(*slot);
            changed |= self.entries[*slot].flags != before;
        }
        let before = self.entries[slot].flags;
        self.settle_cut(slot);
        (path.len(), changed || self.entries[slot].flags != before)
    }

    /// It has to be told later whether the entry is an orphan.
    pub(super) fn is_pending(&self, slot: u32) -> bool {
        self.entries[slot].flags & PENDING != 0
    }

    /// Number of such entries.
    pub(super) fn pending(&self) -> u64 {
        self.pending
    }

    /// Resident entries that no prompt can reach, as far as that has been told on to them (see `orphans`).
    pub(super) fn orphans(&self) -> u64 {
        self.parted + self.cut
    }

    /// The entry has a parent that is known and resident nowhere, or whose own ancestors are.
    pub(super) fn is_orphan(&self, slot: u32) -> bool {
        let entry = &self.entries[slot];
        entry.parent != NONE && (!self.stands(entry.parent) || entry.flags & CUT != 0)
    }

    /// Takes over from the parent whether prompts reach it, or whether that is not known yet: then the caller has it
    /// noted, so that somebody asks again.
    pub(super) fn settle_cut(&mut self, slot: u32) {
        let entry = &self.entries[slot];
        let parent = (entry.resident() > 0 && entry.parent != NONE).then_some(entry.parent);
        let is_cut = parent.is_some_and(|parent| self.entries[parent].resident() > 0 && self.is_orphan(parent));
        let is_pending = parent.is_some_and(|parent| self.entries[parent].flags & (WRITING | PENDING) != 0);
        let entry = &mut self.entries[slot];
        if (entry.flags & CUT != 0) != is_cut {
            entry.flags ^= CUT;
            self.cut = if is_cut { self.cut + 1 } else { self.cut - 1 };
        }
        self.forget_pending(slot);
        self.pending += u64::from(is_pending);
        self.entries[slot].flags |= if is_pending { PENDING } else { 0 };
    }

    /// The same for one that may be noted nowhere: what is not known of it yet is not asked later.
    pub(super) fn settle_unnoted(&mut self, slot: u32) {
        let was_pending = self.is_pending(slot);
        self.settle_cut(slot);
        if !was_pending {
            self.forget_pending(slot);
        }
    }

    /// Nobody will ask again whether the entry is an orphan.
    pub(super) fn forget_pending(&mut self, slot: u32) {
        self.pending -= u64::from(self.is_pending(slot));
        self.entries[slot].flags &= !PENDING;
    }

    /// A resident copy of the entry is so no more.
    pub(super) fn lost(&mut self, slot: u32) {
        self.entries[slot].flags -= 1;
        if self.entries[slot].resident() > 0 {
            return;
        }
        self.resident -= 1;
        if self.entries[slot].flags & WRITING == 0 {
            self.parted += u64::from(self.entries[slot].resident_children);
        }
        let parent = self.entries[slot].parent;
        if parent != NONE {
            self.entries[parent].resident_children -= 1;
            self.parted -= u64::from(!self.stands(parent));
        }
        self.settle_cut(slot);
    }

    pub(super) fn is_wanted(&self, slot: u32) -> bool {
        self.entries[slot].flags & WANTED != 0
    }

    /// Forgets the entry if it has neither copy nor child, and then its parent likewise.
    pub(super) fn collect(&mut self, slot: u32) {
        let mut at = slot;
        while at != NONE {
            let entry = &self.entries[at];
            if entry.flags & ALIVE == 0 || entry.children > 0 || !self.is_ghost(at) {
                return;
            }
            let (key, parent) = (entry.key, entry.parent);
            let (shard, hash) = self.locate(&key);
            if let Ok(found) = self.tables[shard].find_entry(hash, |other| *other == at) {
                found.remove();
            }
            self.entries[at].flags = 0;
            self.entries.remove(at);
            self.known -= 1;
            if parent != NONE {
                self.entries[parent].children -= 1;
            }
            at = parent;
        }
    }

    /// Entries by number, for walks over all: `None` past the end, `Some(None)` for a free slot.
    pub(super) fn at(&self, slot: u32) -> Option<Option<&Entry>> {
        (slot < self.entries.high()).then(|| Some(&self.entries[slot]).filter(|entry| entry.flags & ALIVE != 0))
    }

    /// Bytes of entries and tables.
    pub(super) fn memory_bytes(&self) -> usize {
        // hashbrown: one control byte beside each bucket of four bytes.
        let further: usize = self.further.iter().map(Words::memory_bytes).sum();
        self.entries.memory_bytes()
            + further
            + self.tables.iter().map(|table| table.capacity() * 8 / 7 * 5).sum::<usize>()
    }
}

impl std::ops::Index<u32> for Index {
    type Output = Entry;

    fn index(&self, slot: u32) -> &Entry {
        &self.entries[slot]
    }
}

impl std::ops::IndexMut<u32> for Index {
    fn index_mut(&mut self, slot: u32) -> &mut Entry {
        &mut self.entries[slot]
    }
}

#[cfg(test)]
mod tests;
