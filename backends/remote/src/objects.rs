//! What the tier needs of an engine: named objects, stored whole, read whole or at their start.
//!
//! An implementation is one endpoint set (a Valkey server, a cluster, a bucket). It holds its connections, reconnects,
//! and follows redirections; it does not retry an operation that may have been done, keeps no breaker and no bound of
//! its own but that of its connections: those stand above this seam, alike for all engines. Calls run on the
//! backend's own runtime, many at a time; each ends by itself no later than `timeout` of the options, and may be
//! dropped before.

use std::future::Future;
use std::time::Duration;

/// What became of a conditional store.
#[derive(Debug, PartialEq, Eq)]
pub enum Stored {
    /// It is there now, whole.
    New,
    /// Something was there under that name already; nothing was changed.
    Present,
}

/// The start of an object, and how long it is as a whole.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    /// At most as many bytes as were asked for, from the start.
    pub bytes: Vec<u8>,
    /// Bytes of the whole object, where the engine told; `None` where it did not.
    pub length: Option<u64>,
}

/// Why a call failed. The text is the engine's own word, for a person, without a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The endpoint cannot be reached, hung up, or did not answer in time: counts toward its breaker.
    #[error("{0}")]
    Unreachable(String),
    /// No answer within the call's time: counts toward its breaker.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The engine is full: memory with noeviction, a quota.
    #[error("{0}")]
    Full(String),
    /// The engine refuses for now, or until an operator mends it: a short word for counters and for the log
    /// ("loading", "readonly", "cluster-down", "auth", "permission", "no-bucket", "signature", "throttled"), and its
    /// own words.
    #[error("{word}: {text}")]
    Refused {
        /// One word, the same for the same state.
        word: &'static str,
        /// What the engine said.
        text: String,
    },
    /// The answer makes no sense here.
    #[error("{0}")]
    Nonsense(String),
}

/// An engine's objects. Names are complete, prefix included.
pub trait Objects: Send + Sync + 'static {
    /// Stores the pieces, one after the other, as one object, unless the name is taken. It lives for `ttl`, where one is
    /// given; an engine without lifetimes passes that over.
    fn put_new(
        &self,
        name: &str,
        pieces: &[&[u8]],
        ttl: Option<Duration>,
    ) -> impl Future<Output = Result<Stored, Fault>> + Send;

    /// The same, whatever is there.
    fn replace(
        &self,
        name: &str,
        pieces: &[&[u8]],
        ttl: Option<Duration>,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// The whole object, or `None` if there is none. One longer than `most` bytes is cut there, or is nonsense.
    fn get(&self, name: &str, most: u64) -> impl Future<Output = Result<Option<Vec<u8>>, Fault>> + Send;

    /// The first `bytes` of each, in the order of the names, each with its own answer: `None` where there is none.
    fn heads(&self, names: &[String], bytes: u64) -> impl Future<Output = Vec<Result<Option<Head>, Fault>>> + Send;

    /// True if it was there. Deletes that one object.
    fn delete(&self, name: &str) -> impl Future<Output = Result<bool, Fault>> + Send;

    /// A sign of life that touches no object outside the prefix, for a half-open breaker.
    fn ping(&self) -> impl Future<Output = Result<(), Fault>> + Send;

    /// The same of one endpoint, where there are several. One that serves nothing any more counts as alive.
    fn ping_at(&self, endpoint: usize) -> impl Future<Output = Result<(), Fault>> + Send {
        let _ = endpoint;
        self.ping()
    }

    /// The endpoint that an object of this name lies at, as far as is known now: what a breaker stands for. An engine
    /// with one endpoint answers 0 always.
    fn endpoint(&self, name: &str) -> usize;
}
