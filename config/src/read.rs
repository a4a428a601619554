//! Readers of single values: raw in, checked out, with problem and remedy.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::defaults::{AFTER_HITS_MAX, NAME_MAX_BYTES, SOCKET_PATH_MAX_BYTES};
use crate::error::{Problem, Remedy, closest};
use crate::model::{BackendRef, Write};
use crate::raw::{Raw, Value};
use crate::setting::Origin;
use crate::units::{Share, parse_duration, parse_share, parse_size, size_text};

/// What a reader answers.
pub(crate) type Read<T> = Result<T, (Problem, Remedy)>;

pub(crate) fn impossible<T>(problem: impl Into<String>, remedy: impl Into<String>) -> Read<T> {
    Err((Problem::Impossible(problem.into()), Remedy::text(remedy)))
}

fn wrong_type<T>(expected: &'static str, raw: &Raw, remedy: impl Into<String>) -> Read<T> {
    Err((Problem::WrongType { expected, found: raw.value.kind() }, Remedy::text(remedy)))
}

fn text<'a>(raw: &'a Raw, expected: &'static str, example: &str) -> Read<&'a str> {
    match &raw.value {
        Value::Text(text) => Ok(text),
        _ => wrong_type(expected, raw, format!("write it in quotes, such as {example}")),
    }
}

pub(crate) fn boolean(raw: &Raw) -> Read<bool> {
    match raw.value {
        Value::Boolean(truth) => Ok(truth),
        _ => wrong_type("true or false", raw, "write true or false, without quotes"),
    }
}

pub(crate) fn size(raw: &Raw) -> Read<u64> {
    if let Value::Integer(Some(number)) = raw.value {
        let likely = u64::try_from(number).map_or_else(|_| "8GiB".to_owned(), size_text);
        return wrong_type(
            "a size with its unit",
            raw,
            format!("write it in quotes with its unit, such as \"{likely}\""),
        );
    }
    parse_size(text(raw, "a size with its unit", "\"8GiB\"")?)
}

pub(crate) fn size_from(raw: &Raw, least: u64, most: u64) -> Read<u64> {
    let size = size(raw)?;
    if size < least {
        return impossible("too small", format!("write at least \"{}\"", size_text(least)));
    }
    if size > most {
        return impossible("too large", format!("write at most \"{}\"", size_text(most)));
    }
    Ok(size)
}

/// A share of at most `most_percent`.
pub(crate) fn share(raw: &Raw, most_percent: u32) -> Read<Share> {
    let share = parse_share(text(raw, "a share", "\"1%\" or \"64MiB\"")?)?;
    match share {
        Share::Part(part) if part > most_percent * 100 => {
            impossible(format!("more than {most_percent} %"), format!("write at most \"{most_percent}%\""))
        }
        share => Ok(share),
    }
}

pub(crate) fn duration_from(raw: &Raw, least: Duration, most: Duration) -> Read<Duration> {
    use crate::units::duration_text;
    let duration = parse_duration(text(raw, "a duration with its unit", "\"2s\"")?)?;
    if duration < least {
        return impossible("too short", format!("write at least \"{}\"", duration_text(least)));
    }
    if duration > most {
        return impossible("too long", format!("write at most \"{}\"", duration_text(most)));
    }
    Ok(duration)
}

pub(crate) fn word<T: Copy>(raw: &Raw, words: &[(&'static str, T)]) -> Read<T> {
    let names = || words.iter().map(|(name, _)| *name);
    let list = quoted_words(words);
    let found = text(raw, "a word", &list)?;
    if let Some((_, value)) = words.iter().find(|(name, _)| *name == found) {
        return Ok(*value);
    }
    let remedy =
        closest(found, names()).map_or_else(|| Remedy::text(format!("write one of {list}")), Remedy::did_you_mean);
    Err((Problem::NotOneOf(list), remedy))
}

/// One of a few words, or a table with a number from `least` to `most` under one name, such as `{ after_hits = 2 }`.
pub(crate) fn word_or_number<T: Copy>(
    raw: &Raw,
    words: &[(&'static str, T)],
    (name, least, most): (&'static str, u32, u32),
    make: impl Fn(u32) -> T,
) -> Read<T> {
    let Value::Table(entries) = &raw.value else {
        return word(raw, words).map_err(|(problem, remedy)| match problem {
            Problem::NotOneOf(list) => (Problem::NotOneOf(format!("{list}, {{ {name} = {least} }}")), remedy),
            problem => (problem, remedy),
        });
    };
    let example = format!("write {{ {name} = {least} }}, or {}", quoted_words(words));
    let [only] = entries.as_slice() else {
        return impossible(format!("a table of {} values, where one is expected", entries.len()), example);
    };
    if only.key != name {
        let remedy = closest(&only.key, [name]).map_or_else(|| Remedy::text(example), Remedy::did_you_mean);
        return Err((Problem::Impossible(format!("unknown name {:?} in the table", only.key)), remedy));
    }
    let Value::Integer(number) = only.raw.value else { return wrong_type("a whole number", &only.raw, example) };
    match number.and_then(|number| u32::try_from(number).ok()).filter(|number| (least..=most).contains(number)) {
        Some(number) => Ok(make(number)),
        None => impossible(format!("{name} out of range"), format!("write a number from {least} to {most}")),
    }
}

fn quoted_words<T>(words: &[(&'static str, T)]) -> String {
    words.iter().map(|(name, _)| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

/// When a lower tier gets its copy.
pub(crate) fn write(raw: &Raw) -> Read<Write> {
    let words = [("through", Write::Through), ("on-evict", Write::OnEvict)];
    let after = |hits| Write::AfterHits(u8::try_from(hits).unwrap_or(u8::MAX));
    word_or_number(raw, &words, ("after_hits", 1, AFTER_HITS_MAX), after)
}

/// Lower-case letters, digits and single hyphens, a letter first: its form in a variable's name is unique.
pub(crate) fn name(raw: &Raw) -> Read<String> {
    let name = text(raw, "a name", "\"dram\"")?;
    let shape = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.contains("--")
        && name.len() <= NAME_MAX_BYTES;
    match shape {
        true => Ok(name.to_owned()),
        false => impossible(
            "not a name",
            format!("use up to {NAME_MAX_BYTES} lower-case letters, digits and single hyphens, a letter first"),
        ),
    }
}

pub(crate) fn backend(raw: &Raw) -> Read<BackendRef> {
    let text = text(raw, "a backend's name or path", "\"dram\"")?;
    if Path::new(text).is_absolute() {
        return Ok(BackendRef::Path(PathBuf::from(text)));
    }
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if text.is_empty() || !text.chars().all(bare) {
        return impossible(
            "neither a bare name nor an absolute path",
            "write a bare name such as \"nvme\", which is searched in plugin_dirs, or the absolute path of the file",
        );
    }
    Ok(BackendRef::Bare(text.to_owned()))
}

/// A path; one that stands in the file is relative to the file's folder, any other to the working folder.
pub(crate) fn path(raw: &Raw, base: &Path) -> Read<PathBuf> {
    let text = text(raw, "a path", "\"/run/umbp/umbpd.sock\"")?;
    if text.is_empty() {
        return impossible("an empty path", "write a path, or remove the key to use its default");
    }
    if text.contains('\0') {
        return impossible("a path with a zero byte", "write a path without it");
    }
    match raw.place.origin {
        Origin::File { .. } => Ok(base.join(text)),
        _ => Ok(std::path::absolute(text).unwrap_or_else(|_| PathBuf::from(text))),
    }
}

pub(crate) fn socket(raw: &Raw, base: &Path) -> Read<PathBuf> {
    let path = path(raw, base)?;
    let bytes = path.as_os_str().len();
    match bytes > SOCKET_PATH_MAX_BYTES {
        true => impossible(
            format!(
                "the socket's path has {bytes} bytes, more than the {SOCKET_PATH_MAX_BYTES} that Unix sockets allow"
            ),
            "choose a shorter path, such as \"/run/umbp/umbpd.sock\"",
        ),
        false => Ok(path),
    }
}

pub(crate) fn paths(raw: &Raw, base: &Path) -> Read<Vec<PathBuf>> {
    let Value::List(items) = &raw.value else {
        return wrong_type("a list of paths", raw, "write a list, such as [\"plugins\"]");
    };
    items.iter().map(|item| path(item, base)).collect()
}

pub(crate) fn admin(raw: &Raw) -> Read<Option<SocketAddr>> {
    let remedy = "write \"127.0.0.1:9464\", \"[::1]:9464\" or \"off\"";
    let text = match &raw.value {
        Value::Text(text) => text,
        _ => return wrong_type("an address and port", raw, remedy),
    };
    match text.as_str() {
        "off" => Ok(None),
        text => text.parse().map(Some).map_err(|_| (Problem::NotA("numeric address with port"), Remedy::text(remedy))),
    }
}

pub(crate) fn uids(raw: &Raw, most: usize) -> Read<Vec<u32>> {
    let remedy = "write a list of user ids, such as [1000]";
    let Value::List(items) = &raw.value else { return wrong_type("a list of user ids", raw, remedy) };
    if items.len() > most {
        return impossible(format!("more than {most} users"), "split them into several tenants");
    }
    let mut uids = Vec::with_capacity(items.len());
    for item in items {
        let Value::Integer(number) = item.value else { return wrong_type("a user id", item, remedy) };
        // The last number is the kernel's "no user".
        let Some(uid) = number.and_then(|uid| u32::try_from(uid).ok()).filter(|uid| *uid != u32::MAX) else {
            return impossible(format!("{} is not a user id", item.written), "write a number from 0 to 4294967294");
        };
        if uids.contains(&uid) {
            return Err((Problem::Twice(format!("uid {uid} stands there twice")), Remedy::text("remove one of them")));
        }
        uids.push(uid);
    }
    Ok(uids)
}
