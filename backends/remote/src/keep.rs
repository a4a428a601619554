//! An allocator that keeps large pieces for the next use.
//!
//! Each block that comes from a server is a piece of its size, allocated by the client library and freed a moment later.
//! The system's allocator gives such pieces back to the kernel, and touching them again costs a page fault for each
//! 4 KiB: a third of the time of a load. Here a few of each size stay. All memory is the system allocator's own, so a
//! piece may be freed by either way.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

/// Smallest and largest piece that is kept, in bytes; others are the system's alone.
const LEAST_BYTES: usize = 128 << 10;
const MOST_BYTES: usize = 32 << 20;
/// Sizes between one power of two and the next.
const STEPS: usize = 4;
const CLASSES: usize = (MOST_BYTES / LEAST_BYTES).ilog2() as usize * STEPS + 1;
/// Pieces kept of each size, and bytes of all of them; what is freed beyond goes back.
const PIECES_MAX: usize = 32;
const KEPT_MAX_BYTES: usize = 96 << 20;
/// Alignment that every piece has.
const ALIGN: usize = 16;

thread_local! {
    /// This thread goes past what is kept: a benchmark compares with a program that has no such allocator.
    static PLAIN: Cell<bool> = const { Cell::new(false) };
}

/// From here on this thread uses the system's allocator, or does not.
pub fn set_plain(plain: bool) {
    PLAIN.set(plain);
}

struct Kept {
    bytes: usize,
    counts: [usize; CLASSES],
    pieces: [[usize; PIECES_MAX]; CLASSES],
}

/// The allocator, for the shared object that the backend is in.
pub struct Keep(Mutex<Kept>);

impl Default for Keep {
    fn default() -> Self {
        Self::new()
    }
}

impl Keep {
    /// Nothing is kept yet.
    pub const fn new() -> Self {
        Self(Mutex::new(Kept { bytes: 0, counts: [0; CLASSES], pieces: [[0; PIECES_MAX]; CLASSES] }))
    }

    fn take(&self, class: usize) -> Option<*mut u8> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = kept.counts[class].checked_sub(1)?;
        kept.counts[class] = count;
        kept.bytes -= bytes_of(class);
        Some(kept.pieces[class][count] as *mut u8)
    }

    fn keep(&self, class: usize, piece: *mut u8) -> bool {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, bytes) = (kept.counts[class], kept.bytes + bytes_of(class));
        if count == PIECES_MAX || bytes > KEPT_MAX_BYTES {
            return false;
        }
        kept.pieces[class][count] = piece as usize;
        kept.counts[class] = count + 1;
        kept.bytes = bytes;
        true
    }
}

/// The size that a piece of this layout is allocated in; none if it is the system's alone.
fn class_of(layout: Layout) -> Option<usize> {
    if !(LEAST_BYTES..=MOST_BYTES).contains(&layout.size()) || layout.align() > ALIGN {
        return None;
    }
    let above = (layout.size() - 1).checked_ilog2().unwrap_or(0) as usize;
    let base = 1usize << above;
    let step = (layout.size() - base).div_ceil(base / STEPS);
    let class = (above as isize - LEAST_BYTES.ilog2() as isize) * STEPS as isize + step as isize;
    Some(class.max(0) as usize)
}

fn bytes_of(class: usize) -> usize {
    let base = LEAST_BYTES << (class / STEPS);
    base + base / STEPS * (class % STEPS)
}

fn layout_of(class: usize) -> Layout {
    // SAFETY: the alignment is a power of two, and the size, at most that of the largest class, does not overflow.
    unsafe { Layout::from_size_align_unchecked(bytes_of(class), ALIGN) }
}

// SAFETY: every piece is the system allocator's, allocated and freed under one layout, which its own layout decides;
// a piece that is kept is nobody's until it is given out again.
unsafe impl GlobalAlloc for Keep {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout) else {
            // SAFETY: the caller's promise is passed on.
            return unsafe { System.alloc(layout) };
        };
        let kept = if PLAIN.get() { None } else { self.take(class) };
        // SAFETY: the size of a class is not zero.
        kept.unwrap_or_else(|| unsafe { System.alloc(layout_of(class)) })
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        match class_of(layout) {
            // SAFETY: the caller's promise is passed on.
            None => unsafe { System.dealloc(piece, layout) },
            Some(class) if !PLAIN.get() && self.keep(class, piece) => {}
            // SAFETY: allocated under the layout of its class, as `alloc` and `realloc` do.
            Some(class) => unsafe { System.dealloc(piece, layout_of(class)) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if let Some(class) = class_of(layout) {
            // Fresh pages are zero for nothing.
            // SAFETY: the size of a class is not zero.
            return unsafe { System.alloc_zeroed(layout_of(class)) };
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the new size, rounded up to the alignment, does not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (class_of(layout), class_of(wanted)) {
            // SAFETY: the caller's promise is passed on: neither has a class.
            (None, None) => unsafe { System.realloc(piece, layout, size) },
            (Some(old), Some(new)) if old == new => piece,
            _ => {
                // SAFETY: two pieces of at least as many bytes as are copied, which do not meet.
                unsafe {
                    let fresh = self.alloc(wanted);
                    if !fresh.is_null() {
                        std::ptr::copy_nonoverlapping(piece, fresh, layout.size().min(size));
                        self.dealloc(piece, layout);
                    }
                    fresh
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 1).unwrap()
    }

    #[test]
    fn what_is_freed_is_given_out_again_and_what_is_plain_is_not() {
        let keep = Keep::new();
        // SAFETY: allocated and freed under one layout each, and not touched.
        unsafe {
            let first = keep.alloc(layout(1 << 20));
            keep.dealloc(first, layout(1 << 20));
            let second = keep.alloc(layout((1 << 20) - 5));
            assert_eq!(first, second, "one size for both");
            keep.dealloc(second, layout((1 << 20) - 5));
            set_plain(true);
            let third = keep.alloc(layout(1 << 20));
            assert_ne!(first, third);
            keep.dealloc(third, layout(1 << 20));
            set_plain(false);
        }
        assert_eq!(keep.0.lock().unwrap().bytes, 1 << 20);
    }

    #[test]
    fn no_more_is_kept_than_the_bounds_say() {
        let keep = Keep::new();
        // SAFETY: allocated and freed under one layout, and not touched.
        unsafe {
            let pieces: Vec<*mut u8> = (0..200).map(|_| keep.alloc(layout(1 << 20))).collect();
            pieces.into_iter().for_each(|piece| keep.dealloc(piece, layout(1 << 20)));
            let large: Vec<*mut u8> = (0..5).map(|_| keep.alloc(layout(MOST_BYTES))).collect();
            large.into_iter().for_each(|piece| keep.dealloc(piece, layout(MOST_BYTES)));
        }
        let kept = keep.0.lock().unwrap();
        assert!(kept.bytes <= KEPT_MAX_BYTES && kept.counts.iter().all(|count| *count <= PIECES_MAX));
        assert_eq!(kept.bytes, (PIECES_MAX << 20) + 2 * MOST_BYTES);
    }

    proptest! {
        #[test]
        fn a_class_holds_every_size_it_is_for(bytes in 1..2 * MOST_BYTES) {
            match class_of(layout(bytes)) {
                None => prop_assert!(!(LEAST_BYTES..=MOST_BYTES).contains(&bytes)),
                Some(class) => {
                    prop_assert!(class < CLASSES && bytes_of(class) >= bytes);
                    prop_assert!(bytes_of(class) <= bytes + bytes / STEPS + STEPS, "and wastes a quarter at most");
                }
            }
        }

        #[test]
        fn bytes_stay_through_growing_and_shrinking(sizes in proptest::collection::vec(1..400_000usize, 1..12)) {
            let keep = Keep::new();
            let mut size = sizes[0];
            // SAFETY: one piece, always freed and resized under the layout that it has, and read inside it.
            unsafe {
                let mut piece = keep.alloc(layout(size));
                piece.write_bytes(0xa7, size);
                for next in sizes.iter().copied() {
                    let same = size.min(next);
                    piece = keep.realloc(piece, layout(size), next);
                    size = next;
                    let seen = std::slice::from_raw_parts(piece, same);
                    prop_assert!(seen.iter().all(|byte| *byte == 0xa7));
                    piece.write_bytes(0xa7, size);
                }
                keep.dealloc(piece, layout(size));
            }
        }
    }
}
