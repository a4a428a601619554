//! Which server has which slot of a cluster, and how that is learned.
//!
//! The map is asked for in the background: when a server redirects, fails, or a slot has no master. Nothing waits for
//! it but the very first calls, so a server that hangs delays those of its own slots alone.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::cmd;
use tokio::sync::watch;

use super::connect::{Access, Place};
use super::fault::{Refusal, nonsense};
use super::node::Node;
use super::slots::{Range, SLOTS, ranges, slot_of};
use crate::objects::Fault;
use crate::options::Address;

/// Most servers of one cluster that are ever known; the specification recommends no more.
const NODES_MAX: usize = 1000;
/// Servers that are asked for the map at a time.
const ASKED_MAX: usize = 8;
/// The map is asked for no more often than this.
const ASK_PAUSE: Duration = Duration::from_millis(100);
/// No server has the slot, as far as is known.
const NOBODY: u16 = u16::MAX;

/// A cluster.
pub(super) struct Cluster {
    access: Arc<Access>,
    connections: usize,
    /// By number. Those that were named in the options come first; none is ever removed.
    nodes: RwLock<Vec<Arc<Node>>>,
    /// For each slot, its master's number.
    masters: Vec<AtomicU16>,
    asking: AtomicBool,
    /// When the map was asked for last, and where the next round begins.
    last: Mutex<(Option<Instant>, usize)>,
    /// How often it was asked for, and how that went.
    rounds: watch::Sender<(u64, Option<Fault>)>,
    known: AtomicBool,
}

impl Cluster {
    /// A cluster of which no more is known than where it can be entered.
    pub(super) fn new(addresses: &[Address], access: Arc<Access>, connections: usize) -> Arc<Self> {
        let seed = |(number, address): (usize, &Address)| {
            Arc::new(Node::new(number, Place::Fixed(address.clone()), access.clone(), connections))
        };
        Arc::new(Self {
            connections,
            nodes: RwLock::new(addresses.iter().enumerate().map(seed).collect()),
            masters: (0..SLOTS).map(|_| AtomicU16::new(NOBODY)).collect(),
            asking: AtomicBool::new(false),
            last: Mutex::new((None, 0)),
            rounds: watch::Sender::new((0, None)),
            known: AtomicBool::new(false),
            access,
        })
    }

    /// The number of a name's master, 0 where it is not known.
    pub(super) fn endpoint(&self, name: &str) -> usize {
        match self.masters[slot_of(name)].load(Ordering::Relaxed) {
            NOBODY => 0,
            number => usize::from(number),
        }
    }

    /// The master of a name, or why there is none.
    pub(super) fn master(self: &Arc<Self>, name: &str) -> Result<Arc<Node>, Fault> {
        let number = self.masters[slot_of(name)].load(Ordering::Relaxed);
        if let Some(node) = self.node(usize::from(number)) {
            return Ok(node);
        }
        self.ask();
        let text = "no server has this slot, as far as the servers tell".to_owned();
        Err(Fault::Refused { word: "cluster-down", text })
    }

    /// A server by its number.
    pub(super) fn node(&self, number: usize) -> Option<Arc<Node>> {
        self.nodes.read().unwrap_or_else(|e| e.into_inner()).get(number).cloned()
    }

    /// Whether it is the master of any slot.
    pub(super) fn serves(&self, number: usize) -> bool {
        self.masters.iter().any(|master| usize::from(master.load(Ordering::Relaxed)) == number)
    }

    /// The server at an address, which may be new.
    pub(super) fn at(&self, address: &Address) -> Result<Arc<Node>, Fault> {
        let same = |node: &&Arc<Node>| matches!(&*node.place, Place::Fixed(known) if known == address);
        let mut nodes = self.nodes.write().unwrap_or_else(|e| e.into_inner());
        if let Some(known) = nodes.iter().find(same) {
            return Ok(known.clone());
        }
        if nodes.len() >= NODES_MAX {
            return Err(Fault::Nonsense(format!(
                "more than {NODES_MAX} servers were named: restart to forget old ones"
            )));
        }
        let place = Place::Fixed(address.clone());
        let node = Arc::new(Node::new(nodes.len(), place, self.access.clone(), self.connections));
        nodes.push(node.clone());
        Ok(node)
    }

    /// A server says that another has this name's slot: it is believed, and the rest is asked for.
    pub(super) fn moved(self: &Arc<Self>, name: &str, address: &Address) -> Result<Arc<Node>, Fault> {
        let node = self.at(address)?;
        self.masters[slot_of(name)].store(node.number as u16, Ordering::Relaxed);
        self.ask();
        Ok(node)
    }

    /// Waits until the map is known, for the first time.
    pub(super) async fn learned(self: &Arc<Self>) -> Result<(), Fault> {
        if self.known.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut rounds = self.rounds.subscribe();
        let begun = rounds.borrow_and_update().0;
        self.ask();
        // The sender lives as long as `self`.
        let ended = rounds.wait_for(|(round, _)| *round > begun).await.map(|round| round.1.clone());
        match ended {
            Ok(Some(fault)) => Err(fault),
            _ => Ok(()),
        }
    }

    /// Has the map asked for in the background, unless that is under way.
    pub(super) fn ask(self: &Arc<Self>) {
        if self.asking.swap(true, Ordering::AcqRel) {
            return;
        }
        let round = Round { cluster: self.clone(), ended: false };
        tokio::spawn(async move {
            let pause = {
                let last = locked(&round.cluster.last).0;
                last.map_or(Duration::ZERO, |at| ASK_PAUSE.saturating_sub(at.elapsed()))
            };
            tokio::time::sleep(pause).await;
            let ended = round.cluster.asked().await;
            round.ended(ended);
        });
    }

    /// Asks several servers; the first that knows a master of every slot is believed, else the one that knows most. One
    /// that knows none (forgotten by the others, say) says nothing.
    async fn asked(&self) -> Result<(), Fault> {
        let nodes = self.nodes.read().unwrap_or_else(|e| e.into_inner()).clone();
        let start = {
            let mut last = locked(&self.last);
            *last = (Some(Instant::now()), last.1.wrapping_add(ASKED_MAX));
            last.1
        };
        let count = nodes.len();
        // With many servers each round asks others, so that some dead ones are not all that is asked for ever.
        let some = (0..count.min(ASKED_MAX)).map(|at| &nodes[(start.wrapping_add(at)) % count]);
        let mut answers: FuturesUnordered<_> = some.map(|node| map_of(node)).collect();
        let mut fault = Fault::Unreachable("no server to ask".to_owned());
        let (mut widest, mut most) = (Vec::new(), 0);
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(ranges) => {
                    let covered: usize = ranges.iter().map(|(from, to, _)| to - from + 1).sum();
                    if covered > most {
                        (widest, most) = (ranges, covered);
                    }
                    if most >= SLOTS {
                        break;
                    }
                    let text = "no server knows a master of any slot".to_owned();
                    fault = Fault::Refused { word: "cluster-down", text };
                }
                Err(found) => fault = found,
            }
        }
        if most > 0 { self.learn(&widest) } else { Err(fault) }
    }

    fn learn(&self, ranges: &[Range]) -> Result<(), Fault> {
        let mut masters = vec![NOBODY; SLOTS];
        for (from, to, address) in ranges {
            let number = self.at(address)?.number as u16;
            masters[*from..=*to].fill(number);
        }
        for (slot, number) in self.masters.iter().zip(masters) {
            slot.store(number, Ordering::Relaxed);
        }
        self.known.store(true, Ordering::Release);
        Ok(())
    }
}

async fn map_of(node: &Node) -> Result<Vec<Range>, Fault> {
    let mut command = cmd("CLUSTER");
    command.arg("SLOTS");
    match node.quick(&command).await {
        Ok(answer) => ranges(&answer, node.place.host()).ok_or_else(|| nonsense(&answer)),
        Err(Refusal::Fault(Fault::Nonsense(text))) if text.contains("cluster support disabled") => {
            Err(Fault::Refused { word: "no-cluster", text })
        }
        Err(Refusal::Fault(fault)) => Err(fault),
        Err(other) => Err(Fault::Nonsense(format!("{other:?}"))),
    }
}

/// A round under way. Dropped before its end, nobody waits for it any more.
struct Round {
    cluster: Arc<Cluster>,
    ended: bool,
}

impl Round {
    fn ended(mut self, ended: Result<(), Fault>) {
        self.ended = true;
        self.tell(ended);
    }

    fn tell(&self, ended: Result<(), Fault>) {
        self.cluster.asking.store(false, Ordering::Release);
        self.cluster.rounds.send_modify(|(round, fault)| {
            *round += 1;
            *fault = ended.err();
        });
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        if !self.ended {
            self.tell(Err(Fault::Unreachable("asking for the slots ended early".to_owned())));
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
