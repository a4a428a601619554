//! What clients, and records of an earlier life, say of a block's place in its chain may be wrong, and may change.

use proptest::prelude::*;
use umbp_plugin_api::Status;
use umbp_plugin_api::types::RecoveredBlock;
use umbp_protocol::message::{LeaseId, ReserveItem, Reserved, SessionId};

use super::rig::{BLOCK, Rig, SECOND, checksum, settings};
use crate::engine::api::{EvictionPolicy, Settings, TierIndex, TierState};
use crate::engine::slab::NONE;
use crate::engine::tier::{CopyState, TRACKED};

const NVME: TierIndex = TierIndex(1);
const KEYS: u64 = 12;
const ALL: [EvictionPolicy; 3] = [EvictionPolicy::PrefixLru, EvictionPolicy::S3Fifo, EvictionPolicy::ChainHazard];

struct World {
    rig: Rig,
    session: SessionId,
    leases: Vec<(LeaseId, Option<u64>)>,
}

/// What a client says of a block: number, its parent's number if it has one, depth.
type Said = (u64, Option<u64>, u32);

impl World {
    fn new(eviction: EvictionPolicy) -> Self {
        let mut rig = Rig::new(Settings { eviction, ..settings(&[6, 5]) });
        let session = rig.session();
        Self { rig, session, leases: Vec::new() }
    }

    fn item(&self, (n, parent, depth): Said) -> ReserveItem {
        let parent = parent.map_or([0; 44], |parent| self.rig.key(parent).local);
        ReserveItem { key: self.rig.key(n), parent, depth, length: BLOCK }
    }

    fn store(&mut self, said: Said) -> Reserved {
        let items = [self.item(said)];
        self.rig.store_items(self.session, &items)[0]
    }

    fn recover(&mut self, (n, parent, depth): Said) {
        let key = self.rig.key(n);
        let parent = parent.map_or([0; 44], |parent| self.rig.key(parent).local);
        let location = 50_000 + n;
        let (namespace_id, length) = (key.namespace.0, BLOCK);
        let block = RecoveredBlock {
            key: key.local,
            parent,
            namespace_id,
            depth,
            length,
            location,
            checksum: checksum(&key),
            recency: n,
        };
        let now = self.rig.time();
        self.rig.engine.recovered(NVME, &[block], now);
        self.rig.engine.recovery_done(NVME, now);
        self.rig.drain();
    }

    fn finish_one(&mut self, choice: u32) {
        if self.rig.operations.is_empty() {
            return;
        }
        let kind = self.rig.operations[choice as usize / 8 % self.rig.operations.len()].1.code;
        let status = [Status::OK, Status::OK, Status::OK, Status::IO, Status::NO_SPACE, Status::CORRUPT];
        self.rig.finish(kind, status[choice as usize % status.len()]);
    }

    fn step(&mut self, (op, said, choice): (u8, Said, u32)) {
        let now = self.rig.time();
        match op {
            0..6 => {
                self.store(said);
            }
            6 => {
                let items = [self.item(said)];
                let (lease, answers) = self.rig.reserve(self.session, &items);
                if matches!(answers[0], Reserved::Extent(_)) {
                    self.leases.push((lease, Some(checksum(&items[0].key))));
                }
            }
            7 => {
                let lease = self.rig.acquire(self.session, &[said.0]).0;
                self.leases.push((lease, None));
            }
            8 if !self.leases.is_empty() => {
                let (lease, written) = self.leases.swap_remove(choice as usize % self.leases.len());
                match written {
                    Some(checksum) if choice % 3 > 0 => {
                        self.rig.engine.commit(self.session, lease, &[(0, checksum)], now);
                    }
                    Some(_) => {
                        self.rig.engine.abort(self.session, lease, &[], now);
                    }
                    None => drop(self.rig.engine.release(self.session, lease, &[], now)),
                }
            }
            9..12 => self.finish_one(choice),
            12 => self.recover(said),
            13 => self.rig.advance(SECOND * u64::from(choice % 3)),
            14 => {
                let state = if choice % 2 == 0 { TierState::Running } else { TierState::Degraded };
                self.rig.engine.tier_state(NVME, state, now);
            }
            _ => drop(self.rig.engine.clear(self.session, None, choice % 16, now)),
        }
        self.rig.drain();
        self.check();
    }

    /// Links fall in depth, and what is counted of children is what there is.
    fn check(&self) {
        let engine = &self.rig.engine;
        let all: Vec<u32> =
            (0..).map_while(|slot| engine.index.at(slot).map(|entry| entry.map(|_| slot))).flatten().collect();
        for slot in &all {
            let entry = &engine.index[*slot];
            assert!(entry.parent == NONE || engine.index.above(*slot).is_some(), "no link is out of use");
        }
        for (at, tier) in engine.tiers.iter().enumerate().filter(|(_, tier)| tier.wants_ends) {
            let is_in = |slot: u32| {
                let copy = engine.index.copy(slot, at);
                let here = copy != NONE && {
                    let copy = &tier.copies[copy];
                    copy.is(TRACKED) || (at == 0 && matches!(copy.state, CopyState::Writing | CopyState::Filling))
                };
                here || tier.kids.get(slot) > 0
            };
            for slot in &all {
                let kids = all.iter().filter(|kid| engine.index.above(**kid) == Some(*slot) && is_in(**kid)).count();
                assert_eq!(tier.kids.get(*slot) as usize, kids, "tier {at}, entry {slot}");
            }
        }
        assert_eq!(engine.status()["faults"], 0);
    }
}

#[test]
fn a_block_that_is_said_to_lie_elsewhere_takes_its_links_along() {
    for eviction in ALL {
        let mut world = World::new(eviction);
        // Known by its child; then said to lie at one depth, given up, and said to lie at another.
        world.store((3, Some(1), 9));
        let given_up = [world.item((1, Some(2), 5))];
        let (lease, _) = world.rig.reserve(world.session, &given_up);
        let now = world.rig.time();
        world.rig.engine.abort(world.session, lease, &[], now);
        for said in [(1, Some(2), 2), (2, None, 1)] {
            assert!(matches!(world.store(said), Reserved::Extent(_)), "{said:?}");
            world.check();
        }
        for n in 200..210 {
            world.store((n, None, 0));
        }
        world.check();
    }
}

fn said() -> impl Strategy<Value = Said> {
    (0..KEYS, prop::option::weighted(0.8, 0..KEYS), 0_u32..7)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_said_of_depths_and_parents_the_tables_agree(
        steps in prop::collection::vec((0_u8..16, said(), any::<u32>()), 1..200)
    ) {
        for eviction in ALL {
            let mut world = World::new(eviction);
            steps.iter().for_each(|step| world.step(*step));
        }
    }
}
