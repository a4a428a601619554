//! The contract's clauses, in every way to the disk.

use umbp_backend_nvme::Nvme;
use umbp_plugin_api::built::built;
use umbp_plugin_api::kit::{KitOptions, assert_conforms, assert_conforms_in_process};

use crate::common::folder;

fn check(more: &str) {
    let place = folder();
    let text = format!("paths = [\"{{work}}/blocks\"]\n{more}");
    assert_conforms_in_process::<Nvme>(&KitOptions::new(&text).in_folder(place.path()));
}

#[test]
fn the_contract_holds_on_io_uring() {
    check("");
}

#[test]
fn the_contract_holds_on_threads() {
    check("io = \"threads\"");
}

#[test]
fn the_contract_holds_through_the_page_cache() {
    check("direct = \"off\"");
}

#[test]
fn the_contract_holds_as_a_shared_object() {
    let place = folder();
    let options = KitOptions::new("paths = [\"{work}/blocks\"]").in_folder(place.path());
    assert_conforms(&built(concat!(env!("CARGO_MANIFEST_DIR"), "/plugin"), &[]), &options);
}
