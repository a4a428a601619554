//! P3, P4, P8: what `submit` takes and refuses.

use super::super::blocks::Block;
use super::super::judge::{Taken, expect, expect_in};
use super::super::life::{Life, SINK, SOURCE, Stored};
use super::super::memory::Memory;
use super::super::run::{Lab, Verdict};
use crate::types::{Operation, Status, code};

const BLOCK_BYTES: u64 = 73_728;

/// A region that no life registers.
const NOWHERE: u64 = 4_242;

/// Threads that submit at the same time, and puts of each.
const THREADS: u64 = 4;
const PUTS_OF_A_THREAD: u64 = 24;

pub(in super::super) fn an_unknown_region_is_invalid(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    let stored = life.put(&[Block::new(0, BLOCK_BYTES)])?;
    let put = life.put_operation(&Block::new(1, BLOCK_BYTES), 0);
    let get = life.stored_operation(code::GET, &stored[0], 0);
    for (what, operation) in [("a put", put), ("a get", get)] {
        let ended = life.one(Operation { region: NOWHERE, ..operation })?;
        expect(&format!("{what} with an unknown region"), ended.status, Status::INVALID)?;
    }
    life.get_all(&stored)?;
    life.end()?;
    Ok(Verdict::Held)
}

pub(in super::super) fn a_range_outside_its_region_is_invalid(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    let block = Block::new(0, BLOCK_BYTES);
    let stored = life.put(&[block])?;
    let put = life.put_operation(&Block::new(1, BLOCK_BYTES), 0);
    let get = life.stored_operation(code::GET, &stored[0], 0);
    let end = life.source.length();
    for offset in [end, end - life.step(), u64::MAX - life.step() + 1, 1 << 62] {
        for (what, operation) in [("a put", put), ("a get", get)] {
            let ended = life.one(Operation { offset, ..operation })?;
            let what = format!("{what} of {BLOCK_BYTES} bytes at {offset} of a region of {end}");
            expect(&what, ended.status, Status::INVALID)?;
        }
    }
    for length in [end + life.step(), u64::MAX] {
        let ended = life.one(Operation { length, ..put })?;
        let what = format!("a put of {length} bytes from a region of {end}");
        expect_in(&what, ended.status, &[Status::INVALID, Status::NO_SPACE])?;
    }
    life.get_all(&stored)?;
    life.end()?;
    Ok(Verdict::Held)
}

pub(in super::super) fn a_region_is_let_go(lab: &Lab) -> Result<Verdict, String> {
    const OWN: u64 = 9;
    let (_storage, life) = Life::fresh(lab)?;
    let stored = life.put(&[Block::new(0, BLOCK_BYTES)])?;
    // The number comes again with other memory, as the host's numbers may.
    for _ in 0..2 {
        let memory = Memory::new(1 << 20)?;
        // SAFETY: unmapped after `region_unregister` has returned, at the end of this block.
        let status = unsafe { life.live.region_register(OWN, memory.address(), memory.length(), "") };
        expect("region_register", status, Status::OK)?;
        let get = Operation { region: OWN, ..life.stored_operation(code::GET, &stored[0], 0) };
        expect("a get into a region of its own", life.one(get)?.status, Status::OK)?;
        if memory.read(0, BLOCK_BYTES as usize) != stored[0].block.bytes() {
            return Err("WRONG BYTES: a get into a region registered later".to_owned());
        }
        expect("region_unregister", life.live.region_unregister(OWN), Status::OK)?;
        // Still mapped here, so that a backend which kept it is told of, and does not bring the process down.
        expect("a get into an unregistered region", life.one(get)?.status, Status::INVALID)?;
        drop(memory);
    }
    life.live.region_unregister(NOWHERE);
    life.get_all(&stored)?;
    life.end()?;
    Ok(Verdict::Held)
}

pub(in super::super) fn an_unknown_code_is_unsupported(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    for code in [0, 8, 4_711, u32::MAX] {
        let operation = Operation { code, namespace_id: 1, region: SOURCE, length: 61, ..Operation::default() };
        expect(&format!("operation code {code}"), life.one(operation)?.status, Status::UNSUPPORTED)?;
    }
    let unfit = if lab.facts.mappable {
        vec![code::PUT, code::GET, code::DELETE, code::EXISTS, code::COPY_TO_DEVICE]
    } else if lab.facts.role == crate::Role::Storage {
        vec![code::COPY_TO_DEVICE, code::COPY_FROM_DEVICE]
    } else {
        vec![code::PUT, code::GET, code::DELETE, code::EXISTS]
    };
    for code in unfit {
        let operation = Operation { code, namespace_id: 1, region: SOURCE, length: 61, ..Operation::default() };
        let what = format!("operation code {code}, which is not for its role");
        expect(&what, life.one(operation)?.status, Status::UNSUPPORTED)?;
    }
    life.end()?;
    Ok(Verdict::Held)
}

pub(in super::super) fn an_unknown_namespace_is_invalid(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    let put = life.put_operation(&Block::new(0, BLOCK_BYTES), 0);
    for namespace_id in [0, 77, u32::MAX] {
        let ended = life.one(Operation { namespace_id, ..put })?;
        expect(&format!("a put into namespace {namespace_id}, which was never put"), ended.status, Status::INVALID)?;
    }
    life.end()?;
    Ok(Verdict::Held)
}

pub(in super::super) fn more_than_the_slots(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    let count = u64::from(lab.options.slots) * 4;
    let blocks: Vec<Block> = (0..count).map(|number| Block::new(number, BLOCK_BYTES - number)).collect();
    // One call with four times the slots; `put` tries again what was busy.
    let stored = life.put(&blocks)?;
    life.get_all(&stored)?;
    let asks: Vec<_> = stored.iter().map(|one| life.stored_operation(code::EXISTS, one, 0)).collect();
    for ended in life.perform(&asks)? {
        expect("exists, asked for all at once", ended.status, Status::OK)?;
    }
    life.perform(&[])?;
    life.end()?;
    Ok(Verdict::Held)
}

pub(in super::super) fn threads_submit_at_the_same_time(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    let results: Vec<Result<Vec<Stored>, String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let life = &life;
                scope.spawn(move || one_thread(life, thread))
            })
            .collect();
        let panicked = |_| Err("submit panicked on a thread of its own".to_owned());
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    for stored in results {
        life.get_all(&stored?)?;
    }
    life.end()?;
    Ok(Verdict::Held)
}

fn one_thread(life: &Life, thread: u64) -> Result<Vec<Stored>, String> {
    let mut stored = Vec::new();
    for number in thread * PUTS_OF_A_THREAD..(thread + 1) * PUTS_OF_A_THREAD {
        let block = Block::new(number, BLOCK_BYTES);
        let put = life.put_operation(&block, thread * life.room(BLOCK_BYTES));
        // Busy is no failure, though nothing of this thread's own is in flight: the others may hold all slots.
        loop {
            match life.submit(&[put])?.first() {
                Some(Taken::Accepted(id)) => {
                    let ended = life.desk.wait(&[*id], life.wait)?;
                    expect("a put among threads", ended[0].status, Status::OK)?;
                    stored.push(Stored { block, location: ended[0].location, checksum: put.checksum });
                    break;
                }
                Some(Taken::Busy) => life.desk.wait_until_open(0, life.wait)?,
                other => return Err(format!("a put among threads was answered with {other:?}")),
            }
        }
    }
    Ok(stored)
}

pub(in super::super) fn only_what_was_accepted_completes(lab: &Lab) -> Result<Verdict, String> {
    let (_storage, life) = Life::fresh(lab)?;
    let step = life.room(BLOCK_BYTES);
    let blocks: Vec<Block> = (0..4).map(|number| Block::new(number, BLOCK_BYTES)).collect();
    let good: Vec<Operation> = blocks.iter().zip(0..).map(|(block, at)| life.put_operation(block, at * step)).collect();
    // Good and bad ones in one batch: each is answered for itself.
    let batch = [
        good[0],
        Operation { code: 4_711, ..good[0] },
        good[1],
        Operation { region: NOWHERE, ..good[1] },
        Operation { namespace_id: 77, ..good[2] },
        good[2],
        Operation { region: SINK, offset: u64::MAX, ..good[3] },
        good[3],
    ];
    let wanted = [
        Status::OK,
        Status::UNSUPPORTED,
        Status::OK,
        Status::INVALID,
        Status::INVALID,
        Status::OK,
        Status::INVALID,
        Status::OK,
    ];
    let ended = life.perform(&batch)?;
    for (at, (ended, wanted)) in ended.iter().zip(wanted).enumerate() {
        expect(&format!("operation {at} of a mixed batch"), ended.status, wanted)?;
    }
    for ((block, put), ended) in blocks.iter().zip(&good).zip(ended.iter().filter(|ended| ended.status == Status::OK)) {
        let stored = Stored { block: *block, location: ended.location, checksum: put.checksum };
        life.get_all(&[stored])?;
    }
    // `end` counts completions that nobody waited for, and second ones.
    life.end()?;
    Ok(Verdict::Held)
}
