//! The kit passes what keeps the contract, and finds each way of breaking it.

use std::time::Duration;

use umbp_plugin_api::built::built;
use umbp_plugin_api::kit::{KitOptions, Report, assert_conforms_in_process, run, run_in_process};

mod memory;

fn with_fault(fault: &str, only: &str, wait: Duration) -> Report {
    let text = format!("folder = \"{{work}}\"\nfault = \"{fault}\"\n");
    run_in_process::<memory::Memory>(&KitOptions::new(&text).only(only).waiting(wait))
}

#[test]
fn a_backend_that_keeps_the_contract_passes() {
    assert_conforms_in_process::<memory::Memory>(&KitOptions::new("folder = \"{work}\"\n"));
}

/// How long the kit waits: for what is found by waiting, no longer than it takes; else so long that a busy machine
/// makes nothing else of a fault.
fn wait_for(words: &str) -> Duration {
    Duration::from_millis(if words.contains("did not") { 500 } else { 3_000 })
}

/// The fault of a backend, the check that has to find it, and words of its sentence.
fn check(fault: &str, finder: &str, words: &str) {
    let report = with_fault(fault, finder, wait_for(words));
    let [(name, sentence)] = report.failures().collect::<Vec<_>>()[..] else {
        panic!("`{fault}` was not found by {finder} alone:\n{report}");
    };
    assert_eq!(name, finder, "{report}");
    assert!(sentence.contains(words), "`{fault}` was found, but not told as `{words}`:\n{report}");
    assert!(!report.conforms());
}

#[test]
fn each_broken_promise_is_found_by_the_check_of_its_clause() {
    for (fault, finder, words) in [
        ("unresolved", "p02_options_resolve_to_themselves", "resolve to others"),
        ("any-option", "p02_an_unknown_option_is_refused_by_name", "accepted the option"),
        ("no-lock", "p02_storage_in_use_is_refused", "opened twice"),
        ("any-region", "p03_an_unknown_region_is_invalid", "expected `invalid argument`, got `ok`"),
        ("any-region", "p03_a_range_outside_its_region_is_invalid", "got `ok`"),
        ("keeps-region", "p03_a_region_is_let_go_when_unregister_returns", "unregistered region"),
        ("any-code", "p04_an_unknown_code_is_unsupported", "expected `unsupported`, got `ok`"),
        ("any-namespace", "p04_an_unknown_namespace_is_invalid", "never put"),
        ("always-busy", "p04_more_than_the_slots_is_busy_or_taken_never_lost", "while none is in flight"),
        ("loses-some", "p04_more_than_the_slots_is_busy_or_taken_never_lost", "did not complete within"),
        ("cancel-loses", "p05_cancelled_work_completes_exactly_once", "did not complete within"),
        ("shutdown-forgets", "p05_work_in_flight_completes_before_shutdown_returns", "when shutdown returned"),
        ("scribbles-behind", "p06_a_get_writes_its_own_buffer_alone", "wrote behind its buffer"),
        ("scribbles-source", "p06_a_put_leaves_its_buffer_as_it_is", "changed its buffer"),
        ("wrong-bytes", "p07_bytes_come_back_in_all_sizes", "WRONG BYTES"),
        ("no-miss", "p07_a_missing_block_is_a_miss", "completed with length 0"),
        ("no-checksum", "p07_a_wrong_checksum_is_corrupt", "expected `corrupt`, got `ok`"),
        ("delete-keeps", "p07_a_deleted_block_is_gone", "after the delete"),
        ("exists-lies", "p07_exists_tells_location_and_length", "length 1"),
        ("never-full", "p07_a_full_tier_says_so_and_keeps_what_it_has", "went into a capacity"),
        ("counts-wrong", "p07_stats_count_what_is_held", "stats say 7"),
        ("completes-twice", "p08_only_what_was_accepted_completes", "a second time"),
        ("completes-refused", "p08_only_what_was_accepted_completes", "was not accepted"),
        ("leaves-a-thread", "p10_no_thread_outlives_shutdown", "still run after shutdown"),
        ("silent", "p11_capabilities_are_what_calls_do", "its report is no line"),
        ("forgets-parents", "p12_every_block_comes_back_as_it_was_put", "came back as"),
        ("loses-the-last", "p12_every_block_comes_back_as_it_was_put", "did not come back"),
        ("pages-too-long", "p12_every_block_comes_back_as_it_was_put", "were asked for"),
        ("revives", "p12_a_deleted_block_stays_deleted", "came back that were not there"),
        ("all-namespaces", "p12_a_namespace_not_put_again_is_left_out", "came back that were not there"),
    ] {
        check(fault, finder, words);
    }
}

#[test]
fn a_panic_and_a_hang_fail_their_check_and_the_kit_goes_on() {
    let report = with_fault("panics", "p04_an_unknown_code", Duration::from_secs(9));
    assert!(report.to_string().contains("asked to panic"), "{report}");
    let report = with_fault("hangs", "p07", Duration::from_millis(50));
    assert!(report.failures().all(|(_, why)| why.contains("did not return")), "{report}");
    assert_eq!(report.failures().count(), 2, "{report}");
    assert!(report.to_string().contains("not run, since 2 checks did not end"), "{report}");
}

#[test]
fn a_file_that_is_no_backend_is_a_report_and_no_panic() {
    let folder = std::env::temp_dir();
    for path in [folder.join("there-is-no-such-file.so"), folder] {
        let report = run(&path, &KitOptions::new(""));
        assert!(!report.conforms() && report.to_string().contains("p01_the_file_is_a_backend"), "{report}");
    }
}

/// The same over the boundary: a real shared object that misbehaves gets a report, and this process lives.
#[test]
fn a_shared_object_that_breaks_its_promises_fails_with_a_sentence() {
    let path = built(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/backend"), &[]);
    for (behaviour, finder, words) in [
        ("check-panics", "p02_options_resolve", "backend panicked"),
        ("open-panics", "p09", "backend panicked"),
        ("open-hangs", "p09", "did not return"),
        ("region-panics", "p09", "region_register: expected `ok`, got `panicked`"),
        ("submit-panics", "p08", "submit panicked"),
        ("submit-busy", "p08", "while none is in flight"),
        ("worker-panics", "p08", "panicked"),
        ("never-completes", "p08", "did not complete within"),
        ("completes-twice", "p08", "a second time"),
        ("completes-unknown", "p08", "never submitted"),
        ("get-lies", "p06_a_get", "WRONG BYTES"),
        ("shutdown-panics", "p09", "shutdown: expected `ok`, got `panicked`"),
        ("shutdown-hangs", "p09", "did not return"),
    ] {
        let options = KitOptions::new(&format!("behaviour = \"{behaviour}\"\n"));
        let report = run(&path, &options.only(finder).waiting(wait_for(words)));
        let found: Vec<_> = report.failures().collect();
        assert!(found.len() == 1 && found[0].1.contains(words), "`{behaviour}` was not told as `{words}`:\n{report}");
    }
}
