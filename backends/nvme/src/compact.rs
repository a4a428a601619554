//! The housekeeping thread of one path: sync windows, and snapshots that let old journals go.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use umbp_plugin_api::backend::Level;

use crate::folder::snapshot_name;
use crate::format::{Kind, RECORD_BYTES, Record, Salt};
use crate::journal::{RECORDS_PER_READ, RecordFile};
use crate::queue::locked;
use crate::store::{Store, bytes_on_disk};

/// Body of the thread.
pub(crate) fn keep_house(store: &Arc<Store>, sync_window: Duration) {
    let mut synced = Instant::now();
    let (mut sync_failed, mut removal_failed, mut unread) = (false, false, false);
    loop {
        let (compact, stop) = await_chores(store, synced + sync_window);
        let sync = catch_unwind(AssertUnwindSafe(|| store.sync())).unwrap_or_else(|_| Err(io::Error::other("a panic")));
        synced = Instant::now();
        if let Err(error) = &sync
            && !sync_failed
        {
            let path = store.folder.path().display();
            store.host.log(Level::Error, &format!("path {path}: cannot make data durable: {error}"));
        }
        sync_failed = sync.is_err();
        if stop {
            return;
        }
        if compact {
            let attempt = AssertUnwindSafe(|| write_snapshot(store, &mut synced, sync_window, &mut unread));
            let result = catch_unwind(attempt);
            report(store, result.unwrap_or_else(|_| Err(io::Error::other("a panic"))));
        }
        if catch_unwind(AssertUnwindSafe(|| remove_replaced(store, &mut removal_failed))).is_err() {
            store.host.count("removal_errors", 1);
        }
    }
}

fn await_chores(store: &Store, until: Instant) -> (bool, bool) {
    let mut chores = locked(&store.chores);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if chores.compact && !store.compaction_failed.load(Ordering::Relaxed) || chores.stop || left.is_zero() {
            return (chores.compact, chores.stop);
        }
        if std::mem::take(&mut chores.punch) {
            drop(chores);
            let more = catch_unwind(AssertUnwindSafe(|| store.relieve())).unwrap_or(false);
            chores = locked(&store.chores);
            chores.punch |= more;
            continue;
        }
        chores = store.chores_changed.wait_timeout(chores, left).unwrap_or_else(|e| e.into_inner()).0;
    }
}

fn report(store: &Store, result: io::Result<()>) {
    let failed = result.is_err();
    let before = store.compaction_failed.swap(failed, Ordering::Relaxed);
    if let Err(error) = result {
        store.host.count("snapshot_errors", 1);
        if !before {
            let path = store.folder.path().display();
            store.host.log(Level::Error, &format!("path {path}: cannot write a snapshot of the journal: {error}"));
        }
    }
    // A failed one is tried again in the next window.
    locked(&store.chores).compact = failed;
    store.chores_changed.notify_all();
}

/// An attempt that was preceded by one that failed since records could not be read, which is told in `unread`, does
/// without such: their blocks live on in memory, and the next life lacks them.
fn write_snapshot(store: &Store, synced: &mut Instant, sync_window: Duration, unread: &mut bool) -> io::Result<()> {
    let again = std::mem::take(unread);
    let (covered, number) = {
        let mut journal = locked(&store.journal);
        // What a failed attempt has closed is covered first: one more journal for each attempt would be too many.
        if !journal.has_closed() {
            journal.rotate(&store.folder, &*store.medium)?;
        }
        // Under the lock, so that no record is said to be durable in a file whose name is not.
        store.folder.sync()?;
        (journal.covered(), journal.number())
    };
    let (name, salt) = (snapshot_name(number), Salt::snapshot(store.folder.uuid(), number));
    let temporary = format!("{name}.tmp");
    let mut snapshot = RecordFile { records: 0, ..RecordFile::open(&store.folder, &temporary, salt)? };
    snapshot.path = store.folder.file(&name);
    let mut unreadable = 0;
    let mut copy = || -> io::Result<()> {
        snapshot.file.set_len(0)?;
        for file in &covered {
            for first in (0..file.records).step_by(RECORDS_PER_READ as usize) {
                let count = RECORDS_PER_READ.min(file.records - first);
                let found = match file.read(&*store.medium, first, count) {
                    Err(_) if again => {
                        let (found, lost) = file.read_around(&*store.medium, first, count);
                        unreadable += lost;
                        found
                    }
                    found => found.inspect_err(|_| *unread = true)?,
                };
                append_living(store, &mut snapshot, found)?;
                if synced.elapsed() >= sync_window {
                    let _ = store.sync();
                    *synced = Instant::now();
                }
            }
        }
        store.medium.sync(&snapshot.file)?;
        store.folder.adopt(&temporary, &name)
    };
    if let Err(error) = copy() {
        let _ = std::fs::remove_file(store.folder.file(&temporary));
        return Err(error);
    }
    if unreadable > 0 {
        store.host.count("snapshot.unreadable_records", unreadable);
        let path = store.folder.path().display();
        let text = "records of the journal cannot be read; the next start lacks blocks that they name; check the disk";
        store.host.log(Level::Error, &format!("path {path}: {unreadable} {text}"));
    }
    store.host.count("snapshots", 1);
    locked(&store.journal).adopt(snapshot);
    Ok(())
}

/// Removes what the newest snapshot replaced. What cannot be removed takes up room, is counted as such, and is tried
/// again in the next window.
fn remove_replaced(store: &Store, failed_before: &mut bool) {
    let replaced = locked(&store.journal).to_remove();
    if replaced.is_empty() {
        return;
    }
    let (mut left, mut cause) = (Vec::new(), None);
    for path in replaced {
        match store.medium.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                cause = Some((path.display().to_string(), error));
                left.push(path);
            }
            _ => {}
        }
    }
    let count = left.len() as u64;
    let bytes = left.iter().map(|path| bytes_on_disk(path.symlink_metadata())).sum();
    locked(&store.space).left_behind(bytes);
    locked(&store.journal).removed(left);
    let before = std::mem::replace(failed_before, count > 0);
    let Some((path, error)) = cause else { return };
    store.host.count("removal_errors", count);
    if !before {
        let text = format!(
            "{path}: cannot be removed ({error}); nothing needs it any more, and its room is taken from blocks: let \
             this user remove it"
        );
        store.host.log(Level::Error, &text);
    }
}

fn append_living(store: &Store, snapshot: &mut RecordFile, records: Vec<Option<Record>>) -> io::Result<()> {
    let space = locked(&store.space);
    let lives = |record: &Record| {
        record.kind == Kind::Put && space.find(record.unit).is_some_and(|live| live.generation == record.generation)
    };
    let bytes: Vec<u8> =
        records.into_iter().flatten().filter(lives).flat_map(|record| record.encode(&snapshot.salt)).collect();
    drop(space);
    store.medium.append(&snapshot.file, &bytes, snapshot.records * RECORD_BYTES as u64)?;
    snapshot.records += bytes.len() as u64 / RECORD_BYTES as u64;
    Ok(())
}
