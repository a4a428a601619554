//! From a checked deployment to a daemon that can serve.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use umbp_config::{Config, ConfigErrors, Eviction, Write};

use super::movers;
use crate::core::Facts;
use crate::core::seat::{Burst, Recovery, TierSeat};
use crate::engine::Engine;
use crate::engine::api::{
    Admission, EvictionPolicy, Promote, Settings, Shared, TenantSettings, TierIndex, TierSettings, TierState,
    WritePolicy,
};
use crate::generations::{Tables, words_for};
use crate::loader::bring_up::{self, Order, Step};
use crate::loader::{Failure, find};
use crate::session::listen::{Bound, ListenError, SocketLock};
use crate::tier::inbox::Inbox;
use crate::tier::{Command, SegmentInfo, TierLink};
use crate::{admin, process};

/// A tier that is not open after this long, and longer for large ones, is given up.
const OPEN_MS: u64 = 60_000;
/// Added for each GiB of capacity, for pre-faulting and for reading an index.
const OPEN_MS_PER_GIB: u64 = 1_000;
/// Tiers that are open already get this long to close when the start is refused.
const REFUSED_SHUTDOWN_MS: u64 = 2_000;

/// Remedies for what the system refuses.
pub(super) const MORE_FILES: &str = "raise RLIMIT_NOFILE (`ulimit -n`, LimitNOFILE= of the unit)";
pub(crate) const MORE_THREADS: &str = "raise RLIMIT_NPROC (`ulimit -u`, LimitNPROC= and TasksMax= of the unit)";
const MORE_TABLES: &str = "raise RLIMIT_NOFILE and the memory limit (LimitNOFILE= and MemoryMax= of the unit), or \
                           configure fewer [[tenant]]s";

/// What a start is told besides the deployment.
#[derive(Clone, Debug)]
pub struct StartOptions {
    /// Where the deployment came from, for status.
    pub origin: String,
    /// A tier that is not open after this long, plus what its capacity adds, is given up.
    pub open_wait: Duration,
    /// The program whose `../plugins` is searched for backends; none = this process's own.
    pub program: Option<PathBuf>,
}

impl StartOptions {
    /// With the usual wait.
    pub fn new(origin: impl Into<String>) -> Self {
        Self { origin: origin.into(), open_wait: Duration::from_millis(OPEN_MS), program: None }
    }
}

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The config is wrong.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The socket cannot be served on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A limit of this process is too small.
    #[error("{0}")]
    Limit(String),
    /// A tier does not come up.
    #[error("tier \"{tier}\" does not start: {reason}")]
    Tier {
        /// Its name.
        tier: String,
        /// Why not.
        reason: String,
    },
    /// A mover that is required cannot be loaded.
    #[error("mover \"{mover}\" is required and cannot be loaded: {reason}; mend that, or set its `required` to false")]
    Mover {
        /// Its name.
        mover: String,
        /// Why not.
        reason: String,
    },
    /// The admin page cannot be served.
    #[error("cannot serve the admin page on {address}; set daemon.admin to another address, or to \"off\"")]
    Admin {
        /// The address.
        address: std::net::SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// The system refused something.
    #[error("cannot {what}; {remedy}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What to change.
        remedy: &'static str,
        /// Why not.
        source: std::io::Error,
    },
}

pub(super) fn system(what: &'static str, remedy: &'static str) -> impl Fn(std::io::Error) -> StartError {
    move |source| StartError::System { what, remedy, source }
}

/// A daemon whose tiers are open and whose socket is bound. [`Daemon::run`] serves.
pub struct Daemon {
    pub(super) facts: Facts,
    pub(super) engine: Engine,
    pub(super) seats: Vec<TierSeat>,
    pub(super) segments: Vec<SegmentInfo>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) tables: Vec<OwnedFd>,
    pub(super) bound: Bound,
    pub(super) admin: Option<TcpListener>,
}

impl Daemon {
    /// Brings everything up. May take as long as pre-faulting the pool does. It blocks, and
    /// starts a thread for each tier.
    pub fn start(config: Config, options: &StartOptions) -> Result<Self, StartError> {
        let started = Instant::now();
        let config = Arc::new(config);
        let boot_id = process::boot_id().map_err(system("read /dev/urandom", "give the daemon a /dev with it"))?;
        let lock = SocketLock::take(&config.daemon.socket)?;
        process::check_limits().map_err(StartError::Limit)?;
        let admin = match *config.daemon.admin {
            None => None,
            Some(address) => Some(admin::bind(address).map_err(|source| StartError::Admin { address, source })?),
        };
        let movers = movers::load_all(&config, options.program.as_deref(), options.open_wait)?;
        let inbox = Arc::new(Inbox::default());
        let mut tiers = Tiers::bring_up(&config, &inbox, options)?;
        let settings = settings(&config, &tiers);
        let generation_words = words_for(Engine::generation_words(&settings));
        let tables = Tables::new(config.tenants.len(), generation_words)
            .map_err(|errno| system("make the generation tables", MORE_TABLES)(errno.into()))?;
        let fds = tables.fds().map_err(system("share the generation tables", MORE_TABLES))?;
        let bound = lock.bind(socket_mode(&config)).inspect_err(|_| tiers.give_up())?;
        Ok(Self {
            facts: Facts { boot_id, config, origin: options.origin.clone(), started, generation_words, movers },
            engine: Engine::new(settings, Box::new(tables)),
            segments: std::mem::take(&mut tiers.segments),
            seats: tiers.seats,
            inbox,
            tables: fds,
            bound,
            admin,
        })
    }

    /// One line for whoever started it: socket, and each tier with its state and report.
    pub fn greeting(&self) -> String {
        let tier = |seat: &TierSeat| format!("{} ({}: {})", seat.name, seat.state.name(), seat.report);
        let tiers: Vec<String> = self.seats.iter().map(tier).collect();
        format!("umbpd serves on {}; tiers: {}", self.facts.config.daemon.socket.display(), tiers.join(", "))
    }
}

/// The folder lets its owner in alone where we made it; where the operator opened it to a group, tenants of other
/// users connect through that group.
fn socket_mode(config: &Config) -> u32 {
    let own = rustix::process::geteuid().as_raw();
    let others = config.tenants.iter().any(|tenant| tenant.uids.iter().any(|uid| *uid != own && *uid != 0));
    if others { 0o660 } else { 0o600 }
}

struct Tiers {
    seats: Vec<TierSeat>,
    segments: Vec<SegmentInfo>,
    /// Alignment and largest payload of those that are open.
    opened: BTreeMap<u8, (u64, u64)>,
    /// Those whose backend is shared between hosts.
    shared: BTreeSet<u8>,
}

impl Tiers {
    /// All tiers at once, each on its own thread.
    fn bring_up(config: &Arc<Config>, inbox: &Arc<Inbox>, options: &StartOptions) -> Result<Self, StartError> {
        let folders = find::folders(&config.daemon.plugin_dirs, options.program.as_deref());
        let (say, steps) = channel();
        let mut tiers =
            Self { seats: Vec::new(), segments: Vec::new(), opened: BTreeMap::new(), shared: BTreeSet::new() };
        for (at, tier) in config.tiers.iter().enumerate() {
            let index = TierIndex(at as u8);
            let link = TierLink::new(index, &tier.name, tier.slots(), inbox.clone());
            let order = Order { index, config: config.clone(), folders: folders.clone(), link: link.clone() };
            let say = say.clone();
            std::thread::Builder::new()
                .name(format!("umbp-tier-{at}"))
                .spawn(move || bring_up::run(order, &say))
                .map_err(system("start a tier's thread", MORE_THREADS))?;
            tiers.seats.push(TierSeat {
                name: tier.name.to_string(),
                backend: tier.backend.to_string(),
                plugin: None,
                state: TierState::Declared,
                report: "not loaded yet".to_owned(),
                link: Some(link),
                abandoned: false,
                persistent: false,
                recovery: Recovery::None,
                recovery_time: (None, None),
                namespaces_left_out: 0,
                corrupt: Burst::default(),
            });
        }
        drop(say);
        tiers.wait(config, &steps, options.open_wait).inspect_err(|_| tiers.give_up())?;
        Ok(tiers)
    }

    fn wait(
        &mut self,
        config: &Config,
        steps: &Receiver<(TierIndex, Step)>,
        open_wait: Duration,
    ) -> Result<(), StartError> {
        let largest = config.tiers.iter().map(|tier| *tier.capacity >> 30).max().unwrap_or(0);
        let until = Instant::now() + open_wait + Duration::from_millis(largest.saturating_mul(OPEN_MS_PER_GIB));
        let mut left = config.tiers.len();
        while left > 0 {
            match steps.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((tier, step)) => left -= usize::from(self.take(config, tier, step)?),
                Err(RecvTimeoutError::Timeout) => return self.give_up_slow(config),
                // Every thread has ended; one that said nothing has panicked.
                Err(RecvTimeoutError::Disconnected) => return self.give_up_slow(config),
            }
        }
        Ok(())
    }

    /// Notes a step; true if it is the tier's last one.
    fn take(&mut self, config: &Config, tier: TierIndex, step: Step) -> Result<bool, StartError> {
        let at = usize::from(tier.0);
        let seat = &mut self.seats[at];
        match step {
            Step::Loaded(info) => {
                seat.state = TierState::Loaded;
                seat.report = "loaded, opening".to_owned();
                seat.persistent = info.persistent;
                if info.shared {
                    self.shared.insert(tier.0);
                }
                seat.plugin = Some(format!("{} {} ({})", info.name, info.version, info.path.display()));
                Ok(false)
            }
            Step::Ready(ready) => {
                seat.state = TierState::Running;
                seat.report = ready.opened.report;
                self.opened.insert(tier.0, (ready.opened.alignment, ready.opened.largest_payload));
                self.segments.extend(ready.segments);
                Ok(true)
            }
            Step::Failed(Failure::Config(errors)) => Err(errors.into()),
            Step::Failed(Failure::Environment(reason)) if !*config.tiers[at].required => {
                self.leave_out(at, reason);
                Ok(true)
            }
            Step::Failed(Failure::Refuse(reason) | Failure::Environment(reason)) => {
                Err(StartError::Tier { tier: self.seats[at].name.clone(), reason })
            }
        }
    }

    /// The daemon serves without this tier; the state that it reached tells how far it came.
    fn leave_out(&mut self, at: usize, reason: String) {
        let seat = &mut self.seats[at];
        tracing::warn!("tier {} does not serve: {reason}", seat.name);
        seat.report = reason;
        seat.link = None;
    }

    fn give_up_slow(&mut self, config: &Config) -> Result<(), StartError> {
        for at in 0..self.seats.len() {
            if self.opened.contains_key(&(at as u8)) || self.seats[at].link.is_none() {
                continue;
            }
            let call = self.seats[at].link.as_ref().and_then(|link| link.shared.call());
            let call = call.map_or("its thread has ended".to_owned(), |(name, time)| {
                format!("the plugin has not returned from {name} for {} s", time.as_secs())
            });
            if *config.tiers[at].required {
                return Err(StartError::Tier { tier: self.seats[at].name.clone(), reason: call });
            }
            self.leave_out(at, call);
            self.seats[at].abandoned = true;
        }
        Ok(())
    }

    /// The start is refused: what is open is closed in order, within a bounded time.
    fn give_up(&mut self) {
        let deadline = Duration::from_millis(REFUSED_SHUTDOWN_MS);
        let open = self.seats.iter().filter(|seat| seat.state == TierState::Running);
        let links: Vec<_> = open.filter_map(|seat| seat.link.clone()).collect();
        links.iter().for_each(|link| link.queue.close_with(Command::Shutdown { deadline }));
        let until = Instant::now() + deadline;
        for link in &links {
            // The refusal is told in any case; one that does not return ends with the process.
            let _ = link.shared.wait_ended(until);
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn settings(config: &Config, tiers: &Tiers) -> Settings {
    let pool: u64 = tiers.segments.iter().map(|segment| segment.length).sum();
    let capacity = |at: usize| if at == 0 { pool } else { *config.tiers[at].capacity };
    let limits = &config.limits;
    let tier = |(at, tier): (usize, &umbp_config::Tier)| {
        let (alignment, largest_payload) = tiers.opened.get(&(at as u8)).copied().unwrap_or((4096, u64::MAX));
        TierSettings {
            name: tier.name.to_string(),
            capacity: capacity(at),
            alignment,
            largest_payload,
            slots: tier.slots(),
            deadline_ns: nanoseconds(*tier.deadline),
            write: match *tier.write {
                Write::Through => WritePolicy::Through,
                Write::OnEvict => WritePolicy::OnEvict,
                Write::AfterHits(hits) => WritePolicy::AfterHits(hits),
            },
            shared: tiers.shared.contains(&(at as u8)).then(|| {
                let (budget, negative) = tier.shared_times();
                Shared { lookup_budget_ns: nanoseconds(budget), negative_ns: nanoseconds(negative) }
            }),
        }
    };
    let tenant = |tenant: &umbp_config::Tenant| TenantSettings {
        name: tenant.name.to_string(),
        quota: tenant.quota_bytes(&config.tiers),
    };
    Settings {
        tiers: config.tiers.iter().enumerate().map(tier).collect(),
        tenants: config.tenants.iter().map(tenant).collect(),
        headroom: (0..config.tiers.len()).map(|at| config.policy.headroom_bytes(capacity(at))).collect(),
        promotion_budget: *config.policy.promotion_budget,
        eviction: match *config.policy.eviction {
            Eviction::PrefixLru => EvictionPolicy::PrefixLru,
            Eviction::S3Fifo => EvictionPolicy::S3Fifo,
            Eviction::ChainHazard => EvictionPolicy::ChainHazard,
        },
        admission: match *config.policy.admission {
            umbp_config::Admission::All => Admission::All,
            umbp_config::Admission::SecondSighting => Admission::SecondSighting,
            umbp_config::Admission::MinDepth(depth) => Admission::MinDepth(depth),
        },
        promote: match *config.policy.promote {
            umbp_config::Promote::OnAcquire => Promote::OnAcquire,
            umbp_config::Promote::AfterHits(hits) => Promote::AfterHits(hits),
        },
        lease_ns: nanoseconds(*limits.lease),
        hold_ns: nanoseconds(*limits.hold),
        hold_bytes: *limits.hold_bytes,
        quarantine_bytes: *limits.quarantine,
        background_bytes: *limits.background,
        block_bytes: *limits.largest_block,
    }
}
