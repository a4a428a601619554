//! H3: two descriptors share a digest only if they are the same descriptor.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use umbp_connector_core::namespace::{EngineIdentity, GroupIdentity, NamespaceDescriptor, SpeculativeIdentity};
use umbp_connector_core::topology::RankTopology;

fn of(pairs: &[(&str, &str)]) -> NamespaceDescriptor {
    pairs.iter().fold(NamespaceDescriptor::default(), |descriptor, (name, value)| descriptor.with(name, value))
}

/// H3
#[test]
fn a_name_and_a_value_never_take_each_others_place() {
    let all = [
        of(&[]),
        of(&[("", "")]),
        of(&[("lora", "X")]),
        of(&[("salt", "X")]),
        of(&[("loraX", "")]),
        of(&[("", "loraX")]),
        of(&[("lora", "X"), ("salt", "")]),
        of(&[("lora", ""), ("salt", "X")]),
        of(&[("a", "b"), ("c", "d")]),
        of(&[("a", "bc"), ("d", "")]),
        of(&[("a", "b\u{1}\0\0\0c\u{1}\0\0\0d")]),
    ];
    let mut seen = HashMap::new();
    for descriptor in all {
        if let Some(other) = seen.insert(descriptor.digest(), descriptor.clone()) {
            panic!("{descriptor:?} and {other:?} share a digest");
        }
    }
}

#[test]
fn order_of_properties_does_not_matter() {
    assert_eq!(of(&[("a", "1"), ("b", "2")]).digest(), of(&[("b", "2"), ("a", "1")]).digest());
}

fn layer(name: &str, fields: &[(&str, &str)]) -> (String, BTreeMap<String, String>) {
    (name.to_owned(), of(fields).0)
}

fn identity() -> EngineIdentity {
    let layers = vec![layer("l0", &[("heads", "8")]), layer("l1", &[("heads", "8")])];
    EngineIdentity {
        key_namespace: None,
        model: "m".into(),
        revision: None,
        block_hash: "sha256".into(),
        kv_layout: None,
        kv_dtype: "fp8_e4m3".into(),
        block_size: 16,
        topology: RankTopology::new(2, 1, 1, 1).unwrap(),
        groups: vec![GroupIdentity { kind: "full".into(), block_size: 16, layers }],
        speculative: None,
        extra: BTreeMap::new(),
    }
}

/// H6: whatever shapes the bytes is in the namespace, also where the sizes are equal; H3: a text of one property is
/// never taken for another.
#[test]
fn engines_share_a_namespace_only_if_nothing_differs() {
    type Change = fn(&mut EngineIdentity);
    let changes: [Change; 23] = [
        |_| (),
        |it| it.kv_dtype = "fp8_e5m2".into(),
        |it| it.model = "n".into(),
        |it| it.revision = Some(String::new()),
        |it| it.revision = Some("main".into()),
        |it| it.key_namespace = Some("main".into()),
        |it| it.kv_layout = Some("main".into()),
        |it| it.block_hash = "builtin".into(),
        |it| it.block_size = 32,
        |it| it.topology = RankTopology::new(1, 2, 1, 1).unwrap(),
        |it| it.topology = RankTopology::new(2, 1, 1, 2).unwrap(),
        |it| it.topology = RankTopology::new(2, 1, 2, 1).unwrap(),
        |it| it.topology = RankTopology::new(2, 1, 2, 1).unwrap().with_replicas(2),
        |it| it.speculative = Some(SpeculativeIdentity::default()),
        |it| it.speculative = Some(SpeculativeIdentity { model: Some("main".into()), ..Default::default() }),
        |it| it.groups[0].kind = "sliding".into(),
        |it| it.groups[0].block_size = 8,
        |it| it.groups[0].layers.reverse(),
        |it| it.groups[0].layers[0].1 = of(&[("heads", "4")]).0,
        |it| it.groups.push(GroupIdentity { kind: "mamba".into(), block_size: 16, layers: Vec::new() }),
        |it| it.extra = of(&[("revision", "main")]).0,
        |it| it.extra = of(&[("lora", "X")]).0,
        |it| it.extra = of(&[("salt", "X")]).0,
    ];
    let mut seen = HashMap::new();
    for (index, change) in changes.iter().enumerate() {
        let mut engine = identity();
        change(&mut engine);
        if let Some(other) = seen.insert(engine.descriptor().digest(), index) {
            panic!("changes {other} and {index} share a namespace");
        }
    }
}

/// H1: what one process computes another finds; also a later version of this code. Change the constant only together
/// with the version in the descriptor: every block stored before is unreachable then.
#[test]
fn the_digest_of_an_engine_is_the_same_in_every_process() {
    assert_eq!(identity().descriptor().digest().to_string(), DIGEST);
}

/// Computed apart from this code, from the documented encoding.
const DIGEST: &str = "90f7d8df0c1df29963705513a7b609b1adb0abba9827dd2e489788a54281eb6a";

/// A descriptor goes to every tier, where it is bounded: layers count by digest.
#[test]
fn a_descriptor_does_not_grow_with_the_layers() {
    let mut engine = identity();
    let few = engine.descriptor().encode().len();
    engine.groups[0].layers = (0..1000).map(|index| layer(&format!("layer.{index}"), &[("heads", "8")])).collect();
    assert!(engine.descriptor().encode().len() < few + 16);
}

proptest! {
    /// Shifts the border between neighbouring texts, over every text, so that plain concatenation would collide.
    #[test]
    fn shifted_borders_never_collide(text in "[ab\u{0}-\u{4}]{2,12}", cuts in prop::collection::vec(0usize..12, 2..6)) {
        let cut = |shift: usize| {
            let mut at: Vec<usize> = cuts.iter().map(|cut| (cut + shift) % text.len()).collect();
            at.sort_unstable();
            at.push(text.len());
            let parts: Vec<&str> = at.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            let pairs: Vec<(&str, &str)> =
                parts.chunks(2).map(|pair| (pair[0], pair.get(1).copied().unwrap_or_default())).collect();
            of(&pairs)
        };
        let all: Vec<_> = (0..text.len()).map(cut).collect();
        for one in &all {
            for other in &all {
                prop_assert_eq!(one == other, one.encode() == other.encode());
                prop_assert_eq!(one == other, one.digest() == other.digest());
            }
        }
    }
}
