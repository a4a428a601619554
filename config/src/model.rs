//! A deployment, checked.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::defaults::{HEADROOM_MAX_BYTES, LOOKUP_BUDGET, NEGATIVE_TTL, TIER_SLOTS};
use crate::error::{ConfigError, ConfigErrors, Problem, Remedy};
use crate::options::Options;
use crate::setting::{Place, Setting, SourceText};
use crate::units::{Share, duration_text};

/// A deployment. Every value is checked, and knows where it came from.
#[derive(Clone, Debug)]
pub struct Config {
    /// `[daemon]`
    pub daemon: Daemon,
    /// `[[tier]]`, in order, 1 to [`crate::defaults::TIERS_MAX`]; names are unique among tiers and movers.
    pub tiers: Vec<Tier>,
    /// `[[mover]]`
    pub movers: Vec<Mover>,
    /// `[policy]`
    pub policy: Policy,
    /// `[limits]`
    pub limits: Limits,
    /// `[[tenant]]`, at least one.
    pub tenants: Vec<Tenant>,
    pub(crate) source: Arc<SourceText>,
}

/// The process itself.
#[derive(Clone, Debug)]
pub struct Daemon {
    /// Path of the Unix socket.
    pub socket: Setting<PathBuf>,
    /// Address of the admin page; none = off.
    pub admin: Setting<Option<SocketAddr>>,
    /// Folders that are searched for a bare backend name, before `../plugins` of the binary's folder
    /// (see [`crate::defaults::plugin_search`]).
    pub plugin_dirs: Setting<Vec<PathBuf>>,
    /// Time that a stop gives to work in flight.
    pub drain: Setting<Duration>,
}

/// The backend of a tier or mover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendRef {
    /// To be searched in the plugin folders, see [`Self::candidates`].
    Bare(String),
    /// This file.
    Path(PathBuf),
}

impl BackendRef {
    /// The files that it may be, best first: in each folder `libumbp_backend_<name>.so`, then `lib<name>.so`, with
    /// hyphens of the name as underscores. The first that exists is meant. `folders` come from
    /// [`crate::defaults::plugin_search`].
    pub fn candidates(&self, folders: &[PathBuf]) -> Vec<PathBuf> {
        let name = match self {
            Self::Path(path) => return vec![path.clone()],
            Self::Bare(name) => name.replace('-', "_"),
        };
        let files = [format!("libumbp_backend_{name}.so"), format!("lib{name}.so")];
        folders.iter().flat_map(|folder| files.iter().map(|file| folder.join(file))).collect()
    }
}

impl std::fmt::Display for BackendRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bare(name) => f.write_str(name),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

/// A tier.
#[derive(Clone, Debug)]
pub struct Tier {
    /// Lower-case letters, digits and single hyphens.
    pub name: Setting<String>,
    /// Its backend.
    pub backend: Setting<BackendRef>,
    /// Most bytes it may hold.
    pub capacity: Setting<u64>,
    /// The daemon does not start without it. Always true for the first.
    pub required: Setting<bool>,
    /// An operation past this counts as missed.
    pub deadline: Setting<Duration>,
    /// When it gets its copy; [`Policy::write`] where the tier says nothing. Of no meaning for the first, which is
    /// written by engines.
    pub write: Setting<Write>,
    /// Longest that a lookup waits for what a shared tier knows of its keys. None: nobody said so; see
    /// [`Self::shared_times`].
    pub lookup_budget: Option<Setting<Duration>>,
    /// How long a shared tier's word that a block is not there is believed. None: nobody said so; see
    /// [`Self::shared_times`].
    pub negative_ttl: Option<Setting<Duration>>,
    /// The backend's own options.
    pub options: Options,
}

impl Tier {
    /// Operations in flight that it is granted.
    pub fn slots(&self) -> u32 {
        TIER_SLOTS
    }

    /// Of a tier whose backend is shared between hosts: its budget for lookups, and how long it is believed that a
    /// block is not there.
    pub fn shared_times(&self) -> (Duration, Duration) {
        let value = |setting: &Option<Setting<Duration>>, default| setting.as_ref().map_or(default, |some| some.value);
        (value(&self.lookup_budget, LOOKUP_BUDGET), value(&self.negative_ttl, NEGATIVE_TTL))
    }

    /// The tier's backend is shared between hosts: what nobody said of that has its default, and is shown.
    pub fn resolve_shared(&mut self) {
        let (budget, negative) = self.shared_times();
        self.lookup_budget.get_or_insert_with(|| Setting::default_of(budget));
        self.negative_ttl.get_or_insert_with(|| Setting::default_of(negative));
    }
}

/// A mover.
#[derive(Clone, Debug)]
pub struct Mover {
    /// As of a tier.
    pub name: Setting<String>,
    /// Its backend.
    pub backend: Setting<BackendRef>,
    /// The daemon does not start if it cannot be loaded.
    pub required: Setting<bool>,
    /// The backend's own options.
    pub options: Options,
}

/// What leaves a tier first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// The deepest of the least recently used chains first.
    PrefixLru,
    /// First in, first out, in two queues, with a memory of what left lately.
    S3Fifo,
    /// The end of the chain whose next use is the least likely, as learned from the uses seen.
    ChainHazard,
}

/// When lower tiers get their copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// In the background, after the commit.
    Through,
    /// When the copy in the first tier is evicted.
    OnEvict,
    /// In the background, once the block has been loaded this many times.
    AfterHits(u8),
}

/// Which blocks lower tiers take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Every one.
    All,
    /// Those that are loaded, or stored anew, after their first store; with all before them in their chain.
    SecondSighting,
    /// Those at least this many blocks from the start of their chain, with all before them.
    MinDepth(u32),
}

/// What becomes of a block that is loaded from a lower tier. A load always goes through the first tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promote {
    /// It stays in the first tier.
    OnAcquire,
    /// It leaves the first tier as soon as nobody reads it there, until it has been loaded this many times.
    AfterHits(u8),
}

/// `[policy]`
#[derive(Clone, Debug)]
pub struct Policy {
    /// What leaves a tier first.
    pub eviction: Setting<Eviction>,
    /// Share of each tier that reclaim keeps free; see [`Self::headroom_bytes`].
    pub headroom: Setting<Share>,
    /// When lower tiers get their copy, where they do not say so themselves.
    pub write: Setting<Write>,
    /// Which blocks lower tiers take.
    pub admission: Setting<Admission>,
    /// What becomes of a block that is loaded from a lower tier.
    pub promote: Setting<Promote>,
    /// Bytes of the first tier, inside its capacity, that only promotions may use.
    pub promotion_budget: Setting<u64>,
    /// Loads from the first tier are checked against their checksum too.
    pub verify_dram: Setting<bool>,
}

impl Policy {
    /// Bytes that reclaim keeps free in a tier of `capacity` bytes: at most [`HEADROOM_MAX_BYTES`].
    pub fn headroom_bytes(&self, capacity: u64) -> u64 {
        self.headroom.of(capacity).min(HEADROOM_MAX_BYTES)
    }
}

/// `[limits]`
#[derive(Clone, Debug)]
pub struct Limits {
    /// Largest block, in bytes.
    pub largest_block: Setting<u64>,
    /// Life of a lease.
    pub lease: Setting<Duration>,
    /// Longest hold.
    pub hold: Setting<Duration>,
    /// Most bytes that one session may hold.
    pub hold_bytes: Setting<u64>,
    /// Most quarantined bytes of one session, beyond which its stores are refused.
    pub quarantine: Setting<u64>,
    /// Most bytes waiting for their background copy; beyond it tails are dropped and counted.
    pub background: Setting<u64>,
}

/// A tenant: one trust domain.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// As of a tier.
    pub name: Setting<String>,
    /// Users whose processes belong to it, at least one; the daemon's own where none is named.
    pub uids: Setting<Vec<u32>>,
    /// Its share of each tier, in tier order.
    pub quota: Vec<Setting<Share>>,
}

impl Tenant {
    /// Most bytes in each of these tiers.
    pub fn quota_bytes(&self, tiers: &[Tier]) -> Vec<u64> {
        self.quota.iter().zip(tiers).map(|(share, tier)| share.of(*tier.capacity)).collect()
    }
}

impl Config {
    /// An error at a value of this deployment, with file, line and caret where it stands in the file.
    pub fn error_at(&self, key: &str, value: &str, place: &Place, problem: &str, remedy: &str) -> ConfigErrors {
        let problem = (Problem::Impossible(problem.to_owned()), Remedy::text(remedy));
        ConfigError::new(key, value, problem, place.clone(), Some(&self.source)).into()
    }

    /// Refuses a first tier whose backend is not mappable. `mappable` answers none where the backend cannot be asked;
    /// loading it tells why.
    pub fn check_first_tier(&self, mappable: &dyn Fn(&BackendRef) -> Option<bool>) -> Result<(), ConfigErrors> {
        let Some(first) = self.tiers.first().filter(|tier| mappable(&tier.backend) == Some(false)) else {
            return Ok(());
        };
        let others = self.tiers.iter().skip(1).find(|tier| mappable(&tier.backend) == Some(true));
        let remedy = match others {
            Some(other) => format!("move the tier \"{}\", whose backend is mappable, to the top", *other.name),
            None => "put a tier with backend = \"dram\" above it".to_owned(),
        };
        let problem = "the first tier's backend must be mappable (engines map its memory), and this one is not";
        let (key, value) = (format!("tier.{}.backend", *first.name), format!("\"{}\"", *first.backend));
        Err(self.error_at(&key, &value, &first.backend.place, problem, &remedy))
    }

    /// Refuses what only a tier that is shared between hosts can have, where this one is not.
    pub fn check_unshared(&self, tier: &Tier) -> Result<(), ConfigErrors> {
        let keys = [("lookup_budget", &tier.lookup_budget), ("negative_ttl", &tier.negative_ttl)];
        let refuse = |(key, setting): (&str, &Option<Setting<Duration>>)| {
            let setting = setting.as_ref()?;
            let value = format!("\"{}\"", duration_text(setting.value));
            let problem = format!("the backend \"{}\" is not shared between hosts: no lookup asks it", *tier.backend);
            let remedy = "remove the key; it belongs to a tier whose backend is shared, such as \"remote\"";
            Some(self.error_at(&format!("tier.{}.{key}", *tier.name), &value, &setting.place, &problem, remedy).errors)
        };
        let errors: Vec<_> = keys.into_iter().filter_map(refuse).flatten().collect();
        if errors.is_empty() { Ok(()) } else { Err(ConfigErrors { errors }) }
    }

    /// An error that a backend reported for its options, at the bytes of the file that it means.
    /// `owner` is `tier.<name>` or `mover.<name>`; `span` counts in [`Options::text`].
    pub fn options_error(
        &self,
        owner: &str,
        options: &Options,
        message: &str,
        span: std::ops::Range<usize>,
    ) -> ConfigErrors {
        let place = options.place_of(span, &self.source);
        let problem =
            (Problem::Options(message.to_owned()), Remedy::text("correct the option, or remove it to use its default"));
        ConfigError::new(format!("{owner}.options"), "", problem, place, Some(&self.source)).into()
    }

    /// What a person should know about this deployment though nothing is wrong with it.
    pub fn notices(&self) -> Vec<String> {
        let mut notices = self.policy_notices();
        for (index, one) in self.tenants.iter().enumerate() {
            for other in &self.tenants[index + 1..] {
                if let Some(uid) = one.uids.iter().find(|uid| other.uids.contains(uid)) {
                    notices.push(format!(
                        "tenants \"{}\" and \"{}\" share uid {uid}: they are one trust domain",
                        *one.name, *other.name
                    ));
                }
            }
        }
        if self.tenants.len() > 1 {
            for tenant in self.tenants.iter().filter(|tenant| tenant.uids.contains(&0)) {
                let name = &*tenant.name;
                notices.push(format!("tenant \"{name}\" has uid 0 (root), which can reach every other tenant's blocks: all tenants are one trust domain"));
            }
        }
        notices
    }

    /// What the rules of lower tiers come to, where they are not the default, or come to nothing.
    fn policy_notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        let lower: Vec<&str> = self.tiers.iter().skip(1).map(|tier| tier.name.as_str()).collect();
        let admission = match *self.policy.admission {
            Admission::All => None,
            Admission::SecondSighting => {
                Some("only blocks that are loaded, or stored anew, after their first store".to_owned())
            }
            Admission::MinDepth(depth) => Some(format!("only chains of more than {depth} blocks")),
        };
        let promote = match *self.policy.promote {
            Promote::OnAcquire => None,
            Promote::AfterHits(hits) => Some(format!("keeps a block loaded from there from its load number {hits} on")),
        };
        match (lower.is_empty(), admission, promote) {
            (true, None, None) => {}
            (true, ..) => notices.push("policy.admission and policy.promote do nothing: there is one tier".to_owned()),
            (false, admission, promote) => {
                notices.extend(admission.map(|what| format!("policy.admission: {} takes {what}", lower.join(" and "))));
                notices.extend(promote.map(|what| format!("policy.promote: {} {what}", *self.tiers[0].name)));
            }
        }
        notices
    }
}
