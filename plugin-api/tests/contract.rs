//! The contract names real tests, all of the kit's checks among them.

use std::collections::BTreeSet;
use std::path::Path;

/// All text of the sources below a folder.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            text.push_str(&sources(&entry));
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(entry).expect("text"));
        }
    }
    text
}

/// Names of checks in a text, between two of `quote`.
fn checks(text: &str, quote: char) -> BTreeSet<&str> {
    let is_check = |name: &&str| {
        let mut letters = name.chars();
        letters.next() == Some('p') && letters.next().is_some_and(|c| c.is_ascii_digit()) && name.get(3..4) == Some("_")
    };
    text.split(quote)
        .filter(|word| word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        .filter(is_check)
        .collect()
}

#[test]
fn every_clause_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let contract = std::fs::read_to_string(root.join("CONTRACT.md")).expect("the contract");
    let (kit, host) = (sources(&root.join("src")), sources(&root.join("tests")));
    for clause in contract.split("\n## P").skip(1) {
        let title = clause.lines().next().expect("a title");
        let (_, named) = clause.split_once("\nTests: ").unwrap_or_else(|| panic!("P{title} names no test"));
        // Between backticks every second piece is a name.
        for name in named.split('`').skip(1).step_by(2) {
            let is_there = kit.contains(&format!("\"{name}\""))
                || [&kit, &host].iter().any(|text| text.contains(&format!("fn {name}(")));
            assert!(is_there, "P{title} names `{name}`, which is no test");
        }
    }
}

#[test]
fn every_check_of_the_kit_stands_in_the_contract() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let contract = std::fs::read_to_string(root.join("CONTRACT.md")).expect("the contract");
    let kit = std::fs::read_to_string(root.join("src/kit/checks.rs")).expect("the list of checks");
    let (named, wanted) = (checks(&contract, '`'), checks(&kit, '"'));
    let missing: Vec<_> = wanted.difference(&named).filter(|name| !name.starts_with("p00_")).collect();
    assert!(wanted.len() > 20, "only {} checks were found in the kit", wanted.len());
    assert!(missing.is_empty(), "the contract does not name {missing:?}");
}
