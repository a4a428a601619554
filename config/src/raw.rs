//! Values as they stand in the file, the environment or a flag, before they are checked.
//!
//! Values from the environment and from flags are read as TOML where they are TOML, and taken as strings where they
//! are not, so that the same value meets the same checks wherever it was written.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use crate::error::{ConfigError, Problem, Remedy, closest};
use crate::schema::{KEYS, Section};
use crate::setting::{Place, SourceText};

/// Errors of one file that are shown; more are left out.
const ERRORS_MAX: usize = 50;

/// One value.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    pub(crate) value: Value,
    /// As errors quote it.
    pub(crate) written: String,
    pub(crate) place: Place,
}

/// What a value is.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Text(String),
    Boolean(bool),
    /// Decimal digits with an optional sign; none where the number has another base.
    Integer(Option<i128>),
    List(Vec<Raw>),
    Table(Vec<Entry>),
    /// A type that no key has.
    Other(&'static str),
}

/// One entry of a table, in the order of the text.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_place: Place,
    pub(crate) raw: Raw,
}

impl Value {
    /// What it is, for errors.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a string",
            Self::Boolean(_) => "a boolean",
            Self::Integer(_) => "an integer",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
            Self::Other(kind) => kind,
        }
    }
}

impl Raw {
    /// Text that stands outside the file.
    pub(crate) fn outside(text: &str, place: Place) -> Self {
        match DeValue::parse(text) {
            Ok(value) => convert(value.get_ref(), value.span(), text, &|_| place.clone()),
            Err(_) => Self { value: Value::Text(text.to_owned()), written: format!("{text:?}"), place },
        }
    }
}

/// One table of the file, or of what stands for one, with the values that override it.
#[derive(Debug)]
pub(crate) struct Fields {
    pub(crate) section: Section,
    /// Path for errors, such as `tier.dram`.
    pub(crate) path: String,
    /// The table's header.
    pub(crate) header: Place,
    pub(crate) values: BTreeMap<&'static str, Raw>,
}

impl Fields {
    pub(crate) fn new(section: Section, path: String, header: Place) -> Self {
        Self { section, path, header, values: BTreeMap::new() }
    }

    /// The name that the file gives it, if it is a string.
    pub(crate) fn name(&self) -> Option<&str> {
        match &self.values.get("name")?.value {
            Value::Text(name) => Some(name),
            _ => None,
        }
    }
}

/// Reads a file's text into its tables. Syntax errors come alone, since what follows them is guesswork.
pub(crate) fn read(source: &Arc<SourceText>) -> (Vec<Fields>, Vec<ConfigError>) {
    let (document, syntax) = DeTable::parse_recoverable(&source.text);
    if !syntax.is_empty() {
        let error = |error: &toml::de::Error| {
            let place = source.place(error.span().unwrap_or(0..0));
            let remedy = Remedy::text("mend the TOML at the mark; strings and sizes stand in double quotes");
            ConfigError::new(
                source.name(),
                "",
                (Problem::Syntax(error.message().to_owned()), remedy),
                place,
                Some(source),
            )
        };
        return (Vec::new(), syntax.iter().take(ERRORS_MAX).map(error).collect());
    }
    let root = convert(&DeValue::Table(document.into_inner()), 0..0, &source.text, &|span| source.place(span));
    let mut reader = Reader { source, fields: Vec::new(), errors: Vec::new() };
    if let Value::Table(entries) = root.value {
        entries.into_iter().for_each(|entry| reader.section(entry));
    }
    (reader.fields, reader.errors)
}

struct Reader<'a> {
    source: &'a Arc<SourceText>,
    fields: Vec<Fields>,
    errors: Vec<ConfigError>,
}

impl Reader<'_> {
    fn fail(&mut self, key: String, value: String, problem: (Problem, Remedy), place: Place) {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(ConfigError::new(key, value, problem, place, Some(self.source)));
        }
    }

    fn section(&mut self, entry: Entry) {
        let Entry { key, key_place, raw } = entry;
        let Some(section) = Section::ALL.into_iter().find(|section| section.name() == key) else {
            let remedy = unknown_section(&key);
            return self.fail(key, String::new(), (Problem::UnknownKey, remedy), key_place);
        };
        let place = raw.place.clone();
        match (section.is_list(), raw.value) {
            (true, Value::List(tables)) => {
                tables.into_iter().enumerate().for_each(|(index, table)| self.table(section, Some(index), table));
            }
            (false, Value::Table(entries)) => self.entries(section, section.name().to_owned(), place, entries),
            (list, value) => {
                let name = section.name();
                let (expected, remedy) = match list {
                    true => ("a list of tables", format!("write [[{name}]] above each {name}'s keys")),
                    false => ("a table", format!("write [{name}] above its keys")),
                };
                let problem = Problem::WrongType { expected, found: value.kind() };
                self.fail(key, String::new(), (problem, Remedy::text(remedy)), place);
            }
        }
    }

    fn table(&mut self, section: Section, index: Option<usize>, table: Raw) {
        let number = index.map_or(0, |index| index + 1);
        match table.value {
            Value::Table(entries) => {
                let named = entries.iter().find(|entry| entry.key == "name");
                let path = match named.map(|entry| &entry.raw.value) {
                    Some(Value::Text(name)) => format!("{}.{name}", section.name()),
                    _ => format!("{}.#{number}", section.name()),
                };
                self.entries(section, path, table.place, entries);
            }
            value => {
                let problem = Problem::WrongType { expected: "a table", found: value.kind() };
                let remedy = Remedy::text(format!("write [[{0}]] above each {0}'s keys", section.name()));
                self.fail(format!("{}.#{number}", section.name()), table.written, (problem, remedy), table.place);
            }
        }
    }

    fn entries(&mut self, section: Section, path: String, header: Place, entries: Vec<Entry>) {
        let mut fields = Fields::new(section, path, header);
        for Entry { key, key_place, raw } in entries {
            match section.keys().find(|name| *name == key) {
                Some(name) => {
                    fields.values.insert(name, raw);
                }
                None => {
                    let remedy = unknown_key(section, &key);
                    self.fail(
                        format!("{}.{key}", fields.path),
                        String::new(),
                        (Problem::UnknownKey, remedy),
                        key_place,
                    );
                }
            }
        }
        self.fields.push(fields);
    }
}

fn unknown_section(key: &str) -> Remedy {
    if let Some(name) = closest(key, Section::ALL.into_iter().map(Section::name)) {
        return Remedy::did_you_mean(name);
    }
    match KEYS.iter().find(|known| known.name == key) {
        Some(known) => Remedy::text(format!("\"{key}\" belongs into [{}]", known.section.name())),
        None => {
            let names: Vec<_> = Section::ALL.into_iter().map(Section::name).collect();
            Remedy::text(format!("remove it; the sections are {}", names.join(", ")))
        }
    }
}

fn unknown_key(section: Section, key: &str) -> Remedy {
    if let Some(known) = KEYS.iter().find(|known| known.name == key) {
        return Remedy::text(format!("\"{key}\" belongs into [{}]", known.section.name()));
    }
    if let Some(name) = closest(key, section.keys()) {
        return Remedy::did_you_mean(name);
    }
    let keys: Vec<_> = section.keys().collect();
    let own = if keys.contains(&"options") { "; a backend's own options stand under its options" } else { "" };
    Remedy::text(format!("remove it; [{}] has {}{own}", section.name(), keys.join(", ")))
}

/// A parsed value as a [`Raw`]; `place` turns spans of `text` into places.
fn convert(value: &DeValue<'_>, span: Range<usize>, text: &str, place: &dyn Fn(Range<usize>) -> Place) -> Raw {
    let written = text.get(span.clone()).unwrap_or_default().to_owned();
    let converted = match value {
        DeValue::String(text) => Value::Text(text.clone().into_owned()),
        DeValue::Integer(number) => Value::Integer(i128::from_str_radix(number.as_str(), number.radix()).ok()),
        DeValue::Boolean(truth) => Value::Boolean(*truth),
        DeValue::Array(items) => {
            Value::List(items.iter().map(|item| convert(item.get_ref(), item.span(), text, place)).collect())
        }
        DeValue::Table(table) => {
            let mut pairs: Vec<_> = table.iter().collect();
            pairs.sort_by_key(|(key, _)| key.span().start);
            let entry = |(key, value): (&toml::Spanned<_>, &toml::Spanned<_>)| entry(key, value, text, place);
            Value::Table(pairs.into_iter().map(entry).collect())
        }
        DeValue::Float(_) => Value::Other("a number with decimals"),
        DeValue::Datetime(_) => Value::Other("a date"),
    };
    let written = match &converted {
        Value::Text(text) => format!("{text:?}"),
        _ => written,
    };
    Raw { value: converted, written, place: place(span) }
}

fn entry(
    key: &toml::Spanned<toml::de::DeString<'_>>,
    value: &toml::Spanned<DeValue<'_>>,
    text: &str,
    place: &dyn Fn(Range<usize>) -> Place,
) -> Entry {
    Entry {
        key: key.get_ref().clone().into_owned(),
        key_place: place(key.span()),
        raw: convert(value.get_ref(), value.span(), text, place),
    }
}
