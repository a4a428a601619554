//! The options of an nvme tier: TOML text, checked.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, Error};
use umbp_plugin_api::OptionsError;

/// Names of all options, for "did you mean".
const NAMES: [&str; 5] = ["paths", "sync_window", "io", "direct", "depth"];
/// Most folders of one tier; the path's number has 8 bits in a location.
pub const PATHS_MAX: usize = 64;
/// Most pieces in flight on one path.
pub const DEPTH_MAX: u32 = 1024;
const DEPTH_DEFAULT: u32 = 64;
const SYNC_WINDOW_DEFAULT_MS: u64 = 1000;
const SYNC_WINDOW_MIN_MS: u64 = 10;
const SYNC_WINDOW_MAX_MS: u64 = 3_600_000;

/// How pieces reach the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Io {
    /// io_uring where the kernel grants it, else threads.
    #[default]
    Auto,
    /// io_uring, or no start.
    IoUring,
    /// A pool of threads with pread and pwrite.
    Threads,
}

/// Whether the page cache is passed by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direct {
    /// O_DIRECT where a real write, read and compare succeeds.
    #[default]
    Auto,
    /// Through the page cache.
    Off,
}

/// Options as checked; every one has its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// One or more folders; capacity is shared evenly.
    pub paths: Vec<PathBuf>,
    /// What a power loss may cost.
    pub sync_window: Duration,
    /// How pieces reach the kernel.
    pub io: Io,
    /// Whether the page cache is passed by.
    pub direct: Direct,
    /// Pieces in flight on each path.
    pub depth: u32,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Raw {
    paths: Option<Spanned<Vec<Spanned<String>>>>,
    sync_window: Option<Spanned<String>>,
    io: Io,
    direct: Direct,
    depth: Option<Spanned<u32>>,
}

#[derive(Serialize)]
struct Resolved {
    paths: Vec<String>,
    sync_window: String,
    io: Io,
    direct: Direct,
    depth: u32,
}

impl Options {
    /// Reads the options' TOML text.
    pub fn parse(text: &str) -> Result<Self, OptionsError> {
        known_names_only(text)?;
        let raw: Raw = toml::from_str(text).map_err(|error| refused(&error))?;
        let paths = checked_paths(raw.paths, text.len())?;
        let sync_window = match raw.sync_window {
            None => Duration::from_millis(SYNC_WINDOW_DEFAULT_MS),
            Some(given) => window(given.get_ref()).map_err(|message| OptionsError { message, span: given.span() })?,
        };
        let depth = match raw.depth {
            None => DEPTH_DEFAULT,
            Some(given) if (1..=DEPTH_MAX).contains(given.get_ref()) => *given.get_ref(),
            Some(given) => {
                let message = format!("depth = {}: give a number from 1 to {DEPTH_MAX}", given.get_ref());
                return Err(OptionsError { message, span: given.span() });
            }
        };
        Ok(Self { paths, sync_window, io: raw.io, direct: raw.direct, depth })
    }

    /// Every option with its value, as TOML text.
    pub fn resolved(&self) -> String {
        let resolved = Resolved {
            paths: self.paths.iter().map(|path| path.to_string_lossy().into_owned()).collect(),
            sync_window: format!("{}ms", self.sync_window.as_millis()),
            io: self.io,
            direct: self.direct,
            depth: self.depth,
        };
        toml::to_string(&resolved).unwrap_or_else(|error| format!("# {error}\n"))
    }
}

fn checked_paths(given: Option<Spanned<Vec<Spanned<String>>>>, end: usize) -> Result<Vec<PathBuf>, OptionsError> {
    let Some(given) = given else {
        let message = "option `paths` is missing: name one folder or more, as in paths = [\"/var/lib/umbp/nvme\"]";
        return Err(OptionsError { message: message.to_owned(), span: 0..end });
    };
    let span = given.span();
    let list = given.into_inner();
    if list.is_empty() || list.len() > PATHS_MAX {
        let message = format!("paths names {} folders: give from 1 to {PATHS_MAX}", list.len());
        return Err(OptionsError { message, span });
    }
    let mut paths: Vec<PathBuf> = Vec::with_capacity(list.len());
    for path in list {
        let text = path.get_ref();
        let folder = PathBuf::from(text);
        let fault = if text.is_empty() {
            Some("an empty path in `paths`: name a folder".to_owned())
        } else if text.contains('\0') {
            Some("a path in `paths` holds a NUL character: name a folder".to_owned())
        } else if !folder.is_absolute() {
            // Where it leads would depend on the folder that the daemon was started in.
            Some(format!("{text:?} in `paths` is relative: give an absolute path, as in \"/var/lib/umbp/nvme\""))
        } else if paths.contains(&folder) {
            // Paths compare by their parts: "/a", "/a/" and "/./a" are one.
            Some(format!("{text:?} is the same folder twice in `paths`: name each once"))
        } else {
            None
        };
        if let Some(message) = fault {
            return Err(OptionsError { message, span: path.span() });
        }
        paths.push(folder);
    }
    Ok(paths)
}

fn window(text: &str) -> Result<Duration, String> {
    let wrong = || format!("sync_window = \"{text}\": give a time from 10ms to 1h, such as \"1s\" or \"500ms\"");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let unit_ms = match text[digits..].trim() {
        "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    let ms = number.checked_mul(unit_ms).filter(|ms| (SYNC_WINDOW_MIN_MS..=SYNC_WINDOW_MAX_MS).contains(ms));
    ms.map(Duration::from_millis).ok_or_else(wrong)
}

fn known_names_only(text: &str) -> Result<(), OptionsError> {
    let table = DeTable::parse(text).map_err(|error| refused(&error))?;
    for (name, _) in table.get_ref() {
        let found: &str = name.get_ref();
        if NAMES.contains(&found) {
            continue;
        }
        let distance = |known: &str| strsim::damerau_levenshtein(known, found);
        let near = NAMES.into_iter().min_by_key(|known| distance(known)).filter(|known| distance(known) <= 3);
        let hint = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("an nvme tier has {}", NAMES.join(", ")),
        };
        return Err(OptionsError { message: format!("unknown option `{found}`: {hint}"), span: name.span() });
    }
    Ok(())
}

fn refused(error: &Error) -> OptionsError {
    OptionsError { message: error.message().to_owned(), span: error.span().unwrap_or(Range { start: 0, end: 0 }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_has_its_default_in_the_resolved_text() {
        let resolved = Options::parse("paths = [\"/a\"]").expect("right").resolved();
        assert_eq!(
            resolved,
            "paths = [\"/a\"]\nsync_window = \"1000ms\"\nio = \"auto\"\ndirect = \"auto\"\ndepth = 64\n"
        );
        assert_eq!(Options::parse(&resolved).expect("its own text").resolved(), resolved);
    }

    #[test]
    fn a_wrong_option_is_refused_with_its_place_and_a_remedy() {
        // text, what the span covers, part of the message
        let cases = [
            ("", "", "paths"),
            ("paths = []", "[]", "from 1 to 64"),
            ("paths = [\"/a\", \"/a\"]", "\"/a\"", "twice"),
            ("paths = [\"/a\", \"/b\", \"/a/\"]", "\"/a/\"", "twice"),
            ("paths = [\"/a/b\", \"/a//./b\"]", "\"/a//./b\"", "twice"),
            ("paths = [\"/a\", \"nvme\"]", "\"nvme\"", "\"nvme\" in `paths` is relative: give an absolute path"),
            ("paths = [\"./a\"]", "\"./a\"", "absolute path"),
            ("paths = [\"~/a\"]", "\"~/a\"", "absolute path"),
            ("paths = [\"\"]", "\"\"", "name a folder"),
            ("paths = [\"/a\"]\nsyncwindow = \"1s\"", "syncwindow", "did you mean `sync_window`?"),
            ("paths = [\"/a\"]\nzzzzzzzzzz = 1", "zzzzzzzzzz", "an nvme tier has paths"),
            ("paths = [\"/a\"]\nsync_window = \"1 parsec\"", "\"1 parsec\"", "10ms to 1h"),
            ("paths = [\"/a\"]\nsync_window = \"0s\"", "\"0s\"", "10ms to 1h"),
            ("paths = [\"/a\"]\ndepth = 0", "0", "from 1 to 1024"),
            ("paths = [\"/a\"]\nio = \"magic\"", "\"magic\"", "io_uring"),
            ("paths = \"/a\"", "\"/a\"", ""),
        ];
        for (text, place, message) in cases {
            let error = Options::parse(text).expect_err(text);
            assert_eq!(&text[error.span.clone()], place, "{text}: {error}");
            assert!(error.message.contains(message), "{text}: {error}");
        }
    }
}
