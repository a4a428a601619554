//! The first message: version, tenant, namespace.

use std::rc::Rc;
use std::sync::Arc;

use umbp_protocol::message::{
    Event, FDS_PER_MESSAGE_MAX, FRAME_BYTES_MAX, Hello, KEYS_PER_MESSAGE_MAX, Limits, NamespaceId, PROTOCOL_VERSIONS,
    Refusal, Reply, SessionId, TierName, Welcome,
};

use super::outbox::Outgoing;
use super::{SESSIONS_MAX, SESSIONS_PER_TENANT_LEAST, refusal};
use crate::core::Hub;
use crate::core::seat::SessionSeat;
use crate::engine::SessionInfo;
use crate::engine::api::TenantIndex;

/// Longest encoded namespace descriptor, in bytes; it is kept for the daemon's life and stored in every tier, together
/// with the tenant's name, where backends take 64 KiB.
const DESCRIPTOR_BYTES_MAX: usize = 32 << 10;
/// Longest name that is kept or repeated of what a client says, in bytes; the rest is cut.
const CLIENT_NAME_BYTES_MAX: usize = 128;

/// Who is there, as the kernel says.
#[derive(Clone, Copy)]
pub struct Who {
    /// User.
    pub uid: u32,
    /// Process.
    pub pid: i32,
}

/// Lets the client in, with everything that follows the Welcome queued, or says why not. A client without a tenant
/// that runs as root or as the daemon's own user may ask for status; it gets no session.
pub fn welcome(
    hub: &Hub,
    seat: &Rc<SessionSeat>,
    who: Who,
    request_id: u64,
    hello: &Hello,
) -> Result<Option<SessionId>, Refusal> {
    let version = version(hello)?;
    let Some(tenant) = tenant(hub, who, hello)? else {
        send(hub, seat, request_id, welcome_of(hub, version, None, None), None);
        return Ok(None);
    };
    if hub.sessions.borrow().len() >= SESSIONS_MAX {
        return Err(refusal("limit", format!("{SESSIONS_MAX} sessions are open already; end some, or try later")));
    }
    let share = (SESSIONS_MAX / hub.facts.config.tenants.len().max(1)).max(SESSIONS_PER_TENANT_LEAST);
    if hub.ask(|engine| engine.sessions_of(tenant)) >= share {
        let message = format!("the tenant has {share} sessions already, its share; end some, or try later");
        return Err(refusal("limit", message));
    }
    if hub.ask(|engine| engine.is_draining()) {
        return Err(refusal("draining", "this umbpd is shutting down; try again once it has restarted"));
    }
    let namespace = namespace(hub, tenant, hello)?;
    // A number of another life is by now somebody else's. No pid: a process of another pid namespace, like any other.
    let own_word = hello.previous_boot_id == hub.facts.boot_id && who.pid != 0;
    let previous_session = hello.previous_session.filter(|_| own_word);
    if let Some(previous) = previous_session.and_then(|id| hub.sessions.borrow().get(&id).cloned()) {
        // The engine takes the word only of the same process and tenant.
        if previous.pid == who.pid && !Rc::ptr_eq(&previous, seat) {
            previous.end("its process has opened another session in its place");
        }
    }
    let info = SessionInfo {
        tenant,
        pid: u32::try_from(who.pid).unwrap_or(0),
        client: cut(&hello.client, CLIENT_NAME_BYTES_MAX).to_owned(),
        previous_session,
        all_unmapped: hello.all_unmapped,
    };
    let Some(session) = hub.with(|engine, now| engine.session_open(info, now)) else {
        return Err(refusal("tenant", "the engine does not know this tenant"));
    };
    hub.sessions.borrow_mut().insert(session, seat.clone());
    let table = if namespace.is_some() { hub.table(tenant) } else { None };
    let message = welcome_of(hub, version, Some((session, tenant)), namespace);
    send(hub, seat, request_id, message, table);
    if namespace.is_some() {
        send_segments(hub, seat, tenant);
    }
    Ok(Some(session))
}

fn version(hello: &Hello) -> Result<u16, Refusal> {
    let (ours, theirs) = (PROTOCOL_VERSIONS, hello.versions);
    let newest = ours.1.min(theirs.1);
    if newest >= ours.0.max(theirs.0) {
        return Ok(newest);
    }
    let message = format!(
        "client {:?} speaks protocol versions {} to {}, umbpd {} speaks {} to {}; bring both to one release",
        cut(&hello.client, CLIENT_NAME_BYTES_MAX),
        theirs.0,
        theirs.1,
        env!("CARGO_PKG_VERSION"),
        ours.0,
        ours.1
    );
    Err(refusal("version", message))
}

/// The tenant wanted, among those that config allows to this user; the first of these where none is named.
fn tenant(hub: &Hub, who: Who, hello: &Hello) -> Result<Option<TenantIndex>, Refusal> {
    let all = hub.facts.config.tenants.iter().enumerate();
    let mut allowed = all.filter(|(_, tenant)| tenant.uids.contains(&who.uid));
    let found = match &hello.tenant {
        Some(name) => allowed.find(|(_, tenant)| *tenant.name == *name),
        None => allowed.next(),
    };
    if let Some((at, _)) = found {
        return Ok(Some(TenantIndex(at as u16)));
    }
    let operator = who.uid == 0 || who.uid == rustix::process::geteuid().as_raw();
    if operator && hello.namespace.is_none() && hello.tenant.is_none() {
        return Ok(None);
    }
    let names: Vec<&str> = hub
        .facts
        .config
        .tenants
        .iter()
        .filter(|tenant| tenant.uids.contains(&who.uid))
        .map(|tenant| tenant.name.as_str())
        .collect();
    let wanted = hello.tenant.as_deref().map(|name| format!("tenant {:?}", cut(name, CLIENT_NAME_BYTES_MAX)));
    let wanted = wanted.unwrap_or_else(|| "any tenant".to_owned());
    let allowed = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let message = format!(
        "uid {} asks for {wanted}; allowed to it: {allowed}. Add the uid to `uids` of a [[tenant]] in umbpd's config",
        who.uid
    );
    Err(refusal("tenant", message))
}

fn namespace(hub: &Hub, tenant: TenantIndex, hello: &Hello) -> Result<Option<NamespaceId>, Refusal> {
    let Some(descriptor) = &hello.namespace else { return Ok(None) };
    let encoded = descriptor.encode();
    if encoded.len() > DESCRIPTOR_BYTES_MAX {
        let message = format!(
            "namespace descriptor of {} bytes, at most {DESCRIPTOR_BYTES_MAX}: shorten its names and values",
            encoded.len()
        );
        return Err(refusal("argument", message));
    }
    let id = hub.with(|engine, _| engine.namespace(tenant, &encoded));
    id.map(Some).ok_or_else(|| {
        let most = hub.ask(|engine| engine.namespaces_per_tenant());
        let message = format!("the tenant has {most} namespaces already; use one of them, or restart umbpd to forget those that no tier holds");
        refusal("limit", message)
    })
}

fn welcome_of(
    hub: &Hub,
    version: u16,
    session: Option<(SessionId, TenantIndex)>,
    namespace: Option<NamespaceId>,
) -> Welcome {
    let config = &hub.facts.config;
    let milliseconds = |time: std::time::Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    let tenant = session.and_then(|(_, tenant)| config.tenants.get(usize::from(tenant.0)));
    Welcome {
        version,
        daemon: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: hub.facts.boot_id,
        session: session.map_or(SessionId(0), |(session, _)| session),
        tenant: tenant.map_or_else(String::new, |tenant| tenant.name.to_string()),
        namespace,
        generation_words: if namespace.is_some() { hub.facts.generation_words } else { 0 },
        limits: Limits {
            keys: KEYS_PER_MESSAGE_MAX as u32,
            frame_bytes: FRAME_BYTES_MAX as u32,
            lease_ms: milliseconds(*config.limits.lease),
            hold_ms: milliseconds(*config.limits.hold),
            block_bytes: *config.limits.largest_block,
            verify_dram: *config.policy.verify_dram,
        },
        tiers: config
            .tiers
            .iter()
            .map(|tier| TierName { name: tier.name.to_string(), backend: tier.backend.to_string() })
            .collect(),
    }
}

fn send(hub: &Hub, seat: &SessionSeat, request_id: u64, welcome: Welcome, table: Option<Arc<std::os::fd::OwnedFd>>) {
    let bytes = umbp_protocol::encode_reply(request_id, hub.facts.boot_id, &Reply::Welcome(welcome));
    seat.outbox.borrow_mut().push_reply(Outgoing { bytes, fds: table.into_iter().collect() });
}

/// The tenant's segments so far; later ones follow as events.
fn send_segments(hub: &Hub, seat: &SessionSeat, tenant: TenantIndex) {
    for piece in hub.ask(|engine| engine.segments_of(tenant)).chunks(FDS_PER_MESSAGE_MAX) {
        let (segments, fds) = hub.segment_fds(piece);
        seat.outbox.borrow_mut().push_event(hub.facts.boot_id, &Event::SegmentsAdded { segments }, fds);
    }
}

fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
