//! Rules on lines, files and functions.

use super::Violation;
use super::mask::mask;

/// Longest Rust file, in lines.
const FILE_LINES_MAX: usize = 400;
/// Longest function, in lines from `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Longest ARCHITECTURE.md, in lines.
const MAP_LINES_MAX: usize = 200;
/// A SAFETY sentence stands at most this many lines above its `unsafe`.
const SAFETY_LINES_MAX: usize = 12;

/// A text that may stand in some files only.
struct Absence {
    rule: &'static str,
    /// Any of these.
    texts: &'static [&'static str],
    /// Only files under this prefix are looked at.
    under: &'static str,
    /// Except those under one of these.
    except: &'static [&'static str],
    /// Only tests are looked at.
    tests_only: bool,
    why: &'static str,
}

const ABSENCES: [Absence; 6] = [
    Absence {
        rule: "sans-io",
        texts: &["std::net", "std::thread", "std::fs", "std::io", "std::os", "Instant", "SystemTime", "tokio"],
        under: "connector-core/",
        except: &["connector-core/tests/"],
        tests_only: false,
        why: "connector-core does no I/O, reads no clock and starts no thread",
    },
    Absence {
        rule: "abi-stable",
        texts: &["abi_stable"],
        under: "",
        except: &["plugin-api/"],
        tests_only: false,
        why: "abi_stable is named in plugin-api alone",
    },
    Absence {
        rule: "libloading",
        texts: &["libloading"],
        under: "",
        except: &["plugin-api/", "backends/gpu-direct/"],
        tests_only: false,
        why: "plugins are opened by plugin-api alone, vendor libraries by gpu-direct alone",
    },
    Absence {
        rule: "sleep",
        texts: &["thread::sleep", "time::sleep"],
        under: "",
        except: &[],
        tests_only: true,
        why: "tests wait for events with a deadline, not for time to pass",
    },
    Absence {
        rule: "ignore",
        texts: &["#[ignore"],
        under: "",
        except: &[],
        tests_only: false,
        why: "a test that does not run holds no claim",
    },
    Absence {
        rule: "stub",
        texts: &["todo!(", "unimplemented!("],
        under: "",
        except: &[],
        tests_only: false,
        why: "what is in the tree works",
    },
];

/// Paths of one person's machine.
const MACHINE_PATHS: [&str; 4] =
    [concat!("/ho", "me/"), concat!("/Us", "ers/"), concat!("/wo", "rk/"), concat!("/ro", "ot/")];

/// Checks one file.
pub(super) fn check(file: &str, text: &str, violations: &mut Vec<Violation>) {
    let lines: Vec<&str> = text.lines().collect();
    let mut report = |line: usize, rule: &'static str, text: String| {
        if !is_allowed(&lines, line, rule) {
            violations.push(Violation { file: file.to_owned(), line, rule, text });
        }
    };
    for (index, line) in lines.iter().enumerate() {
        if let Some(path) = MACHINE_PATHS.iter().find(|path| line.contains(*path)) {
            report(index + 1, "machine-path", format!("{path} is a path of one machine"));
        }
    }
    if file == "ARCHITECTURE.md" && lines.len() > MAP_LINES_MAX {
        report(MAP_LINES_MAX + 1, "map-length", format!("{} lines, at most {MAP_LINES_MAX}", lines.len()));
    }
    if !file.ends_with(".rs") {
        return;
    }
    if lines.len() > FILE_LINES_MAX {
        report(1, "file-length", format!("{} lines, at most {FILE_LINES_MAX}", lines.len()));
    }
    let masked = mask(text);
    let code: Vec<&str> = masked.lines().collect();
    for (line, name, length) in functions(&masked) {
        if length > FUNCTION_LINES_MAX {
            report(line, "function-length", format!("fn {name}: {length} lines, at most {FUNCTION_LINES_MAX}"));
        }
    }
    let tests_from = first_test_line(file, &code);
    for (index, code_line) in code.iter().enumerate() {
        for absence in ABSENCES.iter().filter(|a| a.looks_at(file, index >= tests_from)) {
            if let Some(found) = absence.texts.iter().find(|t| holds(code_line, t)) {
                report(index + 1, absence.rule, format!("{found}: {}", absence.why));
            }
        }
        let is_unsafe = holds(code_line, "unsafe {") || holds(code_line, "unsafe impl");
        if is_unsafe && !has_safety(&lines, index) {
            report(index + 1, "safety", "unsafe without a SAFETY sentence above it".to_owned());
        }
    }
}

impl Absence {
    fn looks_at(&self, file: &str, in_tests: bool) -> bool {
        file.starts_with(self.under)
            && !self.except.iter().any(|prefix| file.starts_with(prefix))
            && (in_tests || !self.tests_only)
    }
}

/// The text stands in the line as words of its own.
fn holds(line: &str, text: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(text).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + text.len()..].chars().next();
        let starts_inside = text.starts_with(is_word) && before.is_some_and(is_word);
        let ends_inside = text.ends_with(is_word) && after.is_some_and(is_word);
        !starts_inside && !ends_inside
    })
}

fn is_allowed(lines: &[&str], line: usize, rule: &str) -> bool {
    let marker = format!("tidy: allow {rule}: ");
    let own = lines.get(line - 1).is_some_and(|l| l.contains(&marker));
    own || line >= 2 && lines[line - 2].contains(&marker)
}

/// Index of the first line that belongs to tests: 0 for a test's own file.
fn first_test_line(file: &str, code: &[&str]) -> usize {
    let is_test_file = file.starts_with("tests/") || file.contains("/tests/") || file.ends_with("/tests.rs");
    if is_test_file {
        return 0;
    }
    code.iter().position(|line| line.trim() == "#[cfg(test)]").unwrap_or(usize::MAX)
}

/// A comment with SAFETY above, in the same paragraph, or on the line itself.
fn has_safety(lines: &[&str], index: usize) -> bool {
    let above = lines[..=index].iter().rev().take(SAFETY_LINES_MAX);
    above.take_while(|line| !line.trim().is_empty()).any(|line| line.contains("SAFETY:"))
}

/// Line, name and length in lines of every function with a body.
fn functions(masked: &str) -> Vec<(usize, String, usize)> {
    let mut found = Vec::new();
    for (at, _) in masked.match_indices("fn ") {
        if masked[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &masked[at..];
        let name: String = rest[3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let Some(open) = rest.find(['{', ';']).filter(|open| rest[*open..].starts_with('{') && !name.is_empty()) else {
            continue;
        };
        let mut depth = 0_usize;
        let close = rest[open..].find(|c: char| {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        let end = close.map_or(rest.len(), |close| open + close);
        let first = masked[..at].matches('\n').count() + 1;
        found.push((first, name, rest[..end].matches('\n').count() + 1));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(file: &str, text: &str) -> Vec<(usize, &'static str)> {
        let mut violations = Vec::new();
        check(file, text, &mut violations);
        violations.iter().map(|v| (v.line, v.rule)).collect()
    }

    #[test]
    fn each_rule_finds_its_violation_and_nothing_else() {
        let check = |file: &str, text: &str, expected: &[(usize, &str)]| {
            assert_eq!(rules(file, text), expected, "{file}: {text}");
        };
        check("connector-core/src/a.rs", "use std::collections::HashMap;\nuse std::net::TcpStream;", &[(2, "sans-io")]);
        check("client/src/a.rs", "use std::net::TcpStream; // Instant", &[]);
        check("umbpd/src/a.rs", "use abi_stable::x;", &[(1, "abi-stable")]);
        check("plugin-api/src/a.rs", "use abi_stable::x;", &[]);
        check("umbpd/src/a.rs", "fn f() {\n    let x = unsafe { g() };\n}", &[(2, "safety")]);
        check("umbpd/src/a.rs", "fn f() {\n    // SAFETY: g is safe.\n    let x = unsafe { g() };\n}", &[]);
        check("umbpd/tests/a.rs", "fn f() { std::thread::sleep(x) }", &[(1, "sleep")]);
        check(
            "umbpd/src/a.rs",
            "fn f() { thread::sleep(x) }\n#[cfg(test)]\nmod t { fn g() { thread::sleep(x) } }",
            &[(3, "sleep")],
        );
        check("umbpd/tests/a.rs", "// tidy: allow sleep: the kernel has no event for it\nthread::sleep(x);", &[]);
        check("README.md", concat!("see /ho", "me/me/x"), &[(1, "machine-path")]);
        check("umbpd/tests/a.rs", concat!("#[ig", "nore]\nfn f() {}"), &[(1, "ignore")]);
    }

    #[test]
    fn sizes_have_limits() {
        let function = |lines: usize| format!("fn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2));
        assert_eq!(rules("a/src/a.rs", &function(70)), []);
        assert_eq!(rules("a/src/a.rs", &function(71)), [(1, "function-length")]);
        assert_eq!(rules("a/src/a.rs", &"//\n".repeat(400)), []);
        assert_eq!(rules("a/src/a.rs", &"//\n".repeat(401)), [(1, "file-length")]);
        assert_eq!(rules("ARCHITECTURE.md", &"x\n".repeat(201)), [(201, "map-length")]);
    }
}
