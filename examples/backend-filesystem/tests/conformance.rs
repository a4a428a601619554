//! The contract, whole: this line is all that a backend's test needs.

use umbp_backend_filesystem::Filesystem;
use umbp_plugin_api::kit::{KitOptions, assert_conforms_in_process};

#[test]
fn the_backend_keeps_the_contract() {
    assert_conforms_in_process::<Filesystem>(&KitOptions::new("path = \"{work}/blocks\""));
}
