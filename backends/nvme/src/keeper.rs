//! The keeper thread of one path: appends the records of finished stores and of deletions, many at a time, and
//! completes them.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard};

use umbp_plugin_api::{Completion, Status};

use crate::format::{Kind, Record, UNIT_BYTES};
use crate::journal::Journal;
use crate::piece::failure_of;
use crate::queue::{Queue, locked};
use crate::space::{Live, location};
use crate::store::Store;
use crate::ticket::Ticket;
use crate::transfer::Transfer;

/// Most records of one append.
const RECORDS_PER_APPEND: usize = 256;

/// What awaits its record.
pub(crate) enum Entry {
    /// The payload is written.
    Put(Box<Transfer>),
    /// The block is forgotten; its units are still taken.
    Delete(Deletion),
}

/// A deletion on its way. Dropped without a record, the block is back.
pub(crate) struct Deletion {
    pub(crate) store: Arc<Store>,
    pub(crate) unit: u64,
    pub(crate) block: Live,
    pub(crate) recorded: bool,
    pub(crate) ticket: Option<Ticket>,
}

impl Drop for Deletion {
    fn drop(&mut self) {
        let mut space = locked(&self.store.space);
        if self.recorded {
            space.release(self.unit, u64::from(self.block.length));
        } else {
            space.restore(self.unit, self.block);
        }
    }
}

/// Hands entries to the keeper thread.
pub(crate) struct Keeper(Queue<Entry>);

impl Keeper {
    /// Nothing to do yet.
    pub(crate) fn new() -> Self {
        Self(Queue::new())
    }

    /// Takes a store whose payload is written.
    pub(crate) fn put(&self, transfer: Transfer) {
        drop(self.0.push(Entry::Put(Box::new(transfer))));
    }

    /// Takes a deletion.
    pub(crate) fn delete(&self, deletion: Deletion) {
        drop(self.0.push(Entry::Delete(deletion)));
    }

    /// Ends the thread once all is done.
    pub(crate) fn close(&self) {
        self.0.close();
    }

    /// Body of the thread. A panic fails the entries at hand and no other (D5).
    pub(crate) fn run(&self, store: &Arc<Store>) {
        loop {
            let mut entries = self.0.pop_all();
            if entries.is_empty() {
                return;
            }
            while !entries.is_empty() {
                let rest = entries.split_off(entries.len().min(RECORDS_PER_APPEND));
                let batch = std::mem::replace(&mut entries, rest);
                store.await_compaction();
                if catch_unwind(AssertUnwindSafe(|| record(store, batch))).is_err() {
                    store.host.count("panics", 1);
                }
            }
        }
    }
}

/// Makes room for the records of deletions with that of their blocks. Should a record fail all the same, its block is
/// back, and found corrupt.
fn punch_deleted(store: &Store, batch: &VecDeque<Entry>) -> bool {
    let mut punched = false;
    for entry in batch {
        if let Entry::Delete(Deletion { unit, block, .. }) = entry {
            let (start, length) = (unit * UNIT_BYTES, u64::from(block.length).next_multiple_of(UNIT_BYTES));
            punched |= store.medium.punch(&store.data, start, length).is_ok();
        }
    }
    punched
}

/// Appends the records, with the journal that has them now. Deletions are the way out of a full file system, so they
/// must not fail for lack of it.
fn append<'a>(
    store: &'a Store,
    batch: &VecDeque<Entry>,
    records: &mut [Record],
) -> (MutexGuard<'a, Journal>, io::Result<()>) {
    let mut journal = locked(&store.journal);
    let mut appended = journal.append(&*store.medium, records);
    let reliefs: [&dyn Fn() -> bool; 2] = [&|| store.give_back(), &|| punch_deleted(store, batch)];
    for relief in reliefs {
        if appended.as_ref().is_err_and(|error| failure_of(error).0 == Status::NO_SPACE) {
            // Punches take their time: nobody waits for them at the journal.
            drop(journal);
            let relieved = relief();
            journal = locked(&store.journal);
            if relieved {
                appended = journal.append(&*store.medium, records);
            }
        }
    }
    (journal, appended)
}

fn record(store: &Arc<Store>, batch: VecDeque<Entry>) {
    let mut records: Vec<Record> = batch.iter().map(record_of).collect();
    let (journal, appended) = append(store, &batch, &mut records);
    if let Err(error) = appended {
        drop(journal);
        let (status, errno) = failure_of(&error);
        for entry in batch {
            match entry {
                Entry::Put(transfer) => store.fail(*transfer, status, errno),
                Entry::Delete(mut deletion) => {
                    let ticket = deletion.ticket.take();
                    drop(deletion);
                    if let Some(ticket) = ticket {
                        ticket.fail(status, errno);
                    }
                }
            }
        }
        return;
    }
    // Blocks live before the journal is let go, so that a compaction, which begins under its lock, finds them.
    let mut space = locked(&store.space);
    for (entry, record) in batch.iter().zip(&records) {
        if let Entry::Put(transfer) = entry {
            space.publish(transfer.unit, Live::of(record));
        }
    }
    drop((space, journal));
    store.written();
    let mut deleted = Vec::new();
    for (entry, record) in batch.into_iter().zip(records) {
        match entry {
            Entry::Put(mut transfer) => {
                if let Some(reserved) = transfer.reserved.as_mut() {
                    reserved.kept = true;
                }
                let location = location(store.index, record.unit, record.generation);
                let length = u64::from(record.length);
                transfer.succeed(Completion { location, length, ..Completion::default() });
            }
            Entry::Delete(mut deletion) => {
                deletion.recorded = true;
                let ticket = deletion.ticket.take();
                drop(deletion);
                deleted.extend(ticket);
            }
        }
    }
    if deleted.is_empty() {
        return;
    }
    // Before the deletions are told of, so that a host which deleted for want of room finds it.
    if store.relieve() {
        store.ask_relief();
    }
    store.room_made();
    deleted.into_iter().for_each(|ticket| ticket.finish(Completion::default()));
}

fn record_of(entry: &Entry) -> Record {
    match entry {
        Entry::Put(transfer) => {
            let operation = &transfer.operation;
            Record {
                kind: Kind::Put,
                sequence: 0,
                generation: 0,
                unit: transfer.unit,
                length: operation.length as u32,
                namespace: transfer.local,
                checksum: operation.checksum,
                recency: operation.recency,
                depth: operation.depth,
                key: operation.key,
                parent: operation.parent,
            }
        }
        Entry::Delete(Deletion { unit, block, .. }) => {
            Record::delete(block.generation, *unit, block.length, block.namespace)
        }
    }
}
