//! The options: `path = "/a/folder"`, and `workers = 4`.
//!
//! The daemon hands options over as TOML text. Two plain lines need no TOML library; a backend with tables or lists
//! should use one (`toml` gives the spans).

use std::ops::Range;
use std::path::PathBuf;

use umbp_plugin_api::OptionsError;

/// Threads where the options do not say.
const DEFAULT_WORKERS: usize = 4;

/// Most threads.
const MAX_WORKERS: usize = 64;

/// Options, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Directory of the blocks.
    pub path: PathBuf,
    /// Threads that read and write.
    pub workers: usize,
}

impl Options {
    /// Reads the options' text. Every error names the option and where it stands.
    pub fn parse(text: &str) -> Result<Self, OptionsError> {
        let (mut path, mut workers) = (None, DEFAULT_WORKERS);
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            let span = trimmed(line, start);
            start += line.len();
            if span.is_empty() || text[span.clone()].starts_with('#') {
                continue;
            }
            let Some((name, value)) = text[span.clone()].split_once('=') else {
                return Err(error("expected `option = value`".to_owned(), span));
            };
            let name_span = trimmed(name, span.start);
            let value_span = trimmed(value, span.end - value.len());
            let value = &text[value_span.clone()];
            match &text[name_span.clone()] {
                "path" => path = Some(PathBuf::from(string(value).map_err(|why| error(why, value_span))?)),
                "workers" => {
                    let number = value.parse().ok().filter(|number| (1..=MAX_WORKERS).contains(number));
                    let why = || error(format!("workers = {value}: give a number from 1 to {MAX_WORKERS}"), value_span);
                    workers = number.ok_or_else(why)?;
                }
                other => {
                    let why = format!("unknown option `{other}`: this backend has `path` and `workers`");
                    return Err(error(why, name_span));
                }
            }
        }
        match path {
            Some(path) if path.is_absolute() => Ok(Self { path, workers }),
            Some(path) => Err(error(format!("path = {path:?}: give an absolute path"), 0..text.len())),
            None => Err(error("`path` is missing: name the directory of the blocks".to_owned(), 0..text.len())),
        }
    }

    /// Every option with its value; parses to the same options.
    pub fn resolved(&self) -> String {
        let path = self.path.to_string_lossy().replace('\\', "\\\\").replace('"', "\\\"");
        format!("path = \"{path}\"\nworkers = {}\n", self.workers)
    }
}

fn error(message: String, span: Range<usize>) -> OptionsError {
    OptionsError { message, span }
}

/// Where the text without its outer spaces stands, if `text` begins at `start`.
fn trimmed(text: &str, start: usize) -> Range<usize> {
    let from = start + text.len() - text.trim_start().len();
    from..from + text.trim().len()
}

/// A TOML string on one line.
fn string(value: &str) -> Result<String, String> {
    if let Some(literal) = value.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')) {
        return Ok(literal.to_owned());
    }
    let inner = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let mut text = String::new();
    let mut rest = inner.ok_or_else(|| format!("{value}: give a string in quotes"))?.chars();
    while let Some(letter) = rest.next() {
        match letter {
            '\\' => match rest.next() {
                Some(escaped @ ('\\' | '"')) => text.push(escaped),
                _ => return Err(format!("{value}: of the escapes only \\\\ and \\\" are known here")),
            },
            '"' => return Err(format!("{value}: a quote inside a string is written \\\"")),
            letter => text.push(letter),
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_read_back_as_they_were_resolved() {
        for text in ["path = \"/a b\"", "# where\n\nworkers=9\n  path = '/c\\d'  \n", "path = \"/a\\\"b\\\\c\"\n"] {
            let options = Options::parse(text).expect(text);
            assert_eq!(Options::parse(&options.resolved()), Ok(options), "{text}");
        }
    }

    #[test]
    fn a_wrong_option_is_refused_where_it_stands() {
        for (text, spot) in [
            ("path = \"/a\"\ncolour = 1\n", "colour"),
            ("path = /a\n", "/a"),
            ("path = \"/a\n", "\"/a"),
            ("path = \"/a\"\nworkers = 0", "0"),
            ("path = \"/a\"\n[table]\n", "[table]"),
            ("workers = 1", "workers = 1"),
            ("path = \"a\"", "path = \"a\""),
        ] {
            let error = Options::parse(text).expect_err(text);
            assert_eq!(&text[error.span], spot, "{}", error.message);
        }
    }
}
