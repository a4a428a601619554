//! Into how many pieces the mappable pool is cut.

/// Segments are between these sizes in small and middling pools, and a sixteenth of the capacity in between.
const SEGMENT_MIN_BYTES: u64 = 64 << 20;
const SEGMENT_USUAL_MAX_BYTES: u64 = 256 << 20;
/// Segments of very large pools grow up to this, so that their number stays bounded.
const SEGMENT_MAX_BYTES: u64 = 1 << 30;
/// Most segments; each is an fd in the daemon and a mapping in each client.
pub const SEGMENTS_MAX: u64 = 4096;
const HUGEPAGE_BYTES: u64 = 2 << 20;
const PAGE_BYTES: u64 = 4096;

/// The pool asked for needs more than [`SEGMENTS_MAX`] segments, or is smaller than one page.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Beyond 4 TiB.
    #[error("capacity of {0} bytes is beyond {max} bytes ({SEGMENTS_MAX} segments of 1 GiB)", max = SEGMENTS_MAX * SEGMENT_MAX_BYTES)]
    TooLarge(u64),
    /// Below 4 KiB.
    #[error("capacity of {0} bytes is less than one page of 4096 bytes")]
    TooSmall(u64),
}

/// Lengths of the segments that add up to `capacity`, rounded down to a page (to 2 MiB where it is that large and
/// nothing is lost); the last one is smaller.
pub fn plan(capacity: u64) -> Result<Vec<u64>, PlanError> {
    let total = capacity / PAGE_BYTES * PAGE_BYTES;
    if total == 0 {
        return Err(PlanError::TooSmall(capacity));
    }
    let usual = (capacity / 16).clamp(SEGMENT_MIN_BYTES, SEGMENT_USUAL_MAX_BYTES);
    let size = usual.max(total.div_ceil(SEGMENTS_MAX)).next_multiple_of(HUGEPAGE_BYTES);
    if size > SEGMENT_MAX_BYTES {
        return Err(PlanError::TooLarge(capacity));
    }
    let mut lengths = vec![size; (total / size) as usize];
    if !total.is_multiple_of(size) {
        lengths.push(total % size);
    }
    Ok(lengths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_add_up_to_the_capacity_exactly() {
        const MIB: u64 = 1 << 20;
        for (capacity, count, first) in [
            (4096, 1, 4096),
            (MIB + 4097, 1, MIB + 4096),
            (64 * MIB, 1, 64 * MIB),
            (256 * MIB, 4, 64 * MIB),
            (1024 * MIB, 16, 64 * MIB),
            (8 << 30, 32, 256 * MIB),
            (100 * MIB + 4096, 2, 64 * MIB),
            (2 << 40, 4096, 512 * MIB),
            (4 << 40, 4096, 1 << 30),
        ] {
            let lengths = plan(capacity).expect("fits");
            assert_eq!((lengths.len(), lengths[0]), (count, first), "capacity {capacity}");
            assert_eq!(lengths.iter().sum::<u64>(), capacity / 4096 * 4096);
        }
        assert_eq!(plan(4095), Err(PlanError::TooSmall(4095)));
        assert_eq!(plan((4 << 40) + 4096), Err(PlanError::TooLarge((4 << 40) + 4096)));
    }
}
