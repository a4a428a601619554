//! One engine of the replay: for each prompt, ask, load, verify, compute what is missing, store it.

use std::time::{Duration, Instant};

use crate::replay::prefix_cache::PrefixCache;
use crate::replay::report::Counts;
use crate::replay::tiers::{ChainBlock, Loaded, Stored, Tiers, TiersError, chain};

/// An engine with memory and a prefix cache of its own.
pub(crate) struct Engine<T> {
    tiers: T,
    cache: PrefixCache,
    /// What has happened so far.
    pub(crate) counts: Counts,
}

impl<T: Tiers> Engine<T> {
    pub(crate) fn new(tiers: T, cache: PrefixCache) -> Self {
        Self { tiers, cache, counts: Counts::default() }
    }

    /// Runs one prompt. Blocks of the engine's own cache are not asked for; a block counts as a hit only if all
    /// before it were in the cache or hit, since a prompt resumes at its first missing block.
    pub(crate) fn run(&mut self, ids: &[u64]) -> Result<(), TiersError> {
        let blocks = chain(ids);
        let cached = self.cache.leading(ids);
        let asked = &blocks[cached..];
        self.counts.requests += 1;
        self.counts.blocks += ids.len() as u64;
        self.counts.engine_blocks += cached as u64;
        if !asked.is_empty() {
            let start = Instant::now();
            let there = self.tiers.lookup(asked)?.min(asked.len());
            self.counts.lookups.push(micros(start.elapsed()));
            let loaded = self.load(&asked[..there])?;
            self.store(&asked[loaded..])?;
        }
        self.cache.touch(ids);
        Ok(())
    }

    /// Loads a chain until its first block that does not come; answers how many came.
    fn load(&mut self, blocks: &[ChainBlock]) -> Result<usize, TiersError> {
        let slots = self.tiers.memory().shape().slots;
        let mut loaded = 0;
        for window in blocks.chunks(slots) {
            (0..window.len()).for_each(|slot| self.tiers.memory().scrub(slot));
            let start = Instant::now();
            let results = self.tiers.load(window)?;
            self.counts.load_time += start.elapsed();
            let is_whole = self.count_loads(window, &results, &mut loaded);
            if !is_whole {
                break;
            }
        }
        self.counts.hit_blocks += loaded as u64;
        Ok(loaded)
    }

    /// Counts one window's results, verifies its bytes, and adds its hits; false ends the chain.
    fn count_loads(&mut self, window: &[ChainBlock], results: &[Loaded], loaded: &mut usize) -> bool {
        let memory = self.tiers.memory();
        let mut is_whole = results.len() == window.len();
        for (slot, (block, result)) in window.iter().zip(results).enumerate() {
            let is_good = match *result {
                Loaded::Good { tier } => {
                    self.counts.bytes_loaded += memory.shape().block_bytes();
                    let is_good = memory.holds(slot, block.id);
                    self.counts.mismatched_blocks += u64::from(!is_good);
                    if is_good && is_whole {
                        *self.counts.tier_hits.entry(tier).or_default() += 1;
                    }
                    is_good
                }
                Loaded::Miss => false,
                Loaded::Failed => {
                    self.counts.failed_blocks += 1;
                    false
                }
            };
            is_whole &= is_good;
            *loaded += usize::from(is_whole);
        }
        is_whole
    }

    /// "Computes" the rest of a prompt and stores it.
    fn store(&mut self, blocks: &[ChainBlock]) -> Result<(), TiersError> {
        let shape = self.tiers.memory().shape();
        for window in blocks.chunks(shape.slots) {
            for (slot, block) in window.iter().enumerate() {
                self.tiers.memory().fill(slot, block.id);
            }
            let start = Instant::now();
            let results = self.tiers.store(window)?;
            self.counts.store_time += start.elapsed();
            for result in results {
                match result {
                    Stored::Good => self.counts.bytes_stored += shape.block_bytes(),
                    Stored::Present => {}
                    Stored::Refused => self.counts.refused_blocks += 1,
                    Stored::Failed => self.counts.failed_blocks += 1,
                }
            }
        }
        Ok(())
    }
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::replay::memory::{EngineMemory, Shape};
    use crate::replay::trace::Request;
    use crate::replay::{orphans, trace};

    /// A store without limits that can be told to lose or damage blocks.
    struct Double {
        memory: EngineMemory,
        blocks: HashMap<u64, u64>,
        fails_load: Option<u64>,
        refuses: Option<u64>,
        asked: Vec<u64>,
    }

    impl Double {
        fn new(shape: Shape) -> Self {
            let memory = EngineMemory::new(shape);
            Self { memory, blocks: HashMap::new(), fails_load: None, refuses: None, asked: Vec::new() }
        }

        fn small() -> Self {
            Self::new(Shape { slots: 2, runs: 2, run_bytes: 16 })
        }
    }

    impl Tiers for Double {
        fn memory(&mut self) -> &mut EngineMemory {
            &mut self.memory
        }

        fn lookup(&mut self, blocks: &[ChainBlock]) -> Result<usize, TiersError> {
            self.asked.extend(blocks.iter().map(|b| b.id));
            Ok(blocks.iter().take_while(|b| self.blocks.contains_key(&b.id)).count())
        }

        fn load(&mut self, blocks: &[ChainBlock]) -> Result<Vec<Loaded>, TiersError> {
            let load = |(slot, block): (usize, &ChainBlock)| {
                if self.fails_load == Some(block.id) {
                    return Loaded::Failed;
                }
                self.memory.fill(slot, self.blocks[&block.id]);
                Loaded::Good { tier: (block.id % 2) as u8 }
            };
            Ok(blocks.iter().enumerate().map(load).collect())
        }

        fn store(&mut self, blocks: &[ChainBlock]) -> Result<Vec<Stored>, TiersError> {
            let store = |(slot, block): (usize, &ChainBlock)| {
                assert!(self.memory.holds(slot, block.id), "an engine stores what it computed");
                if self.refuses == Some(block.id) {
                    return Stored::Refused;
                }
                if self.blocks.insert(block.id, block.id).is_some() { Stored::Present } else { Stored::Good }
            };
            Ok(blocks.iter().enumerate().map(store).collect())
        }
    }

    fn engine(double: Double, cache_blocks: usize) -> Engine<Double> {
        Engine::new(double, PrefixCache::new(cache_blocks))
    }

    #[test]
    fn a_prompt_hits_what_an_earlier_one_with_the_same_prefix_stored() {
        let mut engine = engine(Double::small(), 0);
        engine.run(&[0, 1, 2, 3, 4]).unwrap();
        engine.run(&[0, 1, 2, 5]).unwrap();
        let counts = &engine.counts;
        assert_eq!((counts.requests, counts.blocks, counts.hit_blocks), (2, 9, 3));
        assert_eq!(counts.tier_hits, [(0, 2), (1, 1)].into());
        assert_eq!((counts.bytes_loaded, counts.bytes_stored), (3 * 32, 6 * 32));
        assert_eq!((counts.failed_blocks, counts.mismatched_blocks), (0, 0));
    }

    #[test]
    fn a_block_behind_a_missing_one_is_no_hit() {
        let mut double = Double::small();
        double.blocks.extend([(0, 0), (2, 2)]);
        let mut engine = engine(double, 0);
        engine.run(&[0, 1, 2]).unwrap();
        assert_eq!(engine.counts.hit_blocks, 1);
    }

    #[test]
    fn a_failed_load_ends_the_hits_there_and_the_rest_is_stored_anew() {
        let mut engine = engine(Double { fails_load: Some(1), ..Double::small() }, 0);
        engine.run(&[0, 1, 2, 3]).unwrap();
        engine.run(&[0, 1, 2, 3]).unwrap();
        assert_eq!((engine.counts.hit_blocks, engine.counts.failed_blocks), (1, 1));
        assert_eq!(engine.counts.bytes_stored, 4 * 32);
    }

    #[test]
    fn a_wrong_byte_is_a_mismatch_and_no_hit() {
        let mut double = Double::small();
        double.blocks.extend([(0, 0), (1, 99), (2, 2)]);
        let mut engine = engine(double, 0);
        engine.run(&[0, 1, 2]).unwrap();
        assert_eq!((engine.counts.hit_blocks, engine.counts.mismatched_blocks), (1, 1));
    }

    #[test]
    fn refused_stores_are_not_failures() {
        let mut engine = engine(Double { refuses: Some(2), ..Double::small() }, 0);
        engine.run(&[0, 1, 2]).unwrap();
        assert_eq!((engine.counts.refused_blocks, engine.counts.failed_blocks), (1, 0));
    }

    #[test]
    fn blocks_of_the_engines_own_cache_are_not_asked_for() {
        let mut engine = engine(Double::small(), 2);
        engine.run(&[0, 1, 2]).unwrap();
        engine.tiers.asked.clear();
        engine.run(&[0, 1, 2]).unwrap();
        assert_eq!(engine.tiers.asked, [2], "the cache holds the head");
        assert_eq!((engine.counts.engine_blocks, engine.counts.hit_blocks), (2, 1));
    }

    /// Hits and blocks of a whole workload on a store that loses nothing.
    fn hits_without_limits(requests: &[Request]) -> (u64, u64) {
        let mut engine = engine(Double::new(Shape { slots: 64, runs: 1, run_bytes: 8 }), 0);
        requests.iter().for_each(|request| engine.run(&request.ids).unwrap());
        (engine.counts.hit_blocks, engine.counts.blocks)
    }

    #[test]
    fn on_a_store_without_limits_every_block_but_the_first_of_its_kind_hits() {
        let requests = trace::generate(100);
        let unique = orphans::unique_blocks(&requests).len() as u64;
        let (hits, blocks) = hits_without_limits(&requests);
        assert_eq!(hits, blocks - unique);
        assert!(hits * 2 > blocks, "conversations repeat most of their blocks: {hits} of {blocks}");
    }

    /// The ratio that an independent simulator computed for this trace: 0.3664.
    #[test]
    fn on_the_real_conversation_trace_105710_of_288500_blocks_can_hit() {
        let Some(path) = trace::shared("conversation_trace.jsonl") else {
            eprintln!("skipped: no traces (UMBP_TRACES names their folder)");
            return;
        };
        assert_eq!(hits_without_limits(&trace::read(&path, None).unwrap()), (105_710, 288_500));
    }
}
