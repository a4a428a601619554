//! Ways round what is not to be had now: room that is waited for, and O_DIRECT that fails after all.

use umbp_plugin_api::Status;

use super::Driver;
use crate::space::Room;
use crate::store::Store;
use crate::transfer::Reserved;

impl Driver {
    /// Gives units to stores that wait for room, in their order, as far as there is room now.
    pub(super) fn place_waiting(&mut self) {
        while let Some(awaited) = self.waiting.front().and_then(|transfer| transfer.awaited.as_ref()) {
            let room = self.store.reserve_awaited(awaited);
            if room == Room::Awaited {
                return;
            }
            let Some(mut transfer) = self.waiting.pop_front() else { return };
            transfer.awaited = None;
            if let Room::At(unit) = room {
                let (store, length) = (self.store.clone(), transfer.operation.length);
                transfer.unit = unit;
                transfer.reserved = Some(Reserved { store, unit, length, kept: false });
                self.enqueue(transfer);
            } else {
                self.store.host.count("no_space", 1);
                transfer.fail(Status::NO_SPACE, 0);
            }
        }
    }
}

/// O_DIRECT has passed its probe and fails now: the page cache is used from here on (F1). False where that is no way
/// out.
pub(super) fn leave_direct(direct: &mut bool, store: &Store) -> bool {
    // Else another piece that was out at the time has left it.
    !std::mem::replace(direct, false) || store.leave_direct()
}
