//! Sessions: who holds leases and holds, and whose late writes are still to be feared.

use std::collections::BTreeSet;

use umbp_protocol::message::{SegmentId, SessionId};

use super::api::{Action, TenantIndex, Time};
use super::lease::EXPIRY_SLICE_ITEMS;
use super::state::Engine;

/// Who opens a session.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// The tenant, as decided from the socket's credentials.
    pub tenant: TenantIndex,
    /// The process, as the kernel told it; 0 = one of another pid namespace, which cannot be told from others.
    pub pid: u32,
    /// Name of the client, for status.
    pub client: String,
    /// The process's session before.
    pub previous_session: Option<SessionId>,
    /// The process has unmapped all that `previous_session` mapped.
    pub all_unmapped: bool,
}

pub(super) struct Session {
    pub(super) tenant: u16,
    pub(super) pid: u32,
    pub(super) client: String,
    /// False once its socket is closed; it then stays for its quarantine alone.
    pub(super) open: bool,
    /// No thread of its process can write to its extents any more.
    pub(super) harmless: bool,
    pub(super) leases: BTreeSet<u64>,
    /// While it is being closed: leases before this one need no further look.
    close_cursor: u64,
    /// Items of these leases.
    pub(super) leased_items: usize,
    /// Entries held.
    pub(super) holds: BTreeSet<u32>,
    pub(super) hold_bytes: u64,
    /// Bytes pinned by read leases.
    pub(super) pinned_bytes: u64,
    pub(super) quarantined_bytes: u64,
}

impl Engine {
    /// A session of a process; its number is the engine's to give. Where the process says so, an earlier session of
    /// the same process and tenant is over and its quarantine ends. `None` for an unknown tenant.
    pub fn session_open(&mut self, info: SessionInfo, now: Time) -> Option<SessionId> {
        self.begin();
        self.settings.tenants.get(usize::from(info.tenant.0))?;
        if let Some(previous) = info.previous_session {
            let same = |old: &Session| info.pid != 0 && old.pid == info.pid && old.tenant == info.tenant.0;
            if self.sessions.get(&previous).is_some_and(same) {
                self.end_session(previous, info.all_unmapped);
            }
        }
        let id = SessionId(self.new_id());
        let session = Session {
            tenant: info.tenant.0,
            pid: info.pid,
            client: info.client,
            open: true,
            harmless: false,
            leases: BTreeSet::new(),
            close_cursor: 0,
            leased_items: 0,
            holds: BTreeSet::new(),
            hold_bytes: 0,
            pinned_bytes: 0,
            quarantined_bytes: 0,
        };
        self.sessions.insert(id, session);
        self.settle(now);
        Some(id)
    }

    /// The session's socket is closed. Its leases and holds end, a slice at once and the rest by [`Engine::tick`];
    /// what it was writing is quarantined until its process is gone.
    pub fn session_close(&mut self, id: SessionId, process_gone: bool, now: Time) {
        self.begin();
        self.end_session(id, process_gone);
        self.close_slice();
        self.settle(now);
    }

    /// The session's process is gone, and with it everything that could write.
    pub fn process_gone(&mut self, id: SessionId, now: Time) {
        self.session_close(id, true, now);
    }

    /// The session has ended and its process can still write to what it leased: [`Engine::process_gone`] is awaited.
    pub fn session_lingers(&self, id: SessionId) -> bool {
        self.sessions.contains_key(&id)
    }

    /// Sessions of a tenant, those that have ended and are not over yet included.
    pub fn sessions_of(&self, tenant: TenantIndex) -> usize {
        self.sessions.values().filter(|session| session.tenant == tenant.0).count()
    }

    /// The session has unmapped a withdrawn segment.
    pub fn segment_unmapped(&mut self, id: SessionId, segment: SegmentId) {
        self.begin();
        for segment in self.pool.unmapped(Some(id), Some(segment)) {
            self.outbox.push(Action::SegmentFree { segment });
        }
    }

    fn end_session(&mut self, id: SessionId, harmless: bool) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.open = false;
        session.harmless |= harmless;
        session.close_cursor = 0;
        self.closing.insert(id);
        for segment in self.pool.unmapped(Some(id), None) {
            self.outbox.push(Action::SegmentFree { segment });
        }
    }

    /// Lets go of what ended sessions had, at most a slice of it. True if more is left.
    pub(super) fn close_slice(&mut self) -> bool {
        let mut budget = EXPIRY_SLICE_ITEMS;
        while let Some(id) = self.closing.first().copied() {
            let Some(session) = self.sessions.get(&id) else {
                self.closing.remove(&id);
                continue;
            };
            let harmless = session.harmless;
            let held = session.holds.first().copied();
            let lease = session.leases.range(session.close_cursor..).copied().find(|lease| {
                let state = self.leases.get(lease);
                harmless || state.is_none_or(|lease| !lease.expired)
            });
            if let (Some(lease), Some(session)) = (lease, self.sessions.get_mut(&id)) {
                session.close_cursor = lease;
            }
            if budget == 0 && (held.is_some() || lease.is_some()) {
                return true;
            }
            if let Some(entry) = held {
                self.drop_hold(entry, id.0);
                budget -= 1;
            } else if let Some(lease) = lease {
                budget = budget.saturating_sub(self.end_lease(lease, budget));
            } else {
                self.closing.remove(&id);
                self.forget_if_over(id);
            }
        }
        false
    }

    /// A closed session without leases is nothing any more.
    pub(super) fn forget_if_over(&mut self, id: SessionId) {
        let over = |session: &Session| !session.open && session.leases.is_empty() && session.holds.is_empty();
        if self.sessions.get(&id).is_some_and(over) && !self.closing.contains(&id) {
            self.sessions.remove(&id);
        }
    }

    /// Tenant of a session that may ask.
    pub(super) fn tenant_of(&self, id: SessionId) -> Option<u16> {
        self.sessions.get(&id).filter(|session| session.open).map(|session| session.tenant)
    }

    /// Quarantined bytes of a session's process, its earlier sessions included.
    pub(super) fn quarantine_of(&self, id: SessionId) -> u64 {
        let Some(session) = self.sessions.get(&id) else { return 0 };
        if session.pid == 0 {
            return session.quarantined_bytes;
        }
        let same = self.sessions.values().filter(|other| other.pid == session.pid && other.tenant == session.tenant);
        same.map(|session| session.quarantined_bytes).sum()
    }
}
