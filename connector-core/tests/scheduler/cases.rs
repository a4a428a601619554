//! Field cases, and what else the golden traces do not reach.

use umbp_connector_core::metadata::StoreEventId;
use umbp_connector_core::plan::{BlockId, RequestId};
use umbp_connector_core::scheduler::{Config, KvEvent, Options, Step};

use crate::bench::{
    BLOCK, Bench, OTHER, TABLE, config, full, hashes, keys, loaded_blocks, objects, one_full, options, prompt,
    stored_blocks,
};

/// A bench that has stored the prompt, and a request `b` of the same prompt that was offered it.
fn offered() -> Bench {
    let mut bench = one_full();
    bench.store_prompt("a", &prompt(), &TABLE);
    bench.request("b", &prompt());
    assert_eq!(bench.matched("b", 0), Some(16));
    bench
}

/// `offered`, admitted, and its load sent in its first step.
fn loading() -> Bench {
    let mut bench = offered();
    bench.admit("b", &OTHER, 16);
    let row = bench.new_row("b", &OTHER, 16, 1);
    let output = bench.step(Step { new: vec![row], ..Step::default() });
    assert_eq!(loaded_blocks(&output), [11, 12, 13, 14]);
    assert_eq!(objects(&output), [], "a step that loads stores nothing of the request");
    bench
}

/// A2: what a failed load has cost is computed anew, and stored anew; what is still there is not.
#[test]
fn a2_blocks_of_a_failed_load_are_stored_again_once_they_are_computed() {
    let mut bench = loading();
    let all = hashes(&prompt(), BLOCK);
    for key in keys(&bench.config.clone(), 0, &all[1..]) {
        bench.store().keys.remove(&key);
    }
    // Block 1 of 4 is lost: the engine goes back to the end of block 0.
    let output = bench.go_on(&[("b", 4, 13)]);
    assert_eq!(stored_blocks(&output, "b"), [12, 13, 14]);
}

/// A2: the same, long after: the request has stored on, and still its belief follows the engine's.
#[test]
fn a2_a_request_that_goes_back_stores_what_it_computes_again() {
    let mut bench = one_full();
    bench.request("a", &prompt());
    bench.matched("a", 0);
    bench.admit("a", &TABLE, 0);
    let row = bench.new_row("a", &TABLE, 0, 17);
    let output = bench.step(Step { new: vec![row], ..Step::default() });
    let all = objects(&output);
    assert_eq!(all.len(), 4);
    bench.complete(&output, &all, 0.0);
    let output = bench.go_on(&[("a", 8, 9)]);
    assert_eq!(stored_blocks(&output, "a"), [3, 4]);
}

/// A2: as long as a synchronous load may still fail, nothing that rests on its blocks is stored: neither by a request
/// that shares them in the same step, nor in a step that is planned before the report is in.
#[test]
fn a2_what_rests_on_a_load_that_may_still_fail_is_not_stored() {
    // Steps whose loads are unreported when a step is planned; then what `b`, which loads, and `c`, which shares what
    // is loaded, store in the step of the load and in the two behind it.
    let (own, all) = ([15, 16].as_slice(), [11, 12, 13, 14, 21, 22].as_slice());
    let cases = [
        (0, [&[], own, &[]], [all, &[], &[]]),
        (1, [&[], own, &[]], [&[], all, &[]]),
        (2, [&[], &[], own], [&[], &[], all]),
    ];
    for (steps, of_b, of_c) in cases {
        let longer: Vec<u32> = (1..=25).collect();
        let mut bench = one_full();
        bench.scheduler.set_unreported_steps(steps);
        bench.store_prompt("a", &prompt(), &TABLE);
        bench.request("b", &longer);
        // The same to the end of what is loaded, other than `b` behind it.
        let of_c_alone: Vec<u32> = (1..=16).chain(101..=109).collect();
        bench.request("c", &of_c_alone);
        let (table, shared) = ([11, 12, 13, 14, 15, 16, 17], [11, 12, 13, 14, 21, 22, 23]);
        assert_eq!(bench.matched("b", 0), Some(16));
        bench.admit("b", &table, 16);
        assert_eq!(bench.matched("c", 16), Some(0), "the engine's own cache has the rest");
        bench.admit("c", &shared, 0);
        let rows = vec![bench.new_row("b", &table, 16, 9), bench.new_row("c", &shared, 16, 9)];
        let mut outputs = vec![bench.step(Step { new: rows, ..Step::default() })];
        outputs.push(bench.go_on(&[("b", 25, 1), ("c", 25, 1)]));
        outputs.push(bench.go_on(&[("b", 26, 1), ("c", 26, 1)]));
        let found = |id| outputs.iter().map(|output| stored_blocks(output, id)).collect::<Vec<_>>();
        assert_eq!(found("b"), of_b, "b, {steps} unreported");
        assert_eq!(found("c"), of_c, "c, {steps} unreported");
    }
}

/// C1: an engine that takes none of what was offered leaves no hold.
#[test]
fn c1_hits_that_the_engine_does_not_take_are_held_by_nobody() {
    let mut bench = offered();
    assert_eq!(bench.store().held.len(), 4);
    bench.admit("b", &OTHER, 0);
    assert!(bench.store().held.is_empty(), "held: {:?}", bench.store().held);
}

/// A state, and a bench whose request `b` is in it.
type InState = (&'static str, fn() -> Bench);

/// B3: a request may go at any time: nothing is loaded for it any more, and nothing stays held or pinned.
#[test]
fn b3_a_request_may_go_in_any_state() {
    let cases: [InState; 6] = [
        ("queued", || {
            let mut bench = one_full();
            bench.request("b", &prompt());
            bench
        }),
        ("asked", || {
            let options = Options { lookup_async: true, ..options() };
            let mut bench = Bench::new(Config { options, ..config(vec![full(BLOCK)]) });
            bench.request("b", &prompt());
            bench.store().slow = true;
            assert_eq!(bench.matched("b", 0), None);
            bench
        }),
        ("offered", offered),
        ("admitted, its load unsent", || {
            let mut bench = offered();
            bench.admit("b", &OTHER, 16);
            bench
        }),
        ("loading", loading),
        ("storing", || {
            let mut bench = one_full();
            bench.request("b", &prompt());
            bench.matched("b", 0);
            bench.admit("b", &TABLE, 0);
            let row = bench.new_row("b", &TABLE, 0, 17);
            assert!(bench.step(Step { new: vec![row], ..Step::default() }).store_event.is_some());
            bench
        }),
    ];
    for (state, begin) in cases {
        let mut bench = begin();
        // What is sent is the workers', who adopt its holds.
        let sent = state == "loading";
        bench.scheduler.request_finished(&"b".into());
        let output = bench.step(Step { finished: vec!["b".into()], ..Step::default() });
        assert!(loaded_blocks(&output).is_empty(), "{state}");
        assert_eq!(bench.store().held.is_empty(), !sent, "{state}: held");
        assert!(bench.store().under_way.is_empty(), "{state}: lookups under way");
        // The reports of what was begun may come late, twice, and of what nobody knows.
        for event in [0, 0, 1, 7] {
            bench.report(StoreEventId(event), 1, &[], 0.0);
        }
        assert_eq!(bench.pins(), 0, "{state}: pins");
        assert!(!bench.scheduler.has_pending_push_work(), "{state}");
    }
}

/// B2: a lookup beside the store of the same blocks is a miss; the store goes on, and the blocks are found later.
#[test]
fn b2_blocks_under_way_are_a_miss_for_the_request_that_comes_back() {
    let mut bench = one_full();
    bench.request("a", &prompt());
    bench.matched("a", 0);
    bench.admit("a", &TABLE, 0);
    let row = bench.new_row("a", &TABLE, 0, 17);
    let output = bench.step(Step { new: vec![row], ..Step::default() });
    bench.step(Step { preempted: vec!["a".into()], ..Step::default() });
    assert_eq!(bench.matched("a", 0), Some(0), "nothing is there yet");
    bench.admit("a", &OTHER, 0);
    let resumed = vec![bench.new_row("a", &OTHER, 0, 17)];
    let second = bench.step(Step { new: resumed, ..Step::default() });
    assert_eq!(objects(&second), [], "what is under way is not stored a second time");
    bench.complete(&output, &[], 0.0);
    assert_eq!(bench.pins(), 0);
    bench.request("b", &prompt());
    assert_eq!(bench.matched("b", 0), Some(16));
}

/// B4, B7: a store event ends once, when the last worker has reported, whatever failed; late reports change nothing.
#[test]
fn b4_b7_pins_go_with_the_last_workers_report_and_late_ones_are_harmless() {
    for failed in [0, 2, 4] {
        let mut bench = Bench::new(Config { num_workers: 2, ..config(vec![full(BLOCK)]) });
        bench.request("a", &prompt());
        bench.matched("a", 0);
        bench.admit("a", &TABLE, 0);
        let row = bench.new_row("a", &TABLE, 0, 17);
        let output = bench.step(Step { new: vec![row], ..Step::default() });
        let event = output.store_event.expect("stores");
        let failed: Vec<_> = objects(&output).into_iter().take(failed).collect();
        assert_eq!(bench.pins(), 4);
        bench.report(event, 1, &failed, 0.0);
        assert_eq!(bench.pins(), 4, "one worker still reads");
        assert!(!bench.scheduler.reset_store(), "nothing is forgotten under a store");
        bench.report(event, 1, &[], 0.0);
        assert_eq!(bench.pins(), 0);
        bench.report(event, 1, &failed, 0.0);
        assert_eq!(bench.pins(), 0);
        assert!(bench.scheduler.reset_store());
    }
}

/// A1, I4: a store that finds blocks and never loads them is not asked for them again by the request whose load failed,
/// however it was reported; other requests are, and so is it once it is preempted.
#[test]
fn a1_i4_a_load_that_fails_is_not_tried_for_ever() {
    let reports: [(&str, &[&str], &[i64]); 3] =
        [("by block", &[], &[11]), ("by request", &["b"], &[]), ("of no known request or block", &["x"], &[99])];
    for (report, requests, blocks) in reports {
        let mut bench = loading();
        let requests: Vec<RequestId> = requests.iter().map(|name| RequestId::from(*name)).collect();
        bench.scheduler.loads_failed(&requests, &blocks.iter().map(|block| BlockId(*block)).collect());
        let expected = if blocks == [99] { Some(16) } else { Some(0) };
        assert_eq!(bench.matched("b", 0), expected, "{report}");
        bench.request("c", &prompt());
        assert_eq!(bench.matched("c", 0), Some(16), "{report}: another request");
        bench.admit("c", &TABLE, 0);
        bench.admit("b", &OTHER, 0);
        assert!(bench.store().held.len() <= 4, "{report}: holds of what is loaded, at most");
        bench.step(Step { preempted: vec!["b".into()], ..Step::default() });
        assert_eq!(bench.matched("b", 0), Some(16), "{report}: preempted");
    }
}

/// A match that goes away unloaded gives its holds back; a load that replaces an unsent one is the only one sent.
#[test]
fn an_unsent_load_ends_with_the_next_admission() {
    let mut bench = offered();
    bench.admit("b", &OTHER, 16);
    assert!(!bench.store().held.is_empty());
    bench.admit("b", &TABLE, 0);
    assert!(bench.store().held.is_empty(), "nobody will load these");
    let row = bench.new_row("b", &TABLE, 0, 17);
    let output = bench.step(Step { new: vec![row], ..Step::default() });
    assert!(loaded_blocks(&output).is_empty(), "the blocks of that load may be another's by now");
}

/// A reset forgets loads that are not sent, with their holds.
#[test]
fn a_reset_leaves_nothing_held() {
    let mut bench = offered();
    bench.admit("b", &OTHER, 16);
    assert!(bench.scheduler.reset_store());
    assert!(bench.store().held.is_empty());
}

fn with_events() -> Bench {
    let options = Options { events: true, ..options() };
    Bench::new(Config { options, ..config(vec![full(BLOCK)]) })
}

/// B6, B7: a store that does not answer keeps no engine awake: the check is made up for later, and nothing is lost.
#[test]
fn b6_b7_a_residency_check_that_fails_waits_and_is_made_up_for() {
    let mut bench = with_events();
    bench.request("a", &prompt());
    bench.matched("a", 0);
    bench.admit("a", &TABLE, 0);
    let row = bench.new_row("a", &TABLE, 0, 17);
    let output = bench.step(Step { new: vec![row], ..Step::default() });
    bench.store().away = true;
    bench.complete(&output, &[], 0.0);
    assert!(bench.scheduler.has_pending_push_work(), "a check is under way");
    assert_eq!(bench.scheduler.take_events(0.1), []);
    assert!(!bench.scheduler.has_pending_push_work(), "nothing is due before a while has passed");
    let asked = bench.store().asked.len();
    assert_eq!(bench.scheduler.take_events(0.5), []);
    assert_eq!(bench.store().asked.len(), asked, "not asked at every step");
    bench.store().away = false;
    assert_eq!(bench.scheduler.take_events(1.5), []);
    let events = bench.scheduler.take_events(1.6);
    assert_eq!(events.iter().filter(|event| matches!(event, KvEvent::Stored { .. })).count(), 4);
    assert!(!bench.scheduler.has_pending_push_work());
}
