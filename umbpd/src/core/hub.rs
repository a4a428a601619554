//! The engine and what is around it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::sync::Notify;
use umbp_config::Config;
use umbp_protocol::message::{SegmentId, SessionId};

use super::seat::{MoverSeat, SessionSeat, TierSeat};
use crate::engine::Engine;
use crate::engine::api::{TenantIndex, Ticket, Time};
use crate::process::now;
use crate::session::turned_away::Warned;
use crate::tier::SegmentInfo;
use crate::tier::inbox::Inbox;

/// What does not change in this life of the daemon.
pub struct Facts {
    /// This life.
    pub boot_id: u64,
    /// The deployment.
    pub config: Arc<Config>,
    /// Where the deployment came from.
    pub origin: String,
    /// When it started.
    pub started: Instant,
    /// Words of each generation table.
    pub generation_words: u64,
    /// Movers in config order.
    pub movers: Vec<MoverSeat>,
}

/// A segment whose regions are being taken back, before it is made anew.
pub(super) struct Retiring {
    pub(super) info: SegmentInfo,
    /// Tiers that have not let go of it yet.
    pub(super) tiers_left: usize,
}

/// The engine and what is around it. Lives on one thread. No `RefCell` of it is borrowed across an await, and the
/// engine is not borrowed while its actions are carried out.
pub struct Hub {
    /// What does not change.
    pub facts: Facts,
    pub(super) engine: RefCell<Engine>,
    /// Tiers in config order.
    pub tiers: RefCell<Vec<TierSeat>>,
    /// From all tiers.
    pub inbox: Arc<Inbox>,
    /// Sessions that are connected and have said Hello.
    pub sessions: RefCell<BTreeMap<SessionId, Rc<SessionSeat>>>,
    /// Lookups that shared tiers are asked for, and what tells them that all answers are there.
    pub(super) questions: RefCell<BTreeMap<Ticket, Rc<Notify>>>,
    /// Connections, sessions included.
    pub connections: Cell<usize>,
    /// Sessions that ended with a reason of ours, by the reason's code.
    pub sessions_ended: RefCell<BTreeMap<String, u64>>,
    /// When which trouble with connections was last warned of.
    pub warned: Warned,
    pub(super) segments: RefCell<BTreeMap<u32, SegmentInfo>>,
    pub(super) retiring: RefCell<BTreeMap<u32, Retiring>>,
    pub(super) next_segment: Cell<u32>,
    tables: Vec<Arc<OwnedFd>>,
    /// None = serving; else why not, for those who ask for our health.
    pub not_serving: Arc<Mutex<Option<String>>>,
    /// The engine was called: something may fall due.
    pub(super) active: Notify,
}

impl Hub {
    /// Around an engine without segments.
    pub fn new(facts: Facts, engine: Engine, tiers: Vec<TierSeat>, inbox: Arc<Inbox>, tables: Vec<OwnedFd>) -> Self {
        Self {
            facts,
            engine: RefCell::new(engine),
            tiers: RefCell::new(tiers),
            inbox,
            sessions: RefCell::default(),
            questions: RefCell::default(),
            connections: Cell::new(0),
            sessions_ended: RefCell::default(),
            warned: Warned::default(),
            segments: RefCell::default(),
            retiring: RefCell::default(),
            next_segment: Cell::new(0),
            tables: tables.into_iter().map(Arc::new).collect(),
            not_serving: Arc::default(),
            active: Notify::new(),
        }
    }

    /// Calls the engine and carries out what it wants done, before the caller can send its answer.
    pub fn with<R>(&self, call: impl FnOnce(&mut Engine, Time) -> R) -> R {
        let answer = self.quietly(call);
        self.active.notify_one();
        answer
    }

    /// The same, for the ticker, which need not wake itself.
    pub(super) fn quietly<R>(&self, call: impl FnOnce(&mut Engine, Time) -> R) -> R {
        let (answer, actions) = {
            let mut engine = self.engine.borrow_mut();
            let answer = call(&mut engine, now());
            (answer, engine.actions())
        };
        if !actions.is_empty() {
            self.carry_out(actions);
        }
        answer
    }

    /// Asks the engine something that changes nothing.
    pub fn ask<R>(&self, question: impl FnOnce(&Engine) -> R) -> R {
        question(&self.engine.borrow())
    }

    /// A tenant's generation table.
    pub fn table(&self, tenant: TenantIndex) -> Option<Arc<OwnedFd>> {
        self.tables.get(usize::from(tenant.0)).cloned()
    }

    /// Fds of segments, in the order asked; those that are gone are left out, with their fds.
    pub fn segment_fds(&self, segments: &[(SegmentId, u64)]) -> (Vec<(SegmentId, u64)>, Vec<Arc<OwnedFd>>) {
        let known = self.segments.borrow();
        segments.iter().filter_map(|one| Some((*one, known.get(&one.0.0)?.fd.clone()))).unzip()
    }

    /// Counts the end of a session for a reason of ours.
    pub fn count_end(&self, code: &str) {
        *self.sessions_ended.borrow_mut().entry(code.to_owned()).or_insert(0) += 1;
    }
}
