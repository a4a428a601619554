//! Movers: nothing copies through one yet, and the daemon says so instead of looking as if it did.

mod common;

use common::daemon::Place;
use common::{fixture, workspace};
use umbp_plugin_api::built::built;

/// A mover with this backend and `more` of its keys.
fn place(backend: &str, more: &str) -> Place {
    Place::new("16MiB", &format!("[[mover]]\nname = \"gpu\"\nbackend = \"{backend}\"\n{more}"))
}

/// The daemon serves; the mover has this state, and status and log say the words.
fn told(backend: &str, more: &str, state: &str, words: &[&str]) {
    let daemon = place(backend, more).serve();
    let status = daemon.status();
    let mover = &status["movers"][0];
    assert_eq!((&mover["name"], &mover["state"]), (&"gpu".into(), &state.into()), "{status:#}");
    assert_eq!(mover["plugin"].is_string(), state == "loaded", "{status:#}");
    let report = mover["report"].as_str().expect("a report");
    for word in words {
        assert!(report.contains(word), "no {word} in: {report}");
    }
    let ended = daemon.stop();
    assert!(ended.status.success(), "{ended:?}");
}

#[test]
fn a_mover_is_loaded_and_said_not_to_be_used() {
    let mover = built(workspace().join("plugin-api/fixtures/backend"), &["mover"]).display().to_string();
    told(&mover, "", "loaded", &["this umbpd copies through no mover"]);
    told(&mover, "required = true\n", "loaded", &["this umbpd copies through no mover"]);
    let panics = "[mover.options]\nbehaviour = \"check-panics\"\n";
    told(&mover, panics, "loaded", &["boom in check_options"]);
    let refused = place(&mover, "[mover.options]\nbehaviour = \"nonsense\"\n").refused();
    assert!(refused.text.contains("mover.gpu.options") && refused.text.contains("nonsense"), "{refused:?}");
}

#[test]
fn a_mover_that_cannot_be_loaded_obeys_required() {
    let text = tempfile::tempdir().expect("a folder");
    let file = text.path().join("text.so");
    std::fs::write(&file, "some words").expect("written");
    let (file, storage) = (file.display().to_string(), fixture().display().to_string());
    for (backend, words) in [
        ("nosuch", ["libumbp_backend_nosuch.so", "daemon.plugin_dirs"]),
        ("/nowhere/x.so", ["/nowhere/x.so", "not found"]),
        (&file, [&*file, "not a loadable shared object"]),
        (&storage, [&*storage, "is a storage tier, not a mover"]),
    ] {
        told(backend, "", "declared", &words);
        let refused = place(backend, "required = true\n").refused();
        let told = ["mover \"gpu\"", "`required`"].into_iter().chain(words);
        told.for_each(|word| assert!(refused.text.contains(word), "no {word} in {refused:?}"));
    }
}

/// One warning line for each.
#[test]
fn each_mover_that_is_not_used_is_warned_of_once() {
    let mover = built(workspace().join("plugin-api/fixtures/backend"), &["mover"]).display().to_string();
    let second = "[[mover]]\nname = \"far\"\nbackend = \"nosuch\"\n";
    let place = place(&mover, second);
    // What is said before the greeting comes back with a refusal.
    let wrong = std::fs::read_to_string(place.config()).expect("config");
    place.write(&format!("{wrong}[[tier]]\nname = \"low\"\nbackend = \"nosuch\"\ncapacity = \"1MiB\"\n"));
    let said = place.refused().text;
    for words in ["mover gpu is not used: ", "mover far is not used: "] {
        assert_eq!(said.matches(words).count(), 1, "{words}: {said}");
    }
}
