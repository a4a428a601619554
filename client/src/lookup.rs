//! Lookups: asked in messages of bounded size, all sent before the first answer; waited for, or left under way.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use umbp_connector_core::key::LocalKey;
use umbp_protocol::message::{Found, KEYS_PER_MESSAGE_MAX, MissReason, Reply, Request, WireKey};

use crate::client::Client;
use crate::clock::now_ns;
use crate::options::Error;
use crate::outcome::Counter;
use crate::session::Session;
use crate::shared::Shared;

/// The answers of one message, once they are there.
type Part = Option<Result<Vec<Found>, Error>>;

#[derive(Debug)]
struct State {
    parts: Vec<Part>,
    left: usize,
}

#[derive(Debug)]
struct Answers {
    state: Mutex<State>,
    done: Condvar,
}

/// A lookup under way. Dropping it drops its answer; hits that it holds stay held until they expire or are given up.
#[derive(Debug)]
pub struct Lookup {
    keys: usize,
    answers: Arc<Answers>,
}

impl Answers {
    fn put(&self, part: usize, answer: Result<Vec<Found>, Error>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.parts[part].replace(answer).is_none() {
            state.left -= 1;
        }
        self.done.notify_all();
    }
}

impl Lookup {
    /// One answer per key, or why there is none for all of them; nothing while it is under way.
    pub fn poll(&self) -> Option<Result<Vec<Found>, Error>> {
        self.wait(Duration::ZERO)
    }

    /// As [`Self::poll`], waiting for the end at most `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<Result<Vec<Found>, Error>> {
        let parts = self.parts(timeout)?;
        let answers: Result<Vec<_>, Error> = parts.into_iter().map(|part| part.unwrap_or(Ok(Vec::new()))).collect();
        Some(answers.map(|parts| parts.concat()))
    }

    /// Misses stand for what has no answer.
    fn found(&self) -> Vec<Found> {
        let parts = self.parts(Duration::ZERO).unwrap_or_default();
        let mut found = Vec::with_capacity(self.keys);
        for part in parts {
            let Some(Ok(part)) = part else { break };
            found.extend(part);
        }
        found.resize(self.keys, Found::Miss(MissReason::TierDown));
        found
    }

    fn parts(&self, timeout: Duration) -> Option<Vec<Part>> {
        let end = Instant::now() + timeout;
        let mut state = self.answers.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.left > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self.answers.done.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(state.parts.clone())
    }
}

impl Client {
    /// Asks which keys are there, and returns at once. With `hold_ms` above 0 hits are held so long, within the
    /// session's budget. Without a session the answer is there already: an error.
    pub fn begin_lookup(&self, keys: &[LocalKey], hold_ms: u32) -> Lookup {
        let shared = self.shared();
        let parts = keys.len().div_ceil(KEYS_PER_MESSAGE_MAX);
        let state = Mutex::new(State { parts: vec![None; parts], left: parts });
        let answers = Arc::new(Answers { state, done: Condvar::new() });
        let lookup = Lookup { keys: keys.len(), answers: Arc::clone(&answers) };
        shared.counters.add(Counter::KeysLookedUp, keys.len() as u64);
        let session = match shared.check_process().and_then(|()| shared.require_session()) {
            Ok(session) => session,
            Err(error) => {
                (0..parts).for_each(|part| answers.put(part, Err(error.clone())));
                shared.counters.add(Counter::LookupsUnanswered, keys.len() as u64);
                return lookup;
            }
        };
        let namespace = session.namespace();
        for (part, keys) in keys.chunks(KEYS_PER_MESSAGE_MAX).enumerate() {
            let (answers, expected, weak) = (Arc::clone(&answers), keys.len(), Arc::downgrade(&session));
            let keys = keys.iter().map(|key| WireKey { namespace, local: key.to_bytes() }).collect();
            let owner = Arc::downgrade(shared);
            let then = move |answer| {
                let answer = checked(answer, expected, weak.upgrade().as_deref());
                if let Some(owner) = owner.upgrade() {
                    count(&owner, &answer, expected);
                }
                answers.put(part, answer);
            };
            session.call(&Request::Lookup { hold_ms, keys }, Box::new(then));
        }
        lookup
    }

    /// Which keys are there? One answer per key. Without a session, or without an answer in time, all are misses.
    /// With `hold_ms` above 0 hits are held so long, within the session's budget.
    pub fn lookup(&self, keys: &[LocalKey], hold_ms: u32) -> Vec<Found> {
        let shared = self.shared();
        if shared.check_process().is_err() {
            return vec![Found::Miss(MissReason::TierDown); keys.len()];
        }
        let Some(session) = shared.session() else { return self.begin_lookup(keys, hold_ms).found() };
        let end = session.answer_due();
        let lookup = self.begin_lookup(keys, hold_ms);
        if lookup.parts(end.saturating_duration_since(Instant::now())).is_none() {
            session.check_calls(now_ns());
        }
        lookup.found()
    }
}

fn count(shared: &Shared, answer: &Result<Vec<Found>, Error>, asked: usize) {
    match answer {
        Ok(found) => {
            let hits = found.iter().filter(|found| matches!(found, Found::Hit { .. })).count();
            shared.counters.add(Counter::KeysFound, hits as u64);
        }
        Err(_) => shared.counters.add(Counter::LookupsUnanswered, asked as u64),
    }
}

fn checked(answer: Result<Reply, Error>, expected: usize, session: Option<&Session>) -> Result<Vec<Found>, Error> {
    let error = match answer? {
        Reply::Lookup { found } if found.len() == expected => return Ok(found),
        Reply::Lookup { .. } => Error::SessionLost("a Lookup's answer has another length".to_owned()),
        _ => Error::SessionLost("Lookup was answered with something else".to_owned()),
    };
    if let Some(session) = session {
        session.lose(error.clone());
    }
    Err(error)
}
