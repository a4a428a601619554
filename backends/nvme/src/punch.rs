//! Freed units are given back to the file system, a few at a time and only when their room is needed.

use std::io;

use umbp_plugin_api::backend::Level;

use crate::format::UNIT_BYTES;
use crate::queue::locked;
use crate::store::Store;

/// Most ranges punched in one go.
const RANGES_PER_GO: usize = 64;

/// A range on its way: nobody else has it. Dropped unpunched, even in a panic, it is free as before.
struct Punching<'a> {
    store: &'a Store,
    start: u64,
    units: u64,
    done: bool,
}

impl Drop for Punching<'_> {
    fn drop(&mut self) {
        locked(&self.store.space).punched(self.start, self.units, self.done);
        self.store.room_made();
    }
}

impl Store {
    /// Punches what is due, up to a bound; true if more is due. Called by the keeper and the housekeeping thread alone.
    pub(crate) fn relieve(&self) -> bool {
        for _ in 0..RANGES_PER_GO {
            let Some((start, units)) = locked(&self.space).take_to_punch() else { return false };
            let mut range = Punching { store: self, start, units, done: false };
            let result = self.medium.punch(&self.data, start * UNIT_BYTES, units * UNIT_BYTES);
            range.done = result.is_ok();
            // Told before the range is let go, and with it who waits for its room.
            match result {
                Ok(()) => self.host.count("punched_units", units),
                Err(error) => {
                    self.punch_failed(&error);
                    return false;
                }
            }
        }
        locked(&self.space).punch_due()
    }

    /// The file system is full: what is free in the data file goes back to it, up to the bound of one go, so that
    /// journals have room. True if any did. Called by the keeper alone.
    pub(crate) fn give_back(&self) -> bool {
        let before = {
            let mut space = locked(&self.space);
            space.want_all();
            space.on_disk()
        };
        self.relieve();
        locked(&self.space).on_disk() < before
    }

    /// Has the housekeeping thread punch, if anything is due. Never waits for the disk.
    pub(crate) fn ask_relief(&self) {
        if locked(&self.space).punch_due() {
            locked(&self.chores).punch = true;
            self.chores_changed.notify_all();
        }
    }

    fn punch_failed(&self, error: &io::Error) {
        let path = self.folder.path().display();
        if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) {
            if locked(&self.space).never_punch() {
                self.host.count("fallback.no_punch", 1);
                let text = format!(
                    "path {path}: the file system cannot punch holes ({error}): room once written stays with data, and \
                     smaller blocks fit in fewer; use ext4 or xfs"
                );
                self.host.log(Level::Warn, &text);
            }
        } else {
            self.host.count("punch_errors", 1);
            self.host.log(Level::Warn, &format!("path {path}: cannot give room back to the file system: {error}"));
        }
    }
}
