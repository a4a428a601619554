//! What a client asks, sliced so that no request keeps others waiting for long.

use std::rc::Rc;

use umbp_protocol::message::{Acquired, MissReason, ReserveItem, WireKey};
use umbp_protocol::message::{LeaseId, Outcome, Reply, Request, Reserved, SessionId};

use super::lookup::Lookup;
use super::refusal;
use crate::core::Hub;
use crate::core::seat::SessionSeat;
use crate::engine::{KEYS_PER_SLICE_MAX, LeaseKind};

/// Blocks of a Reserve that get their room, and may evict others for it, before others have their turn: a small lookup
/// beside a large store waits for so many at most. Fewer would gain it little more.
const BLOCKS_PER_TURN: usize = 128;

/// Answers one request of a session, by its id. Between slices other tasks get their turn. None: the reply comes later,
/// by itself.
pub async fn answer(
    hub: &Rc<Hub>,
    seat: &Rc<SessionSeat>,
    (session, id): (SessionId, u64),
    request: Request,
) -> Option<Reply> {
    let reply = match request {
        Request::Lookup { hold_ms, keys } => {
            let (hub, seat) = (hub.clone(), seat.clone());
            return Lookup { hub, seat, session, id, hold_ms, keys }.answer().await;
        }
        Request::Hello(_) => Reply::Refused(refusal("argument", "Hello comes once, as the first message")),
        Request::Reserve { items } => reserve(hub, session, &items).await,
        Request::Commit { lease, items } => {
            let mut done: Vec<Outcome> = Vec::with_capacity(items.len());
            for slice in slices(&items) {
                turn(&done).await;
                done.extend(hub.with(|engine, now| engine.commit(session, lease, slice, now)));
            }
            Reply::Commit { items: done }
        }
        Request::Abort { lease, items } => Reply::Abort { count: abort(hub, session, lease, &items).await },
        Request::Acquire { keys } => acquire(hub, session, &keys).await,
        Request::Renew { leases } => {
            let mut lease_ms = Vec::with_capacity(leases.len());
            for slice in slices(&leases) {
                turn(&lease_ms).await;
                lease_ms.extend(hub.with(|engine, now| engine.renew(session, slice, now)));
            }
            Reply::Renew { lease_ms }
        }
        Request::Release { lease, items } => release(hub, session, lease, &items).await,
        Request::Unhold { keys } => Reply::Unhold { count: unhold(hub, session, &keys).await },
        Request::Clear { namespace } => {
            let (mut removed, mut pinned, mut next) = (0, 0, Some(0));
            while let Some(cursor) = next {
                let slice = hub.with(|engine, now| engine.clear(session, namespace, cursor, now));
                removed += slice.removed;
                pinned += slice.pinned;
                next = slice.next;
                tokio::task::yield_now().await;
            }
            Reply::Clear { removed, pinned }
        }
        Request::SegmentUnmapped { segment } => {
            hub.with(|engine, _| engine.segment_unmapped(session, segment));
            Reply::SegmentUnmapped
        }
        Request::Status => Reply::Status(hub.status().await),
    };
    Some(reply)
}

pub(super) fn slices<T>(all: &[T]) -> impl Iterator<Item = &[T]> {
    all.chunks(KEYS_PER_SLICE_MAX)
}

/// Lets others have their turn, before every slice but the first.
pub(super) async fn turn<T>(so_far: &[T]) {
    if !so_far.is_empty() {
        tokio::task::yield_now().await;
    }
}

async fn reserve(hub: &Hub, session: SessionId, items: &[ReserveItem]) -> Reply {
    let Some(lease) = hub.with(|engine, now| engine.lease_begin(session, LeaseKind::Write, now)) else {
        return Reply::Reserve { lease: LeaseId(0), lease_ms: 0, items: vec![Reserved::Refused; items.len()] };
    };
    let mut answers = Vec::with_capacity(items.len());
    for slice in slices(items) {
        turn(&answers).await;
        hub.with(|engine, now| engine.reserve_guard(session, lease, slice, now));
        for part in slice.chunks(BLOCKS_PER_TURN) {
            turn(&answers).await;
            answers.extend(hub.with(|engine, now| engine.reserve_guarded(session, lease, part, now)));
        }
    }
    let (lease, lease_ms) = hub.with(|engine, now| engine.lease_finish(lease, now));
    Reply::Reserve { lease, lease_ms, items: answers }
}

async fn acquire(hub: &Hub, session: SessionId, keys: &[WireKey]) -> Reply {
    let Some(lease) = hub.with(|engine, now| engine.lease_begin(session, LeaseKind::Read, now)) else {
        let miss = Acquired::Miss(MissReason::NoRoom);
        return Reply::Acquire { lease: LeaseId(0), lease_ms: 0, items: vec![miss; keys.len()] };
    };
    let mut answers = Vec::with_capacity(keys.len());
    for slice in slices(keys) {
        turn(&answers).await;
        answers.extend(hub.with(|engine, now| engine.acquire(session, lease, slice, now)));
    }
    let (lease, lease_ms) = hub.with(|engine, now| engine.lease_finish(lease, now));
    Reply::Acquire { lease, lease_ms, items: answers }
}

async fn abort(hub: &Hub, session: SessionId, lease: LeaseId, items: &[u32]) -> u32 {
    let mut count = 0;
    for slice in slices(items) {
        count += hub.with(|engine, now| engine.abort(session, lease, slice, now));
        tokio::task::yield_now().await;
    }
    while items.is_empty() {
        let some = hub.with(|engine, now| engine.abort(session, lease, &[], now));
        count += some;
        if (some as usize) < KEYS_PER_SLICE_MAX {
            break;
        }
        tokio::task::yield_now().await;
    }
    count
}

async fn release(hub: &Hub, session: SessionId, lease: LeaseId, items: &[(u32, bool)]) -> Reply {
    let mut done: Vec<Outcome> = Vec::with_capacity(items.len());
    for slice in slices(items) {
        turn(&done).await;
        done.extend(hub.with(|engine, now| engine.release(session, lease, slice, now)));
    }
    while items.is_empty() {
        let some = hub.with(|engine, now| engine.release(session, lease, &[], now));
        let full = some.len() >= KEYS_PER_SLICE_MAX;
        done.extend(some);
        if !full {
            break;
        }
        tokio::task::yield_now().await;
    }
    Reply::Release { items: done }
}

async fn unhold(hub: &Hub, session: SessionId, keys: &[WireKey]) -> u32 {
    let mut count = 0;
    for slice in slices(keys) {
        count += hub.with(|engine, now| engine.unhold(session, slice, now));
        tokio::task::yield_now().await;
    }
    while keys.is_empty() {
        let some = hub.with(|engine, now| engine.unhold(session, &[], now));
        count += some;
        if some == 0 {
            break;
        }
        tokio::task::yield_now().await;
    }
    count
}
