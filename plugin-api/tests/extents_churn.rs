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

/// Where a long life leaves the free space of a pool that is kept a little emptier than full.
struct Fragments {
    /// The longest free range, of the free bytes: mean over the samples.
    largest: f64,
    /// Stores that found no range though as many bytes were free, of all.
    failed: f64,
    /// Extents freed to make room for one of those, beyond what its bytes needed: mean.
    extra: f64,
}

/// Blocks are stored, and leave the oldest first or at random, at a fixed share of free bytes, for some tens to
/// hundreds of times the pool.
fn long_churn(sizes: &[u64], free_share: f64, at_random: bool) -> Fragments {
    let mut pool = vec![Extents::new(SEGMENT_BYTES / UNIT_BYTES); SEGMENTS];
    let mut blocks: VecDeque<Block> = VecDeque::new();
    let pool_units = SEGMENTS as u64 * SEGMENT_BYTES / UNIT_BYTES;
    let reserve = (pool_units as f64 * free_share) as u64;
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below as u64) as usize
    };
    let (mut largest, mut samples, mut failed, mut extra) = (0.0, 0_u32, 0_u32, 0_u32);
    for store in 0..LONG_STORES {
        let bytes = sizes[next(sizes.len())];
        let units = bytes.div_ceil(UNIT_BYTES);
        let free = |pool: &[Extents]| pool.iter().map(Extents::free_units).sum::<u64>();
        // Room in bytes first, as quota and headroom ask for it: any block may be the coldest.
        while free(&pool) < units + reserve {
            let leaves = if at_random { next(blocks.len()) } else { 0 };
            let block = blocks.remove(leaves).expect("a pool without blocks has room");
            assert!(pool[block.segment].release(block.start, block.units));
        }
        let place = |pool: &mut [Extents]| {
            let fits = (0..SEGMENTS).filter(|at| pool[*at].largest_free() >= units);
            let at = fits.min_by_key(|at| pool[*at].largest_free())?;
            pool[at].allocate(units).map(|start| (at, start))
        };
        let mut found = place(&mut pool);
        failed += u32::from(found.is_none());
        while found.is_none() {
            let leaves = if at_random { next(blocks.len()) } else { 0 };
            let block = blocks.remove(leaves).expect("a pool without blocks has room");
            assert!(pool[block.segment].release(block.start, block.units));
            extra += 1;
            found = place(&mut pool);
        }
        let (segment, start) = found.expect("a pool without blocks has room");
        blocks.push_back(Block { segment, start, units, bytes });
        if store % 100 == 0 && store > LONG_STORES / 10 {
            let longest = pool.iter().map(Extents::largest_free).max().unwrap_or(0);
            largest += longest as f64 / free(&pool).max(1) as f64;
            samples += 1;
        }
    }
    Fragments {
        largest: largest / f64::from(samples.max(1)),
        failed: f64::from(failed) / f64::from(LONG_STORES as u32),
        extra: f64::from(extra) / f64::from(failed.max(1)),
    }
}

/// Stores of one long life: each case moves some tens to some hundreds of times the pool.
const LONG_STORES: usize = 100_000;

/// Most stores that may fail at first, in each of [`CASES`]: the oldest leaving, at 1 % and 5 % free; any leaving.
const FAILED_MAX: [[f64; 4]; 5] =
    [[0.0; 4], [0.0; 4], [0.001, 0.001, 0.5, 0.01], [0.01, 0.01, 0.3, 0.15], [0.1, 0.06, 0.12, 0.1]];

#[test]
fn over_a_long_life_free_space_does_not_crumble() {
    println!(
        "{:<46} {:>8} {:>5} {:>13} {:>9} {:>12}",
        "block sizes", "leaves", "free", "longest range", "failed", "extra blocks"
    );
    for ((name, sizes, ..), most) in CASES.into_iter().zip(FAILED_MAX) {
        let ways = [(false, 0.01), (false, 0.05), (true, 0.01), (true, 0.05)];
        for ((at_random, share), most) in ways.into_iter().zip(most) {
            let Fragments { largest, failed, extra } = long_churn(sizes, share, at_random);
            let [free, largest, percent] = [share, largest, failed].map(|part| part * 100.0);
            let leaves = if at_random { "any" } else { "oldest" };
            println!("{name:<46} {leaves:>8} {free:>4.0}% {largest:>11.1} % {percent:>7.2} % {extra:>12.1}");
            assert!(failed <= most, "{name}, {leaves} leaving, {share} free: {failed} of the stores failed");
        }
    }
}
