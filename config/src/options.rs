//! A backend's own options: kept as TOML text, handed to the backend as they stand.
//!
//! The text is written anew from the file's own keys and values, without the headers of the tier around them, and each
//! piece remembers where it stood, so that a backend's complaint about its text can be shown at the file's line.

use std::ops::Range;

use crate::raw::{Entry, Raw, Value};
use crate::setting::{Place, SourceText};

/// A backend's options.
#[derive(Clone, Debug)]
pub struct Options {
    /// TOML text, empty where there are none.
    pub text: String,
    /// The table's place; [`Place::DEFAULT`] where there is none.
    pub place: Place,
    /// (bytes of `text`, bytes of the file), in the order of `text`; both ranges are equally long.
    pieces: Vec<(Range<usize>, Range<usize>)>,
    /// Keys of the table itself, each with its place.
    keys: Vec<(String, Place)>,
    resolved: Option<Resolved>,
}

/// What the backend made of the text: every option with its value.
#[derive(Clone, Debug)]
struct Resolved {
    table: toml::Table,
    /// Whose defaults they are, such as `dram 0.1.0`.
    backend: String,
}

impl Options {
    pub(crate) fn none() -> Self {
        Self { text: String::new(), place: Place::DEFAULT, pieces: Vec::new(), keys: Vec::new(), resolved: None }
    }

    /// The options of a table of the file; none where the value is not a table.
    pub(crate) fn of(raw: &Raw, source: &SourceText) -> Option<Self> {
        let Value::Table(entries) = &raw.value else { return None };
        let mut options = Self { place: raw.place.clone(), ..Self::none() };
        options.write(entries, "", &source.text);
        options.keys = entries.iter().map(|entry| (entry.key.clone(), entry.key_place.clone())).collect();
        Some(options)
    }

    /// Keeps what the backend made of the text, for print. An error tells why `resolved` is not TOML.
    pub fn resolve(&mut self, resolved: &str, backend: &str) -> Result<(), String> {
        let table = resolved.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
        self.resolved = Some(Resolved { table, backend: backend.to_owned() });
        Ok(())
    }

    /// Each option with its value as TOML and where it came from: resolved ones, else those of the file.
    pub(crate) fn lines(&self) -> Vec<(String, String, String)> {
        let own: toml::Table;
        let table = match &self.resolved {
            Some(resolved) => &resolved.table,
            None => {
                own = self.text.parse().unwrap_or_default();
                &own
            }
        };
        let origin = |key: &str| match (self.keys.iter().find(|(known, _)| known == key), &self.resolved) {
            (Some((_, place)), _) => place.origin.to_string(),
            (None, Some(resolved)) => format!("default of backend {}", resolved.backend),
            (None, None) => Place::DEFAULT.origin.to_string(),
        };
        let line = |(key, value): (&String, &toml::Value)| (quoted_key(key), value.to_string(), origin(key));
        table.iter().map(line).collect()
    }

    /// Values first, then tables under headers of their own, as TOML wants it.
    fn write(&mut self, entries: &[Entry], header: &str, source: &str) {
        let is_block = |raw: &Raw| is_header_table(raw, source) || is_header_list(raw, source);
        for entry in entries.iter().filter(|entry| !is_block(&entry.raw)) {
            self.copy(&entry.key_place, source);
            self.text.push_str(" = ");
            self.copy(&entry.raw.place, source);
            self.text.push('\n');
        }
        for entry in entries.iter().filter(|entry| is_block(&entry.raw)) {
            let key = entry.key_place.span.clone().and_then(|span| source.get(span)).unwrap_or(&entry.key);
            let path = if header.is_empty() { key.to_owned() } else { format!("{header}.{key}") };
            match &entry.raw.value {
                Value::Table(inner) => self.block(inner, &entry.key_place, header, ("[", "]"), (&path, source)),
                Value::List(tables) => {
                    for table in tables {
                        if let Value::Table(inner) = &table.value {
                            self.block(inner, &entry.key_place, header, ("[[", "]]"), (&path, source));
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn block(&mut self, inner: &[Entry], key: &Place, header: &str, marks: (&str, &str), (path, source): (&str, &str)) {
        self.text.push_str(marks.0);
        if !header.is_empty() {
            self.text.push_str(header);
            self.text.push('.');
        }
        self.copy(key, source);
        self.text.push_str(marks.1);
        self.text.push('\n');
        self.write(inner, path, source);
    }

    /// Appends a piece of the file.
    fn copy(&mut self, place: &Place, source: &str) {
        let Some(span) = place.span.clone() else { return };
        let start = self.text.len();
        self.text.push_str(source.get(span.clone()).unwrap_or_default());
        self.pieces.push((start..self.text.len(), span));
    }

    /// Where bytes of [`Self::text`] stand: in the file, or else at the table's header.
    pub(crate) fn place_of(&self, span: Range<usize>, source: &SourceText) -> Place {
        let at = |at: usize| {
            let piece = self.pieces.iter().find(|(text, _)| text.start <= at && at <= text.end);
            piece.map(|(text, file)| file.start + (at - text.start))
        };
        match (at(span.start), at(span.end)) {
            (Some(start), Some(end)) if start < end => source.place(start..end),
            (Some(start), _) => source.place(start..start + 1),
            _ => self.place.clone(),
        }
    }
}

/// A key as it may stand in a dotted key.
fn quoted_key(key: &str) -> String {
    let bare = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if bare { key.to_owned() } else { toml::Value::String(key.to_owned()).to_string() }
}

fn is_header_table(raw: &Raw, source: &str) -> bool {
    matches!(raw.value, Value::Table(_)) && !starts_with(raw, source, '{')
}

/// A list under `[[headers]]` has the place of its first table.
fn is_header_list(raw: &Raw, source: &str) -> bool {
    let Value::List(items) = &raw.value else { return false };
    starts_with(raw, source, '[') && items.first().is_some_and(|first| first.place.span == raw.place.span)
}

fn starts_with(raw: &Raw, source: &str, mark: char) -> bool {
    raw.place.span.as_ref().and_then(|span| source.get(span.clone())).is_some_and(|text| text.starts_with(mark))
}
