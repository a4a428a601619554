//! The options of a dram tier: TOML text, checked.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::Spanned;
use toml::de::{DeTable, Error};
use umbp_plugin_api::OptionsError;

/// Names of all options, for "did you mean".
const NAMES: [&str; 4] = ["hugepages", "numa", "mlock", "prefault_threads"];

/// Most threads that pre-fault one segment.
pub const MAX_PREFAULT_THREADS: usize = 256;

/// Threads of pre-faulting where the options do not say; more hardly helps, since the kernel clears the pages.
const DEFAULT_PREFAULT_THREADS: usize = 8;

/// Which pages a segment is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum HugePages {
    /// Normal pages.
    #[serde(rename = "off")]
    Off,
    /// Reserved pages of 2 MiB where there are enough for the whole tier, else normal pages.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// Reserved pages of 2 MiB.
    #[serde(rename = "2MiB")]
    TwoMiB,
    /// Reserved pages of 1 GiB.
    #[serde(rename = "1GiB")]
    OneGiB,
}

/// From which NUMA nodes pages come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numa {
    /// Where the kernel puts them.
    #[default]
    None,
    /// Spread over all nodes that have memory.
    Interleave,
    /// From one node while it has any.
    Node(u32),
}

/// Options as checked; every one has its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Options {
    /// Kind of pages.
    pub hugepages: HugePages,
    /// Placement.
    pub numa: Numa,
    /// Lock the segments into memory.
    pub mlock: bool,
    /// Threads that pre-fault one segment.
    pub prefault_threads: usize,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Raw {
    hugepages: HugePages,
    numa: Numa,
    mlock: bool,
    prefault_threads: Option<Spanned<usize>>,
}

impl Options {
    /// Reads the options' TOML text.
    pub fn parse(text: &str) -> Result<Self, OptionsError> {
        known_names_only(text)?;
        let raw: Raw = toml::from_str(text).map_err(|error| refused(&error))?;
        if let Some(threads) = raw.prefault_threads.as_ref()
            && !(1..=MAX_PREFAULT_THREADS).contains(threads.get_ref())
        {
            let value = threads.get_ref();
            return Err(OptionsError {
                message: format!("prefault_threads = {value}: give a number from 1 to {MAX_PREFAULT_THREADS}"),
                span: threads.span(),
            });
        }
        let threads = raw.prefault_threads.map_or_else(default_threads, Spanned::into_inner);
        Ok(Self { hugepages: raw.hugepages, numa: raw.numa, mlock: raw.mlock, prefault_threads: threads })
    }

    /// Every option with its value, as TOML text.
    pub fn resolved(&self) -> String {
        toml::to_string(self).unwrap_or_else(|error| format!("# {error}\n"))
    }
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(DEFAULT_PREFAULT_THREADS)
}

fn known_names_only(text: &str) -> Result<(), OptionsError> {
    let table = DeTable::parse(text).map_err(|error| refused(&error))?;
    for (name, _) in table.get_ref() {
        let found: &str = name.get_ref();
        if NAMES.contains(&found) {
            continue;
        }
        let near = NAMES.iter().min_by_key(|known| strsim::damerau_levenshtein(known, found));
        let hint = match near.filter(|known| strsim::damerau_levenshtein(known, found) <= 3) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("a dram tier has {}", NAMES.join(", ")),
        };
        return Err(OptionsError { message: format!("unknown option `{found}`: {hint}"), span: name.span() });
    }
    Ok(())
}

fn refused(error: &Error) -> OptionsError {
    OptionsError { message: error.message().to_owned(), span: error.span().unwrap_or(Range { start: 0, end: 0 }) }
}

impl Serialize for Numa {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_str("none"),
            Self::Interleave => serializer.serialize_str("interleave"),
            Self::Node(node) => serializer.serialize_u32(*node),
        }
    }
}

impl<'de> Deserialize<'de> for Numa {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumaVisitor)
    }
}

struct NumaVisitor;

impl serde::de::Visitor<'_> for NumaVisitor {
    type Value = Numa;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"none\", \"interleave\" or the number of a node below {}", crate::numa::MAX_NODES)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Numa, E> {
        match text {
            "none" => Ok(Numa::None),
            "interleave" => Ok(Numa::Interleave),
            _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
        }
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Numa, E> {
        match u32::try_from(number) {
            Ok(node) if node < crate::numa::MAX_NODES => Ok(Numa::Node(node)),
            _ => Err(E::invalid_value(serde::de::Unexpected::Signed(number), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_resolved_and_reads_back_the_same() {
        for text in [
            "",
            "hugepages = \"1GiB\"\nnuma = 1\nmlock = true\nprefault_threads = 3\n",
            "hugepages = \"off\"\nnuma = \"interleave\"\n",
        ] {
            let options = Options::parse(text).expect("these options are right");
            let resolved = options.resolved();
            for name in NAMES {
                assert!(resolved.contains(&format!("{name} = ")), "{name} is missing in {resolved}");
            }
            assert_eq!(Options::parse(&resolved).expect("the resolved text is right"), options);
        }
    }

    #[test]
    fn a_wrong_option_is_refused_at_its_place_with_its_remedy() {
        for (text, spot, words) in [
            ("mlock = true\nhugepage = \"off\"\n", "hugepage", "did you mean `hugepages`?"),
            ("colour = 1\n", "colour", "hugepages, numa, mlock, prefault_threads"),
            ("hugepages = \"4MiB\"\n", "\"4MiB\"", "2MiB"),
            ("hugepages = true\n", "true", ""),
            ("numa = \"all\"\n", "\"all\"", "interleave"),
            ("numa = -1\n", "-1", "number of a node"),
            ("mlock = \"yes\"\n", "\"yes\"", "boolean"),
            ("prefault_threads = 0\n", "0", "from 1 to 256"),
            ("prefault_threads = 100000\n", "100000", "from 1 to 256"),
        ] {
            let error = Options::parse(text).expect_err(text);
            assert_eq!(&text[error.span.clone()], spot, "{}", error.message);
            assert!(error.message.contains(words), "{text}: {}", error.message);
        }
    }
}
