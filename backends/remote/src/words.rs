//! What is said of an engine's state: one line when it turns, and a counter each time.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use umbp_plugin_api::Host;
use umbp_plugin_api::backend::Level;

use crate::objects::Fault;

/// A state that comes and goes is told again after so long.
const SAY_AGAIN: Duration = Duration::from_secs(60);
/// Different states at one time that are told apart; those beyond share the last place.
const STATES_MAX: usize = 32;

/// Counters, and the log.
pub(crate) struct Words {
    host: Host,
    /// When which state was last told.
    told: Mutex<Vec<(&'static str, Instant)>>,
}

impl Words {
    pub(crate) fn new(host: Host) -> Self {
        Self { host, told: Mutex::default() }
    }

    pub(crate) fn count(&self, name: &str) {
        self.host.count(name, 1);
    }

    pub(crate) fn log(&self, level: Level, text: &str) {
        self.host.log(level, text);
    }

    /// Counts a fault under its state; the first of each, and one after a while, is a line in the log.
    pub(crate) fn fault(&self, fault: &Fault) {
        let state = state(fault);
        self.host.count(counter(state), 1);
        let now = Instant::now();
        let mut told = self.told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match told.iter().position(|(known, _)| *known == state) {
            Some(at) if now.duration_since(told[at].1) < SAY_AGAIN => return,
            Some(at) => told[at].1 = now,
            None if told.len() < STATES_MAX => told.push((state, now)),
            None => return,
        }
        drop(told);
        self.host.log(Level::Warn, &format!("{fault}; {}", remedy(state)));
    }
}

fn state(fault: &Fault) -> &'static str {
    match fault {
        Fault::Unreachable(_) => "unreachable",
        Fault::Late(_) => "late",
        Fault::Full(_) => "full",
        Fault::Refused { word, .. } => word,
        Fault::Nonsense(_) => "nonsense",
    }
}

/// `fault.` and the state.
fn counter(state: &'static str) -> &'static str {
    match state {
        "unreachable" => "fault.unreachable",
        "late" => "fault.late",
        "full" => "fault.full",
        "loading" => "fault.loading",
        "readonly" => "fault.readonly",
        "master-down" => "fault.master-down",
        "no-master" => "fault.no-master",
        "cluster-down" => "fault.cluster-down",
        "auth" => "fault.auth",
        "permission" => "fault.permission",
        "no-bucket" => "fault.no-bucket",
        "signature" => "fault.signature",
        "throttled" => "fault.throttled",
        "nonsense" => "fault.nonsense",
        _ => "fault.other",
    }
}

fn remedy(state: &'static str) -> &'static str {
    match state {
        "unreachable" => "check that the server runs and that its address is right; it is tried again by itself",
        "late" => "the server or the network is slow; blocks there are misses meanwhile",
        "full" => "give the server more memory, or a policy that evicts (maxmemory-policy allkeys-lru)",
        "loading" => "the server reads its data; blocks there are misses until it has",
        "readonly" => "name the master in `addresses`, or use mode = \"sentinel\" or \"cluster\"",
        "master-down" | "no-master" => "check the sentinels and `master_name`; stores are given up meanwhile",
        "cluster-down" => "some slots have no server; their blocks are misses until one serves them",
        "auth" => "check `username` and the password or credentials that the options name",
        "permission" => "give the user the rights that docs/remote.md lists",
        "no-bucket" => "create the bucket, or correct `bucket`",
        "signature" => "check the secret key, `region`, and this host's clock",
        "throttled" => "the service asks for fewer requests; it is tried again by itself",
        "nonsense" => "check that `addresses` or `endpoint` is such a server",
        _ => "see docs/remote.md",
    }
}
