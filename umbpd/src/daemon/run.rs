//! The engine's thread, from the first connection until told to stop.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use super::start::{Daemon, MORE_FILES, MORE_THREADS, StartError, system};
use super::stop;
use crate::admin::{self, Question};
use crate::core::{Hub, reports, ticker};
use crate::engine::api::TierIndex;
use crate::fork::NotInChildren;
use crate::process::now;
use crate::session::serve;
use crate::tier::{Command, lock};

/// How a daemon ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Work in flight ended before the deadline.
    pub drained: bool,
    /// Plugins, of tiers and movers, that did not return from a call. The process is to end without them, by `_exit`.
    pub tiers_left: usize,
}

impl Daemon {
    /// Serves until `stop` ends, then drains and shuts down. Blocks the calling thread, which becomes the engine's.
    pub fn run(self, stop: impl Future<Output = ()>) -> Result<Ended, StartError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(system("make the runtime", MORE_FILES))?;
        LocalSet::new().block_on(&runtime, self.serve(stop))
    }

    async fn serve(self, stop: impl Future<Output = ()>) -> Result<Ended, StartError> {
        let Self { facts, engine, seats, segments, inbox, tables, bound, admin } = self;
        let drain = *facts.config.daemon.drain;
        let hub = Rc::new(Hub::new(facts, engine, seats, inbox, tables));
        segments.into_iter().for_each(|segment| hub.add_segment(segment));
        start_tiers(&hub);
        let pulse: ticker::Pulse = Arc::new(AtomicU64::new(now().0));
        let (questions, asked) = mpsc::channel(admin::QUESTIONS_MAX);
        if let Some(listener) = admin {
            let shared = admin::Shared { not_serving: hub.not_serving.clone(), pulse: pulse.clone(), questions };
            admin::spawn(listener, shared).map_err(system("start the admin page", MORE_THREADS))?;
        }
        let listener = bound
            .listener
            .try_clone()
            .and_then(UnixListener::from_std)
            .map_err(system("listen on the socket", MORE_FILES))?;
        tokio::task::spawn_local(ticker::run(hub.clone(), pulse));
        tokio::task::spawn_local(reports::take(hub.clone()));
        tokio::task::spawn_local(answer_admin(hub.clone(), asked));
        let _alone = NotInChildren::new(&listener);
        let accepting = tokio::task::spawn_local(serve::accept(hub.clone(), listener));
        stop.await;
        *lock(&hub.not_serving) = Some("draining: the daemon was told to stop".to_owned());
        accepting.abort();
        Ok(stop::stop(&hub, bound, drain).await)
    }
}

/// Every open tier serves from now on; persistent ones hand over what they hold, in the background.
fn start_tiers(hub: &Hub) {
    let states: Vec<_> =
        hub.tiers.borrow().iter().map(|seat| (seat.state, seat.persistent, seat.link.is_some())).collect();
    for (at, (state, persistent, open)) in states.into_iter().enumerate() {
        let tier = TierIndex(at as u8);
        hub.set_tier(tier, state, None);
        if persistent && open && at > 0 {
            hub.start_recovery(tier);
        }
    }
}

impl Hub {
    /// Asks a persistent tier for what it holds.
    fn start_recovery(&self, tier: TierIndex) {
        if self.command(tier, Command::RecoverStart).is_err() {
            tracing::warn!("tier {}: recovery cannot be asked for", tier.0);
        }
    }
}

async fn answer_admin(hub: Rc<Hub>, mut asked: mpsc::Receiver<Question>) {
    while let Some(question) = asked.recv().await {
        let status = hub.status().await;
        // Who asked may have given up.
        let _ = question.send(status);
    }
}
