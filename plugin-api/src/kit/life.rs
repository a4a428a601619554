//! One open backend, its buffers, and the calls that most checks make.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{RecoveredNamespace, Recovery, Stats};
use crate::types::{Completion, Operation, RecoveredBlock, Status, Submitted, code};
use crate::{HostServices, OpenConfig, Opened};

use super::blocks::{Block, NAMESPACES};
use super::desk::Desk;
use super::judge::{Taken, expect, failed, first_difference};
use super::memory::Memory;
use super::run::{Lab, Storage};
use super::subject::Live;

/// Bytes of each of a life's two regions: the largest block and what is watched around it.
pub(super) const REGION_BYTES: u64 = 48 << 20;

/// Capacity of a life where a check does not say: what one check stores, three times over.
pub(super) const CAPACITY_BYTES: u64 = 256 << 20;

/// The region that puts read from.
pub(super) const SOURCE: u64 = 1;

/// The region that gets write to.
pub(super) const SINK: u64 = 2;

/// Buffers begin at multiples of this many bytes, or of the backend's alignment where that is larger.
const STEP_BYTES: u64 = 4096;

/// What the kit fills a buffer with that it watches.
const WATCHED: u8 = 0xa5;

/// Most pages that a recovery may take, as a bound on a backend that never says "done".
const MAX_PAGES: usize = 10_000;

/// A block that a backend said it stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub(super) block: Block,
    pub(super) location: u64,
    pub(super) checksum: u64,
}

/// How to open a life.
pub(super) struct Opening<'a> {
    pub(super) storage: &'a Storage,
    pub(super) capacity: u64,
    /// Number of a namespace in this life, and which of [`NAMESPACES`] it is.
    pub(super) namespaces: &'a [(u32, usize)],
    /// Blocks of one page of recovery.
    pub(super) page: usize,
}

impl<'a> Opening<'a> {
    pub(super) fn new(storage: &'a Storage) -> Self {
        Self { storage, capacity: CAPACITY_BYTES, namespaces: &[(1, 0), (2, 1)], page: 256 }
    }
}

/// One open backend.
pub(super) struct Life {
    pub(super) live: Box<dyn Live>,
    pub(super) opened: Opened,
    pub(super) desk: Arc<Desk>,
    pub(super) source: Memory,
    pub(super) sink: Memory,
    /// What it brought from an earlier life.
    pub(super) recovered: Vec<RecoveredBlock>,
    pub(super) recovered_namespaces: Vec<RecoveredNamespace>,
    pub(super) wait: Duration,
    numbers: Vec<(u32, usize)>,
    ended: bool,
}

impl Life {
    /// Opens the subject on fresh storage, which outlives it.
    pub(super) fn fresh(lab: &Lab) -> Result<(Storage, Self), String> {
        let storage = lab.storage()?;
        let life = Self::open(lab, &Opening::new(&storage))?;
        Ok((storage, life))
    }

    /// Opens the subject, registers the regions, puts the namespaces and recovers, in the order of the contract.
    pub(super) fn open(lab: &Lab, opening: &Opening<'_>) -> Result<Self, String> {
        let desk = Desk::new();
        let config = OpenConfig {
            tier: "kit".to_owned(),
            capacity: opening.capacity,
            options: opening.storage.options.clone(),
            slots: lab.options.slots,
        };
        let host: Arc<dyn HostServices> = desk.clone();
        let (live, opened) = lab.subject.open(&config, host).map_err(|error| format!("open failed: {error}"))?;
        let (source, sink) = (Memory::new(REGION_BYTES as usize)?, Memory::new(REGION_BYTES as usize)?);
        let mut life = Self {
            live,
            opened,
            desk,
            source,
            sink,
            recovered: Vec::new(),
            recovered_namespaces: Vec::new(),
            wait: lab.wait(),
            numbers: opening.namespaces.to_vec(),
            ended: false,
        };
        life.register(SOURCE, &life.source)?;
        life.register(SINK, &life.sink)?;
        life.recover(lab, opening)?;
        Ok(life)
    }

    fn recover(&mut self, lab: &Lab, opening: &Opening<'_>) -> Result<(), String> {
        let persistent = lab.facts.persistent;
        if persistent {
            self.recovered_namespaces = self.live.recover_namespaces().map_err(|s| failed("recover_namespaces", s))?;
        }
        for &(number, which) in opening.namespaces {
            let namespace = &NAMESPACES[which];
            // Twice, since the same may come again.
            for _ in 0..2 {
                let status = self.live.namespace_put(number, &namespace.digest, namespace.descriptor);
                expect("namespace_put", status, Status::OK)?;
            }
        }
        let mut cursor = 0;
        for _ in 0..MAX_PAGES {
            if !persistent {
                return Ok(());
            }
            let before = self.recovered.len();
            let page =
                self.live.recover(cursor, opening.page, &mut self.recovered).map_err(|s| failed("recover", s))?;
            let count = self.recovered.len() - before;
            if count > opening.page {
                return Err(format!("recover gave {count} blocks where at most {} were asked for", opening.page));
            }
            match page {
                Recovery::Done => return Ok(()),
                Recovery::More(next) => cursor = next,
            }
        }
        Err(format!("recover was not done after {MAX_PAGES} pages"))
    }

    fn register(&self, id: u64, memory: &Memory) -> Result<(), String> {
        // SAFETY: both memories are unmapped only after `shutdown` has returned.
        let status = unsafe { self.live.region_register(id, memory.address(), memory.length(), "") };
        expect("region_register", status, Status::OK)
    }

    /// The step of buffers in this life.
    pub(super) fn step(&self) -> u64 {
        self.opened.alignment.max(STEP_BYTES)
    }

    /// Bytes of a buffer for a payload: the backend may use the payload's last step whole.
    pub(super) fn room(&self, length: u64) -> u64 {
        length.next_multiple_of(self.step())
    }

    fn operation(&self, code: u32, block: &Block) -> Operation {
        let numbers = self.numbers.iter();
        let namespace_id = numbers.filter(|(_, which)| *which == block.namespace).map(|(number, _)| *number).next();
        Operation {
            code,
            namespace_id: namespace_id.unwrap_or(u32::MAX),
            key: block.key(),
            depth: block.depth(),
            parent: block.parent(),
            recency: block.recency(),
            length: block.length,
            ..Operation::default()
        }
    }

    /// A put of a block whose bytes it writes into the source region at `offset`.
    pub(super) fn put_operation(&self, block: &Block, offset: u64) -> Operation {
        let bytes = block.bytes();
        self.source.write(offset, &bytes);
        let checksum = block.checksum(&bytes);
        Operation { checksum, region: SOURCE, offset, ..self.operation(code::PUT, block) }
    }

    /// A get into the sink region at `offset`, or what else is asked about a stored block.
    pub(super) fn stored_operation(&self, code: u32, stored: &Stored, offset: u64) -> Operation {
        let Stored { block, location, checksum } = stored;
        Operation { checksum: *checksum, location: *location, region: SINK, offset, ..self.operation(code, block) }
    }

    /// Submits, tries again what was busy, and waits for all. A refusal reads like a completion of that status.
    pub(super) fn perform(&self, operations: &[Operation]) -> Result<Vec<Completion>, String> {
        let mut answers: Vec<Option<Completion>> = vec![None; operations.len()];
        let mut left: Vec<usize> = (0..operations.len()).collect();
        while !left.is_empty() {
            let batch: Vec<Operation> = left.iter().map(|&at| operations[at]).collect();
            let taken = self.submit(&batch)?;
            let (mut busy, mut ids, mut places) = (Vec::new(), Vec::new(), Vec::new());
            for (&at, answer) in left.iter().zip(&taken) {
                match answer {
                    Taken::Accepted(id) => {
                        ids.push(*id);
                        places.push(at);
                    }
                    Taken::Busy => busy.push(at),
                    Taken::Refused(status) => answers[at] = Some(Completion { status: *status, ..Default::default() }),
                }
            }
            if ids.is_empty() && !busy.is_empty() {
                return Err(format!("{} operations are busy while none is in flight", busy.len()));
            }
            for (at, completion) in places.into_iter().zip(self.desk.wait(&ids, self.wait)?) {
                answers[at] = Some(completion);
            }
            left = busy;
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Submits once, and says what became of each.
    pub(super) fn submit(&self, operations: &[Operation]) -> Result<Vec<Taken>, String> {
        // A value that no backend answers, to see whether each result was filled.
        const UNFILLED: Submitted = Submitted(0xfe);
        let batch: Vec<Operation> =
            operations.iter().map(|operation| Operation { id: self.desk.expect(), ..*operation }).collect();
        let mut results = vec![UNFILLED; batch.len()];
        self.live.submit(&batch, &mut results);
        let mut taken = Vec::with_capacity(batch.len());
        for (operation, result) in batch.iter().zip(results) {
            if result == Submitted::ACCEPTED {
                taken.push(Taken::Accepted(operation.id));
                continue;
            }
            self.desk.forget(operation.id);
            match result.rejection() {
                Some(Status::PANICKED) => return Err("submit panicked".to_owned()),
                Some(status) => taken.push(Taken::Refused(status)),
                None if result == Submitted::BUSY => taken.push(Taken::Busy),
                None => return Err(format!("submit left a result unfilled, or filled it with {}", result.0)),
            }
        }
        Ok(taken)
    }

    /// Performs one operation.
    pub(super) fn one(&self, operation: Operation) -> Result<Completion, String> {
        self.perform(&[operation])?.pop().ok_or_else(|| "no answer".to_owned())
    }

    /// Puts blocks in batches as large as the source region; each must be stored.
    pub(super) fn put(&self, blocks: &[Block]) -> Result<Vec<Stored>, String> {
        let mut stored = Vec::with_capacity(blocks.len());
        let (mut batch, mut end) = (Vec::new(), 0);
        for (at, block) in blocks.iter().enumerate() {
            batch.push((*block, self.put_operation(block, end)));
            end += self.room(block.length);
            let next = blocks.get(at + 1);
            if next.is_some_and(|next| end + self.room(next.length) <= self.source.length()) {
                continue;
            }
            let operations: Vec<Operation> = batch.iter().map(|(_, operation)| *operation).collect();
            for ((block, operation), completion) in batch.drain(..).zip(self.perform(&operations)?) {
                expect(&format!("a put of {} bytes", block.length), completion.status, Status::OK)?;
                stored.push(Stored { block, location: completion.location, checksum: operation.checksum });
            }
            end = 0;
        }
        Ok(stored)
    }

    /// Gets a block, watching its buffer's surroundings; where the status is "ok", the bytes must be right.
    pub(super) fn get(&self, stored: &Stored) -> Result<Status, String> {
        let (length, offset) = (stored.block.length, self.step());
        let watched = offset + self.room(length) + self.step();
        self.sink.fill(0, watched as usize, WATCHED);
        let completion = self.one(self.stored_operation(code::GET, stored, offset))?;
        self.check_surroundings(offset, length)?;
        if completion.status == Status::OK {
            if completion.length != length {
                return Err(format!("a get of {length} bytes completed with length {}", completion.length));
            }
            if let Some(at) = first_difference(&self.sink.read(offset, length as usize), &stored.block.bytes()) {
                return Err(format!("WRONG BYTES: a get of {length} bytes was ok, but byte {at} is not what was put"));
            }
        }
        Ok(completion.status)
    }

    fn check_surroundings(&self, offset: u64, length: u64) -> Result<(), String> {
        for (from, where_) in [(0, "before"), (offset + self.room(length), "behind")] {
            if let Some(at) = self.sink.read(from, self.step() as usize).iter().position(|byte| *byte != WATCHED) {
                return Err(format!("a get of {length} bytes wrote {where_} its buffer (at {})", from + at as u64));
            }
        }
        Ok(())
    }

    /// Gets blocks that must be there.
    pub(super) fn get_all(&self, stored: &[Stored]) -> Result<(), String> {
        for one in stored {
            expect(&format!("a get of a stored block of {} bytes", one.block.length), self.get(one)?, Status::OK)?;
        }
        Ok(())
    }

    /// Asks whether a block is there.
    pub(super) fn exists(&self, stored: &Stored) -> Result<Completion, String> {
        self.one(self.stored_operation(code::EXISTS, stored, 0))
    }

    /// Its figures.
    pub(super) fn stats(&self) -> Result<Stats, String> {
        self.live.stats().map_err(|status| failed("stats", status))
    }

    /// Deletes a block that must be there.
    pub(super) fn delete(&self, stored: &Stored) -> Result<(), String> {
        let completion = self.one(self.stored_operation(code::DELETE, stored, 0))?;
        expect("a delete of a stored block", completion.status, Status::OK)
    }

    /// Shuts down; nothing may be in flight afterwards, and no promise may be broken.
    pub(super) fn end(mut self) -> Result<(), String> {
        let status = self.live.shutdown(self.wait);
        self.ended = true;
        expect("shutdown", status, Status::OK)?;
        self.settle()
    }

    /// As [`Life::end`], where the check called `shutdown` itself.
    pub(super) fn end_after_shutdown(mut self) -> Result<(), String> {
        self.ended = true;
        self.settle()
    }

    /// The check called `shutdown` itself, and failed.
    pub(super) fn give_up<T>(mut self, sentence: String) -> Result<T, String> {
        self.ended = true;
        self.leak();
        Err(sentence)
    }

    /// What the backend may still touch must stay.
    fn leak(&mut self) {
        self.source.leak();
        self.sink.leak();
    }

    fn settle(&mut self) -> Result<(), String> {
        let open = self.desk.open();
        if open > 0 {
            self.leak();
            return Err(format!("{open} accepted operations were not completed when shutdown returned"));
        }
        if let Some(failure) = self.live.failure() {
            return Err(format!("the backend broke: {failure}"));
        }
        match self.desk.faults() {
            faults if faults.is_empty() => Ok(()),
            faults => Err(faults.join("\n")),
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if !self.ended {
            // The check failed already, perhaps by a panic of a backend in this process: a second one would abort.
            let shutdown = std::panic::AssertUnwindSafe(|| self.live.shutdown(self.wait));
            let _ = std::panic::catch_unwind(shutdown);
            self.leak();
        }
    }
}
