//! Every key that a deployment may have. Names in errors, environment variables, the shipped deployments' comments
//! and `--print-config` are all held against this one table.

/// A section of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// `[daemon]`
    Daemon,
    /// `[[tier]]`
    Tier,
    /// `[[mover]]`
    Mover,
    /// `[policy]`
    Policy,
    /// `[limits]`
    Limits,
    /// `[[tenant]]`
    Tenant,
}

impl Section {
    /// All sections, in the order of print.
    pub const ALL: [Self; 6] = [Self::Daemon, Self::Tier, Self::Mover, Self::Policy, Self::Limits, Self::Tenant];

    /// Its name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Daemon => "daemon",
            Self::Tier => "tier",
            Self::Mover => "mover",
            Self::Policy => "policy",
            Self::Limits => "limits",
            Self::Tenant => "tenant",
        }
    }

    /// It is a list of named tables.
    pub fn is_list(self) -> bool {
        matches!(self, Self::Tier | Self::Mover | Self::Tenant)
    }

    /// Names of its keys.
    pub fn keys(self) -> impl Iterator<Item = &'static str> {
        KEYS.iter().filter(move |key| key.section == self).map(|key| key.name)
    }
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its section.
    pub section: Section,
    /// Its name.
    pub name: &'static str,
    /// It can be set by an environment variable.
    pub variable: bool,
}

const fn key(section: Section, name: &'static str) -> Key {
    Key { section, name, variable: true }
}

const fn file_only(section: Section, name: &'static str) -> Key {
    Key { section, name, variable: false }
}

/// Every key, in the order of print.
pub const KEYS: &[Key] = &[
    key(Section::Daemon, "socket"),
    key(Section::Daemon, "admin"),
    key(Section::Daemon, "plugin_dirs"),
    key(Section::Daemon, "drain"),
    file_only(Section::Tier, "name"),
    key(Section::Tier, "backend"),
    key(Section::Tier, "capacity"),
    key(Section::Tier, "required"),
    key(Section::Tier, "deadline"),
    key(Section::Tier, "write"),
    key(Section::Tier, "lookup_budget"),
    key(Section::Tier, "negative_ttl"),
    file_only(Section::Tier, "options"),
    file_only(Section::Mover, "name"),
    key(Section::Mover, "backend"),
    key(Section::Mover, "required"),
    file_only(Section::Mover, "options"),
    key(Section::Policy, "eviction"),
    key(Section::Policy, "headroom"),
    key(Section::Policy, "write"),
    key(Section::Policy, "admission"),
    key(Section::Policy, "promote"),
    key(Section::Policy, "promotion_budget"),
    key(Section::Policy, "verify_dram"),
    key(Section::Limits, "largest_block"),
    key(Section::Limits, "lease"),
    key(Section::Limits, "hold"),
    key(Section::Limits, "hold_bytes"),
    key(Section::Limits, "quarantine"),
    key(Section::Limits, "background"),
    file_only(Section::Tenant, "name"),
    key(Section::Tenant, "uids"),
    key(Section::Tenant, "quota"),
];
