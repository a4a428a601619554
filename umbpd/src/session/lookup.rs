//! Lookups: what is here is told at once; for the rest shared tiers may be waited for, while the session goes on.

use std::cell::Cell;
use std::rc::Rc;

use umbp_protocol::encode_reply;
use umbp_protocol::message::{Found, Reply, SessionId, WireKey};

use super::answer::{slices, turn};
use super::outbox::Outgoing;
use crate::core::seat::SessionSeat;
use crate::core::{Hub, Question};

/// Lookups of one session that wait for shared tiers at one time; more are answered at once from what is here.
const LOOKUPS_WAITING_MAX: usize = 64;

/// One lookup of a session.
pub(super) struct Lookup {
    pub(super) hub: Rc<Hub>,
    pub(super) seat: Rc<SessionSeat>,
    pub(super) session: SessionId,
    /// Id of the request.
    pub(super) id: u64,
    pub(super) hold_ms: u32,
    pub(super) keys: Vec<WireKey>,
}

impl Lookup {
    /// The reply; none if it has to wait: then it comes by itself, and later requests may be answered before it.
    pub(super) async fn answer(self) -> Option<Reply> {
        let question = Question::ask(&self.hub, self.session, &self.keys).await;
        let Some((question, waiting)) = question.and_then(|it| Some((it, Waiting::begin(&self.seat)?))) else {
            return Some(self.look().await);
        };
        tokio::task::spawn_local(async move {
            question.answered().await;
            drop(question);
            let reply = self.look().await;
            let bytes = encode_reply(self.id, self.hub.facts.boot_id, &reply);
            self.seat.outbox.borrow_mut().push_late_reply(Outgoing { bytes, fds: Vec::new() });
            drop(waiting);
            self.seat.wake.notify_one();
        });
        None
    }

    async fn look(&self) -> Reply {
        let mut found: Vec<Found> = Vec::with_capacity(self.keys.len());
        for slice in slices(&self.keys) {
            turn(&found).await;
            found.extend(self.hub.with(|engine, now| engine.lookup(self.session, self.hold_ms, slice, now)));
        }
        Reply::Lookup { found }
    }
}

/// Counts a lookup that waits, for as long as it does.
struct Waiting(Rc<SessionSeat>);

impl Waiting {
    /// None if too many wait already.
    fn begin(seat: &Rc<SessionSeat>) -> Option<Self> {
        let count: &Cell<usize> = &seat.lookups_waiting;
        (count.get() < LOOKUPS_WAITING_MAX).then(|| {
            count.set(count.get() + 1);
            Self(seat.clone())
        })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.lookups_waiting.set(self.0.lookups_waiting.get() - 1);
    }
}
