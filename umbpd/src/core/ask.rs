//! Waiting for what shared tiers answer, on behalf of one lookup.

use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use umbp_protocol::message::{SessionId, WireKey};

use super::hub::Hub;
use crate::engine::KEYS_PER_SLICE_MAX;
use crate::engine::api::Ticket;
use crate::process::now;

/// A lookup that shared tiers are asked for. Dropped, it waits no longer; what it asked for is answered all the same.
pub struct Question {
    hub: Rc<Hub>,
    ticket: Ticket,
    answered: Rc<Notify>,
}

impl Question {
    /// Asks for the keys that no tier here has, in slices between which others have their turn. None if there is
    /// nothing to wait for.
    pub async fn ask(hub: &Rc<Hub>, session: SessionId, keys: &[WireKey]) -> Option<Self> {
        if !hub.ask(|engine| engine.asks_others()) {
            return None;
        }
        let ticket = hub.with(|engine, now| engine.ask_begin(now));
        let answered = Rc::new(Notify::new());
        hub.questions.borrow_mut().insert(ticket, answered.clone());
        let question = Self { hub: hub.clone(), ticket, answered };
        for (at, slice) in keys.chunks(KEYS_PER_SLICE_MAX).enumerate() {
            if at > 0 {
                tokio::task::yield_now().await;
            }
            hub.with(|engine, now| engine.ask(session, ticket, slice, now));
        }
        (hub.ask(|engine| engine.asked_left(ticket)) > 0).then_some(question)
    }

    /// Waits until every answer that is worth it is there, or the tiers' budget is over.
    pub async fn answered(&self) {
        loop {
            let asked = self.hub.ask(|engine| engine.asked(self.ticket));
            let rest = asked.until.0.saturating_sub(now().0);
            if asked.left == 0 || rest == 0 {
                return;
            }
            // Whichever it was, all is looked at again.
            let _ = tokio::time::timeout(Duration::from_nanos(rest), self.answered.notified()).await;
        }
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        self.hub.questions.borrow_mut().remove(&self.ticket);
        self.hub.quietly(|engine, _| engine.ask_end(self.ticket));
    }
}
