//! H3: two descriptors share a digest only if they are the same descriptor.

use std::collections::HashMap;

use proptest::prelude::*;
use umbp_connector_core::namespace::NamespaceDescriptor;

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
