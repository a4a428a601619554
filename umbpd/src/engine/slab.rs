//! Numbered slots in chunks of fixed size: growth copies nothing and wastes at most one chunk.

use std::ops::{Index, IndexMut};

/// No slot.
pub(super) const NONE: u32 = u32::MAX;
/// Items of one chunk.
const CHUNK_ITEMS: usize = 4096;

/// Slots numbered from 0; a removed one is given again. Whether a slot is in use is its owner's knowledge.
pub(super) struct Slab<T> {
    chunks: Vec<Vec<T>>,
    free: Vec<u32>,
    high: u32,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new(), free: Vec::new(), high: 0 }
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            self[slot] = value;
            return slot;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK_ITEMS) {
            self.chunks.push(Vec::with_capacity(CHUNK_ITEMS));
        }
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push(value);
        }
        self.high += 1;
        self.high - 1
    }

    pub(super) fn remove(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// One more than the highest slot ever given.
    pub(super) fn high(&self) -> u32 {
        self.high
    }

    /// Bytes that the slots take, free ones included.
    pub(super) fn memory_bytes(&self) -> usize {
        self.chunks.len() * CHUNK_ITEMS * size_of::<T>() + self.free.capacity() * size_of::<u32>()
    }
}

/// Words beside the slots of a slab: each is 0 until it is set. Growth copies nothing.
pub(super) struct Words<T> {
    chunks: Vec<Box<[T]>>,
}

impl<T: Copy + Default> Words<T> {
    pub(super) const fn new() -> Self {
        Self { chunks: Vec::new() }
    }

    pub(super) fn get(&self, slot: u32) -> T {
        self.chunks.get(slot as usize / CHUNK_ITEMS).map_or_else(T::default, |chunk| chunk[slot as usize % CHUNK_ITEMS])
    }

    pub(super) fn set(&mut self, slot: u32, value: T) {
        while self.chunks.len() <= slot as usize / CHUNK_ITEMS {
            self.chunks.push(vec![T::default(); CHUNK_ITEMS].into());
        }
        self.chunks[slot as usize / CHUNK_ITEMS][slot as usize % CHUNK_ITEMS] = value;
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.chunks.len() * CHUNK_ITEMS * size_of::<T>()
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        &self.chunks[slot as usize / CHUNK_ITEMS][slot as usize % CHUNK_ITEMS]
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        &mut self.chunks[slot as usize / CHUNK_ITEMS][slot as usize % CHUNK_ITEMS]
    }
}
