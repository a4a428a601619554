//! The tier engine against a world that misbehaves: clients that write late, die, release twice and never load;
//! a backend that is slow, fails, and answers after its deadline. The world has real bytes, and after each step a
//! few laws must hold; `check` lists them (A7, B7, B8, C2, C6, D6, J4, K12 as far as tables can break them).

#[path = "engine_model/check.rs"]
mod check;
#[path = "engine_model/clients.rs"]
mod clients;
#[path = "engine_model/others.rs"]
mod others;
#[path = "engine_model/world.rs"]
mod world;

use proptest::prelude::*;
use umbpd::engine::api::{Admission, EvictionPolicy, Promote, WritePolicy};
use world::{Plan, Step, World};

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(any::<(u8, u8, u8, u8)>(), 1..250)
}

fn plan() -> impl Strategy<Value = Plan> {
    let rooms = (6_u64..40, 6_u64..40, 0_u64..4, 0_u64..3);
    let policies = (0_usize..3, any::<bool>(), 0_usize..4, 0_u8..4);
    let write = prop_oneof![Just(WritePolicy::Through), Just(WritePolicy::OnEvict), Just(WritePolicy::AfterHits(2))];
    let remote = prop::option::of((3_u64..30, write));
    (rooms, policies, any::<bool>(), any::<bool>(), remote).prop_map(
        |((dram, nvme, promotion, headroom), (eviction, on_evict, admission, hits), two_tenants, may_fail, remote)| {
            Plan {
                dram: dram + promotion,
                nvme,
                promotion,
                headroom,
                write: if on_evict { WritePolicy::OnEvict } else { WritePolicy::Through },
                eviction: [EvictionPolicy::PrefixLru, EvictionPolicy::S3Fifo, EvictionPolicy::ChainHazard][eviction],
                admission: [Admission::All, Admission::SecondSighting, Admission::MinDepth(1), Admission::MinDepth(3)]
                    [admission],
                promote: if hits < 2 { Promote::OnAcquire } else { Promote::AfterHits(hits) },
                tenants: if two_tenants { 2 } else { 1 },
                may_fail,
                remote,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// A7 among others: what disappears between two calls is a miss.
    #[test]
    fn no_sequence_of_calls_breaks_a_law(plan in plan(), steps in steps()) {
        let mut world = World::new(&plan);
        for step in steps {
            world.step(step);
        }
        world.end();
    }
}
