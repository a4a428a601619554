//! The contract of backends, checked by the kit.

use umbp_backend_dram::Dram;
use umbp_plugin_api::built::built;
use umbp_plugin_api::kit::{KitOptions, assert_conforms, assert_conforms_in_process};

#[test]
fn dram_keeps_the_contract_in_this_process() {
    assert_conforms_in_process::<Dram>(&KitOptions::new("prefault_threads = 2"));
}

#[test]
fn dram_keeps_the_contract_as_a_shared_object() {
    let path = built(concat!(env!("CARGO_MANIFEST_DIR"), "/plugin"), &[]);
    assert_conforms(&path, &KitOptions::new("hugepages = \"off\""));
}
