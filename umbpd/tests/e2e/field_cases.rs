//! `docs/field-cases.md` names real tests, and each says which case it pins.

use std::collections::BTreeSet;

use crate::common::workspace;

/// What a section is to begin with, and the cases that it must have.
const SECTIONS: [(&str, &str); 4] = [
    ("Of the spine", "A3 A5 A6 A7 A8 B1 B8 C1 C2 C6 D3 D6 D7 F6 F7 J2 J3 K6 K7 K10 K11 K12 K13 K14"),
    ("Of the connector", "A1 A2 A3 B1 B2 B3 B4 B6 B7 C5 D4 F11 H1 H2 H3 H4 H5 H6 I1 I2 I3 I4 I5 I6 J1 J6"),
    (
        "Of the NVMe tier",
        "A9 C5 C7 C8 C10 C11 D5 E2 E3 E4 E5 E6 E7 E8 F1 F2 F3 F4 F5 F6 F7 F8 F9 G2 G3 G4 G5 G6 G7 H5 J4 J5 K1 K2 K3 K4 \
         K5 K8 K9",
    ),
    ("Of the remote tier", "A3 A5 A6 A7 A8 B7 C8 C10 D4 D5 D6 E2 E3 E5 E7 E8 F9 G3 G4 G5 H5 I5 J2 J4 K3 K10 K12 K13"),
];
/// Lines above a test that belong to it.
const ABOVE_LINES: usize = 6;

/// A row of a table: what it begins with, and the tests that it names.
struct Row<'a> {
    first: &'a str,
    tests: Vec<(&'a str, &'a str)>,
}

fn row(line: &str) -> Option<Row<'_>> {
    let first = line.strip_prefix("| ")?.split(" | ").next()?;
    // Between backticks every second piece is a name.
    let tests: Vec<_> = line.split('`').skip(1).step_by(2).filter_map(|name| name.rsplit_once("::")).collect();
    (!tests.is_empty()).then_some(Row { first, tests })
}

fn rows(section: &str) -> Vec<Row<'_>> {
    section.lines().filter_map(row).collect()
}

/// The test with what stands right above it; none where it is no test.
fn text_of(file: &str, test: &str) -> Option<String> {
    let source = std::fs::read_to_string(workspace().join(file)).ok()?;
    let lines: Vec<&str> = source.lines().collect();
    if file.ends_with(".py") {
        return text_in_python(&lines, test);
    }
    let at = lines.iter().position(|line| line.trim_start().starts_with(&format!("fn {test}(")))?;
    let above = &lines[at.saturating_sub(ABOVE_LINES)..at];
    above.iter().rev().take(3).find(|line| line.trim() == "#[test]")?;
    let indent = lines[at].len() - lines[at].trim_start().len();
    let ends = |line: &&str| **line == format!("{}}}", " ".repeat(indent));
    let end = lines[at..].iter().position(ends).unwrap_or(1);
    Some([above, &lines[at..at + end]].concat().join("\n"))
}

/// The function to its end, which is the next line that is indented no deeper.
fn text_in_python(lines: &[&str], test: &str) -> Option<String> {
    let depth = |line: &str| line.len() - line.trim_start().len();
    let at = lines.iter().position(|line| line.trim_start().starts_with(&format!("def {test}(")))?;
    let body = &lines[at + 1..];
    let ends = |line: &&str| !line.trim().is_empty() && depth(line) <= depth(lines[at]) && line.trim() != ") -> None:";
    let end = body.iter().position(ends).unwrap_or(body.len());
    test.starts_with("test_").then(|| [&lines[at..=at], &body[..end]].concat().join("\n"))
}

/// The case stands there as a word (`K7`), or in a test's name (`k7_`).
fn says(text: &str, case: &str) -> bool {
    let lower = case.to_lowercase();
    text.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == case || word == lower)
}

#[test]
fn every_case_names_tests_that_exist_and_say_so() {
    let page = std::fs::read_to_string(workspace().join("docs/field-cases.md")).expect("the page");
    let sections: Vec<&str> = page.split("\n## ").skip(1).collect();
    let mut wrong = Vec::new();
    for (at, section) in sections.iter().enumerate() {
        // The last section's rows are claims, not cases.
        let is_case = at + 1 < sections.len();
        for row in rows(section) {
            for (file, test) in &row.tests {
                match text_of(file, test) {
                    None => wrong.push(format!("{}: {file} has no test {test}", row.first)),
                    Some(text) if is_case && !says(&text, row.first) => {
                        wrong.push(format!("{}: {file}::{test} does not say that it pins it", row.first));
                    }
                    Some(_) => {}
                }
            }
        }
    }
    for (title, cases) in SECTIONS {
        let section = sections.iter().find(|section| section.starts_with(title));
        let listed: BTreeSet<&str> = section.into_iter().flat_map(|text| rows(text)).map(|row| row.first).collect();
        let missing: Vec<&str> = cases.split(' ').filter(|case| !listed.contains(case)).collect();
        wrong.extend(missing.iter().map(|case| format!("{case}: no row of \"{title}\" names a test")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
