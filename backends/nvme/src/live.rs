//! The living blocks of one path by the unit at which they begin: 16 bytes each, since there may be millions.
//!
//! A block is found among those that begin in the same stretch of [`STRETCH_UNITS`]: a short sorted list, so that a
//! search, an insertion and a removal are each bounded by its length.

use std::collections::HashMap;

use crate::backend::LARGEST_PAYLOAD_BYTES;

/// Units of one stretch: at most as many blocks, 8 KiB, begin in one.
const STRETCH_UNITS: u64 = 1 << OFFSET_BITS;
/// A list grows by a share of its length, so that little of it is unused: a sixteenth, at least so many entries.
const GROWTH_MIN_ENTRIES: usize = 4;

const OFFSET_BITS: u32 = 9;
const NAMESPACE_BITS: u32 = 13;
const LENGTH_BITS: u32 = 26;
const FINGERPRINT_BITS: u32 = 32;
const GENERATION_BITS: u32 = 48;
const _: () = assert!(OFFSET_BITS + NAMESPACE_BITS + LENGTH_BITS + FINGERPRINT_BITS + GENERATION_BITS == u128::BITS);
const _: () = assert!(LARGEST_PAYLOAD_BYTES == 1 << LENGTH_BITS);

/// Generations end here, some centuries of ten thousand stores a second away.
pub(crate) const GENERATIONS_END: u64 = 1 << GENERATION_BITS;
/// Namespaces with living blocks in one path: eight times as many as its file holds.
const NAMESPACES_MAX: usize = 1 << NAMESPACE_BITS;

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

/// All of a [`Live`] and its place in the stretch: from the lowest bit, generation, fingerprint, length less 1, number
/// of the namespace, and offset in units. Entries of one stretch are so in the order of their places.
#[derive(Clone, Copy)]
struct Entry(u128);

impl Entry {
    fn new(offset: u64, namespace: u16, block: &Live) -> Self {
        let mut bits = u128::from(offset);
        bits = bits << NAMESPACE_BITS | u128::from(namespace);
        bits = bits << LENGTH_BITS | u128::from(block.length - 1);
        bits = bits << FINGERPRINT_BITS | u128::from(block.fingerprint);
        Self(bits << GENERATION_BITS | u128::from(block.generation))
    }

    fn offset(self) -> u64 {
        (self.0 >> (u128::BITS - OFFSET_BITS)) as u64
    }

    /// The field of so many bits that begins at bit `low`.
    fn field(self, low: u32, bits: u32) -> u64 {
        (self.0 >> low) as u64 & ((1 << bits) - 1)
    }

    fn generation(self) -> u64 {
        self.field(0, GENERATION_BITS)
    }

    fn fingerprint(self) -> u32 {
        self.field(GENERATION_BITS, FINGERPRINT_BITS) as u32
    }

    fn length(self) -> u32 {
        self.field(GENERATION_BITS + FINGERPRINT_BITS, LENGTH_BITS) as u32 + 1
    }

    fn namespace(self) -> u16 {
        self.field(GENERATION_BITS + FINGERPRINT_BITS + LENGTH_BITS, NAMESPACE_BITS) as u16
    }
}

/// Short numbers of the namespaces that have blocks.
#[derive(Default)]
struct Numbers {
    by_id: HashMap<u32, u16>,
    /// Local id, and how many blocks it has.
    used: Vec<(u32, u64)>,
    free: Vec<u16>,
}

impl Numbers {
    /// The number of a namespace that has one block more now; `None` where all numbers are taken.
    fn enter(&mut self, id: u32) -> Option<u16> {
        let number = match self.by_id.get(&id) {
            Some(&number) => number,
            None => {
                let number = match self.free.pop() {
                    Some(number) => number,
                    None if self.used.len() < NAMESPACES_MAX => {
                        self.used.push((id, 0));
                        (self.used.len() - 1) as u16
                    }
                    None => return None,
                };
                self.by_id.insert(id, number);
                self.used[usize::from(number)] = (id, 0);
                number
            }
        };
        self.used[usize::from(number)].1 += 1;
        Some(number)
    }

    fn leave(&mut self, number: u16) {
        let (id, blocks) = &mut self.used[usize::from(number)];
        *blocks -= 1;
        if *blocks == 0 {
            self.by_id.remove(id);
            self.free.push(number);
        }
    }

    fn id(&self, number: u16) -> u32 {
        self.used[usize::from(number)].0
    }
}

/// The table.
pub(crate) struct LiveTable {
    stretches: Vec<Vec<Entry>>,
    numbers: Numbers,
    blocks: u64,
}

fn place(unit: u64) -> (usize, u64) {
    ((unit / STRETCH_UNITS) as usize, unit % STRETCH_UNITS)
}

impl LiveTable {
    /// Empty, for blocks that begin below `units`.
    pub(crate) fn new(units: u64) -> Self {
        let stretches = vec![Vec::new(); units.div_ceil(STRETCH_UNITS) as usize];
        Self { stretches, numbers: Numbers::default(), blocks: 0 }
    }

    /// Whether a block can be put in.
    pub(crate) fn takes(block: &Live) -> bool {
        (1..=LARGEST_PAYLOAD_BYTES).contains(&u64::from(block.length)) && block.generation < GENERATIONS_END
    }

    /// Blocks in it.
    pub(crate) fn len(&self) -> u64 {
        self.blocks
    }

    fn live(&self, entry: Entry) -> Live {
        Live {
            generation: entry.generation(),
            length: entry.length(),
            namespace: self.numbers.id(entry.namespace()),
            fingerprint: entry.fingerprint(),
        }
    }

    /// The block that begins at `unit`.
    pub(crate) fn get(&self, unit: u64) -> Option<Live> {
        let (stretch, offset) = place(unit);
        let entries = self.stretches.get(stretch)?;
        let at = entries.binary_search_by_key(&offset, |entry| entry.offset()).ok()?;
        Some(self.live(entries[at]))
    }

    /// Puts a block in, in the place of one that begins at the same unit. False, and nothing is changed, for a unit
    /// outside of the table, a block that it does not take, and one namespace too many.
    pub(crate) fn insert(&mut self, unit: u64, block: Live) -> bool {
        let (stretch, offset) = place(unit);
        let Some(entries) = self.stretches.get_mut(stretch).filter(|_| Self::takes(&block)) else { return false };
        let Some(number) = self.numbers.enter(block.namespace) else { return false };
        let entry = Entry::new(offset, number, &block);
        match entries.binary_search_by_key(&offset, |entry| entry.offset()) {
            Ok(at) => {
                let before = std::mem::replace(&mut entries[at], entry);
                self.numbers.leave(before.namespace());
            }
            Err(at) => {
                if entries.len() == entries.capacity() {
                    entries.reserve_exact((entries.len() / 16).max(GROWTH_MIN_ENTRIES));
                }
                entries.insert(at, entry);
                self.blocks += 1;
            }
        }
        true
    }

    /// Takes a block out.
    pub(crate) fn remove(&mut self, unit: u64) -> Option<Live> {
        let (stretch, offset) = place(unit);
        let entries = self.stretches.get_mut(stretch)?;
        let at = entries.binary_search_by_key(&offset, |entry| entry.offset()).ok()?;
        let entry = entries.remove(at);
        self.blocks -= 1;
        if entries.len() < entries.capacity() / 2 {
            let kept = entries.len() + GROWTH_MIN_ENTRIES;
            entries.shrink_to(if entries.is_empty() { 0 } else { kept });
        }
        let block = self.live(entry);
        self.numbers.leave(entry.namespace());
        Some(block)
    }

    /// Units and blocks of the stretches from that of `from` on, as many whole stretches as give at least `limit`
    /// blocks or `limit` stretches; also where to go on, `None` at the end.
    pub(crate) fn slice(&self, from: u64, limit: usize) -> (Vec<(u64, Live)>, Option<u64>) {
        let (first, _) = place(from);
        let mut found = Vec::new();
        for (stretch, entries) in self.stretches.iter().enumerate().skip(first) {
            let start = stretch as u64 * STRETCH_UNITS;
            if found.len() >= limit || stretch - first >= limit {
                return (found, Some(start));
            }
            found.extend(entries.iter().map(|entry| (start + entry.offset(), self.live(*entry))));
        }
        (found, None)
    }

    /// Bytes of memory that the table takes up.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        let lists: usize = self.stretches.iter().map(|entries| entries.capacity() * size_of::<Entry>()).sum();
        lists + self.stretches.capacity() * size_of::<Vec<Entry>>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn block()(
            generation in 0..GENERATIONS_END, length in 1..=LARGEST_PAYLOAD_BYTES as u32, namespace in 0_u32..9,
            fingerprint in any::<u32>(),
        ) -> Live {
            Live { generation, length, namespace: u32::MAX - namespace, fingerprint }
        }
    }

    proptest! {
        #[test]
        fn it_answers_as_an_ordinary_map_does(
            calls in prop::collection::vec((any::<bool>(), 0..1500_u64, block()), 1..400)
        ) {
            let (mut table, mut model) = (LiveTable::new(1500), BTreeMap::new());
            for (insert, unit, block) in calls {
                prop_assert_eq!(table.get(unit), model.get(&unit).copied());
                if insert {
                    prop_assert!(table.insert(unit, block));
                    model.insert(unit, block);
                } else {
                    prop_assert_eq!(table.remove(unit), model.remove(&unit));
                }
                prop_assert_eq!(table.len(), model.len() as u64);
            }
            let (mut all, mut from) = (Vec::new(), Some(0));
            while let Some(at) = from {
                let (found, next) = table.slice(at, 1);
                all.extend(found);
                from = next;
            }
            prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_does_not_fit_its_fields_is_refused_and_changes_nothing() {
        let right = Live { generation: GENERATIONS_END - 1, length: 1 << LENGTH_BITS, namespace: 7, fingerprint: 9 };
        let mut table = LiveTable::new(STRETCH_UNITS);
        let wrong = [
            (0, Live { generation: GENERATIONS_END, ..right }),
            (0, Live { length: 0, ..right }),
            (0, Live { length: (1 << LENGTH_BITS) + 1, ..right }),
            (STRETCH_UNITS, right),
        ];
        wrong.into_iter().for_each(|(unit, block)| assert!(!table.insert(unit, block), "{block:?}"));
        assert!(table.len() == 0 && table.insert(0, right));
        assert_eq!(table.get(0), Some(right));
    }

    #[test]
    fn a_number_is_free_again_once_its_namespace_has_no_block() {
        let mut table = LiveTable::new(2 * NAMESPACES_MAX as u64);
        let of = |namespace: u32| Live { generation: 1, length: 1, namespace, fingerprint: 0 };
        for namespace in 0..NAMESPACES_MAX as u32 {
            assert!(table.insert(u64::from(namespace), of(namespace)));
        }
        let more = NAMESPACES_MAX as u32;
        assert!(!table.insert(u64::from(more), of(more)), "one too many");
        assert_eq!(table.remove(5), Some(of(5)));
        assert!(table.insert(u64::from(more), of(more)) && table.get(6) == Some(of(6)));
    }

    #[test]
    fn a_million_blocks_take_less_than_18_bytes_each() {
        let blocks = 1_000_000;
        let mut table = LiveTable::new(blocks);
        for unit in 0..blocks {
            let block = Live { generation: unit, length: 4096, namespace: 1, fingerprint: 9 };
            assert!(table.insert(unit * 7919 % blocks, block));
        }
        assert_eq!(table.len(), blocks);
        assert!(table.bytes() as u64 <= 18 * blocks, "{} bytes", table.bytes());
        (0..blocks).for_each(|unit| assert!(table.remove(unit).is_some()));
        assert!(table.bytes() as u64 <= blocks, "{} bytes once it is empty", table.bytes());
    }
}
