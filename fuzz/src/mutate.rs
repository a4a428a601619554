//! Changes to an input: those that break parsers of lengths, counts and offsets.

/// SplitMix64: a run is repeated by its seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`; 0 if the limit is 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        if limit == 0 { 0 } else { (self.next() % limit as u64) as usize }
    }
}

/// Longest input, in bytes: a few frames or blocks of records; longer ones only slow the search down.
pub(crate) const INPUT_BYTES_MAX: usize = 64 << 10;
/// Most changes to one input.
const CHANGES_MAX: usize = 6;
/// Most bytes inserted, copied or removed by one change.
const STRETCH_BYTES_MAX: usize = 96;
/// Values at the edges of types and limits.
const EDGES: [u64; 16] = [
    0,
    1,
    7,
    8,
    0x7f,
    0xff,
    0x100,
    0x7fff,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0xffff_ffff,
    0x1_0000_0000,
    i64::MAX as u64,
    u64::MAX - 7,
    u64::MAX,
];

/// Changes `input` a few times; `other` lends stretches.
pub(crate) fn mutate(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..=random.below(CHANGES_MAX) {
        change(input, other, random);
    }
    input.truncate(INPUT_BYTES_MAX);
}

fn change(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(input.len());
    let length = 1 + random.below(STRETCH_BYTES_MAX);
    match random.below(9) {
        0 if !input.is_empty() => input[at] ^= 1 << random.below(8),
        1 if !input.is_empty() => input[at] = random.next() as u8,
        2 => overwrite(input, at, EDGES[random.below(EDGES.len())], random),
        // A number a little larger or smaller than what stands there.
        3 if input.len() >= at + 4 => {
            let word = u32::from_le_bytes([input[at], input[at + 1], input[at + 2], input[at + 3]]);
            let near = word.wrapping_add(random.below(17) as u32).wrapping_sub(8);
            input[at..at + 4].copy_from_slice(&near.to_le_bytes());
        }
        4 => input.truncate(at),
        5 => drop(input.drain(at..(at + length).min(input.len()))),
        6 => drop(input.splice(at..at, (0..length).map(|_| random.next() as u8))),
        // A stretch of another input, in place of what stands there or in between.
        7 => {
            let from = random.below(other.len());
            let stretch = &other[from..(from + length).min(other.len())];
            let end = if random.below(2) == 0 { at } else { (at + stretch.len()).min(input.len()) };
            input.splice(at..end, stretch.iter().copied());
        }
        _ => {
            let stretch = input[at..(at + length).min(input.len())].to_vec();
            let to = random.below(input.len() + 1);
            input.splice(to..to, stretch);
        }
    }
}

/// Writes a number of 2, 4 or 8 bytes.
fn overwrite(input: &mut [u8], at: usize, value: u64, random: &mut Random) {
    let width = (2 << random.below(3)).min(input.len().saturating_sub(at));
    input[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
}
