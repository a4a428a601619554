//! The end of a driver that is broken.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use umbp_plugin_api::Status;

use super::{Driver, EXPIRY_TICK};

impl Driver {
    /// After a panic or a broken port: waits until the kernel has let go of all memory, then fails what is left. The
    /// status makes the host quarantine the buffers, in case the kernel has not.
    pub(crate) fn fail_all(mut self, deadline: Duration) {
        let (until, mut done) = (Instant::now() + deadline, Vec::new());
        while self.free_pieces.len() < self.pieces.len() && Instant::now() < until {
            // What broke once may break again.
            if !catch_unwind(AssertUnwindSafe(|| self.port.wait(Some(EXPIRY_TICK), &mut done).is_ok())).unwrap_or(false)
            {
                break;
            }
            for piece in done.drain(..) {
                if let Some((slot, _)) = self.slot_of(piece.token) {
                    self.free_piece(slot);
                }
            }
        }
        let clean = self.free_pieces.len() == self.pieces.len();
        for mut remains in self.remains.into_values().filter(|_| !clean) {
            remains.bounce.leak();
            remains.reserved.iter_mut().for_each(|reserved| reserved.kept = true);
        }
        self.waiting.drain(..).for_each(|transfer| transfer.fail(Status::PANICKED, 0));
        for mut active in self.actives.drain(..).flatten() {
            if !clean && let Some(bounce) = active.bounce.as_mut() {
                bounce.leak();
            }
            if !clean && let Some(reserved) = active.transfer.reserved.as_mut() {
                // A write that is still out must not land in another block.
                reserved.kept = true;
            }
            active.transfer.fail(Status::PANICKED, 0);
        }
        if !clean {
            // Closing it while pieces are out is not allowed.
            std::mem::forget(self.port);
        }
    }
}
