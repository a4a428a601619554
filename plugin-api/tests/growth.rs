//! Two minor versions of the API meet, in both directions: structs of different size, operations in batches.

mod common;

use std::process::Command;

use common::fixture;
use umbp_plugin_api::abi::{API_MAJOR, API_MINOR};
use umbp_plugin_api::built::built;

#[test]
fn a_host_and_a_plugin_of_neighbouring_minor_versions_work_together() {
    // Who is grown, and what the new field reads as on either side: 5 and 7 are sent, but only between grown ones.
    for (host, plugin, plugin_saw, host_saw) in
        [(false, false, 0, 0), (false, true, 0, 0), (true, false, 0, 0), (true, true, 5, 7)]
    {
        let features = |grown: bool| if grown { &["grown"][..] } else { &[] };
        let program = built(fixture("host"), features(host));
        let library = built(fixture("backend"), features(plugin));
        let output = Command::new(&program).arg(&library).output().expect("runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "host grown {host}, plugin grown {plugin}: {errors}");
        let minor = |grown: bool| API_MINOR + u32::from(grown);
        let wanted = format!(
            "host {API_MAJOR}.{} plugin {API_MAJOR}.{} alignment 4096 plugin saw {plugin_saw} host saw {host_saw}\n",
            minor(host),
            minor(plugin),
        );
        assert_eq!(String::from_utf8_lossy(&output.stdout), wanted);
    }
}
