//! What holds in every history of an engine: lookups, loads that come or fail, stores, preemption, eviction, a store that
//! is away, ends in any state.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use umbp_connector_core::scheduler::{Config, Group, GroupKind, Options};
use umbp_connector_core::topology::RankTopology;

use crate::bench::{config, full, options, window};
use crate::engine::{Engine, Event, REQUESTS};

fn event() -> impl Strategy<Value = Event> {
    let at = 0..REQUESTS;
    prop_oneof![
        4 => (at.clone(), 0..2_u32, prop_oneof![1..64_u64, prop::sample::select(vec![16_u64, 24, 48])])
            .prop_map(|(at, family, tokens)| Event::Add { at, family, tokens }),
        5 => (at.clone(), prop_oneof![2 => Just(0), 1 => 1..3_u64], prop::bool::weighted(0.8))
            .prop_map(|(at, local_blocks, take)| Event::Admit { at, local_blocks, take }),
        3 => (at.clone(), prop::option::weighted(0.4, 0..4_u64))
            .prop_map(|(at, kept_blocks)| Event::Loaded { at, kept_blocks }),
        6 => prop_oneof![Just(1_u64), 2..64_u64].prop_map(|chunk| Event::Step { chunk }),
        2 => at.clone().prop_map(|at| Event::Preempt { at }),
        3 => at.prop_map(|at| Event::Finish { at }),
        5 => (0..4_usize, prop::bool::weighted(0.2)).prop_map(|(which, fails)| Event::Stored { which, fails }),
        2 => any::<usize>().prop_map(|which| Event::Evict { which }),
        1 => prop::bool::weighted(0.3).prop_map(|away| Event::Away { away }),
        1 => Just(Event::TakeEvents),
    ]
}

fn groups() -> impl Strategy<Value = Vec<Group>> {
    let mamba = |align| Group { kind: GroupKind::Mamba { align }, block_size: 8, eagle: false };
    let scratch = Group { kind: GroupKind::Scratch, block_size: 4, eagle: false };
    prop::sample::select(vec![
        vec![full(4)],
        vec![full(8)],
        vec![window(4, 9)],
        vec![full(4), full(8)],
        vec![full(8), full(12)],
        vec![full(4), window(4, 9)],
        vec![full(8), window(4, 6), window(8, 17)],
        vec![full(8), mamba(true)],
        vec![full(8), mamba(false)],
        vec![full(4), scratch],
    ])
}

fn configs() -> impl Strategy<Value = Config> {
    let topology = prop::sample::select(vec![(1, 1, 1, 1), (2, 1, 1, 1), (2, 1, 2, 1), (1, 2, 1, 1), (4, 1, 1, 2)]);
    let retention = prop::sample::select(vec![None, None, Some(0), Some(8), Some(24)]);
    (groups(), topology, retention, prop::array::uniform6(any::<bool>())).prop_map(
        |(groups, (tp, pp, dcp, replicas), retention_interval, on)| {
            let topology = RankTopology::new(tp, pp, 1, dcp).expect("sizes that fit").with_replicas(replicas);
            let [load_async, lookup_async, save_decode_cache, enable_partial_hash_hits, events, eagle] = on;
            let options = Options {
                load_async,
                lookup_async,
                save_decode_cache,
                enable_partial_hash_hits,
                events,
                eagle,
                ..options()
            };
            let num_workers = u32::from(tp) * u32::from(pp);
            Config { topology, num_workers, retention_interval, options, ..config(groups) }
        },
    )
}

/// Histories of one run.
const HISTORIES: u32 = 1024;

/// Never the whole prompt; never more than every rank has; nothing stored that is not computed, or twice at a time; once
/// all has ended no pin, no hold and no lookup is left.
#[test]
fn every_history_keeps_the_promises() {
    let missing = prop::collection::hash_set(0..96_usize, 0..6);
    let histories = (configs(), missing, prop::collection::vec(event(), 1..200));
    let matches = Cell::new(0);
    let mut runner =
        TestRunner::new(ProptestConfig { cases: HISTORIES, failure_persistence: None, ..ProptestConfig::default() });
    let result = runner.run(&histories, |(config, missing, events)| {
        let mut engine = Engine::new(config);
        engine.fill(&missing);
        for event in &events {
            engine.run(event);
        }
        matches.set(matches.get() + engine.matches);
        engine.end();
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(matches.get() > HISTORIES as usize, "{} matches: these histories say little", matches.get());
}
