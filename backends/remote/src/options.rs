//! The options of a remote tier: TOML text, checked.
//!
//! Options of both engines are known by name here; one of the other engine is refused with that reason. A secret is
//! never an option: the options name the file or the environment variable that holds it.

mod engines;
mod read;
#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use umbp_plugin_api::OptionsError;

pub use engines::{Address, Credentials, Mode, Password, Redis, S3, Tls};
use read::{Table, duration_text, size_text};

/// Longest prefix, in bytes; it stands in front of every name.
pub const PREFIX_MAX_BYTES: usize = 256;
/// Bounds of `part_bytes`.
pub const PART_MIN_BYTES: u64 = 64 << 10;
/// The largest part, in bytes: what one command carries at most.
pub const PART_MAX_BYTES: u64 = 64 << 20;
/// Bounds of `in_flight_bytes`.
pub const IN_FLIGHT_MIN_BYTES: u64 = 1 << 20;
/// Most bytes in flight that may be asked for.
pub const IN_FLIGHT_MAX_BYTES: u64 = 16 << 30;
/// Most failures in a row before a breaker opens that may be asked for.
pub const BREAKER_FAILURES_MAX: u64 = 1000;

const PREFIX_DEFAULT: &str = "umbp";
const PART_DEFAULT_BYTES: u64 = 8 << 20;
const IN_FLIGHT_DEFAULT_BYTES: u64 = 64 << 20;
const BREAKER_FAILURES_DEFAULT: u64 = 5;
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);
const TIME_MIN: Duration = Duration::from_millis(10);
const TIMEOUT_MAX: Duration = Duration::from_secs(60);
const PAUSE_MAX: Duration = Duration::from_secs(3600);
const TTL_MIN: Duration = Duration::from_secs(1);
const TTL_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// Names that every engine has.
pub(crate) const COMMON: [&str; 10] = [
    "engine",
    "prefix",
    "ttl",
    "part_bytes",
    "timeout",
    "connect_timeout",
    "in_flight_bytes",
    "breaker_failures",
    "breaker_pause",
    "connections",
];
/// Names that only a Redis or Valkey engine has.
pub(crate) const REDIS: [&str; 8] =
    ["mode", "addresses", "master_name", "username", "password_file", "password_env", "database", "tls"];
/// Names that only an S3 engine has.
pub(crate) const S3_NAMES: [&str; 7] =
    ["endpoint", "region", "bucket", "credentials", "credentials_file", "path_style", "allow_http"];

/// Options as checked; every one has its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Which engine holds the objects, and how it is reached.
    pub engine: Engine,
    /// What every name begins with; nothing outside it is touched.
    pub prefix: String,
    /// How long an object lives at most, where the engine knows lifetimes.
    pub ttl: Option<Duration>,
    /// Longer blocks go in parts of so many bytes.
    pub part_bytes: u64,
    /// Longest wait for the answer to one call.
    pub timeout: Duration,
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// Bytes of operations in flight; one that would pass it is busy, unless it is alone.
    pub in_flight_bytes: u64,
    /// Failures in a row that open an endpoint's breaker.
    pub breaker_failures: u32,
    /// How long an open breaker waits before it probes.
    pub breaker_pause: Duration,
}

/// The engine and its own options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Valkey or Redis.
    Redis(Redis),
    /// Storage that speaks S3.
    S3(S3),
}

impl Options {
    /// Reads the options' TOML text.
    pub fn parse(text: &str) -> Result<Self, OptionsError> {
        let table = Table::parse(text)?;
        let engine = match table.word("engine", &["redis", "s3"])? {
            Some("redis") => "redis",
            Some(_) => "s3",
            None => return Err(table.missing("engine", "name one, as in engine = \"redis\" or engine = \"s3\"")),
        };
        let (own, other) = if engine == "redis" { (&REDIS[..], &S3_NAMES[..]) } else { (&S3_NAMES[..], &REDIS[..]) };
        table.known_names_only(engine, &COMMON, own, other)?;
        let redis = engine == "redis";
        let engine = if redis { Engine::Redis(Redis::read(&table)?) } else { Engine::S3(S3::read(&table)?) };
        let failures = table.number("breaker_failures", 1, BREAKER_FAILURES_MAX)?.unwrap_or(BREAKER_FAILURES_DEFAULT);
        Ok(Self {
            engine,
            prefix: prefix(&table)?,
            ttl: table.duration("ttl", TTL_MIN, TTL_MAX)?,
            part_bytes: table.size("part_bytes", PART_MIN_BYTES, PART_MAX_BYTES)?.unwrap_or(PART_DEFAULT_BYTES),
            timeout: table.duration("timeout", TIME_MIN, TIMEOUT_MAX)?.unwrap_or(TIMEOUT_DEFAULT),
            connect_timeout: table.duration("connect_timeout", TIME_MIN, TIMEOUT_MAX)?.unwrap_or(TIMEOUT_DEFAULT),
            in_flight_bytes: table
                .size("in_flight_bytes", IN_FLIGHT_MIN_BYTES, IN_FLIGHT_MAX_BYTES)?
                .unwrap_or(IN_FLIGHT_DEFAULT_BYTES),
            breaker_failures: u32::try_from(failures).unwrap_or(u32::MAX),
            breaker_pause: table.duration("breaker_pause", TIME_MIN, PAUSE_MAX)?.unwrap_or(TIMEOUT_DEFAULT),
        })
    }

    /// Every option that has a value, as TOML text. It reads back the same.
    pub fn resolved(&self) -> String {
        let mut lines = Lines::default();
        lines.text("engine", if matches!(self.engine, Engine::Redis(_)) { "redis" } else { "s3" });
        lines.text("prefix", &self.prefix);
        if let Some(ttl) = self.ttl {
            lines.text("ttl", &duration_text(ttl));
        }
        lines.text("part_bytes", &size_text(self.part_bytes));
        lines.text("timeout", &duration_text(self.timeout));
        lines.text("connect_timeout", &duration_text(self.connect_timeout));
        lines.text("in_flight_bytes", &size_text(self.in_flight_bytes));
        lines.plain("breaker_failures", self.breaker_failures);
        lines.text("breaker_pause", &duration_text(self.breaker_pause));
        match &self.engine {
            Engine::Redis(redis) => redis.print(&mut lines),
            Engine::S3(s3) => s3.print(&mut lines),
        }
        lines.0
    }
}

/// Names are parts of keys and of URLs, so a prefix keeps to what both take as it is.
fn prefix(table: &Table<'_>) -> Result<String, OptionsError> {
    let Some((text, span)) = table.text("prefix")? else { return Ok(PREFIX_DEFAULT.to_owned()) };
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    // S3 takes such steps in a name for those of a path.
    let step = text.split('/').any(|step| step.is_empty() || step == "." || step == "..");
    if text.is_empty() || text.len() > PREFIX_MAX_BYTES || !text.chars().all(fits) || step {
        let message = format!(
            "prefix = {text:?}: give 1 to {PREFIX_MAX_BYTES} letters, digits, `.`, `_`, `-`, and `/` between others, \
             as in \"umbp\" or \"team/umbp\""
        );
        return Err(OptionsError { message, span });
    }
    Ok(text.to_owned())
}

/// TOML text, line by line.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn text(&mut self, name: &str, value: &str) {
        self.plain(name, toml::Value::from(value));
    }

    fn path(&mut self, name: &str, value: &Path) {
        self.text(name, &value.to_string_lossy());
    }

    fn plain(&mut self, name: &str, value: impl std::fmt::Display) {
        // Writing to a text cannot fail.
        let _ = writeln!(self.0, "{name} = {value}");
    }
}
