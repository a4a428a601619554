//! P5, P9, P10: how operations, calls and lives end.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::super::blocks::Block;
use super::super::judge::{Taken, expect_in};
use super::super::life::{Life, Stored};
use super::super::run::{Lab, Verdict};
use crate::types::{Operation, Status, code};

const BLOCK_BYTES: u64 = 1_124_352;

/// Operations of one kind that are in flight when the end comes.
const IN_FLIGHT: u64 = 16;

/// Rounds of looking for threads: those of other work in this process may come in between, but not each time.
const THREAD_ROUNDS: usize = 3;

/// Between two looks at the list of threads, which nobody signals.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

fn puts(life: &Life, first: u64) -> Vec<(Block, Operation)> {
    let room = life.room(BLOCK_BYTES);
    let block = |at| Block::new(first + at, BLOCK_BYTES);
    (0..IN_FLIGHT).map(|at| (block(at), life.put_operation(&block(at), at * room))).collect()
}

pub(in super::super) fn cancelled_work_completes_once(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    // Unknown numbers and none at all harm nobody.
    life.live.cancel(&[u64::MAX, 0]);
    life.live.cancel(&[]);
    let puts = puts(&life, 0);
    let operations: Vec<Operation> = puts.iter().map(|(_, operation)| *operation).collect();
    let mut kept = Vec::new();
    for ((block, operation), ended) in puts.iter().zip(submit_and_cancel(&life, &operations)?) {
        let Some(ended) = ended else { continue };
        expect_in("a cancelled put", ended.status, &[Status::OK, Status::CANCELLED])?;
        let stored = Stored { block: *block, location: ended.location, checksum: operation.checksum };
        if ended.status == Status::OK {
            kept.push(stored);
        } else {
            whole_or_absent(&life, &stored)?;
        }
    }
    life.get_all(&kept)?;
    let blocks: Vec<Block> = (100..100 + IN_FLIGHT).map(|number| Block::new(number, BLOCK_BYTES)).collect();
    let stored = life.put(&blocks)?;
    let room = life.room(BLOCK_BYTES);
    let gets: Vec<Operation> =
        stored.iter().zip(0..).map(|(one, at)| life.stored_operation(code::GET, one, at * room)).collect();
    for (at, ended) in submit_and_cancel(&life, &gets)?.into_iter().enumerate() {
        let Some(ended) = ended else { continue };
        expect_in("a cancelled get", ended.status, &[Status::OK, Status::CANCELLED])?;
        let bytes = life.sink.read(at as u64 * room, BLOCK_BYTES as usize);
        if ended.status == Status::OK && bytes != stored[at].block.bytes() {
            return Err("WRONG BYTES: a get that was cancelled, and ended as ok".to_owned());
        }
    }
    // A get that was cancelled changed nothing.
    life.get_all(&stored)?;
    life.end()?;
    Ok(Verdict::Held)
}

/// Submits once, cancels all, waits; `None` for what was busy.
fn submit_and_cancel(life: &Life, operations: &[Operation]) -> Result<Vec<Option<crate::Completion>>, String> {
    let taken = life.submit(operations)?;
    let ids: Vec<u64> =
        taken.iter().filter_map(|one| if let Taken::Accepted(id) = one { Some(*id) } else { None }).collect();
    life.live.cancel(&ids);
    let mut ended = life.desk.wait(&ids, life.wait)?.into_iter();
    taken
        .iter()
        .map(|one| match one {
            Taken::Accepted(_) => Ok(ended.next()),
            Taken::Busy => Ok(None),
            Taken::Refused(status) => Err(format!("a good operation was refused: {status:?}")),
        })
        .collect()
}

/// A put that did not end as ok left nothing, or all.
fn whole_or_absent(life: &Life, stored: &Stored) -> Result<(), String> {
    let there = life.exists(stored)?;
    if there.status == Status::OK {
        let found = Stored { location: there.location, ..*stored };
        return life.get_all(&[found]).map_err(|error| format!("a put was neither whole nor absent: {error}"));
    }
    expect_in("exists after a cancelled put", there.status, &[Status::MISS])
}

pub(in super::super) fn shutdown_completes_work(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    let blocks: Vec<Block> = (100..100 + IN_FLIGHT).map(|number| Block::new(number, BLOCK_BYTES)).collect();
    let stored = life.put(&blocks)?;
    let room = life.room(BLOCK_BYTES);
    let mut operations: Vec<Operation> = puts(&life, 0).into_iter().map(|(_, operation)| operation).collect();
    operations.extend(stored.iter().zip(0..).map(|(one, at)| life.stored_operation(code::GET, one, at * room)));
    let taken = life.submit(&operations)?;
    life.live.shutdown(life.wait);
    let allowed = [Status::OK, Status::CANCELLED];
    for (at, one) in taken.iter().enumerate() {
        let Taken::Accepted(id) = one else { continue };
        let Some(ended) = life.desk.take(*id) else {
            return life.give_up(format!("operation {at} in flight was not completed when shutdown returned"));
        };
        if let Err(sentence) = expect_in("work in flight at shutdown", ended.status, &allowed) {
            return life.give_up(sentence);
        }
    }
    life.end_after_shutdown()?;
    Ok(Verdict::Held)
}

pub(in super::super) fn no_call_panics(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    // Calls that a host may make at any time, with arguments that mean nothing.
    for id in [0, 1, u64::MAX] {
        let calls = [
            ("region_unregister", life.live.region_unregister(id.wrapping_add(50))),
            ("segment_destroy", life.live.segment_destroy(id)),
            ("cancel", life.live.cancel(&[id])),
            ("namespace_drop", life.live.namespace_drop(u32::MAX)),
            ("extension", life.live.extension(id, &[]).err().unwrap_or(Status::OK)),
            ("stats", life.live.stats().err().unwrap_or(Status::OK)),
        ];
        for (call, status) in calls {
            if status == Status::PANICKED {
                let why = life.live.failure().unwrap_or_default();
                return Err(format!("{call} panicked where its argument means nothing: {why}"));
            }
        }
    }
    expect_in("flush", life.live.flush(), &[Status::OK])?;
    life.end()?;
    Ok(Verdict::Held)
}

pub(in super::super) fn no_thread_outlives_shutdown(lab: &Lab) -> Result<Verdict, String> {
    let mut left = BTreeSet::new();
    for _ in 0..THREAD_ROUNDS {
        let before = threads();
        let (_storage, life) = Life::fresh(lab)?;
        if !lab.facts.mappable && lab.facts.role == crate::Role::Storage {
            let stored = life.put(&[Block::new(0, 73_728), Block::new(1, 61)])?;
            life.get_all(&stored)?;
        }
        let during = threads();
        life.end()?;
        let own: BTreeSet<Thread> = during.difference(&before).cloned().collect();
        left = outliving(&own, lab.wait());
        if left.is_empty() {
            return Ok(Verdict::Held);
        }
    }
    let names: Vec<&str> = left.iter().map(|thread| thread.name.as_str()).collect();
    Err(format!("threads that still run after shutdown: {}", names.join(", ")))
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Thread {
    id: u64,
    name: String,
}

/// Threads of this process, without the kernel's own workers.
fn threads() -> BTreeSet<Thread> {
    let Ok(folder) = std::fs::read_dir("/proc/self/task") else { return BTreeSet::new() };
    let thread = |entry: std::fs::DirEntry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?.trim().to_owned();
        Some(Thread { id, name })
    };
    // An io_uring's workers belong to the kernel, which ends them in its own time.
    folder.filter_map(|entry| thread(entry.ok()?)).filter(|thread| !thread.name.starts_with("iou-")).collect()
}

/// Those that are still there; a joined thread stays listed for a moment.
fn outliving(own: &BTreeSet<Thread>, wait: Duration) -> BTreeSet<Thread> {
    let deadline = Instant::now() + wait.min(Duration::from_secs(1));
    loop {
        let left: BTreeSet<Thread> = threads().intersection(own).cloned().collect();
        if left.is_empty() || Instant::now() >= deadline {
            return left;
        }
        std::thread::park_timeout(LOOK_AGAIN);
    }
}
