//! Ranks of an engine: their order, and which hold equal bytes.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use umbp_connector_core::key::Rank;
use umbp_connector_core::topology::{HeadMapping, RankTopology, TopologyError};

fn ranks(topology: &RankTopology) -> Vec<(u16, u16, u16, u16)> {
    topology.ranks().iter().map(|rank| (rank.tp, rank.pcp, rank.dcp, rank.pp)).collect()
}

#[test]
fn workers_are_laid_out_with_tp_innermost_and_dcp_within_tp() {
    let topology = RankTopology::new(4, 2, 1, 2).unwrap();
    let row = |pp| [(0, 0, 0, pp), (1, 0, 1, pp), (2, 0, 0, pp), (3, 0, 1, pp)];
    assert_eq!(ranks(&topology), [row(0), row(1)].concat());
    let topology = RankTopology::new(2, 2, 2, 1).unwrap();
    let row = |pcp, pp| [(0, pcp, 0, pp), (1, pcp, 0, pp)];
    assert_eq!(ranks(&topology), [row(0, 0), row(1, 0), row(0, 1), row(1, 1)].concat());
    assert_eq!(ranks(&RankTopology::single()), [(0, 0, 0, 0)]);
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let refused = |tp, pp, pcp, dcp| RankTopology::new(tp, pp, pcp, dcp).unwrap_err().to_string();
    assert_eq!(refused(1, 0, 1, 1), "pp_size is 0: every parallel size is at least 1");
    assert_eq!(
        refused(4, 1, 1, 3),
        "dcp_size 3 does not divide tp_size 4: decode context parallelism partitions the tp ranks"
    );
    assert_eq!(refused(u16::MAX, 2, 1, 1), "131070 workers, at most 65536 are possible");
    let beyond = RankTopology::new(2, 1, 1, 1).unwrap().rank(2);
    assert_eq!(beyond, Err(TopologyError::NoSuchWorker { index: 2, workers: 2 }));
}

/// (heads, tp, dcp) → heads of each tp rank, and the tp rank that stands for it.
#[test]
fn heads_are_shared_out_or_copied() {
    type Case<'a> = ((u16, u16, u16), &'a [(u16, u16)], &'a [u16]);
    let cases: [Case; 6] = [
        ((8, 2, 1), &[(0, 4), (4, 8)], &[0, 1]),
        ((2, 2, 1), &[(0, 1), (1, 2)], &[0, 1]),
        ((2, 4, 1), &[(0, 1), (0, 1), (1, 2), (1, 2)], &[0, 0, 2, 2]),
        ((2, 4, 2), &[(0, 1), (0, 1), (1, 2), (1, 2)], &[0, 1, 2, 3]),
        ((1, 4, 1), &[(0, 1); 4], &[0, 0, 0, 0]),
        ((1, 4, 2), &[(0, 1); 4], &[0, 1, 0, 1]),
    ];
    for ((heads, tp, dcp), held, canonical) in cases {
        let topology = RankTopology::new(tp, 1, 1, dcp).unwrap();
        let mapping = HeadMapping::new(&topology, heads).unwrap();
        let case = format!("{heads} heads, tp {tp}, dcp {dcp}");
        let found: Vec<_> = (0..tp).map(|tp| (mapping.heads(tp).start, mapping.heads(tp).end)).collect();
        assert_eq!(found, held, "{case}");
        let topology = topology.with_heads(heads).unwrap();
        let found: Vec<_> = topology.ranks().iter().map(|rank| topology.canonical(*rank).tp).collect();
        assert_eq!(found, canonical, "{case}");
    }
}

#[test]
fn heads_that_no_engine_can_share_out_are_refused() {
    let refused = |heads, tp, dcp| {
        let topology = RankTopology::new(tp, 1, 1, dcp).unwrap();
        assert_eq!(HeadMapping::new(&topology, heads).err(), topology.with_heads(heads).err());
        HeadMapping::new(&topology, heads).unwrap_err().to_string()
    };
    for (heads, tp) in [(0, 1), (3, 2), (2, 3)] {
        assert_eq!(refused(heads, tp, 1), format!("{heads} KV heads and tp_size {tp}: one has to divide the other"));
    }
    let text = "4 KV heads on tp_size 4 are 1 copies of each, which dcp_size 2 does not divide";
    assert_eq!(refused(4, 4, 2), text);
}

prop_compose! {
    fn topology()(tp in 1u16..9, pp in 1u16..4, pcp in 1u16..4, dcp in 1u16..9) -> RankTopology {
        let dcp = if tp.is_multiple_of(dcp) { dcp } else { 1 };
        RankTopology::new(tp, pp, pcp, dcp).unwrap()
    }
}

proptest! {
    /// Each worker has a rank of its own, and its index says which.
    #[test]
    fn ranks_are_distinct_and_in_order(topology in topology()) {
        let ranks = topology.ranks();
        prop_assert_eq!(ranks.len() as u32, topology.workers());
        let order = |rank: &Rank| (rank.pp, rank.pcp, rank.tp);
        prop_assert!(ranks.windows(2).all(|pair| order(&pair[0]) < order(&pair[1])));
        prop_assert!(ranks.iter().all(|rank| rank.dcp == rank.tp % topology.dcp()));
        prop_assert!(topology.rank(topology.workers()).is_err());
    }

    /// I5: two ranks share a key exactly if they hold the same heads, of the same tokens, of the same layers; and the
    /// one that stands for them is one of them.
    #[test]
    fn ranks_share_a_key_exactly_if_they_hold_equal_bytes(topology in topology(), heads in 1u16..17) {
        let Ok(mapping) = HeadMapping::new(&topology, heads) else { return Ok(()) };
        let holds = |rank: Rank| (mapping.heads(rank.tp).collect::<Vec<_>>(), rank.dcp, rank.pcp, rank.pp);
        let mut by_bytes: BTreeMap<_, Vec<Rank>> = BTreeMap::new();
        for rank in topology.ranks() {
            by_bytes.entry(holds(rank)).or_default().push(rank);
        }
        let own = topology;
        let topology = topology.with_heads(heads).unwrap();
        for same in by_bytes.values() {
            prop_assert!(same.iter().all(|rank| topology.canonical(*rank) == same[0]));
        }
        prop_assert_eq!(topology.key_ranks().len(), by_bytes.len());
        let all: BTreeSet<u16> = (0..topology.tp()).flat_map(|tp| mapping.heads(tp)).collect();
        prop_assert_eq!(all, (0..heads).collect());
        prop_assert_eq!(own.key_ranks(), own.ranks());
        if topology.dcp() == 1 {
            prop_assert_eq!(own.with_replicas(mapping.copies()), topology);
        }
    }

    /// I5: whatever an engine says of equal bytes, the keys that its workers write are exactly those that its scheduler
    /// asks for, and workers share one only inside a row of so many.
    #[test]
    fn a_scheduler_asks_for_exactly_the_keys_that_workers_write(topology in topology(), replicas in 0u16..10) {
        let topology = topology.with_replicas(replicas);
        let mut by_key: BTreeMap<Rank, Vec<u32>> = BTreeMap::new();
        for index in 0..topology.workers() {
            by_key.entry(topology.key_rank(index).unwrap()).or_default().push(index);
        }
        let asked = topology.key_ranks();
        prop_assert_eq!(asked.iter().copied().collect::<BTreeSet<_>>(), by_key.keys().copied().collect());
        prop_assert_eq!(asked.len(), by_key.len());
        let tp = u32::from(topology.tp());
        let relied_on = replicas > 0 && topology.dcp() == 1 && topology.tp().is_multiple_of(replicas);
        let row = if relied_on { u32::from(replicas) } else { 1 };
        for workers in by_key.values() {
            prop_assert_eq!(workers.len() as u32, row);
            prop_assert!(workers.iter().all(|one| (one / tp, one % tp / row) == (workers[0] / tp, workers[0] % tp / row)));
        }
        prop_assert!(topology.key_rank(topology.workers()).is_err());
    }
}
