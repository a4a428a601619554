//! One value of the options' table at a time, each refused with its name, its value, its place and a remedy.

use std::ops::Range;
use std::time::Duration;

use toml::de::{DeTable, DeValue, Error};
use umbp_plugin_api::OptionsError;

/// Units of a size, in bytes, largest first.
const SIZES: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
/// Units of a duration, in milliseconds, largest first.
const TIMES: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)];
/// Names further apart than this many edits are no slips of each other.
const SLIP_EDITS: usize = 3;

/// A table and the text that it stands in.
pub(super) struct Table<'a> {
    pub(super) entries: DeTable<'a>,
    /// What a missing option points at.
    span: Range<usize>,
    /// `tls.`, for names in messages.
    within: &'static str,
}

impl<'a> Table<'a> {
    /// The whole text.
    pub(super) fn parse(text: &'a str) -> Result<Self, OptionsError> {
        let entries = DeTable::parse(text).map_err(|error| refused(&error))?.into_inner();
        Ok(Self { entries, span: 0..text.len(), within: "" })
    }

    /// A table that is the value of an option.
    pub(super) fn inner(entries: &DeTable<'a>, span: Range<usize>, within: &'static str) -> Self {
        Self { entries: entries.clone(), span, within }
    }

    /// An option that has to be there is not.
    pub(super) fn missing(&self, name: &str, remedy: &str) -> OptionsError {
        let message = format!("option `{}{name}` is missing: {remedy}", self.within);
        OptionsError { message, span: self.span.clone() }
    }

    /// Refuses what is neither common nor the engine's own.
    pub(super) fn known_names_only(
        &self,
        whose: &str,
        common: &[&'static str],
        own: &[&'static str],
        other: &[&'static str],
    ) -> Result<(), OptionsError> {
        for name in self.entries.keys() {
            let found: &str = name.get_ref();
            let known = || common.iter().chain(own);
            if known().any(|known| *known == found) {
                continue;
            }
            let distance = |known: &str| strsim::damerau_levenshtein(known, found);
            let near = known().min_by_key(|known| distance(known)).filter(|known| distance(known) <= SLIP_EDITS);
            let within = self.within;
            let message = match near {
                _ if other.contains(&found) => {
                    format!("option `{found}` is not one of engine {whose}: leave it out, or choose the other engine")
                }
                Some(near) => format!("unknown option `{within}{found}`: did you mean `{within}{near}`?"),
                None => {
                    let names: Vec<&str> = known().copied().collect();
                    format!("unknown option `{within}{found}`: {whose} has {}", names.join(", "))
                }
            };
            return Err(OptionsError { message, span: name.span() });
        }
        Ok(())
    }

    /// The value and its place.
    pub(super) fn value(&self, name: &str) -> Option<(&DeValue<'a>, Range<usize>)> {
        self.entries.get(name).map(|value| (value.get_ref(), value.span()))
    }

    /// A refusal of an option's value.
    pub(super) fn wrong(&self, name: &str, shown: &str, remedy: &str, span: Range<usize>) -> OptionsError {
        OptionsError { message: format!("{}{name} = {shown}: {remedy}", self.within), span }
    }

    fn of_type(&self, name: &str, value: &DeValue<'_>, wanted: &str, span: Range<usize>) -> OptionsError {
        let message = format!("{}{name} is {}: give {wanted}", self.within, article(value));
        OptionsError { message, span }
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<(&str, Range<usize>)>, OptionsError> {
        match self.value(name) {
            None => Ok(None),
            Some((DeValue::String(text), span)) => Ok(Some((text.as_ref(), span))),
            Some((value, span)) => Err(self.of_type(name, value, "a text in quotes", span)),
        }
    }

    /// A text that may not be empty.
    pub(super) fn filled(&self, name: &str) -> Result<Option<(&str, Range<usize>)>, OptionsError> {
        match self.text(name)? {
            Some((text, span)) if text.trim().is_empty() || text.contains('\0') => {
                Err(self.wrong(name, &format!("{text:?}"), "give a text that is not empty, or leave it out", span))
            }
            found => Ok(found),
        }
    }

    /// A path that does not depend on the folder that the daemon was started in.
    pub(super) fn path(&self, name: &str) -> Result<Option<std::path::PathBuf>, OptionsError> {
        match self.filled(name)? {
            Some((text, span)) if !text.starts_with('/') => {
                Err(self.wrong(name, &format!("{text:?}"), "give an absolute path, as in \"/etc/umbp/secret\"", span))
            }
            found => Ok(found.map(|(text, _)| text.into())),
        }
    }

    /// One of a few words.
    pub(super) fn word(&self, name: &str, words: &[&'static str]) -> Result<Option<&'static str>, OptionsError> {
        let Some((text, span)) = self.text(name)? else { return Ok(None) };
        match words.iter().find(|word| **word == text) {
            Some(word) => Ok(Some(word)),
            None => {
                let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
                let remedy = format!("give one of {}", words.join(", "));
                Err(self.wrong(name, &format!("{text:?}"), &remedy, span))
            }
        }
    }

    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, OptionsError> {
        match self.value(name) {
            None => Ok(None),
            Some((DeValue::Boolean(flag), _)) => Ok(Some(*flag)),
            Some((value, span)) => Err(self.of_type(name, value, "true or false", span)),
        }
    }

    pub(super) fn number(&self, name: &str, least: u64, most: u64) -> Result<Option<u64>, OptionsError> {
        match self.value(name) {
            None => Ok(None),
            Some((DeValue::Integer(number), span)) => {
                let found = u64::from_str_radix(number.as_str(), number.radix()).ok();
                found.filter(|found| (least..=most).contains(found)).map(Some).ok_or_else(|| {
                    self.wrong(name, &number.to_string(), &format!("give a number from {least} to {most}"), span)
                })
            }
            Some((value, span)) => Err(self.of_type(name, value, &format!("a number from {least} to {most}"), span)),
        }
    }

    pub(super) fn size(&self, name: &str, least: u64, most: u64) -> Result<Option<u64>, OptionsError> {
        let remedy = format!("give a size from {} to {}, such as \"8MiB\"", size_text(least), size_text(most));
        self.scaled(name, &SIZES, least, most, &remedy)
    }

    pub(super) fn duration(
        &self,
        name: &str,
        least: Duration,
        most: Duration,
    ) -> Result<Option<Duration>, OptionsError> {
        let remedy = format!("give a time from {} to {}, such as \"1s\"", duration_text(least), duration_text(most));
        let found = self.scaled(name, &TIMES, whole_ms(least), whole_ms(most), &remedy)?;
        Ok(found.map(Duration::from_millis))
    }

    fn scaled(
        &self,
        name: &str,
        units: &[(&str, u64)],
        least: u64,
        most: u64,
        remedy: &str,
    ) -> Result<Option<u64>, OptionsError> {
        let Some((text, span)) = self.text(name)? else { return Ok(None) };
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = (text[..digits].parse::<u64>().ok(), text[digits..].trim());
        let scale = units.iter().find(|(known, _)| *known == unit).map(|(_, scale)| *scale);
        let found = number.zip(scale).and_then(|(number, scale)| number.checked_mul(scale));
        match found.filter(|found| (least..=most).contains(found)) {
            Some(found) => Ok(Some(found)),
            None => Err(self.wrong(name, &format!("{text:?}"), remedy, span)),
        }
    }
}

/// A size in the largest unit that divides it.
pub(super) fn size_text(bytes: u64) -> String {
    in_units(bytes, &SIZES)
}

/// A duration in the largest unit that divides it.
pub(super) fn duration_text(duration: Duration) -> String {
    in_units(whole_ms(duration), &TIMES)
}

fn in_units(number: u64, units: &[(&str, u64)]) -> String {
    let fits = |scale: u64| number >= scale && number.is_multiple_of(scale);
    let (unit, scale) = units.iter().copied().find(|(_, scale)| fits(*scale)).unwrap_or(units[units.len() - 1]);
    format!("{}{unit}", number / scale)
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn article(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a number with decimals",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

fn refused(error: &Error) -> OptionsError {
    OptionsError { message: error.message().to_owned(), span: error.span().unwrap_or(0..0) }
}
