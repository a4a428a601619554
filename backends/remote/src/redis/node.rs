//! One server: its connections, in rotation, and one more for what has to be quick.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value, cmd};

use super::connect::{Access, Place};
use super::fault::{Refusal, nonsense, settled};
use super::link::Link;
use crate::objects::{Fault, Head};

/// Its connections are given up no more often than this: those that are new may lead to the same place.
const ABANDON_PAUSE: Duration = Duration::from_secs(1);

/// A server.
pub(super) struct Node {
    /// Its number among the endpoints.
    pub(super) number: usize,
    pub(super) place: Arc<Place>,
    access: Arc<Access>,
    /// For blocks.
    links: Vec<Arc<Link>>,
    /// For headers and pings, which would else wait behind blocks.
    quick: Arc<Link>,
    turn: AtomicUsize,
    /// When its connections were given up last.
    abandoned: Mutex<Option<Instant>>,
}

/// A name that a batch asks about, by its place in the list; and whether its slot is on its way to the node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) at: usize,
    pub(super) asking: bool,
}

impl Node {
    /// A server that is not connected to yet.
    pub(super) fn new(number: usize, place: Place, access: Arc<Access>, connections: usize) -> Self {
        let links = (0..connections.max(1)).map(|_| Link::new(true)).collect();
        let (place, quick) = (Arc::new(place), Link::new(false));
        Self { number, place, access, links, quick, turn: AtomicUsize::new(0), abandoned: Mutex::default() }
    }

    /// One command on the next connection.
    pub(super) async fn command(&self, command: &Cmd, asking: bool) -> Result<Value, Refusal> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let link = &self.links[turn % self.links.len()];
        if !asking {
            let value = link.command(&self.place, &self.access, command).await?;
            return settled(value, self.place.host());
        }
        let mut both = redis::pipe();
        both.cmd("ASKING").add_command(command.clone());
        let mut values = link.pipeline(&self.place, &self.access, &both).await?;
        let value = values.pop().unwrap_or(Value::Nil);
        settled(value, self.place.host())
    }

    /// One command beside the blocks.
    pub(super) async fn quick(&self, command: &Cmd) -> Result<Value, Refusal> {
        let value = self.quick.command(&self.place, &self.access, command).await?;
        settled(value, self.place.host())
    }

    /// A sign of life.
    pub(super) async fn ping(&self) -> Result<(), Fault> {
        match self.quick(&cmd("PING")).await {
            Ok(_) => Ok(()),
            Err(Refusal::Fault(fault)) => Err(fault),
            Err(other) => Err(Fault::Nonsense(format!("{other:?}"))),
        }
    }

    /// The starts of some of the names, each with its own answer.
    pub(super) async fn heads(
        &self,
        names: &[String],
        asked: Vec<Asked>,
        bytes: u64,
    ) -> Vec<(Asked, Result<Option<Head>, Refusal>)> {
        let mut commands = redis::Pipeline::with_capacity(asked.len() * 4);
        for &Asked { at, asking } in &asked {
            if asking {
                commands.cmd("ASKING");
            }
            commands.cmd("GETRANGE").arg(&names[at]).arg(0).arg(bytes.saturating_sub(1));
            if asking {
                commands.cmd("ASKING");
            }
            commands.cmd("STRLEN").arg(&names[at]);
        }
        let values = match self.quick.pipeline(&self.place, &self.access, &commands).await {
            Ok(values) => values,
            Err(fault) => return asked.into_iter().map(|asked| (asked, Err(fault.clone().into()))).collect(),
        };
        let mut values = values.into_iter();
        let mut next = |asking: bool| {
            if asking {
                values.next();
            }
            values.next().unwrap_or(Value::Nil)
        };
        let pairs = asked.into_iter().map(|asked| (asked, next(asked.asking), next(asked.asking)));
        pairs.map(|(asked, start, length)| (asked, head(start, length, self.place.host()))).collect()
    }

    /// A connection outside the rotation.
    pub(super) async fn connection(&self) -> Result<MultiplexedConnection, Fault> {
        self.place.connect(&self.access, false).await.map(|wire| wire.connection)
    }

    /// The server may be the right one no more: its connections are made anew.
    pub(super) fn abandon(&self, now: Instant) {
        let mut last = self.abandoned.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| now.saturating_duration_since(last) >= ABANDON_PAUSE) {
            *last = Some(now);
            self.links.iter().chain([&self.quick]).for_each(|link| link.abandon());
        }
    }
}

fn head(start: Value, length: Value, host: &str) -> Result<Option<Head>, Refusal> {
    let start = match settled(start, host) {
        // Something is there that is none of ours: its first byte does not matter.
        Err(Refusal::OtherType) => return Ok(Some(Head { bytes: vec![0], length: None })),
        start => start?,
    };
    match (start, settled(length, host)?) {
        (Value::BulkString(bytes), Value::Int(length)) if bytes.is_empty() && length == 0 => Ok(None),
        (Value::BulkString(bytes), Value::Int(length)) => Ok(Some(Head { bytes, length: u64::try_from(length).ok() })),
        (start, _) => Err(nonsense(&start).into()),
    }
}
