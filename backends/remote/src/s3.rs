//! S3-compatible storage as an engine. Requests are signed and formed by `object_store`; statuses are read here, since
//! what is absent, taken, full or refused has to be told apart for certain.
//!
//! Modules in reading order: `setup` (what it needs to begin), `refusal` (S3's error codes), `http` (the pool of
//! connections), `credentials`, `place` (the bucket's URL).

mod credentials;
mod http;
mod place;
mod refusal;
mod setup;

use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use self::credentials::{Keys, NoCredentials};
use self::http::{Broken, Dial, Pool, Proxy, Tls};
use self::refusal::{Refusal, plain};
pub use self::setup::{Environment, Settings, SetupError, Surroundings};
use crate::objects::{Fault, Head, Objects, Stored};

/// Adds to a counter of the tier. Called from any thread; it never waits.
pub type Count = Arc<dyn Fn(&'static str, u64) + Send + Sync>;

/// Counts puts that a server without conditional puts took: they looked first, so two writers may both store.
pub const FALLBACK_CONDITIONAL_PUT: &str = "fallback.conditional_put";

/// Below the prefix, a name that no block has: those begin with a namespace's digest.
const NOBODY: &str = "nobody";

/// One bucket.
pub struct S3 {
    store: AmazonS3,
    keys: Arc<Keys>,
    /// One for each request on its way, so no more connections than the options say are open.
    permits: Semaphore,
    connections: usize,
    timeout: Duration,
    prefix: String,
    /// The server has said that it knows no conditional puts.
    unconditional: AtomicBool,
    count: Count,
}

/// How a request failed.
enum Failure {
    /// With an answer that may be the one that was hoped for.
    Refused(Refusal),
    Fault(Fault),
}

impl S3 {
    /// Sets the engine up. It asks neither the server nor the metadata service, so it does not wait for them.
    pub fn open(settings: &Settings<'_>, around: &Surroundings, count: Count) -> Result<Self, SetupError> {
        let Settings { s3, prefix, timeout, connect_timeout } = *settings;
        let url = place::bucket_url(s3)?;
        let tls = if url.starts_with("https:") { Tls::On } else { Tls::Off };
        let dial = Dial { connect_timeout, connections: s3.connections, tls, proxy: Proxy::Environment };
        let keys = Keys::open(s3, timeout, connect_timeout, around)?;
        let store = AmazonS3Builder::new()
            .with_bucket_name(&s3.bucket)
            .with_region(&s3.region)
            .with_endpoint(url)
            // The URL names the bucket, whichever style it is.
            .with_virtual_hosted_style_request(true)
            .with_credentials(Arc::clone(&keys) as _)
            .with_retry(RetryConfig { max_retries: 0, retry_timeout: timeout, ..RetryConfig::default() })
            // TLS keeps a payload whole; a hash over each would cost as much as all the rest.
            .with_unsigned_payload(tls == Tls::On)
            .with_disable_bulk_delete(true)
            .with_http_connector(Pool::new(dial, around)?)
            .build()
            .map_err(|error| SetupError::Client(plain(&error.to_string())))?;
        Ok(Self {
            store,
            keys,
            permits: Semaphore::new(s3.connections),
            connections: s3.connections,
            timeout,
            prefix: prefix.to_owned(),
            unconditional: AtomicBool::new(false),
            count,
        })
    }

    /// The client library alone, for benchmarks.
    pub(crate) fn client(&self) -> &AmazonS3 {
        &self.store
    }

    /// Does `work` on a connection of its own, until the time is over.
    async fn within<T>(
        &self,
        until: Instant,
        work: impl Future<Output = Result<T, Failure>> + Send,
    ) -> Result<T, Failure> {
        let late = || Failure::Fault(Fault::Late(self.timeout));
        if Instant::now() >= until {
            return Err(late());
        }
        let turn = async {
            let _permit = self.permits.acquire().await;
            work.await
        };
        timeout_at(until, turn).await.unwrap_or_else(|_| Err(late()))
    }

    /// The name as a path below the prefix, letter by letter the same; nothing else is ever asked for.
    fn path(&self, name: &str) -> Result<Path, Fault> {
        let below = name.strip_prefix(&self.prefix).is_some_and(|rest| rest.starts_with('/'));
        let path = Path::parse(name).ok().filter(|path| below && path.as_ref() == name);
        path.ok_or_else(|| Fault::Nonsense(format!("{name:?} is no name below the prefix {:?}", self.prefix)))
    }

    fn until(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// What a failed request means, before anybody looks at what it was.
    fn failure(&self, error: &object_store::Error) -> Failure {
        // First: a metadata service's answer is none of the bucket's.
        if let Some(none) = cause::<NoCredentials>(error) {
            let text = format!("no credentials to sign with: {none}");
            return Failure::Fault(Fault::Refused { word: "auth", text });
        }
        if let Some(refusal) = cause::<Refusal>(error) {
            return Failure::Refused(refusal.clone());
        }
        if let Some(broken) = cause::<Broken>(error) {
            return Failure::Fault(Fault::Unreachable(self.keys.redact(broken.to_string())));
        }
        Failure::Fault(Fault::Nonsense(self.keys.redact(innermost(error))))
    }

    fn fault(&self, failure: Failure) -> Fault {
        match failure {
            Failure::Fault(fault) => fault,
            Failure::Refused(refusal) => refusal.fault(self.keys.redact(refusal.to_string())),
        }
    }

    async fn send(&self, path: &Path, payload: PutPayload, mode: PutMode) -> Result<(), Failure> {
        let options = PutOptions::from(mode);
        self.store.put_opts(path, payload, options).await.map(drop).map_err(|error| self.failure(&error))
    }

    async fn store_new(&self, path: &Path, payload: PutPayload) -> Result<Stored, Failure> {
        if !self.unconditional.load(Ordering::Relaxed) {
            match self.send(path, payload.clone(), PutMode::Create).await {
                Ok(()) => return Ok(Stored::New),
                Err(Failure::Refused(refusal)) if refusal.taken() => return Ok(Stored::Present),
                // Another writer is at it; if it has come to an end, this one's is the second.
                Err(Failure::Refused(refusal)) if refusal.contended() => {
                    let there = self.head(path, 1).await?.is_some();
                    return if there { Ok(Stored::Present) } else { Err(Failure::Refused(refusal)) };
                }
                Err(Failure::Refused(refusal)) if refusal.unknown() => {
                    self.unconditional.store(true, Ordering::Relaxed);
                }
                Err(failure) => return Err(failure),
            }
        }
        (self.count)(FALLBACK_CONDITIONAL_PUT, 1);
        if self.head(path, 1).await?.is_some() {
            return Ok(Stored::Present);
        }
        self.send(path, payload, PutMode::Overwrite).await.map(|()| Stored::New)
    }

    async fn head(&self, path: &Path, bytes: u64) -> Result<Option<Head>, Failure> {
        // No range is empty; what comes too much is cut off.
        let range = Some(GetRange::Bounded(0..bytes.max(1)));
        match self.store.get_opts(path, GetOptions { range, ..GetOptions::default() }).await {
            Ok(result) => {
                let length = result.meta.size;
                let awaited = length.min(bytes.max(1));
                let mut read = self.body(result, awaited).await?;
                read.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
                Ok(Some(Head { bytes: read, length: Some(length) }))
            }
            Err(error) => match self.failure(&error) {
                Failure::Refused(refusal) if refusal.absent() => Ok(None),
                // The first byte is past the end: an empty object.
                Failure::Refused(refusal) if refusal.past_end() => {
                    Ok(Some(Head { bytes: Vec::new(), length: Some(0) }))
                }
                failure => Err(failure),
            },
        }
    }

    async fn whole(&self, path: &Path, most: u64) -> Result<Option<Vec<u8>>, Failure> {
        match self.store.get_opts(path, GetOptions::default()).await {
            Ok(result) => {
                let awaited = result.meta.size.min(most);
                self.body(result, awaited).await.map(Some)
            }
            Err(error) => match self.failure(&error) {
                Failure::Refused(refusal) if refusal.absent() => Ok(None),
                failure => Err(failure),
            },
        }
    }

    /// The first `awaited` bytes of an answer's body, and no byte less.
    async fn body(&self, result: GetResult, awaited: u64) -> Result<Vec<u8>, Failure> {
        let nonsense = |text: String| Failure::Fault(Fault::Nonsense(text));
        let size = usize::try_from(awaited).map_err(|_| nonsense(format!("an object of {awaited} bytes")))?;
        let mut read = Vec::new();
        // The length is the server's word, which must not end the process.
        read.try_reserve_exact(size).map_err(|_| nonsense(format!("no memory for {awaited} bytes")))?;
        let mut chunks = pin!(result.into_stream());
        while read.len() < size {
            let Some(chunk) = chunks.next().await else {
                return Err(nonsense(format!("{} bytes came of {awaited}", read.len())));
            };
            let chunk: Bytes = chunk.map_err(|error| self.failure(&error))?;
            let room = size - read.len();
            read.extend_from_slice(&chunk[..chunk.len().min(room)]);
        }
        Ok(read)
    }

    async fn head_of(&self, name: &str, bytes: u64, until: Instant) -> Result<Option<Head>, Fault> {
        let path = self.path(name)?;
        self.within(until, self.head(&path, bytes)).await.map_err(|failure| self.fault(failure))
    }
}

impl Objects for S3 {
    async fn put_new(&self, name: &str, pieces: &[&[u8]], _ttl: Option<Duration>) -> Result<Stored, Fault> {
        let (path, payload) = (self.path(name)?, payload(pieces));
        self.within(self.until(), self.store_new(&path, payload)).await.map_err(|failure| self.fault(failure))
    }

    async fn replace(&self, name: &str, pieces: &[&[u8]], _ttl: Option<Duration>) -> Result<(), Fault> {
        let (path, payload) = (self.path(name)?, payload(pieces));
        let sent = self.send(&path, payload, PutMode::Overwrite);
        self.within(self.until(), sent).await.map_err(|failure| self.fault(failure))
    }

    async fn get(&self, name: &str, most: u64) -> Result<Option<Vec<u8>>, Fault> {
        let path = self.path(name)?;
        self.within(self.until(), self.whole(&path, most)).await.map_err(|failure| self.fault(failure))
    }

    async fn heads(&self, names: &[String], bytes: u64) -> Vec<Result<Option<Head>, Fault>> {
        let until = self.until();
        let mut heads = Vec::with_capacity(names.len());
        for name in names {
            heads.push(self.head_of(name, bytes, until));
        }
        stream::iter(heads).buffered(self.connections).collect().await
    }

    async fn delete(&self, name: &str) -> Result<bool, Fault> {
        let path = self.path(name)?;
        let work = async {
            // S3 answers a delete of nothing as it answers any other.
            if self.head(&path, 1).await?.is_none() {
                return Ok(false);
            }
            self.store.delete(&path).await.map(|()| true).map_err(|error| self.failure(&error))
        };
        self.within(self.until(), work).await.map_err(|failure| self.fault(failure))
    }

    async fn ping(&self) -> Result<(), Fault> {
        // Not HEAD: its answer has no body, so a missing bucket would look like a missing object.
        let name = format!("{}/{NOBODY}", self.prefix);
        self.head_of(&name, 1, self.until()).await.map(drop)
    }

    fn endpoint(&self, _name: &str) -> usize {
        0
    }
}

fn payload(pieces: &[&[u8]]) -> PutPayload {
    // The request outlives a caller that gives up, so it has bytes of its own.
    pieces.iter().filter(|piece| !piece.is_empty()).map(|piece| Bytes::copy_from_slice(piece)).collect()
}

/// The first error of that type among an error and its sources.
fn cause<'a, E: Error + 'static>(mut error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    loop {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        error = error.source()?;
    }
}

/// The innermost error's words: those around it say only which layer passed it on, and with which URL.
fn innermost(mut error: &dyn Error) -> String {
    while let Some(source) = error.source() {
        error = source;
    }
    plain(&error.to_string())
}
