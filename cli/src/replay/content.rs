//! What a block's bytes are: a function of its id and of the place in the block, so that any loaded byte can be
//! checked without keeping what was stored.

const WORD: usize = 8;

/// The 8 bytes at `index * 8` of block `id`: one xorshift of id and place. Cheap, and a swap of blocks, of runs or of
/// words shows.
fn word(id: u64, index: u64) -> u64 {
    let mut x = id.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^= x << 13;
    x ^= x >> 7;
    x ^ (x << 17)
}

/// Writes the bytes of block `id` from `offset` on. `offset` is a multiple of 8.
pub(crate) fn fill(id: u64, offset: usize, out: &mut [u8]) {
    let mut index = (offset / WORD) as u64;
    let mut chunks = out.chunks_exact_mut(WORD);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&word(id, index).to_le_bytes());
        index += 1;
    }
    let rest = chunks.into_remainder();
    let length = rest.len();
    rest.copy_from_slice(&word(id, index).to_le_bytes()[..length]);
}

/// Whether these are the bytes of block `id` from `offset` on, every one of them. `offset` is a multiple of 8.
pub(crate) fn is_content(id: u64, offset: usize, bytes: &[u8]) -> bool {
    let mut index = (offset / WORD) as u64;
    let mut difference = 0;
    let chunks = bytes.chunks_exact(WORD);
    let rest = chunks.remainder();
    for chunk in chunks {
        let mut found = [0; WORD];
        found.copy_from_slice(chunk);
        difference |= u64::from_le_bytes(found) ^ word(id, index);
        index += 1;
    }
    difference == 0 && *rest == word(id, index).to_le_bytes()[..rest.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_byte_is_found() {
        let mut bytes = vec![0; 4096 + 5];
        fill(7, 16, &mut bytes);
        assert!(is_content(7, 16, &bytes));
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert!(!is_content(7, 16, &bytes), "byte {at}");
            bytes[at] ^= 1;
        }
    }

    #[test]
    fn another_block_another_place_and_zeros_are_not_the_content() {
        let mut bytes = vec![0; 4096];
        assert!(!is_content(0, 0, &bytes), "memory that nothing was loaded into");
        fill(7, 0, &mut bytes);
        assert!(!is_content(8, 0, &bytes));
        assert!(!is_content(7, 4096, &bytes));
        fill(7, 4096, &mut bytes);
        assert!(!is_content(7, 0, &bytes), "two runs swapped");
    }

    #[test]
    fn a_block_filled_by_runs_is_the_block_filled_at_once() {
        let (mut whole, mut pieces) = (vec![0; 4096], vec![0; 4096]);
        fill(3, 0, &mut whole);
        for (index, run) in pieces.chunks_mut(512).enumerate() {
            fill(3, index * 512, run);
        }
        assert_eq!(whole, pieces);
    }
}
