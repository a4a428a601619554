//! Raw values in, a checked [`Config`] out; every error of the deployment is collected.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::check_tables::Tables;
use crate::defaults::{self, HostFacts};
use crate::error::{ConfigError, ConfigErrors, Problem, Remedy};
use crate::model::{Admission, Config, Daemon, Eviction, Limits, Policy, Promote, Tier, Write};
use crate::overrides;
use crate::raw::{self, Fields, Raw};
use crate::read::{self, Read};
use crate::schema::Section;
use crate::setting::{Origin, Place, Setting, SourceText};
use crate::units::{Share, size_text};

/// Most percent of a tier that may be headroom.
const HEADROOM_MAX_PERCENT: u32 = 50;
/// The longest chain that the engine takes.
const MIN_DEPTH_MAX: u32 = 65_535;
/// Longest config file.
const FILE_MAX_BYTES: u64 = 1 << 20;
const LEASE_MIN: Duration = Duration::from_millis(50);
const TIME_MIN: Duration = Duration::from_millis(1);
const TIME_MAX: Duration = Duration::from_secs(3600);

/// What a deployment is read from. The process's own is [`Source::of_process`]; tests bring their own.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file; none = the embedded default.
    pub file: Option<PathBuf>,
    /// The environment.
    pub variables: Vec<(String, String)>,
    /// The value of `--socket`.
    pub socket: Option<String>,
    /// What some defaults depend on.
    pub host: HostFacts,
}

impl Source {
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        self.variables.iter().find(|(known, _)| known == name).map(|(_, text)| text.clone())
    }
}

impl Config {
    /// Reads and checks a deployment. Reads the file, once; may block on it.
    pub fn load(source: &Source) -> Result<Self, ConfigErrors> {
        let text = source_text(source)?;
        let (mut fields, mut errors) = raw::read(&text);
        if fields.is_empty() && !errors.is_empty() {
            return Err(ConfigErrors { errors });
        }
        complete(&mut fields);
        overrides::apply(&mut fields, &source.variables, source.socket.as_deref(), &mut errors);
        let base = text.path.as_deref().map_or_else(PathBuf::new, |path| folder_of(path));
        let mut checker = Checker { text: &text, errors, base };
        let config = checker.config(fields, source);
        let mut errors = checker.errors;
        if let (Some(config), true) = (config, errors.is_empty()) {
            return Ok(config);
        }
        errors.sort_by_key(|error| error.place.span.as_ref().map_or(usize::MAX, |span| span.start));
        Err(ConfigErrors { errors })
    }

    /// The same deployment for a daemon inside an engine's process, where what nobody set has other defaults: a socket
    /// of its own, no admin page. `file` is the one that the deployment was read from.
    #[must_use]
    pub fn embedded(mut self, file: Option<&Path>) -> Self {
        let unset = |place: &Place| matches!(place.origin, Origin::Default | Origin::EmbeddedDefault);
        if unset(&self.daemon.socket.place) {
            self.daemon.socket.value = defaults::embedded_socket(&self.daemon.socket.value, file);
        }
        if unset(&self.daemon.admin.place) {
            self.daemon.admin.value = defaults::EMBEDDED_ADMIN;
        }
        self
    }
}

fn source_text(source: &Source) -> Result<Arc<SourceText>, ConfigErrors> {
    let Some(path) = &source.file else {
        let text = defaults::embedded(&|name| source.variable(name), source.host);
        return Ok(Arc::new(SourceText { path: None, text }));
    };
    match read_text(path) {
        Ok(text) => Ok(Arc::new(SourceText { path: Some(Arc::new(path.clone())), text })),
        Err(error) => {
            let remedy =
                "name an existing, readable file with --config, or leave --config out to use the embedded default";
            let problem = (Problem::Unreadable(error.to_string()), Remedy::text(remedy));
            let place = Place { origin: Origin::Flag("--config"), span: None };
            Err(ConfigError::new(path.display().to_string(), "", problem, place, None).into())
        }
    }
}

/// A file of more than [`FILE_MAX_BYTES`] is an error, so that a device or a wrong file is not read for ever.
fn read_text(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let read = std::fs::File::open(path)?.take(FILE_MAX_BYTES + 1).read_to_string(&mut text)?;
    match read as u64 > FILE_MAX_BYTES {
        true => Err(std::io::Error::other(format!("it has more than {FILE_MAX_BYTES} bytes"))),
        false => Ok(text),
    }
}

fn folder_of(file: &Path) -> PathBuf {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    file.parent().map_or_else(PathBuf::new, Path::to_owned)
}

/// Adds the tables that the file leaves out, so that variables find them.
fn complete(fields: &mut Vec<Fields>) {
    for section in [Section::Daemon, Section::Policy, Section::Limits] {
        if !fields.iter().any(|table| table.section == section) {
            fields.push(Fields::new(section, section.name().to_owned(), Place::DEFAULT));
        }
    }
    if !fields.iter().any(|table| table.section == Section::Tenant) {
        let mut table = Fields::new(Section::Tenant, format!("tenant.{}", defaults::TENANT), Place::DEFAULT);
        table.values.insert("name", Raw::outside(defaults::TENANT, Place::DEFAULT));
        fields.push(table);
    }
}

pub(crate) struct Checker<'a> {
    pub(crate) text: &'a Arc<SourceText>,
    pub(crate) errors: Vec<ConfigError>,
    /// The file's folder.
    base: PathBuf,
}

impl Checker<'_> {
    pub(crate) fn fail(&mut self, key: String, value: &str, problem: (Problem, Remedy), place: &Place) {
        self.errors.push(ConfigError::new(key, value, problem, place.clone(), Some(self.text)));
    }

    /// Reads one key; none where it is absent or wrong.
    pub(crate) fn take<T>(
        &mut self,
        fields: &Fields,
        key: &'static str,
        read: impl Fn(&Raw) -> Read<T>,
    ) -> Option<Setting<T>> {
        let raw = fields.values.get(key)?;
        match read(raw) {
            Ok(value) => Some(Setting { value, place: raw.place.clone() }),
            Err(problem) => {
                self.fail(format!("{}.{key}", fields.path), &raw.written, problem, &raw.place);
                None
            }
        }
    }

    /// Reads one key, or takes its default.
    pub(crate) fn take_or<T>(
        &mut self,
        fields: &Fields,
        key: &'static str,
        default: T,
        read: impl Fn(&Raw) -> Read<T>,
    ) -> Setting<T> {
        self.take(fields, key, read).unwrap_or_else(|| Setting::default_of(default))
    }

    /// Reads one key that must be there.
    pub(crate) fn need<T>(
        &mut self,
        fields: &Fields,
        key: &'static str,
        example: &str,
        read: impl Fn(&Raw) -> Read<T>,
    ) -> Option<Setting<T>> {
        if !fields.values.contains_key(key) {
            let remedy = Remedy::text(format!("add {key} = {example}"));
            self.fail(format!("{}.{key}", fields.path), "", (Problem::Missing, remedy), &fields.header);
        }
        self.take(fields, key, read)
    }

    fn config(&mut self, fields: Vec<Fields>, source: &Source) -> Option<Config> {
        let single = |section| fields.iter().find(|table| table.section == section);
        let daemon = self.daemon(single(Section::Daemon)?, source);
        let tables = Tables::new(&fields);
        let write = self.take_or(single(Section::Policy)?, "write", Write::Through, read::write);
        let tiers = tables.tiers(self, &write);
        let movers = tables.movers(self, &tiers);
        let tenants = tables.tenants(self, &tiers, source.host.uid);
        let first = tiers.first().map(|tier| *tier.capacity);
        let first_capacity = first.unwrap_or(defaults::EMBEDDED_DRAM_MAX_BYTES);
        let limits = self.limits(single(Section::Limits)?, first_capacity);
        let policy = self.policy(single(Section::Policy)?, write, first_capacity, *limits.largest_block);
        if self.errors.is_empty() {
            self.room(&tiers, &policy, &limits);
        }
        Some(Config { daemon, tiers, movers, policy, limits, tenants, source: Arc::clone(self.text) })
    }

    fn daemon(&mut self, fields: &Fields, source: &Source) -> Daemon {
        let base = self.base.clone();
        let socket = defaults::default_socket(&|name| source.variable(name), source.host.uid);
        Daemon {
            socket: self.take_or(fields, "socket", socket, |raw| read::socket(raw, &base)),
            admin: self.take_or(fields, "admin", defaults::ADMIN.parse().ok(), read::admin),
            plugin_dirs: self.take_or(fields, "plugin_dirs", Vec::new(), |raw| read::paths(raw, &base)),
            drain: self.take_or(fields, "drain", defaults::DRAIN, |raw| read::duration_from(raw, TIME_MIN, TIME_MAX)),
        }
    }

    fn limits(&mut self, fields: &Fields, first: u64) -> Limits {
        use defaults::{BLOCK_MIN_BYTES, LARGEST_BLOCK_BYTES};
        let block = |raw: &Raw| read::size_from(raw, BLOCK_MIN_BYTES, LARGEST_BLOCK_BYTES);
        let largest_block = self.take_or(fields, "largest_block", defaults::largest_block(first), block);
        let lease = self.take_or(fields, "lease", defaults::LEASE, |raw| read::duration_from(raw, LEASE_MIN, TIME_MAX));
        let hold = defaults::HOLD.min(*lease);
        let hold = self.take_or(fields, "hold", hold, |raw| read::duration_from(raw, Duration::ZERO, *lease));
        let of_first = |share: Share| round(share.of(first));
        let part_of_first = |raw: &Raw| read::share(raw, 100).map(of_first);
        let quarantine = |raw: &Raw| read::size_from(raw, BLOCK_MIN_BYTES, u64::MAX);
        Limits {
            largest_block,
            lease,
            hold,
            hold_bytes: self.take_or(fields, "hold_bytes", of_first(defaults::HOLD_SHARE), part_of_first),
            quarantine: self.take_or(fields, "quarantine", defaults::QUARANTINE_BYTES, quarantine),
            background: self.take_or(fields, "background", of_first(defaults::BACKGROUND_SHARE), part_of_first),
        }
    }

    fn policy(&mut self, fields: &Fields, write: Setting<Write>, first: u64, largest_block: u64) -> Policy {
        let eviction = [
            ("prefix-lru", Eviction::PrefixLru),
            ("s3-fifo", Eviction::S3Fifo),
            ("chain-hazard", Eviction::ChainHazard),
        ];
        let admission = |raw: &Raw| {
            let words = [("all", Admission::All), ("second-sighting", Admission::SecondSighting)];
            read::word_or_number(raw, &words, ("min_depth", 1, MIN_DEPTH_MAX), Admission::MinDepth)
        };
        let promote = |raw: &Raw| {
            let after = |hits| Promote::AfterHits(u8::try_from(hits).unwrap_or(u8::MAX));
            read::word_or_number(
                raw,
                &[("on-acquire", Promote::OnAcquire)],
                ("after_hits", 2, defaults::AFTER_HITS_MAX),
                after,
            )
        };
        let budget = round(defaults::promotion_budget(first, largest_block));
        Policy {
            eviction: self.take_or(fields, "eviction", Eviction::PrefixLru, |raw| read::word(raw, &eviction)),
            headroom: self.take_or(fields, "headroom", defaults::HEADROOM, headroom),
            write,
            admission: self.take_or(fields, "admission", Admission::All, admission),
            promote: self.take_or(fields, "promote", Promote::OnAcquire, promote),
            promotion_budget: self.take_or(fields, "promotion_budget", budget, |raw| {
                let budget = round(read::share(raw, 100)?.of(first));
                if budget < largest_block {
                    let least = size_text(largest_block);
                    return read::impossible("smaller than the largest block", format!("write at least \"{least}\""));
                }
                Ok(budget)
            }),
            verify_dram: self.take_or(fields, "verify_dram", false, read::boolean),
        }
    }

    /// The first tier must have room for a block besides headroom and promotion budget.
    fn room(&mut self, tiers: &[Tier], policy: &Policy, limits: &Limits) {
        let Some(first) = tiers.first() else { return };
        let headroom = policy.headroom_bytes(*first.capacity);
        let needed = headroom.saturating_add(*policy.promotion_budget).saturating_add(*limits.largest_block);
        if needed <= *first.capacity {
            return;
        }
        let problem = format!(
            "no room for blocks: promotion_budget ({}), largest_block ({}) and headroom ({}) need {}",
            size_text(*policy.promotion_budget),
            size_text(*limits.largest_block),
            size_text(headroom),
            size_text(needed),
        );
        let remedy = Remedy::text(format!(
            "raise the capacity above \"{}\", or lower limits.largest_block or policy.promotion_budget",
            size_text(needed)
        ));
        let key = format!("tier.{}.capacity", *first.name);
        let value = format!("\"{}\"", size_text(*first.capacity));
        self.fail(key, &value, (Problem::Impossible(problem), remedy), &first.capacity.place);
    }
}

/// Down to whole extents: payloads are rounded up to this much.
fn round(bytes: u64) -> u64 {
    bytes / defaults::BLOCK_MIN_BYTES * defaults::BLOCK_MIN_BYTES
}

fn headroom(raw: &Raw) -> Read<Share> {
    let share = read::share(raw, HEADROOM_MAX_PERCENT)?;
    match share {
        Share::Bytes(bytes) if bytes > defaults::HEADROOM_MAX_BYTES => {
            let most = size_text(defaults::HEADROOM_MAX_BYTES);
            read::impossible("too large", format!("write at most \"{most}\""))
        }
        share => Ok(share),
    }
}
