//! The contract of backends, checked by the kit.

use umbp_backend_dram::Dram;
use umbp_plugin_api::kit::{KitOptions, Source, assert_conforms, assert_conforms_in_process, built};

#[test]
fn dram_keeps_the_contract_in_this_process() {
    assert_conforms_in_process::<Dram>(&KitOptions::new("prefault_threads = 2"));
}

#[test]
fn dram_keeps_the_contract_as_a_shared_object() {
    let path = built(Source::Package("umbp-plugin-dram"), "libumbp_backend_dram.so");
    assert_conforms(&path, &KitOptions::new("hugepages = \"off\""));
}
