//! The example outside the workspace: built apart, with another profile and its own lock file, it loads and conforms.

use umbp_plugin_api::kit::{KitOptions, Source, assert_conforms, built};

#[test]
fn the_example_keeps_the_contract_as_a_shared_object() {
    let path = built(Source::Outside("examples/backend-filesystem"), "libumbp_backend_filesystem.so");
    assert_conforms(&path, &KitOptions::new("path = \"{work}/blocks\""));
}
