//! A strict reader of OpenMetrics text, of as much of it as the daemon writes: what it takes, any scraper takes.

use std::collections::{BTreeMap, BTreeSet};

/// Values by name and labels.
pub(crate) type Values = BTreeMap<String, f64>;

/// A family, as its three comment lines tell it.
#[derive(Default)]
struct Family {
    name: String,
    kind: String,
}

fn is_name(text: &str) -> bool {
    !text.starts_with(|c: char| c.is_ascii_digit())
        && !text.is_empty()
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Reads a page; what is wrong with it where it is no OpenMetrics text.
pub(crate) fn read(page: &str) -> Result<Values, String> {
    let lines = page.strip_suffix("# EOF\n").ok_or("it does not end with # EOF")?;
    let (mut values, mut families, mut family) = (Values::new(), BTreeSet::new(), Family::default());
    for line in lines.lines() {
        let wrong = |what: &str| format!("{what}: {line:?}");
        if let Some(comment) = line.strip_prefix("# ") {
            let (kind, rest) = comment.split_once(' ').ok_or_else(|| wrong("no comment of a family"))?;
            let (name, text) = rest.split_once(' ').ok_or_else(|| wrong("nothing is said"))?;
            match kind {
                "HELP" if is_name(name) && families.insert(name.to_owned()) => {
                    family = Family { name: name.to_owned(), kind: String::new() };
                }
                "TYPE" if name == family.name && ["counter", "gauge"].contains(&text) => family.kind = text.to_owned(),
                "UNIT" if name == family.name && name.ends_with(&format!("_{text}")) => {}
                _ => return Err(wrong("a comment out of place")),
            }
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').ok_or_else(|| wrong("no value"))?;
        let (name, labels) = sample.split_once('{').map_or((sample, None), |(name, rest)| (name, Some(rest)));
        let expected = if family.kind == "counter" { format!("{}_total", family.name) } else { family.name.clone() };
        if family.kind.is_empty() || name != expected {
            return Err(wrong("a sample outside of its family"));
        }
        if let Some(labels) = labels {
            let labels = labels.strip_suffix('}').ok_or_else(|| wrong("labels without an end"))?;
            read_labels(labels).map_err(|what| wrong(&what))?;
        }
        let value: f64 = value.parse().map_err(|_| wrong("no number"))?;
        if !value.is_finite() || value < 0.0 || values.insert(sample.to_owned(), value).is_some() {
            return Err(wrong("a value that cannot be, or a second one"));
        }
    }
    Ok(values)
}

fn read_labels(mut text: &str) -> Result<(), String> {
    let mut names = BTreeSet::new();
    loop {
        let (name, rest) = text.split_once("=\"").ok_or("a label without a value")?;
        if !is_name(name) || !names.insert(name) {
            return Err(format!("label {name}"));
        }
        let mut end = None;
        let mut escaped = false;
        for (at, c) in rest.char_indices() {
            match (escaped, c) {
                (true, '\\' | '"' | 'n') => escaped = false,
                (true, _) => return Err(format!("\\{c} is no escape")),
                (false, '\\') => escaped = true,
                (false, '"') => {
                    end = Some(at);
                    break;
                }
                (false, _) => {}
            }
        }
        let rest = &rest[end.ok_or("a label's value has no end")? + 1..];
        match rest.strip_prefix(',') {
            Some(more) => text = more,
            None if rest.is_empty() => return Ok(()),
            None => return Err(format!("{rest:?} behind a label")),
        }
    }
}

/// All values of a family added up.
pub(crate) fn sum(values: &Values, family: &str) -> f64 {
    let of = |name: &str| name.split('{').next() == Some(family);
    values.iter().filter(|(name, _)| of(name)).map(|(_, value)| value).sum()
}

#[test]
fn what_is_no_openmetrics_text_is_refused() {
    let good = "# HELP a_bytes What it is\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\na_bytes_total{t=\"x\\\"y\"} 1\n# EOF\n";
    assert_eq!(read(good).expect("good").len(), 1);
    let bad = [
        ("# EOF\n", ""),
        ("a_bytes_total{", "a_bytes{"),
        ("# UNIT a_bytes bytes", "# UNIT a_bytes seconds"),
        (" counter", " count"),
        ("\"} 1", "} 1"),
        ("x\\\"y", "x\\y"),
        ("} 1", "} -1"),
        ("} 1", "} 1\na_bytes_total{t=\"x\\\"y\"} 2"),
        ("# HELP a_bytes What it is\n", ""),
    ];
    for (from, to) in bad {
        assert!(read(&good.replacen(from, to, 1)).is_err(), "{from:?} as {to:?}");
    }
}
