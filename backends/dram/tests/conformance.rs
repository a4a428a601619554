//! The contract of backends, checked by the kit.

use umbp_backend_dram::Dram;
use umbp_plugin_api::kit::{KitOptions, assert_conforms_in_process};

#[test]
fn dram_keeps_the_contract_in_this_process() {
    assert_conforms_in_process::<Dram>(&KitOptions::new("prefault_threads = 2"));
}
