//! The checks, in the order of the clauses.

mod blocks;
mod calls;
mod ends;
mod recovery;
mod segments;
mod submit;

use super::run::CheckFn;

/// Which backends a check is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    Anything,
    /// Storage that takes operations.
    Blocks,
    /// Storage that also recovers.
    Persistence,
    Segments,
}

use Needs::{Anything, Blocks, Persistence, Segments};

/// Name, for whom, and what.
pub(super) const ALL: &[(&str, Needs, CheckFn)] = &[
    ("p01_facts_are_known_without_open_and_stay", Anything, calls::facts_stay),
    ("p02_options_resolve_to_themselves", Anything, calls::options_resolve_to_themselves),
    ("p02_an_unknown_option_is_refused_by_name", Anything, calls::an_unknown_option_is_refused),
    ("p02_options_that_are_no_toml_are_refused", Anything, calls::options_that_are_no_toml_are_refused),
    ("p02_two_tiers_of_one_plugin_do_not_meet", Blocks, calls::two_tiers_do_not_meet),
    ("p02_storage_in_use_is_refused", Persistence, calls::storage_in_use_is_refused),
    ("p03_an_unknown_region_is_invalid", Blocks, submit::an_unknown_region_is_invalid),
    ("p03_a_range_outside_its_region_is_invalid", Blocks, submit::a_range_outside_its_region_is_invalid),
    ("p03_a_region_is_let_go_when_unregister_returns", Blocks, submit::a_region_is_let_go),
    ("p03_segments_are_sealed_private_and_shared", Segments, segments::sealed_private_and_shared),
    ("p03_a_destroyed_segment_gives_its_memory_back", Segments, segments::destroyed_is_given_back),
    ("p04_an_unknown_code_is_unsupported", Anything, submit::an_unknown_code_is_unsupported),
    ("p04_an_unknown_namespace_is_invalid", Blocks, submit::an_unknown_namespace_is_invalid),
    ("p04_more_than_the_slots_is_busy_or_taken_never_lost", Blocks, submit::more_than_the_slots),
    ("p04_threads_may_submit_at_the_same_time", Blocks, submit::threads_submit_at_the_same_time),
    ("p05_cancelled_work_completes_exactly_once", Blocks, ends::cancelled_work_completes_once),
    ("p05_work_in_flight_completes_before_shutdown_returns", Blocks, ends::shutdown_completes_work),
    ("p06_a_get_writes_its_own_buffer_alone", Blocks, blocks::a_get_writes_its_own_buffer_alone),
    ("p06_a_put_leaves_its_buffer_as_it_is", Blocks, blocks::a_put_leaves_its_buffer),
    ("p07_bytes_come_back_in_all_sizes", Blocks, blocks::bytes_come_back_in_all_sizes),
    ("p07_a_missing_block_is_a_miss", Blocks, blocks::a_missing_block_is_a_miss),
    ("p07_a_wrong_checksum_is_corrupt", Blocks, blocks::a_wrong_checksum_is_corrupt),
    ("p07_a_deleted_block_is_gone", Blocks, blocks::a_deleted_block_is_gone),
    ("p07_exists_tells_location_and_length", Blocks, blocks::exists_tells_location_and_length),
    ("p07_a_full_tier_says_so_and_keeps_what_it_has", Blocks, blocks::a_full_tier_says_so),
    ("p07_stats_count_what_is_held", Blocks, blocks::stats_count_what_is_held),
    ("p08_only_what_was_accepted_completes", Blocks, submit::only_what_was_accepted_completes),
    ("p09_no_call_panics", Anything, ends::no_call_panics),
    ("p10_no_thread_outlives_shutdown", Anything, ends::no_thread_outlives_shutdown),
    ("p11_capabilities_are_what_calls_do", Anything, calls::capabilities_are_what_calls_do),
    ("p11_a_file_extent_holds_the_payload", Blocks, blocks::a_file_extent_holds_the_payload),
    ("p12_every_block_comes_back_as_it_was_put", Persistence, recovery::every_block_comes_back),
    ("p12_a_deleted_block_stays_deleted", Persistence, recovery::a_deleted_block_stays_deleted),
    ("p12_a_namespace_not_put_again_is_left_out", Persistence, recovery::a_namespace_not_put_is_left_out),
];
