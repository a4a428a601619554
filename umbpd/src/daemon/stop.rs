//! Drain and shut down, within the deadline.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use super::run::Ended;
use crate::core::Hub;
use crate::session::listen::Bound;
use crate::tier::{Command, End, TierLink};

/// How often it is looked whether work in flight has ended.
const LOOK_MS: u64 = 10;
/// Part of the deadline that plugins get at least for their shutdown, in percent.
const SHUTDOWN_PERCENT: u32 = 30;

/// New work is refused, work in flight ends, then the plugins shut down: the lower tiers side by side, since they still
/// read and write the first one's memory, and the first one after them, if they have all returned. Past the deadline
/// the daemon ends without those that do not return (P10).
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
    let mut links: VecDeque<_> = hub.tiers.borrow().iter().map(|seat| seat.link.clone()).collect();
    let first: Vec<_> = links.pop_front().into_iter().flatten().collect();
    // The engine's thread goes on meanwhile: sessions get their last words.
    let mut tiers_left = shut_down(links.into_iter().flatten().collect(), until).await;
    if tiers_left == 0 {
        tiers_left = shut_down(first, until).await;
    }
    drop(bound);
    let abandoned = hub.tiers.borrow().iter().filter(|seat| seat.abandoned).count();
    let movers = hub.facts.movers.iter().filter(|seat| seat.abandoned).count();
    Ended { drained, tiers_left: tiers_left + abandoned + movers }
}

/// Shuts plugins down side by side; answers how many have not returned in time.
async fn shut_down(links: Vec<TierLink>, until: Instant) -> usize {
    let deadline = until.saturating_duration_since(Instant::now());
    for link in &links {
        link.queue.close_with(Command::Shutdown { deadline });
    }
    let clean = move |link: &&TierLink| link.shared.wait_ended(until.into_std()) == Some(End::Clean);
    wait_beside(move || links.len() - links.iter().filter(clean).count()).await
}

/// Runs a blocking wait on a thread of its own; a thread that cannot be had means that nobody knows who has returned.
async fn wait_beside(wait: impl FnOnce() -> usize + Send + 'static) -> usize {
    let (done, answer) = tokio::sync::oneshot::channel();
    let run = move || {
        // Only a stop that was itself given up does not listen.
        let _ = done.send(wait());
    };
    match std::thread::Builder::new().name("umbp-stop".to_owned()).spawn(run) {
        Ok(_) => answer.await.unwrap_or(1),
        Err(_) => 1,
    }
}
