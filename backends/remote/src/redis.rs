//! Valkey and Redis: single servers, masters that sentinels name, clusters.
//!
//! The client library speaks the protocol over each connection; which server a name lies on is decided here. A client
//! for whole clusters would hold everything up while it asks for the slots, and one server that hangs shall concern
//! its own slots alone.
//!
//! Modules in reading order: `fault` (what servers answer instead of a value), `bypass` (large answers go past the
//! client library), `connect`, `link` (one connection), `node` (one server), `slots`, `cluster`.

mod bypass;
mod cluster;
mod connect;
mod fault;
mod link;
mod node;
mod slots;

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, RedisWrite, Value, cmd};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::objects::{Fault, Head, Objects, Stored};
use crate::options::{self, Mode};
use cluster::Cluster;
use connect::{Access, Place};
use fault::{Refusal, nonsense};
use node::{Asked, Node};

/// Redirections that one call follows.
const REDIRECTIONS_MAX: usize = 4;
/// Names that one pipeline asks about.
const BATCH_MAX: usize = 256;

/// One server, or a cluster of them.
enum Servers {
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

/// Objects in Valkey or Redis.
pub struct Redis {
    servers: Servers,
    timeout: Duration,
    /// A server that is the master no more is looked up anew.
    sentinels: bool,
}

impl Redis {
    /// Connects to nothing yet. The text of an error is for a person.
    pub fn open(options: &options::Redis, timeout: Duration, connect_timeout: Duration) -> Result<Self, String> {
        let access = Arc::new(Access::new(options, timeout, connect_timeout)?);
        let (addresses, connections) = (options.addresses.clone(), options.connections);
        let sentinels = options.mode == Mode::Sentinel;
        let one = |place| Servers::One(Arc::new(Node::new(0, place, access.clone(), connections)));
        let servers = match options.mode {
            Mode::Single => match addresses.into_iter().next() {
                Some(address) => one(Place::Fixed(address)),
                None => return Err("`addresses` is empty".to_owned()),
            },
            Mode::Sentinel => one(Place::Master { sentinels: addresses, name: options.master_name.clone() }),
            Mode::Cluster => Servers::Cluster(Cluster::new(&addresses, access.clone(), connections)),
        };
        Ok(Self { servers, timeout, sentinels })
    }

    /// A connection of the client library's own, for benchmarks; none to a cluster, where each name has its server.
    pub(crate) async fn connection(&self) -> Option<Result<MultiplexedConnection, Fault>> {
        match &self.servers {
            Servers::One(node) => Some(node.connection().await),
            Servers::Cluster(_) => None,
        }
    }

    /// Runs a command where its name lies, within the time of a call.
    async fn run(&self, name: &str, command: &Cmd) -> Result<Value, Refusal> {
        let run = tokio::time::timeout(self.timeout, self.follow(name, command)).await;
        let refusal = match run.unwrap_or_else(|_| Err(Fault::Late(self.timeout).into())) {
            Ok(value) => return Ok(value),
            Err(refusal) => refusal,
        };
        if let Refusal::Fault(fault) = &refusal {
            self.doubt(fault);
        }
        Err(self.demoted(refusal))
    }

    async fn follow(&self, name: &str, command: &Cmd) -> Result<Value, Refusal> {
        let cluster = match &self.servers {
            Servers::One(node) => return node.command(command, false).await,
            Servers::Cluster(cluster) => cluster,
        };
        cluster.learned().await?;
        let (mut node, mut asking) = (cluster.master(name)?, false);
        for _ in 0..REDIRECTIONS_MAX {
            match node.command(command, asking).await {
                Err(Refusal::Moved(address)) => (node, asking) = (cluster.moved(name, &address)?, false),
                Err(Refusal::Ask(address)) => (node, asking) = (cluster.at(&address)?, true),
                settled => return settled,
            }
        }
        Err(Fault::Nonsense(format!("more than {REDIRECTIONS_MAX} redirections")).into())
    }

    /// What a failure says about where names lie.
    fn doubt(&self, fault: &Fault) {
        let stale = match fault {
            Fault::Unreachable(_) | Fault::Late(_) => true,
            Fault::Refused { word, .. } => matches!(*word, "readonly" | "master-down" | "cluster-down"),
            _ => false,
        };
        match &self.servers {
            Servers::Cluster(cluster) if stale => cluster.ask(),
            // Sentinels may name another by now, and a name may lead elsewhere.
            Servers::One(node) if is_demoted(fault) => node.abandon(Instant::now()),
            _ => {}
        }
    }

    /// Behind sentinels a server that takes no writes is a connection to the wrong one, and a call may be tried again.
    fn demoted(&self, refusal: Refusal) -> Refusal {
        match refusal {
            Refusal::Fault(fault) if self.sentinels && is_demoted(&fault) => {
                Fault::Unreachable(format!("the master has changed: {fault}")).into()
            }
            other => other,
        }
    }

    async fn heads_into(&self, names: &[String], bytes: u64, answers: &mut [Option<Result<Option<Head>, Fault>>]) {
        let mut left: Vec<(Arc<Node>, Asked)> = Vec::with_capacity(names.len());
        if let Servers::Cluster(cluster) = &self.servers
            && let Err(fault) = cluster.learned().await
        {
            return answers.iter_mut().for_each(|answer| *answer = Some(Err(fault.clone())));
        }
        for (at, name) in names.iter().enumerate() {
            let node = match &self.servers {
                Servers::One(node) => Ok(node.clone()),
                Servers::Cluster(cluster) => cluster.master(name),
            };
            match node {
                Ok(node) => left.push((node, Asked { at, asking: false })),
                Err(fault) => answers[at] = Some(Err(fault)),
            }
        }
        for _ in 0..REDIRECTIONS_MAX {
            let mut batches: FuturesUnordered<_> = batches(std::mem::take(&mut left))
                .map(async |(node, asked)| node.heads(names, asked, bytes).await)
                .collect();
            while let Some(batch) = batches.next().await {
                for (asked, answer) in batch {
                    match self.redirected(&names[asked.at], answer) {
                        Ok((node, asking)) => left.push((node, Asked { asking, ..asked })),
                        Err(answer) => answers[asked.at] = Some(answer),
                    }
                }
            }
            drop(batches);
            if left.is_empty() {
                return;
            }
        }
        let fault = || Fault::Nonsense(format!("more than {REDIRECTIONS_MAX} redirections"));
        left.into_iter().for_each(|(_, asked)| answers[asked.at] = Some(Err(fault())));
    }

    /// Where to ask again (`Ok`), or the answer.
    fn redirected(
        &self,
        name: &str,
        answer: Result<Option<Head>, Refusal>,
    ) -> Result<(Arc<Node>, bool), Result<Option<Head>, Fault>> {
        let refusal = match answer {
            Ok(head) => return Err(Ok(head)),
            Err(refusal) => self.demoted(refusal),
        };
        match (refusal, &self.servers) {
            (Refusal::Moved(address), Servers::Cluster(cluster)) => {
                cluster.moved(name, &address).map(|node| (node, false)).map_err(Err)
            }
            (Refusal::Ask(address), Servers::Cluster(cluster)) => {
                cluster.at(&address).map(|node| (node, true)).map_err(Err)
            }
            (refusal, _) => {
                let fault = plain(refusal);
                self.doubt(&fault);
                Err(Err(fault))
            }
        }
    }

    async fn set(&self, name: &str, pieces: &[&[u8]], ttl: Option<Duration>, only_new: bool) -> Result<Value, Fault> {
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut command = Cmd::with_capacity(6, length + name.len() + 48);
        command.arg("SET").arg(name);
        {
            let mut value = command.writer_for_next_arg();
            for piece in pieces {
                value.write_all(piece).map_err(|error| Fault::Nonsense(error.to_string()))?;
            }
        }
        if only_new {
            command.arg("NX");
        }
        if let Some(ttl) = ttl {
            command.arg("PX").arg(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        }
        self.run(name, &command).await.map_err(plain)
    }
}

impl Objects for Redis {
    async fn put_new(&self, name: &str, pieces: &[&[u8]], ttl: Option<Duration>) -> Result<Stored, Fault> {
        match self.set(name, pieces, ttl, true).await? {
            Value::Okay => Ok(Stored::New),
            Value::Nil => Ok(Stored::Present),
            other => Err(nonsense(&other)),
        }
    }

    async fn replace(&self, name: &str, pieces: &[&[u8]], ttl: Option<Duration>) -> Result<(), Fault> {
        match self.set(name, pieces, ttl, false).await? {
            Value::Okay => Ok(()),
            other => Err(nonsense(&other)),
        }
    }

    async fn get(&self, name: &str, most: u64) -> Result<Option<Vec<u8>>, Fault> {
        // GETRANGE would keep the answer within `most`, and costs the server a copy of it.
        let mut command = cmd("GET");
        command.arg(name);
        match self.run(name, &command).await {
            Ok(Value::Nil) => Ok(None),
            Ok(Value::BulkString(mut bytes)) => {
                bytes.truncate(usize::try_from(most).unwrap_or(usize::MAX));
                Ok(Some(bytes))
            }
            Ok(other) => Err(nonsense(&other)),
            // Something is there that is none of ours: its first byte does not matter.
            Err(Refusal::OtherType) => Ok(Some(vec![0])),
            Err(refusal) => Err(plain(refusal)),
        }
    }

    async fn heads(&self, names: &[String], bytes: u64) -> Vec<Result<Option<Head>, Fault>> {
        let mut answers: Vec<Option<Result<Option<Head>, Fault>>> = names.iter().map(|_| None).collect();
        let heads = self.heads_into(names, bytes, &mut answers);
        let late = tokio::time::timeout(self.timeout, heads).await.is_err();
        if late {
            self.doubt(&Fault::Late(self.timeout));
        }
        answers.into_iter().map(|answer| answer.unwrap_or(Err(Fault::Late(self.timeout)))).collect()
    }

    async fn delete(&self, name: &str) -> Result<bool, Fault> {
        let mut command = cmd("UNLINK");
        command.arg(name);
        match self.run(name, &command).await.map_err(plain)? {
            Value::Int(count) => Ok(count != 0),
            other => Err(nonsense(&other)),
        }
    }

    async fn ping(&self) -> Result<(), Fault> {
        let ping = async {
            match &self.servers {
                Servers::One(node) => node.ping().await,
                Servers::Cluster(cluster) => cluster.learned().await,
            }
        };
        tokio::time::timeout(self.timeout, ping).await.unwrap_or(Err(Fault::Late(self.timeout)))
    }

    async fn ping_at(&self, endpoint: usize) -> Result<(), Fault> {
        let Servers::Cluster(cluster) = &self.servers else { return self.ping().await };
        let Some(node) = cluster.node(endpoint).filter(|_| cluster.serves(endpoint)) else { return self.ping().await };
        let ping = tokio::time::timeout(self.timeout, node.ping()).await;
        let ping = ping.unwrap_or(Err(Fault::Late(self.timeout)));
        if ping.is_err() {
            // A replica may have taken its slots over.
            cluster.ask();
        }
        ping
    }

    fn place(&self, endpoint: usize) -> String {
        let node = match &self.servers {
            Servers::One(node) => Some(node.clone()),
            Servers::Cluster(cluster) => cluster.node(endpoint),
        };
        node.map_or_else(|| format!("endpoint {endpoint}"), |node| node.place.text())
    }

    fn endpoint(&self, name: &str) -> usize {
        match &self.servers {
            Servers::One(_) => 0,
            Servers::Cluster(cluster) => cluster.endpoint(name),
        }
    }
}

/// A refusal that nothing is left to be done about.
fn plain(refusal: Refusal) -> Fault {
    match refusal {
        Refusal::Fault(fault) => fault,
        other => Fault::Nonsense(format!("{other:?}")),
    }
}

fn is_demoted(fault: &Fault) -> bool {
    matches!(fault, Fault::Refused { word: "readonly" | "master-down", .. })
}

/// Names by server, so many at a time.
fn batches(asked: Vec<(Arc<Node>, Asked)>) -> impl Iterator<Item = (Arc<Node>, Vec<Asked>)> {
    let mut by_node: HashMap<usize, (Arc<Node>, Vec<Asked>)> = HashMap::new();
    for (node, asked) in asked {
        by_node.entry(node.number).or_insert_with(|| (node, Vec::new())).1.push(asked);
    }
    by_node.into_values().flat_map(|(node, asked)| {
        let chunks: Vec<_> = asked.chunks(BATCH_MAX).map(|chunk| (node.clone(), chunk.to_vec())).collect();
        chunks
    })
}
