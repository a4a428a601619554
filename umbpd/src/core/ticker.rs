//! What falls due.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::hub::Hub;
use super::reports::note_recovered;
use crate::process::now;

/// After the engine was called it gets a tick within this time: what the call made due, and what is left to reclaim.
const TICK_MS: u64 = 5;
/// The longest sleep, so that the pulse stays fresh.
const PULSE_MS: u64 = 1_000;

/// Time of the last tick, for those who wonder whether the engine's thread still runs.
pub type Pulse = Arc<AtomicU64>;

/// Ticks for as long as the daemon runs.
pub async fn run(hub: Rc<Hub>, pulse: Pulse) {
    loop {
        let next = hub.quietly(|engine, now| engine.tick(now));
        note_recovered(&hub);
        let at = now();
        pulse.store(at.0, Ordering::Relaxed);
        let left = next.map_or(u64::MAX, |next| next.0.saturating_sub(at.0));
        if left == 0 {
            tokio::task::yield_now().await;
            continue;
        }
        let sleep = Duration::from_nanos(left).min(Duration::from_millis(PULSE_MS));
        tokio::select! {
            () = tokio::time::sleep(sleep) => {}
            () = hub.active.notified() => tokio::time::sleep(Duration::from_millis(TICK_MS)).await,
        }
    }
}
