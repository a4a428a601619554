//! The client library alone in a bare loop: what a benchmark compares the tier with.
//!
//! No header, no checksum, no breaker, no memory of the host's: only so many objects of so many bytes, so many under
//! way, on as many connections and threads as the tier has, with the system's allocator. Names lie below the prefix and are deleted by the loop that says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value, cmd};
use serde_json::{Value as Json, json};
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinSet;

use crate::engine::Engine;
use crate::keep;
use crate::options::{self, Options};

/// Most objects, and most under way.
const OBJECTS_MAX: u64 = 1 << 20;
const DEPTH_MAX: u64 = 1024;
/// Longest object, in bytes.
const BYTES_MAX: u64 = 64 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Put,
    Get,
    Delete,
}

#[derive(Clone, Copy)]
struct Order {
    direction: Direction,
    objects: u64,
    bytes: u64,
    depth: u64,
}

/// Runs the loop that the input asks for; answers a JSON object with `nanos`, or `error`.
pub(crate) fn run(handle: &Handle, threads: usize, engine: &Arc<Engine>, options: &Options, input: &[u8]) -> Vec<u8> {
    let answer = order(input).and_then(|order| {
        if let Engine::S3(_) = &**engine {
            // Its pool of connections is the tier's, and they belong to the tier's runtime.
            return handle.block_on(looped(engine.clone(), options, order));
        }
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("remote-bare")
            .on_thread_start(|| keep::set_plain(true))
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        runtime.block_on(looped(engine.clone(), options, order))
    });
    let answer = match answer {
        Ok(took) => json!({ "nanos": u64::try_from(took.as_nanos()).unwrap_or(u64::MAX) }),
        Err(error) => json!({ "error": error }),
    };
    answer.to_string().into_bytes()
}

fn order(input: &[u8]) -> Result<Order, String> {
    let input: Json = serde_json::from_slice(input).map_err(|error| error.to_string())?;
    let number = |name: &str, most: u64| {
        let number = input[name].as_u64().filter(|number| (1..=most).contains(number));
        number.ok_or_else(|| format!("{name} = {}: give 1 to {most}", input[name]))
    };
    let direction = match input["direction"].as_str() {
        Some("put") => Direction::Put,
        Some("get") => Direction::Get,
        Some("delete") => Direction::Delete,
        _ => return Err(format!("direction = {}: give \"put\", \"get\" or \"delete\"", input["direction"])),
    };
    let (objects, bytes) = (number("objects", OBJECTS_MAX)?, number("bytes", BYTES_MAX)?);
    Ok(Order { direction, objects, bytes, depth: number("depth", DEPTH_MAX)? })
}

/// What the loops share.
struct Shared {
    engine: Arc<Engine>,
    prefix: String,
    content: Vec<u8>,
    next: AtomicU64,
    order: Order,
}

async fn looped(engine: Arc<Engine>, options: &Options, order: Order) -> Result<Duration, String> {
    let content = (0..order.bytes).map(|at| at as u8).collect();
    let step = if matches!(options.engine, options::Engine::Redis(_)) { ':' } else { '/' };
    let prefix = format!("{}{step}bare{step}", options.prefix);
    let connections = connections(&engine, options).await?;
    let shared = Arc::new(Shared { engine, prefix, content, next: AtomicU64::new(0), order });
    let began = Instant::now();
    let mut loops = JoinSet::new();
    for number in 0..order.depth as usize {
        let connection = connections.get(number % connections.len().max(1)).cloned();
        let shared = shared.clone();
        loops.spawn(async move {
            while let object @ 0.. = shared.next.fetch_add(1, Ordering::Relaxed)
                && object < shared.order.objects
            {
                let name = format!("{}{object}", shared.prefix);
                match (&*shared.engine, &connection) {
                    (Engine::Redis(_), Some(connection)) => redis_once(connection.clone(), &shared, &name).await?,
                    (Engine::S3(s3), _) => s3_once(s3.client(), &shared, name).await?,
                    (Engine::Redis(_), None) => return Err("no connection".to_owned()),
                }
            }
            Ok(())
        });
    }
    while let Some(ended) = loops.join_next().await {
        ended.map_err(|error| error.to_string())??;
    }
    Ok(began.elapsed())
}

async fn connections(engine: &Engine, options: &Options) -> Result<Vec<MultiplexedConnection>, String> {
    let (Engine::Redis(redis), options::Engine::Redis(settings)) = (engine, &options.engine) else {
        return Ok(Vec::new());
    };
    let mut connections = Vec::new();
    for _ in 0..settings.connections {
        let connection = redis.connection().await;
        let connection = connection.ok_or("the client library alone does not know where a cluster's names lie")?;
        connections.push(connection.map_err(|fault| fault.to_string())?);
    }
    Ok(connections)
}

async fn redis_once(mut connection: MultiplexedConnection, shared: &Shared, name: &str) -> Result<(), String> {
    let mut command: Cmd;
    match shared.order.direction {
        Direction::Put => {
            command = cmd("SET");
            command.arg(name).arg(&shared.content[..]);
        }
        Direction::Get => {
            command = cmd("GET");
            command.arg(name);
        }
        Direction::Delete => {
            command = cmd("UNLINK");
            command.arg(name);
        }
    }
    let value = connection.send_packed_command(&command).await.map_err(|error| error.to_string())?;
    let whole = match (shared.order.direction, &value) {
        (Direction::Get, Value::BulkString(bytes)) => bytes.len() as u64 == shared.order.bytes,
        (Direction::Get, _) => false,
        (_, Value::ServerError(_)) => false,
        _ => true,
    };
    if whole { Ok(()) } else { Err(format!("{name}: another answer than was expected")) }
}

async fn s3_once(client: &object_store::aws::AmazonS3, shared: &Shared, name: String) -> Result<(), String> {
    let path = Path::from(name);
    let done = match shared.order.direction {
        Direction::Put => client.put(&path, PutPayload::from(shared.content.clone())).await.map(drop),
        Direction::Get => match client.get(&path).await {
            Ok(answer) => match answer.bytes().await {
                Ok(bytes) if bytes.len() as u64 == shared.order.bytes => Ok(()),
                Ok(bytes) => return Err(format!("{path}: {} bytes", bytes.len())),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        },
        Direction::Delete => match client.delete(&path).await {
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            other => other,
        },
    };
    done.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_that_makes_no_sense_is_told_by_its_field() {
        let check = |input: &str, part: &str| {
            let error = order(input.as_bytes()).err().expect("refused");
            assert!(error.contains(part), "{input}: {error}");
        };
        check("{", "EOF");
        check(r#"{"direction":"up","objects":1,"bytes":1,"depth":1}"#, "direction");
        check(r#"{"direction":"put","objects":0,"bytes":1,"depth":1}"#, "objects");
        check(r#"{"direction":"put","objects":1,"depth":1}"#, "bytes");
        check(r#"{"direction":"put","objects":1,"bytes":1,"depth":4096}"#, "depth");
    }
}
