//! The only place where block bytes are touched: gather of spans into an extent, scatter of an extent into spans.
//!
//! A copy goes in pieces that stay in the processor's own caches. Before each piece it asks whether it may go on; the
//! checksum takes each piece on the copied side right behind the copy, so that it vouches for the bytes that arrived.

use umbp_plugin_api::checksum::Checksum;

use crate::region::Span;

/// Bytes between two questions whether to go on: a part of the second cache of any processor in use.
pub(crate) const COPY_PIECE_BYTES: usize = 128 << 10;

/// Why a copy stopped half-way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stopped;

/// Copies the spans, one after the other, to `to`.
///
/// # Safety
/// Every span may be read, and `to` may be written for as many bytes as they have together, by no one else meanwhile;
/// they do not overlap.
pub(crate) unsafe fn gather(
    spans: &[Span],
    to: *mut u8,
    mut checksum: Option<&mut Checksum>,
    mut may_go_on: impl FnMut() -> bool,
) -> Result<(), Stopped> {
    let (mut at, mut piece) = (0, 0);
    for span in spans {
        let mut taken = 0;
        while taken < span.length {
            if piece == at && !may_go_on() {
                return Err(Stopped);
            }
            let length = (span.length - taken).min(piece + COPY_PIECE_BYTES - at);
            // SAFETY: inside the span and inside the target, as the caller promises; at counts all bytes before.
            unsafe {
                let from = std::ptr::with_exposed_provenance::<u8>(span.address + taken);
                std::ptr::copy_nonoverlapping(from, to.add(at), length);
            }
            taken += length;
            at += length;
            if at - piece == COPY_PIECE_BYTES {
                // SAFETY: these bytes of the target have just been written, and are ours alone.
                unsafe { update(&mut checksum, to.add(piece), at - piece) };
                piece = at;
            }
        }
    }
    // SAFETY: as above.
    unsafe { update(&mut checksum, to.add(piece), at - piece) };
    Ok(())
}

/// Copies from `from` into the spans, one after the other.
///
/// # Safety
/// Every span may be written by no one else meanwhile, and `from` may be read for as many bytes as they have
/// together; another process may write there, then the bytes that arrive are undefined. They do not overlap.
pub(crate) unsafe fn scatter(
    from: *const u8,
    spans: &[Span],
    mut checksum: Option<&mut Checksum>,
    mut may_go_on: impl FnMut() -> bool,
) -> Result<(), Stopped> {
    let (mut at, mut piece) = (0, 0);
    for span in spans {
        let mut taken = 0;
        while taken < span.length {
            if piece == at && !may_go_on() {
                return Err(Stopped);
            }
            let length = (span.length - taken).min(piece + COPY_PIECE_BYTES - at);
            let to = std::ptr::with_exposed_provenance_mut::<u8>(span.address + taken);
            // SAFETY: inside the source and inside the span, as the caller promises; at counts all bytes before. The
            // checksum reads what has just been written.
            unsafe {
                std::ptr::copy_nonoverlapping(from.add(at), to, length);
                update(&mut checksum, to, length);
            }
            taken += length;
            at += length;
            if at - piece == COPY_PIECE_BYTES {
                piece = at;
            }
        }
    }
    Ok(())
}

/// # Safety
/// `length` bytes at `at` are initialised and change under no other thread's hand meanwhile.
unsafe fn update(checksum: &mut Option<&mut Checksum>, at: *const u8, length: usize) {
    if let Some(checksum) = checksum {
        // SAFETY: as the caller promises.
        checksum.update(unsafe { std::slice::from_raw_parts(at, length) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umbp_plugin_api::checksum::of_block;

    /// Spans of one length each, two lengths apart, over `memory`.
    fn spans_over(memory: &mut [u8], length: usize) -> Vec<Span> {
        let base = memory.as_mut_ptr().expose_provenance();
        (0..memory.len() / (2 * length)).map(|n| Span { address: base + 2 * n * length, length }).collect()
    }

    fn filled(bytes: usize, seed: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at.wrapping_mul(31).wrapping_add(seed) >> 3) as u8).collect()
    }

    fn check_there_and_back(runs: usize, length: usize) {
        let mut memory = filled(2 * runs * length, 1);
        let expected: Vec<u8> = memory.chunks(2 * length).flat_map(|pair| pair[..length].to_vec()).collect();
        let spans = spans_over(&mut memory, length);
        let mut extent = vec![0xa5; runs * length];
        let bytes = extent.len();
        let mut stored = Checksum::new(&[1; 32], &[2; 44], bytes as u64);
        // SAFETY: the spans lie in `memory`, the extent is as long as they are, and both are this test's own.
        unsafe { gather(&spans, extent.as_mut_ptr(), Some(&mut stored), || true) }.expect("gathered");
        assert!(extent == expected, "{runs} runs of {length} bytes gathered");
        assert_eq!(stored.finish(), of_block(&[1; 32], &[2; 44], &expected));

        let mut target = vec![0x5a; memory.len()];
        let spans = spans_over(&mut target, length);
        let mut loaded = Checksum::new(&[1; 32], &[2; 44], bytes as u64);
        // SAFETY: as above, with `target`.
        unsafe { scatter(extent.as_ptr(), &spans, Some(&mut loaded), || true) }.expect("scattered");
        assert_eq!(loaded.finish(), stored.finish());
        for (n, pair) in target.chunks(2 * length).enumerate() {
            assert!(pair[..length] == expected[n * length..][..length], "run {n} of {runs} scattered");
            assert!(pair[length..].iter().all(|byte| *byte == 0x5a), "no byte beside run {n} was touched");
        }
    }

    #[test]
    fn runs_of_every_shape_are_gathered_and_scattered_byte_exact() {
        for (runs, length) in [(160, 4096), (1, 1), (3, 1), (36, 2048), (61, 18432), (2, COPY_PIECE_BYTES)] {
            check_there_and_back(runs, length);
        }
        check_there_and_back(5, COPY_PIECE_BYTES - 1);
        check_there_and_back(3, COPY_PIECE_BYTES + 1);
        check_there_and_back(1, 3 * COPY_PIECE_BYTES + 77);
    }

    #[test]
    fn a_copy_asks_before_each_piece_and_writes_nothing_after_a_no() {
        let mut memory = filled(8 * COPY_PIECE_BYTES, 2);
        let spans = spans_over(&mut memory, COPY_PIECE_BYTES / 2);
        let mut extent = vec![0; 4 * COPY_PIECE_BYTES];
        let mut asked = 0;
        let may_go_on = || {
            asked += 1;
            asked <= 2
        };
        // SAFETY: the spans lie in `memory`, the extent is as long as they are, and both are this test's own.
        let result = unsafe { gather(&spans, extent.as_mut_ptr(), None, may_go_on) };
        assert_eq!((result, asked), (Err(Stopped), 3));
        assert!(extent[2 * COPY_PIECE_BYTES..].iter().all(|byte| *byte == 0));
    }
}
