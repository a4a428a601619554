//! A load job: Acquire, copies (of promoted blocks as they come), Release.

use std::collections::BTreeSet;
use std::sync::Arc;

use umbp_connector_core::key::LocalKey;
use umbp_protocol::message::{Acquired, Reply, Request, WireKey};

use crate::clock::now_ns;
use crate::job::Job;
use crate::options::{Checksums, Error};
use crate::outcome::{FailCause, Outcome};
use crate::pool::Task;
use crate::region::Run;
use crate::session::{Lease, Session};
use crate::store::{new_lease, start_copies};

/// One block to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadBlock {
    /// Its key.
    pub key: LocalKey,
    /// Where its bytes are to go, in their order; together exactly as long as the block.
    pub runs: Vec<Run>,
}

/// Asks for the extents; the answer starts the copies.
pub(crate) fn begin(job: &Arc<Job>, session: &Arc<Session>) {
    let namespace = session.namespace();
    let key = |index: &usize| WireKey { namespace, local: job.keys[*index] };
    let request = Request::Acquire { keys: job.asked.iter().map(key).collect() };
    let (job, session_, sent_ns) = (Arc::clone(job), Arc::clone(session), now_ns());
    let then = move |answer| acquired(&job, &session_, sent_ns, answer);
    session.call(&request, Box::new(then));
}

fn acquired(job: &Arc<Job>, session: &Arc<Session>, sent_ns: u64, answer: Result<Reply, Error>) {
    let (id, lease_ms, items) = match answer {
        Ok(Reply::Acquire { lease, lease_ms, items }) if items.len() == job.asked.len() => (lease, lease_ms, items),
        Ok(_) => return job.wrong_answer("Acquire"),
        Err(error) => return job.request_failed(&error),
    };
    let lease = new_lease(job, id, sent_ns, lease_ms);
    let (mut settled, mut tasks, mut promoting) = (Vec::new(), Vec::new(), BTreeSet::new());
    let mut leased_count = 0;
    for (leased, item) in items.into_iter().enumerate() {
        leased_count += usize::from(!matches!(item, Acquired::Miss(_)));
        let leased = leased as u32;
        if item == Acquired::Pending {
            promoting.insert(leased);
            continue;
        }
        match task(job, leased, item, &lease) {
            Ok(task) => tasks.push(task),
            Err(outcome) => settled.push((job.asked[leased as usize], outcome)),
        }
    }
    start_copies(job, session, &lease, settled, promoting, tasks, leased_count);
}

/// The copy of a block that is ready, or how the block has ended.
pub(crate) fn task(job: &Arc<Job>, leased: u32, item: Acquired, lease: &Arc<Lease>) -> Result<Task, Outcome> {
    let (extent, length, checksum, tier) = match item {
        Acquired::Ready { extent, length, checksum, tier } => (extent, length, checksum, tier),
        Acquired::Miss(reason) => return Err(Outcome::Missed(reason)),
        Acquired::Pending => return Err(Outcome::Failed(FailCause::BadExtent)),
    };
    let failed = |cause| Outcome::Failed(cause);
    let index = job.asked[leased as usize];
    if length != job.bytes_of(index) {
        return Err(failed(FailCause::LengthDiffers));
    }
    let session = job.session.as_ref().ok_or(failed(FailCause::Detached))?;
    let lost = || failed(if session.is_lost() { FailCause::SessionLost } else { FailCause::BadExtent });
    let segment = session.segment(extent.segment).ok_or_else(lost)?;
    let generations = session.generations().ok_or_else(lost)?;
    if segment.readable(extent.offset, length).is_none() || generations.get(extent.slot).is_none() {
        return Err(failed(FailCause::BadExtent));
    }
    let check = match job.shared.options.checksums {
        Checksums::Always => true,
        Checksums::Policy => tier > 0 || session.welcome.limits.verify_dram,
        Checksums::Off => false,
    };
    Ok(Task {
        job: Arc::clone(job),
        index,
        leased,
        lease: Arc::clone(lease),
        segment,
        generations: Some(generations),
        extent,
        length,
        checksum,
        tier,
        check,
    })
}
