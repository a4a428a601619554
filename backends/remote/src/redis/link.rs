//! One connection to a server: made when it is needed, by a task of its own; dropped when it is in doubt, and made anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::watch;

use super::connect::{Access, Place, Wire};
use crate::objects::Fault;

/// After a connection could not be made, calls fail with its fault for so long before the next is tried.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// The connection, and what becomes of it.
pub(super) struct Link {
    state: watch::Sender<State>,
    made: AtomicU64,
    /// Whether large answers go past the client library.
    past: bool,
}

enum State {
    /// None; why the last one could not be made, and when.
    Down(Option<(Instant, Fault)>),
    /// A task makes one.
    Connecting,
    /// One.
    Up(Live),
}

#[derive(Clone)]
struct Live {
    wire: Wire,
    /// Which one of this link it is.
    number: u64,
    /// Answers that have come over it: a call that comes to nothing while others are answered says nothing against it.
    answers: Arc<AtomicU64>,
}

impl Link {
    /// None yet.
    pub(super) fn new(past: bool) -> Arc<Self> {
        Arc::new(Self { state: watch::Sender::new(State::Down(None)), made: AtomicU64::new(0), past })
    }

    /// One command, one answer.
    pub(super) async fn command(
        self: &Arc<Self>,
        place: &Arc<Place>,
        access: &Arc<Access>,
        command: &Cmd,
    ) -> Result<Value, Fault> {
        let mut live = self.live(place, access).await?;
        let before = live.answers.load(Ordering::Relaxed);
        let waiting = live.wire.shelf.wait();
        let answer = live.wire.connection.send_packed_command(command).await.map(|value| waiting.whole(value));
        answer.map_err(|error| self.failed(&live, before, &error, access)).inspect(|_| live.answered())
    }

    /// Several commands at once, as many answers.
    pub(super) async fn pipeline(
        self: &Arc<Self>,
        place: &Arc<Place>,
        access: &Arc<Access>,
        commands: &Pipeline,
    ) -> Result<Vec<Value>, Fault> {
        let mut live = self.live(place, access).await?;
        let before = live.answers.load(Ordering::Relaxed);
        let waiting = live.wire.shelf.wait();
        let answer = live.wire.connection.send_packed_commands(commands, 0, commands.len()).await;
        let answer = answer.map(|values| values.into_iter().map(|value| waiting.whole(value)).collect());
        answer.map_err(|error| self.failed(&live, before, &error, access)).inspect(|_| live.answered())
    }

    /// Drops the connection, if it is still that one.
    fn drop_live(&self, number: u64) {
        self.state.send_if_modified(|state| {
            let same = matches!(state, State::Up(live) if live.number == number);
            if same {
                *state = State::Down(None);
            }
            same
        });
    }

    /// Drops the connection, whichever it is: it leads to a server that is the right one no more.
    pub(super) fn abandon(&self) {
        self.state.send_if_modified(|state| {
            let up = matches!(state, State::Up(_));
            if up {
                *state = State::Down(None);
            }
            up
        });
    }

    fn failed(&self, live: &Live, before: u64, error: &RedisError, access: &Access) -> Fault {
        if error.is_timeout() {
            if live.answers.load(Ordering::Relaxed) == before {
                self.drop_live(live.number);
            }
            return Fault::Late(access.timeout);
        }
        self.drop_live(live.number);
        match error.kind() {
            redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType => Fault::Nonsense(error.to_string()),
            _ => Fault::Unreachable(error.to_string()),
        }
    }

    /// The connection, made first if there is none. A call that is dropped meanwhile leaves the making alone.
    async fn live(self: &Arc<Self>, place: &Arc<Place>, access: &Arc<Access>) -> Result<Live, Fault> {
        if let State::Up(live) = &*self.state.borrow() {
            return Ok(live.clone());
        }
        let mut seen = self.state.subscribe();
        loop {
            let mut found = None;
            let begun = self.state.send_if_modified(|state| {
                match state {
                    State::Up(live) => found = Some(Ok(live.clone())),
                    State::Down(Some((at, fault))) if at.elapsed() < RECONNECT_PAUSE => {
                        found = Some(Err(fault.clone()));
                    }
                    State::Connecting => {}
                    State::Down(_) => {
                        *state = State::Connecting;
                        return true;
                    }
                }
                false
            });
            if let Some(found) = found {
                return found;
            }
            if begun {
                let making = Making(self.clone());
                let (place, access, past) = (place.clone(), access.clone(), self.past);
                tokio::spawn(async move { making.ended(place.connect(&access, past).await) });
            }
            // The sender lives as long as `self`.
            let _ = seen.wait_for(|state| !matches!(state, State::Connecting)).await;
        }
    }
}

impl Live {
    fn answered(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }
}

/// A connection in the making. Dropped before its end (in a panic, in shutdown), nobody waits for it any more.
struct Making(Arc<Link>);

impl Making {
    fn ended(&self, made: Result<Wire, Fault>) {
        let number = self.0.made.fetch_add(1, Ordering::Relaxed);
        let state = match made {
            Ok(wire) => State::Up(Live { wire, number, answers: Arc::default() }),
            Err(fault) => State::Down(Some((Instant::now(), fault))),
        };
        self.0.state.send_replace(state);
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        self.0.state.send_if_modified(|state| {
            let left = matches!(state, State::Connecting);
            if left {
                *state = State::Down(Some((Instant::now(), Fault::Unreachable("connecting ended early".to_owned()))));
            }
            left
        });
    }
}
