//! The example outside the workspace: built apart, with another profile and its own lock file, it loads and conforms.

use umbp_plugin_api::built::built;
use umbp_plugin_api::kit::{KitOptions, assert_conforms};

#[test]
fn the_example_keeps_the_contract_as_a_shared_object() {
    let path = built(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/backend-filesystem"), &[]);
    assert_conforms(&path, &KitOptions::new("path = \"{work}/blocks\""));
}
