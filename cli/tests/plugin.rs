//! `umbp plugin check` on real files.

use std::process::Command;

use umbp_plugin_api::built::built;

/// Runs it; exit status and what it prints.
fn check(file: &std::path::Path, options: &str) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umbp"));
    let output = command.args(["plugin", "check"]).arg(file).args(["--options", options]).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_backend_that_keeps_the_contract_conforms_with_exit_status_0() {
    let example = built(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/backend-filesystem"), &[]);
    let (status, report) = check(&example, "path = \"{work}/blocks\"");
    assert_eq!(status, Some(0), "{report}");
    assert!(report.contains("\nconforms: "), "{report}");
}

#[test]
fn what_is_no_backend_is_said_so_with_exit_status_1() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.so");
    std::fs::write(&file, "no plugin at all").unwrap();
    for path in [file, folder.path().join("none.so")] {
        let (status, report) = check(&path, "");
        assert_eq!(status, Some(1), "{report}");
        assert!(report.contains("does NOT conform") && report.contains(path.to_str().unwrap()), "{report}");
    }
}
