//! A Valkey server, alone, as a replica, or as a sentinel.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::network::{Network, Side};
use crate::ports::Port;
use crate::process::Process;
use crate::resp::{Reply, Resp};
use crate::servers::Servers;
use crate::wait::until;

/// A server; killed when a test drops it. It keeps nothing on disk unless its lines say so.
#[derive(Debug)]
pub struct Valkey {
    // Before the folder, so that nobody writes there any more when it is removed.
    process: Process,
    folder: TempDir,
    program: Vec<String>,
    host: String,
    port: Port,
    bus: Option<Port>,
    password: Option<String>,
}

/// What a server is to be.
#[derive(Default)]
pub(crate) struct Kind<'a> {
    pub(crate) is_cluster: bool,
    pub(crate) is_sentinel: bool,
    pub(crate) network: Option<(&'a Network, Side)>,
}

impl Valkey {
    /// A server by itself, on loopback and on a Unix socket, with more lines of configuration. Waits until it answers.
    pub fn single(servers: &Servers, lines: &[&str]) -> Self {
        Self::start(servers, &Kind::default(), lines)
    }

    /// A replica of another; waits until it has what that one has.
    pub fn replica_of(servers: &Servers, master: &Self, lines: &[&str]) -> Self {
        let mut own = vec![format!("replicaof {} {}", master.host, master.port.number())];
        own.extend(master.password.iter().map(|password| format!("masterauth {password}")));
        own.extend(lines.iter().map(|line| (*line).to_owned()));
        let replica = Self::single(servers, &own.iter().map(String::as_str).collect::<Vec<_>>());
        until("a replica has what its master has", || {
            let told = replica.ask(&["INFO", "replication"]).text();
            told.contains("master_link_status:up").then_some(())
        });
        replica
    }

    /// A sentinel that watches `master` under `name` and, with this quorum, replaces it a second after it fell silent.
    pub fn sentinel(servers: &Servers, name: &str, master: &Self, quorum: u32, lines: &[&str]) -> Self {
        let mut own = vec![
            format!("sentinel monitor {name} {} {} {quorum}", master.host, master.port.number()),
            format!("sentinel down-after-milliseconds {name} 1000"),
            format!("sentinel failover-timeout {name} 5000"),
        ];
        own.extend(master.password.iter().map(|password| format!("sentinel auth-pass {name} {password}")));
        own.extend(lines.iter().map(|line| (*line).to_owned()));
        let kind = Kind { is_sentinel: true, ..Kind::default() };
        Self::start(servers, &kind, &own.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// A server by itself on one host of a network.
    pub fn in_network(servers: &Servers, network: &Network, side: Side, lines: &[&str]) -> Self {
        Self::start(servers, &Kind { network: Some((network, side)), ..Kind::default() }, lines)
    }

    pub(crate) fn start(servers: &Servers, kind: &Kind<'_>, lines: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let port = Port::reserve();
        let bus = kind.is_cluster.then(Port::reserve);
        let host = kind.network.map_or("127.0.0.1", |(_, side)| side.address()).to_owned();
        let text = configuration(&folder, &host, &port, bus.as_ref(), lines);
        let file = folder.path().join("valkey.conf");
        std::fs::write(&file, text).expect("the configuration is written");
        let mut program = kind.network.map_or_else(Vec::new, |(network, side)| network.prefix(side));
        program.extend([servers.valkey.display().to_string(), file.display().to_string()]);
        program.extend(kind.is_sentinel.then(|| "--sentinel".to_owned()));
        let password = lines.iter().find_map(|line| line.strip_prefix("requirepass ")).map(str::to_owned);
        let process = launch(&program, &folder);
        let mut server = Self { process, folder, program, host, port, bus, password };
        server.await_answer();
        server
    }

    /// `host:port`, as a client is to be told.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port.number())
    }

    /// The same by its Unix socket: `unix:/path`.
    pub fn unix_address(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    /// The port of the cluster's own talk.
    pub fn bus_port(&self) -> Option<u16> {
        self.bus.as_ref().map(Port::number)
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// A connection of its own, by the Unix socket, so that no proxy and no broken network is in the way. It is logged
    /// in where the lines set `requirepass`. Panics if the server does not answer.
    pub fn connect(&self) -> Resp {
        self.try_connect().unwrap_or_else(|error| panic!("{}: {error}\n{}", self.address(), self.process.said()))
    }

    fn try_connect(&self) -> std::io::Result<Resp> {
        let mut connection = Resp::connect(&self.unix_address())?;
        if let Some(password) = &self.password {
            connection.ask(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// One command on a connection of its own. Panics if there is no answer.
    pub fn ask(&self, words: &[impl AsRef<[u8]>]) -> Reply {
        self.try_ask(words).unwrap_or_else(|error| panic!("{}: {error}\n{}", self.address(), self.process.said()))
    }

    /// The same where there may be no answer. A stopped server takes a few seconds to be found out.
    pub fn try_ask(&self, words: &[impl AsRef<[u8]>]) -> std::io::Result<Reply> {
        self.try_connect()?.ask(words)
    }

    /// All keys that match a pattern, sorted.
    pub fn keys(&self, pattern: &str) -> Vec<String> {
        let mut keys: Vec<String> = self.ask(&["KEYS", pattern]).list().iter().map(Reply::text).collect();
        keys.sort();
        keys
    }

    /// The number of a field of `INFO`, such as `total_connections_received`. Panics if there is none.
    pub fn info(&self, field: &str) -> i64 {
        let told = self.ask(&["INFO", "everything"]).text();
        let value = told.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("no number {field} in INFO:\n{told}"))
    }

    /// Stops it where it is: it accepts connections and answers nothing.
    pub fn stop(&self) {
        self.process.stop();
    }

    /// Lets it go on.
    pub fn cont(&self) {
        self.process.cont();
    }

    /// Kills it; connections are reset and new ones refused.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Kills it if it runs, starts it again on the same port, and waits until it answers. It is empty then, unless its
    /// lines keep something on disk.
    pub fn restart(&mut self) {
        self.process.kill();
        self.process = launch(&self.program, &self.folder);
        self.await_answer();
    }

    /// Its process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("valkey.sock")
    }

    fn await_answer(&mut self) {
        let what = format!("{} answers", self.address());
        until(&what, || {
            let ended = self.process.ended();
            assert!(ended.is_none(), "{:?} ended ({ended:?}):\n{}", self.program, self.process.said());
            let reply = self.try_connect().ok()?.ask(&["PING"]).ok()?;
            // A test that gives the default user no rights is a server that answers.
            ["PONG", "NOAUTH", "NOPERM"].iter().any(|word| reply.text().starts_with(word)).then_some(())
        });
    }
}

fn launch(program: &[String], folder: &TempDir) -> Process {
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).current_dir(folder.path());
    Process::start(command, &folder.path().join("log"))
}

/// Later lines win, so a test's own come last.
fn configuration(folder: &TempDir, host: &str, port: &Port, bus: Option<&Port>, lines: &[&str]) -> String {
    let mut text = format!(
        "bind {host}\nport {}\nunixsocket {}\nunixsocketperm 700\ndir {}\nsave \"\"\nappendonly no\n\
         protected-mode no\nenable-debug-command yes\nrepl-diskless-sync-delay 0\nbusy-reply-threshold 60000\n",
        port.number(),
        folder.path().join("valkey.sock").display(),
        folder.path().display(),
    );
    if let Some(bus) = bus {
        text += &format!("cluster-enabled yes\ncluster-config-file nodes.conf\ncluster-port {}\n", bus.number());
    }
    for line in lines {
        text += &format!("{line}\n");
    }
    text
}
