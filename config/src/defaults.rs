//! Every default of ours, and the facts of the host that some of them depend on.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::units::{Share, size_text};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Where `/status`, `/healthz` and `/metrics` are served.
pub const ADMIN: &str = "127.0.0.1:9464";
/// Time that a stop gives to work in flight.
pub const DRAIN: Duration = Duration::from_secs(10);
/// A tier's operation past this counts as missed.
pub const TIER_DEADLINE: Duration = Duration::from_secs(2);
/// Longest that a lookup waits for a shared tier.
pub const LOOKUP_BUDGET: Duration = Duration::from_millis(2);
/// Longest such wait that can be set.
pub const LOOKUP_BUDGET_MAX: Duration = Duration::from_secs(1);
/// How long a shared tier's word that a block is not there is believed.
pub const NEGATIVE_TTL: Duration = Duration::from_secs(1);
/// Most loads of a block that are counted.
pub const AFTER_HITS_MAX: u32 = 100;
/// Operations in flight that each tier is granted.
pub const TIER_SLOTS: u32 = 256;
/// Share of each tier that reclaim keeps free.
pub const HEADROOM: Share = Share::percent(1);
/// Headroom of a tier is never more than this.
pub const HEADROOM_MAX_BYTES: u64 = 256 * MIB;
/// Largest block, where the first tier is large enough (see [`largest_block`]); also the largest that can be set.
pub const LARGEST_BLOCK_BYTES: u64 = 64 * MIB;
/// Life of a lease.
pub const LEASE: Duration = Duration::from_secs(10);
/// Longest hold.
pub const HOLD: Duration = Duration::from_secs(2);
/// Share of the first tier that one session may hold.
pub const HOLD_SHARE: Share = Share::percent(10);
/// Most quarantined bytes of one session.
pub const QUARANTINE_BYTES: u64 = GIB;
/// Share of the first tier that may wait for its background copy.
pub const BACKGROUND_SHARE: Share = Share::percent(25);
/// A tenant's share of each tier.
pub const QUOTA: Share = Share::percent(100);
/// Name of the tenant that there is where none is named.
pub const TENANT: &str = "default";
/// Capacity of the embedded default's NVMe tier.
pub const EMBEDDED_NVME_BYTES: u64 = 4 * GIB;
/// Most bytes of the embedded default's DRAM tier.
pub const EMBEDDED_DRAM_MAX_BYTES: u64 = GIB;
/// The embedded default's DRAM tier is not made smaller than this.
const EMBEDDED_DRAM_MIN_BYTES: u64 = 16 * MIB;
/// Length of a socket's path, in bytes (sun_path without its final zero).
pub const SOCKET_PATH_MAX_BYTES: usize = 107;
/// Smallest capacity of a tier.
pub const CAPACITY_MIN_BYTES: u64 = MIB;
/// Smallest "largest block".
pub const BLOCK_MIN_BYTES: u64 = 4096;
/// Most tiers of a deployment.
pub const TIERS_MAX: usize = 4;
/// Most movers of a deployment.
pub const MOVERS_MAX: usize = 4;
/// Most tenants of a deployment.
pub const TENANTS_MAX: usize = 64;
/// Most uids of a tenant.
pub const UIDS_MAX: usize = 64;
/// Longest name of a tier, mover or tenant, in bytes.
pub const NAME_MAX_BYTES: usize = 32;

/// The largest block where none is set: 64 MiB, or a sixteenth of a small first tier, rounded down to 4 KiB.
pub fn largest_block(first_capacity: u64) -> u64 {
    let sixteenth = first_capacity / 16 / BLOCK_MIN_BYTES * BLOCK_MIN_BYTES;
    sixteenth.clamp(BLOCK_MIN_BYTES, LARGEST_BLOCK_BYTES)
}

/// Bytes of the first tier that only promotions use where none is set: two largest blocks, or 5 % if that is more.
pub fn promotion_budget(first_capacity: u64, largest_block: u64) -> u64 {
    (2 * largest_block).max(Share::percent(5).of(first_capacity))
}

/// What some defaults depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFacts {
    /// The process's own user.
    pub uid: u32,
    /// Memory that can be had, in bytes.
    pub memory_available: u64,
}

/// The socket where none is named: in `$XDG_RUNTIME_DIR`, else in a folder named after the user, to be created 0700.
pub fn default_socket(variable: &dyn Fn(&str) -> Option<String>, uid: u32) -> PathBuf {
    match absolute(variable, "XDG_RUNTIME_DIR") {
        Some(folder) => folder.join("umbp/umbpd.sock"),
        None => PathBuf::from(format!("/tmp/umbp-{uid}/umbpd.sock")),
    }
}

/// Where the admin page of a daemon inside an engine's process is served: nowhere, since several engines share a host.
pub const EMBEDDED_ADMIN: Option<SocketAddr> = None;

/// The socket of a daemon inside an engine's process, beside the one that standalone daemons use: one for each config
/// file, so that all processes of an engine find the same one, and engines of one deployment share it.
pub fn embedded_socket(shared: &Path, file: Option<&Path>) -> PathBuf {
    let Some(file) = file else { return shared.with_file_name("embedded.sock") };
    let mut hasher = DefaultHasher::new();
    std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned()).hash(&mut hasher);
    shared.with_file_name(format!("embedded-{:016x}.sock", hasher.finish()))
}

/// Where state is kept where no path is named: `$XDG_STATE_HOME/umbp`, else `~/.local/state/umbp`; without a home, a
/// folder named after the user.
pub fn state_folder(variable: &dyn Fn(&str) -> Option<String>, uid: u32) -> PathBuf {
    let home = || absolute(variable, "HOME").map(|home| home.join(".local/state"));
    match absolute(variable, "XDG_STATE_HOME").or_else(home) {
        Some(folder) => folder.join("umbp"),
        None => PathBuf::from(format!("/tmp/umbp-{uid}/state")),
    }
}

/// The XDG rules: a relative path in these variables is to be ignored.
fn absolute(variable: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<PathBuf> {
    variable(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Folders that are searched for a bare backend name: those of the config, then `../plugins` of the binary's folder.
pub fn plugin_search(plugin_dirs: &[PathBuf], binary: Option<&Path>) -> Vec<PathBuf> {
    let beside = binary.and_then(Path::parent).and_then(Path::parent).map(|folder| folder.join("plugins"));
    plugin_dirs.iter().cloned().chain(beside).collect()
}

/// The deployment that serves where no file is named, as TOML.
pub(crate) fn embedded(variable: &dyn Fn(&str) -> Option<String>, host: HostFacts) -> String {
    let quarter = host.memory_available / 4 / MIB * MIB;
    let dram = size_text(quarter.clamp(EMBEDDED_DRAM_MIN_BYTES, EMBEDDED_DRAM_MAX_BYTES));
    let nvme = size_text(EMBEDDED_NVME_BYTES);
    let folder = toml::Value::String(state_folder(variable, host.uid).join("nvme").to_string_lossy().into_owned());
    format!(
        "[[tier]]\nname = \"dram\"\nbackend = \"dram\"\ncapacity = \"{dram}\"\n\n\
         [[tier]]\nname = \"nvme\"\nbackend = \"nvme\"\ncapacity = \"{nvme}\"\nrequired = false\n\
         [tier.options]\npaths = [{folder}]\n"
    )
}
