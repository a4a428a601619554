//! What free space costs over long churn of mixed block sizes: rounding to a unit, and ranges too short to use.
//!
//! Sizes are those of popular models' blocks (per tensor-parallel rank), 72 KiB to 40 MiB, some of them no multiple of
//! 4 KiB. The oldest block leaves until the new one fits, as a first tier under pressure does it. Every run is the
//! same: the random numbers are seeded. `--nocapture` prints the figures.

use std::collections::VecDeque;

use umbp_plugin_api::extents::Extents;

const UNIT_BYTES: u64 = 4096;
const SEGMENTS: usize = 4;
const SEGMENT_BYTES: u64 = 256 << 20;
/// Blocks stored per case: some tens of times the pool.
const STORES: usize = 20_000;

struct Waste {
    /// Bytes lost to rounding, as a share of the payload.
    rounding: f64,
    /// Free bytes at the moment when nothing fits, as a share of the pool: mean over all evictions.
    unusable: f64,
    /// Payload resident at that moment, as a share of the pool: mean.
    resident: f64,
}

struct Block {
    segment: usize,
    start: u64,
    units: u64,
    bytes: u64,
}

fn churn(sizes: &[u64]) -> Waste {
    let mut pool = vec![Extents::new(SEGMENT_BYTES / UNIT_BYTES); SEGMENTS];
    let mut blocks: VecDeque<Block> = VecDeque::new();
    let (mut random, mut payload, mut rounded) = (0x9e37_79b9_7f4a_7c15_u64, 0, 0);
    let (mut unusable, mut resident, mut full) = (0.0, 0.0, 0_u32);
    let pool_bytes = (SEGMENTS as u64 * SEGMENT_BYTES) as f64;
    for _ in 0..STORES {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let bytes = sizes[(random % sizes.len() as u64) as usize];
        let units = bytes.div_ceil(UNIT_BYTES);
        payload += bytes;
        rounded += units * UNIT_BYTES;
        let (segment, start) = loop {
            // The segment whose longest range is the shortest that fits.
            let fits = (0..SEGMENTS).filter(|at| pool[*at].largest_free() >= units);
            if let Some(at) = fits.min_by_key(|at| pool[*at].largest_free()) {
                break (at, pool[at].allocate(units).expect("a range that long is free"));
            }
            let free: u64 = pool.iter().map(Extents::free_units).sum();
            unusable += (free * UNIT_BYTES) as f64 / pool_bytes;
            resident += blocks.iter().map(|block| block.bytes).sum::<u64>() as f64 / pool_bytes;
            full += 1;
            let oldest = blocks.pop_front().expect("a pool without blocks has room");
            assert!(pool[oldest.segment].release(oldest.start, oldest.units));
        };
        blocks.push_back(Block { segment, start, units, bytes });
    }
    for block in blocks {
        assert!(pool[block.segment].release(block.start, block.units));
    }
    for area in &pool {
        assert_eq!((area.free_units(), area.largest_free()), (area.units(), area.units()), "all joined again");
    }
    let full = f64::from(full.max(1));
    Waste {
        rounding: (rounded - payload) as f64 / payload as f64,
        unusable: unusable / full,
        resident: resident / full,
    }
}

/// Case, block sizes in bytes, and the most waste allowed: rounding, unusable.
const CASES: [(&str, &[u64], f64, f64); 5] = [
    ("one size, 2 MiB (Llama-3.1-8B)", &[2 << 20], 0.0, 0.0),
    ("one size, 1,124,352 B (DeepSeek bf16)", &[1_124_352], 0.002, 0.01),
    ("two groups, 640,256 B and 147,456 B", &[640_256, 147_456], 0.005, 0.02),
    ("one model at three widths, 320 KiB to 5 MiB", &[327_680, 655_360, 1_310_720, 5_242_880], 0.0, 0.05),
    (
        "all, 72 KiB to 40 MiB",
        &[
            73_728, 131_072, 147_456, 327_680, 562_176, 640_256, 655_360, 1_048_576, 1_124_352, 2_097_152, 2_561_024,
            4_497_408, 5_122_048, 8_388_608, 20_971_520, 41_943_040,
        ],
        0.001,
        0.15,
    ),
];

#[test]
fn mixed_sizes_waste_little_of_a_full_pool() {
    println!("{:<46} {:>9} {:>9} {:>9}", "block sizes", "rounding", "unusable", "resident");
    for (name, sizes, rounding_max, unusable_max) in CASES {
        let Waste { rounding, unusable, resident } = churn(sizes);
        println!("{name:<46} {:>8.3}% {:>8.2}% {:>8.2}%", rounding * 100.0, unusable * 100.0, resident * 100.0);
        assert!(rounding <= rounding_max, "{name}: rounding {rounding}");
        assert!(unusable <= unusable_max, "{name}: unusable {unusable}");
    }
}

#[test]
fn any_size_from_4_kib_to_64_mib_fits_an_empty_pool() {
    for shift in 12..=26 {
        for bytes in [1 << shift, (1 << shift) - 1, (1_u64 << shift) + 1] {
            let mut area = Extents::new(SEGMENT_BYTES / UNIT_BYTES);
            assert_eq!(area.allocate(bytes.div_ceil(UNIT_BYTES)), Some(0), "{bytes} B");
        }
    }
}
