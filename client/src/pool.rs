//! The copy threads: a fixed number, fed by one queue, one block at a time.
//!
//! The queue is bounded by [`crate::options::COPY_QUEUE_BLOCKS_MAX`], which jobs are counted against when they begin.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use umbp_plugin_api::checksum::Checksum;
use umbp_protocol::message::Extent;

use crate::copy::{gather, scatter};
use crate::job::{Job, Kind};
use crate::mapping::{Generations, Segment};
use crate::outcome::{Counter, FailCause};
use crate::session::Lease;

/// Jobs of at most so many bytes are copied by the thread that reads their answer: waking another one takes longer.
pub(crate) const INLINE_COPY_BYTES: u64 = 64 << 10;

/// One block to copy. It keeps its segment mapped as long as it lives.
pub(crate) struct Task {
    pub(crate) job: Arc<Job>,
    /// Index of the block in the job.
    pub(crate) index: usize,
    /// Index of the block in the lease.
    pub(crate) leased: u32,
    pub(crate) lease: Arc<Lease>,
    pub(crate) segment: Arc<Segment>,
    pub(crate) generations: Option<Arc<Generations>>,
    pub(crate) extent: Extent,
    pub(crate) length: u64,
    /// Loads: what the daemon knows of the block.
    pub(crate) checksum: u64,
    pub(crate) tier: u8,
    /// Compute the checksum; a load then compares it.
    pub(crate) check: bool,
}

/// What a copy came to: the block's checksum (0 where none was computed), or why it failed.
pub(crate) type Copied = Result<u64, FailCause>;

impl Task {
    /// Copies the block, if nobody has settled it meanwhile, and tells the job.
    pub(crate) fn run(self) {
        let Some(touch) = self.job.touch(self.index) else {
            return self.job.skipped();
        };
        let copied = catch_unwind(AssertUnwindSafe(|| self.copy())).unwrap_or_else(|_| {
            self.job.shared.counters.add(Counter::Panics, 1);
            Err(FailCause::Panicked)
        });
        let Self { job, leased, tier, length, segment, generations, .. } = self;
        // Unmapped, if this was the last user of a withdrawn segment or a lost session, before the job can end.
        drop((segment, generations));
        job.copied(touch, leased, copied, tier, length);
    }

    fn copy(&self) -> Copied {
        let key = &self.job.keys[self.index];
        let mut checksum = self.check.then(|| Checksum::new(&self.job.session_digest(), key, self.length));
        let spans = self.job.spans_of(self.index);
        let may_go_on = || !self.job.is_stopped() && !self.lease.is_over();
        let range = (self.extent.offset, self.length);
        let stopped = match self.job.kind {
            Kind::Store => {
                let to = self.segment.writable(range.0, range.1).ok_or(FailCause::BadExtent)?;
                // SAFETY: the spans lie in registered regions, which their owner keeps valid and lets nobody else
                // write while the job is open, and they are `length` bytes together, as was checked when the task was
                // made; the extent lies in the mapping that this task holds, and is leased to this job alone.
                unsafe { gather(spans, to, checksum.as_mut(), may_go_on) }
            }
            Kind::Load => {
                let from = self.segment.readable(range.0, range.1).ok_or(FailCause::BadExtent)?;
                // SAFETY: as above, in the other direction; what another process may write to the extent meanwhile is
                // found by the generation below.
                unsafe { scatter(from, spans, checksum.as_mut(), may_go_on) }
            }
        };
        if stopped.is_err() || self.lease.is_over() {
            // The job knows better if it was stopped; otherwise it was the lease.
            return Err(FailCause::LeaseExpired);
        }
        let sum = checksum.map_or(0, |checksum| checksum.finish());
        if self.job.kind == Kind::Load {
            // The bytes were read before the word is: whoever reuses the extent changes the word first.
            fence(Ordering::Acquire);
            let now = self.generations.as_ref().and_then(|table| table.get(self.extent.slot));
            if now != Some(self.extent.generation) {
                return Err(FailCause::GenerationChanged);
            }
            if self.check && sum != self.checksum {
                return Err(FailCause::ChecksumMismatch);
            }
        }
        Ok(sum)
    }
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    closed: bool,
}

/// The threads and their queue.
#[derive(Default)]
pub(crate) struct Pool {
    queue: Mutex<Queue>,
    more: Condvar,
}

impl Pool {
    pub(crate) fn start(self: &Arc<Self>, threads: usize) -> std::io::Result<Vec<JoinHandle<()>>> {
        let start = |n| {
            let pool = Arc::clone(self);
            std::thread::Builder::new().name(format!("umbp-copy-{n}")).spawn(move || pool.work())
        };
        (0..threads).map(start).collect()
    }

    /// Appends the tasks, in order.
    pub(crate) fn push(&self, tasks: Vec<Task>) {
        let count = tasks.len();
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.tasks.extend(tasks);
        drop(queue);
        if count == 1 { self.more.notify_one() } else { self.more.notify_all() }
    }

    /// Threads end once the queue is empty.
    pub(crate) fn close(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.more.notify_all();
    }

    fn work(&self) {
        loop {
            let task = {
                let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
                loop {
                    if let Some(task) = queue.tasks.pop_front() {
                        break task;
                    }
                    if queue.closed {
                        return;
                    }
                    queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            };
            task.run();
        }
    }
}
