//! Taking in what tiers report: completions, recovery, failures.

use std::rc::Rc;
use std::time::Instant;

use umbp_connector_core::namespace::tenant_digest;
use umbp_plugin_api::backend::RecoveredNamespace;
use umbp_plugin_api::types::RecoveredBlock;
use umbp_plugin_api::{Completion, Status};

use super::hub::Hub;
use super::seat::Recovery;
use crate::engine::api::{TenantIndex, TierIndex, TierState};
use crate::engine::{KEYS_PER_SLICE_MAX, parse_stored_descriptor};
use crate::tier::inbox::Message;
use crate::tier::{Command, lock};

/// Completions taken in before other tasks get their turn.
const COMPLETIONS_PER_TURN: usize = 128;

/// Takes reports in for as long as the daemon runs.
pub async fn take(hub: Rc<Hub>) {
    let mut completions = Vec::new();
    loop {
        hub.inbox.changed().await;
        let messages = hub.inbox.drain(&mut completions);
        for turn in completions.chunks(COMPLETIONS_PER_TURN) {
            take_completions(&hub, turn);
            if completions.len() > COMPLETIONS_PER_TURN {
                tokio::task::yield_now().await;
            }
        }
        for (tier, message) in messages {
            take_message(&hub, tier, message).await;
        }
    }
}

/// Of blocks that were read and are not what was stored there (E5): a hint that the medium fails.
fn warn_of_corrupt(hub: &Hub, turn: &[(TierIndex, Completion)]) {
    let corrupt = |tier: usize| {
        let of = |(at, done): &&(TierIndex, Completion)| usize::from(at.0) == tier && done.status == Status::CORRUPT;
        turn.iter().filter(of).count() as u64
    };
    if turn.iter().all(|(_, completion)| completion.status != Status::CORRUPT) {
        return;
    }
    for (at, seat) in hub.tiers.borrow_mut().iter_mut().enumerate() {
        let count = corrupt(at);
        if count > 0
            && let Some(blocks) = seat.corrupt.add(count, Instant::now())
        {
            let name = &seat.name;
            tracing::warn!(
                "tier {name}: {blocks} blocks read back since the last such line are corrupt; they are dropped, their \
                 loads are misses, and `errors` in status counts them: check the medium if this goes on"
            );
        }
    }
}

fn take_completions(hub: &Hub, turn: &[(TierIndex, Completion)]) {
    warn_of_corrupt(hub, turn);
    hub.with(|engine, now| {
        for (tier, completion) in turn {
            engine.completed(*tier, completion, now);
        }
    });
}

async fn take_message(hub: &Hub, tier: TierIndex, message: Message) {
    match message {
        Message::Failed(why) => fail(hub, tier, why),
        Message::Namespaces(namespaces) => take_namespaces(hub, tier, &namespaces),
        Message::Recovered { blocks, next } => take_blocks(hub, tier, &blocks, next).await,
        Message::RecoveryFailed(why) => {
            hub.with(|engine, now| engine.recovery_done(tier, now));
            set_recovery(hub, tier, Recovery::Failed(why));
        }
        Message::SegmentCreated(info) => hub.add_segment(info),
        Message::RegionGone(id) => hub.region_gone(id),
    }
}

fn fail(hub: &Hub, tier: TierIndex, why: String) {
    let known = {
        let tiers = hub.tiers.borrow();
        tiers.get(usize::from(tier.0)).map(|seat| (seat.name.clone(), seat.state == TierState::Failed))
    };
    let Some((name, false)) = known else { return };
    tracing::error!("tier {name} has failed: {why}; it is not called any more, restart umbpd to bring it back");
    if tier.0 == 0 {
        *lock(&hub.not_serving) = Some(format!("the first tier, {name}, has failed: {why}"));
    }
    hub.set_tier(tier, TierState::Failed, Some(format!("{why}; restart umbpd to bring it back")));
}

fn set_recovery(hub: &Hub, tier: TierIndex, recovery: Recovery) {
    if let Some(seat) = hub.tiers.borrow_mut().get_mut(usize::from(tier.0)) {
        seat.recovery = recovery;
    }
}

/// Notes what recoveries took that are over, once each block that they found has its place among what may leave. One
/// that failed took no time that says anything.
pub(super) fn note_recovered(hub: &Hub) {
    for (at, seat) in hub.tiers.borrow_mut().iter_mut().enumerate() {
        if let (Recovery::Done(_), (Some(began), None)) = (&seat.recovery, seat.recovery_time)
            && hub.ask(|engine| engine.has_placed(TierIndex(at as u8)))
        {
            seat.recovery_time.1 = Some(began.elapsed());
        }
    }
}

/// Namespaces of tenants that are still configured get their number, and the tier is told of it; then its blocks are
/// asked for. A block of another tenant's is not served, nor one whose descriptor is not the one it was stored under.
fn take_namespaces(hub: &Hub, tier: TierIndex, namespaces: &[RecoveredNamespace]) {
    let tenants = &hub.facts.config.tenants;
    let mut left_out = 0;
    for namespace in namespaces {
        let owner = parse_stored_descriptor(&namespace.descriptor).and_then(|(name, descriptor)| {
            let at = tenants.iter().position(|tenant| *tenant.name == name)?;
            let is_whole = tenant_digest(name, descriptor).0 == namespace.digest;
            is_whole.then_some((TenantIndex(at as u16), descriptor))
        });
        let id = owner.and_then(|(tenant, descriptor)| hub.with(|engine, _| engine.namespace(tenant, descriptor)));
        left_out += u64::from(id.is_none());
    }
    if let Some(seat) = hub.tiers.borrow_mut().get_mut(usize::from(tier.0)) {
        seat.recovery = Recovery::Running(0);
        seat.recovery_time = (Some(Instant::now()), None);
        seat.namespaces_left_out = left_out;
    }
    ask_for_page(hub, tier, 0);
}

fn ask_for_page(hub: &Hub, tier: TierIndex, cursor: u64) {
    if hub.command(tier, Command::RecoverPage(cursor)).is_err() {
        hub.with(|engine, now| engine.recovery_done(tier, now));
        set_recovery(hub, tier, Recovery::Failed("the tier takes no more commands".to_owned()));
    }
}

async fn take_blocks(hub: &Hub, tier: TierIndex, blocks: &[RecoveredBlock], next: Option<u64>) {
    for slice in blocks.chunks(KEYS_PER_SLICE_MAX) {
        hub.with(|engine, now| engine.recovered(tier, slice, now));
        tokio::task::yield_now().await;
    }
    let before = match hub.tiers.borrow().get(usize::from(tier.0)).map(|seat| seat.recovery.clone()) {
        Some(Recovery::Running(count)) => count,
        _ => 0,
    };
    let count = before + blocks.len() as u64;
    match next {
        Some(cursor) => {
            set_recovery(hub, tier, Recovery::Running(count));
            ask_for_page(hub, tier, cursor);
        }
        None => {
            hub.with(|engine, now| engine.recovery_done(tier, now));
            set_recovery(hub, tier, Recovery::Done(count));
        }
    }
}
