//! Drain and shut down, within the deadline.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use super::run::Ended;
use crate::core::Hub;
use crate::session::listen::Bound;
use crate::tier::{Command, End};

/// How often it is looked whether work in flight has ended.
const LOOK_MS: u64 = 10;
/// Part of the deadline that plugins get at least for their shutdown, in percent.
const SHUTDOWN_PERCENT: u32 = 30;

/// New work is refused, work in flight ends, then all plugins shut down side by side. Past the deadline the daemon
/// ends without those that do not return (P10).
pub(super) async fn stop(hub: &Rc<Hub>, bound: Bound, deadline: Duration) -> Ended {
    let until = Instant::now() + deadline;
    let drain_until = until - deadline * SHUTDOWN_PERCENT / 100;
    hub.with(|engine, now| engine.drain(now));
    let idle = || hub.ask(|engine| engine.is_idle() && engine.open_leases() == 0);
    let mut drained = idle();
    while !drained && Instant::now() < drain_until {
        tokio::time::sleep(Duration::from_millis(LOOK_MS)).await;
        drained = idle();
    }
    // Clients see the end of their socket from here on; the name is free for the next daemon once this one is gone.
    hub.sessions.borrow().values().for_each(|seat| seat.end("this umbpd has shut down"));
    tokio::task::yield_now().await;
    let left = until.saturating_duration_since(Instant::now());
    let links: Vec<_> = hub.tiers.borrow().iter().filter_map(|seat| seat.link.clone()).collect();
    for link in &links {
        link.queue.close_with(Command::Shutdown { deadline: left });
    }
    let wait = move || links.iter().filter(|link| link.shared.wait_ended(until.into_std()) != Some(End::Clean)).count();
    // The engine's thread goes on meanwhile: sessions get their last words.
    let tiers_left = wait_beside(wait).await;
    drop(bound);
    let abandoned = hub.tiers.borrow().iter().filter(|seat| seat.abandoned).count();
    Ended { drained, tiers_left: tiers_left + abandoned }
}

/// Runs a blocking wait on a thread of its own; a thread that cannot be had means not waiting.
async fn wait_beside(wait: impl FnOnce() -> usize + Send + 'static) -> usize {
    let (done, answer) = tokio::sync::oneshot::channel();
    let run = move || {
        // Only a stop that was itself given up does not listen.
        let _ = done.send(wait());
    };
    match std::thread::Builder::new().name("umbp-stop".to_owned()).spawn(run) {
        Ok(_) => answer.await.unwrap_or(0),
        Err(_) => 0,
    }
}
