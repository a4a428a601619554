//! A key has one binary form and one text form, and every other is refused.

use proptest::prelude::*;
use umbp_connector_core::key::{BlockHash, GroupId, KeyError, LOCAL_KEY_BYTES, LocalKey, Rank, TextKey};

prop_compose! {
    fn local_key()(
        hash in prop::collection::vec(any::<u8>(), 1..=32),
        group: u16,
        (tp, pcp, dcp, pp) in any::<(u16, u16, u16, u16)>(),
    ) -> LocalKey {
        LocalKey { hash: BlockHash::new(&hash).unwrap(), group: GroupId(group), rank: Rank { tp, pcp, dcp, pp } }
    }
}

/// Texts that are nearly keys.
const TEXTS: &str = "umbp:vllm:v1:[a:]{0,3}n:tp[0-9]{1,2}:pcp0:dcp[0-9+]{1,2}:pp0:g[0-9]{1,6}:[0-9a-fA-F]{0,6}";

proptest! {
    #[test]
    fn the_text_form_reads_back(local in local_key(), namespace in "[ -~é]{1,40}|[0-9a-z:]{1,40}") {
        let text = TextKey { namespace: &namespace, local }.to_string();
        prop_assert_eq!(TextKey::parse(&text), Ok(TextKey { namespace: &namespace, local }));
    }

    #[test]
    fn what_reads_as_a_text_key_is_its_only_text(text in TEXTS) {
        if let Ok(key) = TextKey::parse(&text) {
            prop_assert_eq!(key.to_string(), text);
        }
    }

    #[test]
    fn the_binary_form_reads_back(local in local_key()) {
        prop_assert_eq!(LocalKey::from_bytes(&local.to_bytes()), Ok(Some(local)));
    }

    #[test]
    fn what_reads_as_a_binary_key_is_its_only_form(
        hash in prop::collection::vec(any::<u8>(), 1..=32),
        at in 0..LOCAL_KEY_BYTES,
        value: u8,
    ) {
        let hash = BlockHash::new(&hash).unwrap();
        let mut bytes = LocalKey { hash, group: GroupId(1), rank: Rank::default() }.to_bytes();
        bytes[at] = value;
        if let Ok(Some(key)) = LocalKey::from_bytes(&bytes) {
            prop_assert_eq!(key.to_bytes(), bytes);
        }
    }
}

#[test]
fn the_text_form_is_the_one_that_engines_write() {
    let text = "umbp:vllm:v1:m1:tp1:pcp2:dcp3:pp4:g5:9e3225a9f133b5de";
    let key = TextKey::parse(text).unwrap();
    assert_eq!(key.namespace, "m1");
    assert_eq!(key.local.rank, Rank { tp: 1, pcp: 2, dcp: 3, pp: 4 });
    assert_eq!((key.local.group, key.local.hash.as_bytes().len()), (GroupId(5), 8));
    let colons = TextKey::parse("umbp:vllm:v1:a:tp0:b:tp1:pcp2:dcp3:pp4:g5:00").unwrap();
    assert_eq!(colons.namespace, "a:tp0:b");
}

#[test]
fn other_texts_are_refused_with_the_reason() {
    let good = "umbp:vllm:v1:m1:tp0:pcp0:dcp0:pp0:g0:ab";
    let cases = [
        ("umbp:vllm:v1:", "umbp:vllm:v2:", "in front"),
        ("m1", "", "namespace is empty"),
        ("tp0", "tp00", "with numbers"),
        ("tp0", "tp+1", "with numbers"),
        ("tp0", "tp65536", "with numbers"),
        ("pcp0", "pp0", "with numbers"),
        ("g0:", "", "with numbers"),
        ("ab", "AB", "hex"),
        ("ab", "abc", "hex"),
        ("ab", "", "hex"),
        ("ab", "é", "hex"),
    ];
    for (from, to, reason) in cases {
        let text = good.replacen(from, to, 1);
        let error = TextKey::parse(&text).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains(&format!("{text:?}")), "{error}");
    }
    let long = good.replace(":ab", &format!(":{}", "ab".repeat(33)));
    assert!(TextKey::parse(&long).is_err());
}

#[test]
fn binary_forms_that_would_name_a_key_twice_are_refused() {
    let key = LocalKey { hash: BlockHash::new(&[7; 8]).unwrap(), group: GroupId(0), rank: Rank::default() };
    let with = |at: usize, value: u8| {
        let mut bytes = key.to_bytes();
        bytes[at] = value;
        LocalKey::from_bytes(&bytes)
    };
    assert_eq!(with(8, 1), Err(KeyError::NotCanonical), "padding of the hash");
    assert_eq!(with(33, 1), Err(KeyError::NotCanonical), "reserved byte");
    assert_eq!(with(32, 33), Err(KeyError::HashLength(33)));
    assert_eq!(with(32, 0), Err(KeyError::NotCanonical), "no key, but not zero");
    assert_eq!(LocalKey::from_bytes(&[0; LOCAL_KEY_BYTES]), Ok(None));
    assert_eq!(BlockHash::new(&[]), Err(KeyError::HashLength(0)));
    assert_eq!(BlockHash::new(&[0; 33]), Err(KeyError::HashLength(33)));
}
