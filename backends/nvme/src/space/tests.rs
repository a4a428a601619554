//! The bookkeeping against a model of the disk.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn block(generation: u64, length: u32) -> Live {
    Live { generation, length, namespace: 0, fingerprint: 0 }
}

#[test]
fn data_and_metadata_together_stay_within_the_capacity() {
    let mut space = Space::new(MIB, 0, Ranges::default(), 16 << 10);
    assert!(space.end_recovery(1));
    let mut taken = 0;
    while let Room::At(_) = space.reserve(4096, 0) {
        taken += 1;
    }
    assert!(taken * (4096 + METADATA_BYTES_PER_BLOCK) + FIXED_BYTES + 3 * (16 << 10) <= MIB);
    assert!(taken > 150, "{taken}");
}

#[test]
fn until_recovery_has_ended_units_of_an_earlier_life_are_not_given_out() {
    let mut space = Space::new(MIB, 100, Ranges::default(), 0);
    assert!(space.recover(10, block(1, 8192)) && !space.recover(11, block(2, 1)));
    assert_eq!(space.reserve(4096, 0), Room::At(100));
    assert!(!space.recover(100, block(3, 1)), "beyond the earlier life");
    while !space.end_recovery(1) {}
    let (found, freed) = (space.find(10), space.reserve(10 * 4096, 0));
    assert_eq!((found, freed), (Some(block(1, 8192)), Room::At(0)));
    assert_eq!(space.resident(), (1, 8192));
}

#[test]
fn a_freed_unit_of_an_earlier_life_is_free_only_once() {
    let mut space = Space::new(MIB, 4, Ranges::default(), 0);
    assert!(space.recover(0, block(1, 4096)));
    assert!(space.forget(0).is_some());
    space.release(0, 4096);
    assert_eq!(space.reserve(4096, 0), Room::At(0));
    while !space.end_recovery(8) {}
    assert_ne!(space.reserve(4096, 0), Room::At(0));
}

/// What a step does: store, delete, punch, fail to punch.
fn steps() -> impl Strategy<Value = Vec<(u8, u64, u64)>> {
    prop::collection::vec((0_u8..8, 1_u64..20, any::<u64>()), 0..400)
}

proptest! {
    #[test]
    fn what_is_on_disk_and_metadata_stay_within_the_capacity_and_no_unit_is_given_twice(steps in steps()) {
        let mut space = Space::new(MIB, 60, Ranges::default(), 0);
        while !space.end_recovery(1) {}
        let (mut given, mut disk) = (Vec::<(u64, u64)>::new(), (0..60).collect::<BTreeSet<u64>>());
        let mut failed = false;
        for (generation, (what, units, pick)) in steps.into_iter().enumerate() {
            let length = units * UNIT_BYTES;
            match what {
                0..=3 => match space.reserve(length, 0) {
                    Room::At(start) => {
                        let clash = given.iter().any(|&(s, l)| s < start + units && start < s + l / UNIT_BYTES);
                        prop_assert!(!clash, "{start} twice");
                        space.publish(start, block(generation as u64, length as u32));
                        given.push((start, length));
                        disk.extend(start..start + units);
                        let metadata = space.metadata_bound(0, disk.len() as u64) - METADATA_BYTES_PER_BLOCK;
                        prop_assert!(disk.len() as u64 * UNIT_BYTES + metadata <= MIB);
                    }
                    // Whoever is told to wait finds room, if nobody else takes any meanwhile.
                    Room::Awaited => {
                        space.wait_ended(length);
                        let mut punches = 0;
                        while let Some((start, units)) = space.punch_due().then(|| space.take_to_punch()).flatten() {
                            space.punched(start, units, true);
                            disk.retain(|unit| !(start..start + units).contains(unit));
                            punches += 1;
                        }
                        let room = space.reserve_awaited(length, 0, 0);
                        let Room::At(start) = room else {
                            prop_assert!(failed, "{room:?} after {punches} punches");
                            continue;
                        };
                        space.abandon(start, length);
                        disk.extend(start..start + units);
                    }
                    Room::Full => {}
                },
                4 | 5 => if !given.is_empty() {
                    let (start, length) = given.swap_remove(pick as usize % given.len());
                    prop_assert!(space.forget(start).is_some());
                    space.release(start, length);
                },
                _ => if let Some((start, units)) = space.take_to_punch() {
                    prop_assert!(!given.iter().any(|&(s, l)| s < start + units && start < s + l / UNIT_BYTES));
                    space.punched(start, units, what == 6);
                    failed |= what != 6;
                    if what == 6 {
                        disk.retain(|unit| !(start..start + units).contains(unit));
                    }
                },
            }
            prop_assert_eq!(space.on_disk(), disk.len() as u64);
        }
    }
}

#[test]
fn holes_of_an_earlier_life_are_not_on_disk() {
    let mut holes = Ranges::default();
    holes.insert(10, 50);
    let mut space = Space::new(MIB, 100, holes, 0);
    assert_eq!(space.on_disk(), 50);
    assert!(space.recover(8, block(1, 16_384)), "units 8 to 12, two of them a hole");
    assert_eq!(space.on_disk(), 52);
    space.reclaim(50, 20 * UNIT_BYTES);
    assert_eq!(space.on_disk(), 52);
    while !space.end_recovery(1) {}
    assert_eq!((space.on_disk(), space.unpunched.units()), (52, 48));
}
