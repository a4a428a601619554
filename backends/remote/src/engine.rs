//! The engine that the options name.

use std::time::Duration;

use umbp_plugin_api::backend::OpenError;

use crate::names::Names;
use crate::objects::{Fault, Head, Objects, Stored};
use crate::options::{self, Options};
use crate::redis::Redis;
use crate::s3::{Count, S3, Settings, Surroundings};

/// One of both.
pub(crate) enum Engine {
    Redis(Redis),
    S3(S3),
}

impl Engine {
    /// Connects to nothing yet.
    pub(crate) fn open(options: &Options, count: Count) -> Result<Self, OpenError> {
        let (timeout, connect_timeout) = (options.timeout, options.connect_timeout);
        match &options.engine {
            options::Engine::Redis(redis) => {
                let redis = Redis::open(redis, timeout, connect_timeout).map_err(OpenError::Environment)?;
                Ok(Self::Redis(redis))
            }
            options::Engine::S3(s3) => {
                let settings = Settings { s3, prefix: &options.prefix, timeout, connect_timeout };
                let s3 = S3::open(&settings, &Surroundings::default(), count);
                Ok(Self::S3(s3.map_err(|error| OpenError::Environment(error.to_string()))?))
            }
        }
    }

    /// How its objects are called.
    pub(crate) fn names(options: &Options) -> Names {
        match &options.engine {
            options::Engine::Redis(_) => Names::redis(&options.prefix),
            options::Engine::S3(_) => Names::s3(&options.prefix),
        }
    }
}

macro_rules! either {
    ($engine:expr, $one:ident => $call:expr) => {
        match $engine {
            Engine::Redis($one) => $call,
            Engine::S3($one) => $call,
        }
    };
}

impl Objects for Engine {
    async fn put_new(&self, name: &str, pieces: &[&[u8]], ttl: Option<Duration>) -> Result<Stored, Fault> {
        either!(self, one => one.put_new(name, pieces, ttl).await)
    }

    async fn replace(&self, name: &str, pieces: &[&[u8]], ttl: Option<Duration>) -> Result<(), Fault> {
        either!(self, one => one.replace(name, pieces, ttl).await)
    }

    async fn get(&self, name: &str, most: u64) -> Result<Option<Vec<u8>>, Fault> {
        either!(self, one => one.get(name, most).await)
    }

    async fn heads(&self, names: &[String], bytes: u64) -> Vec<Result<Option<Head>, Fault>> {
        either!(self, one => one.heads(names, bytes).await)
    }

    async fn delete(&self, name: &str) -> Result<bool, Fault> {
        either!(self, one => one.delete(name).await)
    }

    async fn ping(&self) -> Result<(), Fault> {
        either!(self, one => one.ping().await)
    }

    async fn ping_at(&self, endpoint: usize) -> Result<(), Fault> {
        either!(self, one => one.ping_at(endpoint).await)
    }

    fn place(&self, endpoint: usize) -> String {
        either!(self, one => one.place(endpoint))
    }

    fn endpoint(&self, name: &str) -> usize {
        either!(self, one => one.endpoint(name))
    }
}
