//! Any capacity, depth and length.

use std::sync::Arc;

use proptest::prelude::*;
use umbp_backend_nvme::port::Disk;
use umbp_plugin_api::Status;

use crate::common::{MIB, Tier, config, quick_folder};

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    // F5: numbers that are multiples of nothing.
    #[test]
    fn any_capacity_depth_and_length_works_or_is_refused_by_name(
        capacity in prop_oneof![0..2 * MIB, 0..64 * MIB],
        depth in prop_oneof![0..4_u32, 0..1100_u32],
        lengths in prop::collection::vec(prop_oneof![1..9000_u64, 1..3 * MIB, Just(18_432 * 61)], 1..6),
        io in prop::sample::select(vec!["auto", "threads"]),
    ) {
        let place = quick_folder();
        let config = config(place.path(), capacity, &format!("depth = {depth}\nio = \"{io}\""));
        let tier = match Tier::open_with(&config, Arc::new(Disk)) {
            Ok(tier) => tier,
            Err(error) => {
                let (text, deep) = (error.to_string(), depth == 0 || depth > 1024);
                let named = if deep { "depth" } else { "capacity" };
                prop_assert!(text.contains(named) && (deep || capacity < MIB), "{text}");
                return Ok(());
            }
        };
        tier.introduce();
        tier.recover();
        for (number, length) in (0..).zip(lengths) {
            match tier.put(number, length) {
                Ok(block) => prop_assert_eq!(tier.get(&block), Ok(())),
                Err(status) => prop_assert_eq!(status, Status::NO_SPACE),
            }
        }
    }
}
