//! Field cases of keys, ranks and groups.

use std::collections::BTreeSet;

use umbp_connector_core::key::{BlockHash, GroupId, LocalKey};
use umbp_connector_core::scheduler::{Config, ConfigError, Geometry, Group, GroupKind, Scheduler, Step};
use umbp_connector_core::topology::RankTopology;

use crate::bench::{
    BLOCK, Bench, OTHER, Pool, Store, TABLE, config, full, hashes, keys, loaded_blocks, objects, one_full, prompt,
    stored_blocks, window,
};

/// C5: a block that one rank lacks is there for none.
#[test]
fn c5_a_block_counts_only_if_every_rank_has_it() {
    let topology = RankTopology::new(2, 2, 1, 2).expect("four ranks");
    let whole = hashes(&prompt(), 2 * BLOCK);
    let base = Config { topology, num_workers: 4, ..config(vec![full(BLOCK)]) };
    for missing in 0..8 {
        let mut bench = Bench::new(base.clone());
        let mut there = keys(&base, 0, &whole);
        assert_eq!(there.len(), 8, "two blocks, whose spans are doubled by dcp, on four ranks");
        there.remove(missing);
        bench.store().keys.extend(there);
        bench.request("a", &prompt());
        assert_eq!(bench.matched("a", 0), Some(if missing < 4 { 0 } else { 8 }), "without key {missing}");
        assert_eq!(bench.store().asked[0].0.len(), 8);
    }
}

/// C5, I5: ranks that hold equal bytes are asked for once, by the keys that their workers write.
#[test]
fn ranks_with_equal_bytes_are_asked_for_once() {
    let topology = RankTopology::new(4, 1, 1, 1).expect("four ranks").with_replicas(2);
    let base = Config { topology, num_workers: 4, ..config(vec![full(BLOCK)]) };
    let mut bench = Bench::new(base);
    let whole = hashes(&prompt(), BLOCK);
    let written = |hash: &BlockHash| {
        let ranks = (0..4).map(|index| topology.key_rank(index).expect("a worker"));
        ranks.map(|rank| LocalKey { hash: *hash, group: GroupId(0), rank }).collect::<BTreeSet<_>>()
    };
    let written: BTreeSet<LocalKey> = whole.iter().flat_map(written).collect();
    bench.store().keys.extend(&written);
    bench.request("a", &prompt());
    assert!(bench.matched("a", 0).is_some_and(|tokens| tokens > 0), "what workers write is found");
    let asked: Vec<LocalKey> = bench.store().asked[0].0.clone();
    assert!(asked.iter().all(|key| written.contains(key)), "{asked:?}");
    assert!(asked.chunks(2).all(|pair| pair[0].hash == pair[1].hash), "two ranks of a block: {asked:?}");
}

/// H1, H2, H4: a key holds the whole hash that the engine computed; what differs in adapter, image or salt differs there.
#[test]
fn h1_h2_h4_a_hash_that_differs_in_one_bit_is_another_block() {
    let long = |last: u8| {
        let mut bytes = [7; 32];
        bytes[31] = last;
        umbp_connector_core::key::BlockHash::new(&bytes).expect("32 bytes")
    };
    let mut bench = one_full();
    let tokens: Vec<u32> = (0..5).collect();
    bench.scheduler.add_request(&"a".into(), 5, &tokens, &[long(0)]);
    bench.matched("a", 0);
    let asked = bench.store().asked[0].0.clone();
    assert_eq!(asked.iter().map(|key| key.hash).collect::<Vec<_>>(), [long(0)]);
    bench.store().keys.extend(asked);
    assert_eq!(bench.matched("a", 0), Some(4));
    bench.scheduler.add_request(&"b".into(), 5, &tokens, &[long(1)]);
    assert_eq!(bench.matched("b", 0), Some(0), "the same tokens under another adapter");
}

/// I1: a group that keeps nothing is neither asked nor stored, whatever its block size.
#[test]
fn i1_a_scratch_group_that_does_not_fit_is_ignored() {
    let scratch = Group { kind: GroupKind::Scratch, block_size: 4, eagle: false };
    let mut bench = Bench::new(config(vec![full(16), full(16), scratch]));
    let prompt: Vec<u32> = (0..33).collect();
    assert_eq!(bench.scheduler.geometry().hash_block, 16);
    bench.store_prompt("a", &prompt, &[1, 2, 3]);
    bench.request("b", &prompt);
    assert_eq!(bench.matched("b", 0), Some(32));
    assert!(bench.store().keys.iter().all(|key| key.group != GroupId(2)));
    assert!(bench.store().asked.iter().flat_map(|(keys, _)| keys).all(|key| key.group != GroupId(2)));
}

/// I2: the usable prefix is what all groups have; once the rest is stored again, all of it is.
#[test]
fn i2_the_usable_prefix_is_the_least_of_all_groups_and_a_store_heals_it() {
    let mut bench = Bench::new(config(vec![full(BLOCK), full(2 * BLOCK)]));
    let prompt: Vec<u32> = (0..41).collect();
    let table = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
    bench.store_prompt("a", &prompt, &table);
    let all = hashes(&prompt, BLOCK);
    let config = bench.config.clone();
    // The second group lacks its block behind token 24.
    for key in keys(&config, 1, &all[7..8]) {
        assert!(bench.store().keys.remove(&key));
    }
    bench.request("b", &prompt);
    assert_eq!(bench.matched("b", 0), Some(24));
    bench.admit("b", &table, 24);
    let output = bench.step(Step::default());
    assert_eq!(loaded_blocks(&output).len(), 6 + 3);
    bench.admit("b", &table, 0);
    let row = bench.new_row("b", &table, 24, 17);
    let output = bench.step(Step { new: vec![row], ..Step::default() });
    assert!(objects(&output).contains(&(GroupId(1), all[7])));
    bench.complete(&output, &[], 0.0);
    bench.request("c", &prompt);
    assert_eq!(bench.matched("c", 0), Some(40));
}

/// I3: a sliding window needs the last ceil((window - 1) / block) blocks before the match's end, and no others.
#[test]
fn i3_blocks_left_of_the_window_are_not_needed() {
    let base = config(vec![full(BLOCK), window(BLOCK, 9)]);
    let all = hashes(&prompt(), BLOCK);
    let cases = [(vec![0], 16), (vec![0, 1], 16), (vec![2], 8), (vec![3], 12), (vec![1, 3], 4), (vec![0, 1, 3], 0)];
    for (missing, expected) in cases {
        let mut bench = Bench::new(base.clone());
        bench.store().keys.extend(keys(&base, 0, &all));
        let kept = all.iter().enumerate().filter(|(index, _)| !missing.contains(index)).map(|(_, hash)| *hash);
        bench.store().keys.extend(keys(&base, 1, &kept.collect::<Vec<_>>()));
        bench.request("a", &prompt());
        assert_eq!(bench.matched("a", 0), Some(expected), "without {missing:?}");
    }
}

/// I4: of a hybrid load that failed the engine computes the whole request anew; then it is stored anew, in all groups.
#[test]
fn i4_after_a_failed_hybrid_load_every_group_is_stored_again() {
    let mut bench = Bench::new(config(vec![full(BLOCK), window(BLOCK, 9)]));
    bench.store_prompt("a", &prompt(), &TABLE);
    bench.request("b", &prompt());
    assert_eq!(bench.matched("b", 0), Some(16));
    bench.admit("b", &OTHER, 16);
    assert!(!loaded_blocks(&bench.step(Step::default())).is_empty());
    bench.store().keys.clear();
    bench.admit("b", &OTHER, 0);
    let row = bench.new_row("b", &OTHER, 0, 17);
    let output = bench.step(Step { new: vec![row], ..Step::default() });
    for group in [0, 1] {
        let of = objects(&output).iter().filter(|(id, _)| *id == GroupId(group)).count();
        assert_eq!(of, 4, "group {group}");
    }
}

/// I5: one key, one store: a block that two requests fill in the same step is stored once.
#[test]
fn i5_a_block_is_stored_once_however_many_requests_fill_it() {
    let mut bench = one_full();
    for (id, table) in [("a", TABLE), ("b", OTHER)] {
        bench.request(id, &prompt());
        bench.matched(id, 0);
        bench.admit(id, &table, 0);
    }
    let rows = vec![bench.new_row("a", &TABLE, 0, 17), bench.new_row("b", &OTHER, 0, 17)];
    let output = bench.step(Step { new: rows, ..Step::default() });
    assert_eq!((stored_blocks(&output, "a").len(), stored_blocks(&output, "b").len()), (4, 0));
}

/// I6: sizes that cannot be are refused in words, never met by a panic.
#[test]
fn i6_groups_that_cannot_be_are_refused_with_the_field() {
    let with = |groups| config(groups);
    let unit = Config { prefix_match_unit: Some(3), ..config(vec![full(4), full(8)]) };
    let zero = Config { prefix_match_unit: Some(0), ..config(vec![full(4), full(8)]) };
    let scratch = Group { kind: GroupKind::Scratch, block_size: 4, eagle: false };
    let cases = [
        (with(vec![]), "groups"),
        (with(vec![full(0)]), "block_size"),
        (with(vec![full(16), window(16, 0)]), "sliding_window"),
        (with(vec![scratch]), "stored"),
        (with(vec![full(u64::MAX), full(u64::MAX - 1)]), "multiple"),
        (with(vec![full(u64::MAX)]), "multiple"),
        (unit, "prefix_match_unit"),
        (zero, "prefix_match_unit"),
    ];
    for (config, field) in cases {
        let error: ConfigError = Geometry::of(&config).expect_err(field);
        assert!(error.to_string().contains(field), "{error} names {field}");
        assert!(Scheduler::new(config, Store::default(), None::<Pool>).is_err());
    }
}

/// The window of a long context, with retention: one block's question does not grow with the window.
#[test]
fn a_window_without_end_costs_no_more_than_a_short_one() {
    for retention_interval in [None, Some(0), Some(64)] {
        let base = Config { retention_interval, ..config(vec![full(BLOCK), window(BLOCK, 1 << 60)]) };
        let mut bench = Bench::new(base);
        // The last block lies behind the last token from which the prompt may be replayed.
        let prompt: Vec<u32> = (0..4004).collect();
        let table: Vec<i64> = (1..=1001).collect();
        bench.store_prompt("a", &prompt, &table);
        bench.request("b", &prompt);
        assert_eq!(bench.matched("b", 0), Some(4000), "{retention_interval:?}");
    }
}
