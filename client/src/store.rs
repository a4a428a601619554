//! A store job: Reserve, copies, Commit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use umbp_connector_core::key::{LOCAL_KEY_BYTES, LocalKey};
use umbp_protocol::message::{Extent, LeaseId, Reply, Request, ReserveItem, Reserved, WireKey};

use crate::clock::{ms, now_ns};
use crate::job::Job;
use crate::options::{Checksums, Error};
use crate::outcome::{FailCause, Outcome};
use crate::pool::Task;
use crate::region::Run;
use crate::session::{Lease, Session};

/// One block to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreBlock {
    /// Its key.
    pub key: LocalKey,
    /// Key of the block before it in the chain; none for a root.
    pub parent: Option<LocalKey>,
    /// Distance from the root.
    pub depth: u32,
    /// Where its bytes lie, in their order.
    pub runs: Vec<Run>,
}

/// Parent and depth of each block, in the order of the job.
pub(crate) type Chain = Vec<([u8; LOCAL_KEY_BYTES], u32)>;

/// Asks for room; the answer starts the copies.
pub(crate) fn begin(job: &Arc<Job>, session: &Arc<Session>, chain: &Chain) {
    let namespace = session.namespace();
    let item = |index: &usize| ReserveItem {
        key: WireKey { namespace, local: job.keys[*index] },
        parent: chain[*index].0,
        depth: chain[*index].1,
        length: job.bytes_of(*index),
    };
    let request = Request::Reserve { items: job.asked.iter().map(item).collect() };
    let (job, session_, sent_ns) = (Arc::clone(job), Arc::clone(session), now_ns());
    let then = move |answer| reserved(&job, &session_, sent_ns, answer);
    session.call(&request, Box::new(then));
}

fn reserved(job: &Arc<Job>, session: &Arc<Session>, sent_ns: u64, answer: Result<Reply, Error>) {
    let (id, lease_ms, items) = match answer {
        Ok(Reply::Reserve { lease, lease_ms, items }) if items.len() == job.asked.len() => (lease, lease_ms, items),
        Ok(_) => return job.wrong_answer("Reserve"),
        Err(error) => return job.request_failed(&error),
    };
    let lease = new_lease(job, id, sent_ns, lease_ms);
    let (mut settled, mut tasks, mut leased_count) = (Vec::new(), Vec::new(), 0);
    for (leased, item) in items.into_iter().enumerate() {
        let index = job.asked[leased];
        let outcome = match item {
            Reserved::Extent(extent) => {
                leased_count += 1;
                match task(job, session, leased, extent, &lease) {
                    Some(task) => {
                        tasks.push(task);
                        continue;
                    }
                    None => Outcome::Failed(FailCause::BadExtent),
                }
            }
            Reserved::Present => Outcome::Present,
            Reserved::BeingWritten => Outcome::BeingWritten,
            Reserved::Refused => Outcome::Refused,
            Reserved::LengthDiffers => Outcome::Failed(FailCause::LengthDiffers),
            Reserved::Invalid => Outcome::Failed(FailCause::Invalid),
        };
        settled.push((index, outcome));
    }
    start_copies(job, session, &lease, settled, BTreeSet::new(), tasks, leased_count);
}

fn task(job: &Arc<Job>, session: &Session, leased: usize, extent: Extent, lease: &Arc<Lease>) -> Option<Task> {
    let index = job.asked[leased];
    let (segment, length) = (session.segment(extent.segment)?, job.bytes_of(index));
    segment.writable(extent.offset, length)?;
    Some(Task {
        job: Arc::clone(job),
        index,
        leased: leased as u32,
        lease: Arc::clone(lease),
        segment,
        generations: None,
        extent,
        length,
        checksum: 0,
        tier: 0,
        check: job.shared.options.checksums != Checksums::Off,
    })
}

pub(crate) fn new_lease(job: &Arc<Job>, id: LeaseId, sent_ns: u64, lease_ms: u32) -> Arc<Lease> {
    let deadline_ns = AtomicU64::new(sent_ns.saturating_add(ms(lease_ms)));
    Arc::new(Lease { id, deadline_ns, life_ns: ms(lease_ms), job: Arc::downgrade(job) })
}

/// Keeps the lease, and copies: at once on this thread if it is little, which saves waking another one.
pub(crate) fn start_copies(
    job: &Arc<Job>,
    session: &Arc<Session>,
    lease: &Arc<Lease>,
    settled: Vec<(usize, Outcome)>,
    promoting: BTreeSet<u32>,
    tasks: Vec<Task>,
    leased_count: usize,
) {
    if lease.id.0 != 0 {
        session.keep_lease(lease);
    } else if leased_count > 0 {
        return job.wrong_answer("a request for extents");
    }
    if !job.begin_copies(lease, settled, promoting, tasks.len(), leased_count) {
        return;
    }
    let bytes: u64 = tasks.iter().map(|task| task.length).sum();
    if bytes <= crate::pool::INLINE_COPY_BYTES {
        tasks.into_iter().for_each(Task::run);
    } else {
        job.shared.pool.push(tasks);
    }
}
