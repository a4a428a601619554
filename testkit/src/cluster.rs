//! A Valkey cluster on loopback.

use crate::resp::Reply;
use crate::servers::Servers;
use crate::valkey::{Kind, Valkey};
use crate::wait::until;

/// Slots of every cluster.
pub const SLOTS: usize = 16_384;
/// A node that is silent for so long is failing; a busy test machine holds one up for a second.
const NODE_TIMEOUT_MS: u32 = 3000;

/// Masters with an equal share of the slots each, and what replicas were added. Slots of a node that is gone are the
/// only ones that fail.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Valkey>,
    lines: Vec<String>,
}

impl Cluster {
    /// So many masters, with more lines of configuration. Waits until each knows all and serves.
    pub fn start(servers: &Servers, masters: usize, lines: &[&str]) -> Self {
        let mut own = vec![
            format!("cluster-node-timeout {NODE_TIMEOUT_MS}"),
            "cluster-require-full-coverage no".to_owned(),
            "cluster-replica-validity-factor 0".to_owned(),
        ];
        own.extend(lines.iter().map(|line| (*line).to_owned()));
        let mut cluster = Self { nodes: Vec::new(), lines: own };
        for index in 0..masters {
            let node = cluster.node_alone(servers);
            let (first, last) = (SLOTS * index / masters, SLOTS * (index + 1) / masters - 1);
            sure(&node, &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
            sure(&node, &["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            cluster.nodes.push(node);
            cluster.meet(index);
        }
        cluster.await_agreement();
        cluster
    }

    /// Adds a replica of node `master`, waits until it has what that one has, and answers its index.
    pub fn add_replica(&mut self, servers: &Servers, master: usize) -> usize {
        let index = self.nodes.len();
        let node = self.node_alone(servers);
        self.nodes.push(node);
        self.meet(index);
        self.await_agreement();
        let master = self.id(master);
        sure(&self.nodes[index], &["CLUSTER", "REPLICATE", &master]);
        until("a replica has what its master has", || {
            let told = self.nodes[index].ask(&["INFO", "replication"]).text();
            told.contains("master_link_status:up").then_some(())
        });
        index
    }

    fn node_alone(&self, servers: &Servers) -> Valkey {
        let kind = Kind { is_cluster: true, ..Kind::default() };
        Valkey::start(servers, &kind, &self.lines.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Tells the first node of another.
    fn meet(&self, index: usize) {
        let node = &self.nodes[index];
        let (port, bus) = (node.port().to_string(), node.bus_port().expect("a node has a bus").to_string());
        if index > 0 {
            sure(&self.nodes[0], &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
    }

    /// Waits until all nodes see all nodes and every slot as served.
    pub fn await_agreement(&self) {
        let known = format!("cluster_known_nodes:{}", self.nodes.len());
        until("all nodes of the cluster agree", || {
            let agrees = |node: &Valkey| {
                let told = node.ask(&["CLUSTER", "INFO"]).text();
                ["cluster_state:ok", "cluster_slots_ok:16384", &known].iter().all(|line| told.contains(line))
            };
            self.nodes.iter().all(agrees).then_some(())
        });
    }

    /// The addresses of all nodes.
    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(Valkey::address).collect()
    }

    /// One node.
    pub fn node(&self, index: usize) -> &Valkey {
        &self.nodes[index]
    }

    /// One node, to kill or to restart.
    pub fn node_mut(&mut self, index: usize) -> &mut Valkey {
        &mut self.nodes[index]
    }

    /// How many there are.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// A node's own id.
    pub fn id(&self, index: usize) -> String {
        self.nodes[index].ask(&["CLUSTER", "MYID"]).text()
    }

    /// The slot of a key.
    pub fn slot(&self, key: &str) -> usize {
        usize::try_from(self.any().ask(&["CLUSTER", "KEYSLOT", key]).integer()).expect("a slot")
    }

    /// The node that serves a slot, as the first one that answers sees it; `None` if nobody does.
    pub fn owner(&self, slot: usize) -> Option<usize> {
        let reply = self.any().ask(&["CLUSTER", "SLOTS"]);
        let range = reply.list().iter().map(Reply::list).find(|range| {
            let bound = |index: usize| usize::try_from(range[index].integer()).expect("a slot");
            (bound(0)..=bound(1)).contains(&slot)
        })?;
        let id = range[2].list()[2].text();
        (0..self.nodes.len()).find(|index| self.is_alive(*index) && self.id(*index) == id)
    }

    /// Moves a slot half: its owner answers `ASK` for what it has not, `to` serves what it is asked for so.
    pub fn begin_move(&self, slot: usize, to: usize) {
        let from = self.owner(slot).expect("an owner");
        let slot = slot.to_string();
        sure(&self.nodes[to], &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.id(from)]);
        sure(&self.nodes[from], &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.id(to)]);
    }

    /// Moves the keys of a slot on the way, some after the other.
    pub fn move_keys(&self, slot: usize, to: usize) {
        let from = &self.nodes[self.owner(slot).expect("an owner")];
        let (slot, port) = (slot.to_string(), self.nodes[to].port().to_string());
        loop {
            let keys = from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
            if keys.list().is_empty() {
                return;
            }
            for key in keys.list() {
                sure(from, &["MIGRATE", "127.0.0.1", &port, &key.text(), "0", "10000"]);
            }
        }
    }

    /// Ends a move: the slot is `to`'s, and its former owner answers `MOVED`.
    pub fn end_move(&self, slot: usize, to: usize) {
        let from = self.owner(slot).expect("an owner");
        let (slot, id) = (slot.to_string(), self.id(to));
        for node in [to, from] {
            sure(&self.nodes[node], &["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
    }

    /// Lets a node tell clients another port, that of a proxy before it; waits until all nodes tell it.
    pub fn announce(&self, index: usize, port: u16) {
        let (port, bus) = (port.to_string(), self.nodes[index].bus_port().expect("a node has a bus").to_string());
        sure(&self.nodes[index], &["CONFIG", "SET", "cluster-announce-port", &port, "cluster-announce-bus-port", &bus]);
        let words = format!("127.0.0.1:{port}@{bus}");
        until("all nodes tell the announced port", || {
            let tells = |node: &Valkey| node.ask(&["CLUSTER", "NODES"]).text().contains(&words);
            self.nodes.iter().all(tells).then_some(())
        });
    }

    fn is_alive(&self, index: usize) -> bool {
        self.nodes[index].try_ask(&["PING"]).is_ok()
    }

    fn any(&self) -> &Valkey {
        let index = (0..self.nodes.len()).find(|index| self.is_alive(*index)).expect("a node that answers");
        &self.nodes[index]
    }
}

/// Asks for what must succeed.
fn sure(node: &Valkey, words: &[&str]) {
    let reply = node.ask(words);
    assert!(reply.is_ok(), "{words:?} at {}: {reply:?}", node.address());
}
