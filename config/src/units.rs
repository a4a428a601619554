//! Sizes, shares and durations: a number with its unit, always.

use std::fmt;
use std::time::Duration;

use crate::error::{Problem, Remedy, closest};

/// Units of a size, in bytes, largest first.
const SIZE_UNITS: [(&str, u64); 5] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
/// What people write instead of these units.
const SIZE_SLIPS: [(&str, &str); 16] = [
    ("T", "TiB"),
    ("TB", "TiB"),
    ("Tb", "TiB"),
    ("t", "TiB"),
    ("G", "GiB"),
    ("GB", "GiB"),
    ("g", "GiB"),
    ("Gb", "GiB"),
    ("M", "MiB"),
    ("MB", "MiB"),
    ("m", "MiB"),
    ("K", "KiB"),
    ("KB", "KiB"),
    ("kB", "KiB"),
    ("k", "KiB"),
    ("b", "B"),
];
/// Units of a duration, in milliseconds, largest first.
const TIME_UNITS: [(&str, u64); 3] = [("min", 60_000), ("s", 1000), ("ms", 1)];
/// What people write instead of these units.
const TIME_SLIPS: [(&str, &str); 8] = [
    ("sec", "s"),
    ("secs", "s"),
    ("seconds", "s"),
    ("S", "s"),
    ("msec", "ms"),
    ("millis", "ms"),
    ("m", "min"),
    ("minutes", "min"),
];
/// One percent, in the unit of [`Share::Part`].
const PERCENT: u64 = 100;

/// A share of a tier: a part of its capacity, or bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Hundredths of a percent: 100 % is 10,000.
    Part(u32),
    /// Bytes.
    Bytes(u64),
}

impl Share {
    /// This many percent.
    pub const fn percent(percent: u32) -> Self {
        Self::Part(percent * PERCENT as u32)
    }

    /// Bytes of a tier of `capacity` bytes, rounded down.
    pub fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Part(part) => (u128::from(capacity) * u128::from(part) / 10_000) as u64,
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Part(part) if part % 100 == 0 => write!(f, "{}%", part / 100),
            Self::Part(part) => {
                let text = format!("{}.{:02}", part / 100, part % 100);
                write!(f, "{}%", text.trim_end_matches('0'))
            }
            Self::Bytes(bytes) => f.write_str(&size_text(bytes)),
        }
    }
}

/// A size in the largest unit that divides it.
pub fn size_text(bytes: u64) -> String {
    let (unit, scale) =
        SIZE_UNITS.into_iter().find(|(_, scale)| bytes >= *scale && bytes.is_multiple_of(*scale)).unwrap_or(("B", 1));
    format!("{}{unit}", bytes / scale)
}

/// A duration in the largest unit that divides it; parts of a millisecond are dropped.
pub fn duration_text(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let (unit, scale) =
        TIME_UNITS.into_iter().find(|(_, scale)| ms >= *scale && ms.is_multiple_of(*scale)).unwrap_or(("ms", 1));
    format!("{}{unit}", ms / scale)
}

/// Reads a size such as `8GiB`, in bytes.
pub fn parse_size(text: &str) -> Result<u64, (Problem, Remedy)> {
    scaled(text, "size", &SIZE_UNITS, &SIZE_SLIPS, "write \"8GiB\", \"512MiB\", \"64KiB\" or \"4096B\"")
}

/// Reads a duration such as `2s`.
pub fn parse_duration(text: &str) -> Result<Duration, (Problem, Remedy)> {
    scaled(text, "duration", &TIME_UNITS, &TIME_SLIPS, "write \"2s\", \"500ms\" or \"1min\"").map(Duration::from_millis)
}

/// Reads a share such as `1%`, `0.5%` or `64MiB`.
pub fn parse_share(text: &str) -> Result<Share, (Problem, Remedy)> {
    let Some(number) = text.strip_suffix('%') else {
        return scaled(
            text,
            "share",
            &SIZE_UNITS,
            &SIZE_SLIPS,
            "write a percentage such as \"1%\", or a size such as \"64MiB\"",
        )
        .map(Share::Bytes);
    };
    let bad = || {
        (
            Problem::NotA("percentage"),
            Remedy::text("write a percentage with at most two decimals, such as \"1%\" or \"0.5%\""),
        )
    };
    let (whole, decimals) = number.trim().split_once('.').unwrap_or((number.trim(), ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(decimals) || decimals.len() > 2 || number.trim().ends_with('.') {
        return Err(bad());
    }
    let hundredths: u64 = format!("{decimals:0<2}").parse().map_err(|_| bad())?;
    let whole: u64 = whole.parse().map_err(|_| bad())?;
    let part = whole.saturating_mul(PERCENT).saturating_add(hundredths);
    Ok(Share::Part(u32::try_from(part).unwrap_or(u32::MAX)))
}

fn scaled(
    text: &str,
    what: &'static str,
    units: &'static [(&'static str, u64)],
    slips: &'static [(&'static str, &'static str)],
    remedy: &'static str,
) -> Result<u64, (Problem, Remedy)> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = (&text[..split], text[split..].trim_start());
    if number.is_empty() {
        return Err((Problem::NotA(what), Remedy::text(remedy)));
    }
    if unit.is_empty() {
        return Err((Problem::NoUnit(what), Remedy::text(remedy)));
    }
    let Some((_, scale)) = units.iter().find(|(name, _)| *name == unit) else {
        if unit.starts_with('.') {
            return Err((Problem::NotWhole(what), Remedy::text("write a whole number in a smaller unit")));
        }
        let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
        let slip = slips.iter().find(|(slip, _)| *slip == unit).map(|(_, right)| *right);
        let meant = slip.or_else(|| closest(unit, names.iter().copied()));
        let list = names.join(", ");
        return Err((
            Problem::BadUnit { unit: unit.to_owned(), known: list },
            meant.map_or_else(|| Remedy::text(remedy), |meant| Remedy::did_you_mean(&format!("{number}{meant}"))),
        ));
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(*scale))
        .ok_or_else(|| (Problem::TooBig(what), Remedy::text(remedy)))
}
