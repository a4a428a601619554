use umbp_protocol::message::NamespaceId;

use super::*;

fn key(number: u32) -> WireKey {
    let mut local = [0; 44];
    local[..4].copy_from_slice(&number.to_le_bytes());
    WireKey { namespace: NamespaceId(1), local }
}

#[test]
fn at_no_number_of_keys_do_tables_hold_much_unused() {
    let mut index = Index::new();
    for number in 0..120_000 {
        index.find_or_insert(key(number), 0);
        if number >= 50_000 && number % 5_000 == 0 {
            let tables = index.memory_bytes() - index.entries.memory_bytes();
            assert!(tables <= 9 * number as usize, "{tables} bytes for {number} keys");
        }
    }
    assert!((0..120_000).all(|number| index.find(&key(number)) == Some(number)));
}

#[test]
fn an_entry_names_its_copies_in_every_tier_and_is_kept_for_each() {
    for tier in 0..TIERS_MAX {
        let mut index = Index::new();
        let slot = index.find_or_insert(key(7), 0);
        assert!(index.is_ghost(slot));
        index.set_copy(slot, tier, 5);
        let expected: [u32; TIERS_MAX] = std::array::from_fn(|at| if at == tier { 5 } else { NONE });
        assert_eq!(index.copies(slot), expected);
        index.collect(slot);
        assert_eq!(index.find(&key(7)), Some(slot));
        index.set_copy(slot, tier, NONE);
        index.collect(slot);
        assert_eq!(index.find(&key(7)), None);
    }
}
