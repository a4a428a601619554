//! The daemon's state as one JSON object: the engine's own, and what is around it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::hub::Hub;
use super::seat::{MoverSeat, TierSeat};
use crate::process;
use crate::session::peer::PIDFD_FALLBACKS;
use crate::tier::Command;

/// Fresh figures of plugins are waited for this long; then the last ones are shown, with their age.
const FIGURES_WAIT_MS: u64 = 200;
/// Commands that wait for a tier's thread, from which on it is not asked for figures too: they would come late anyway.
const FIGURES_QUEUE_MAX: usize = 32;
/// A call into a plugin that takes longer is shown in its tier's report.
const LONG_CALL_MS: u128 = 1_000;

impl Hub {
    /// All of it. Waits a bounded time for plugins.
    pub async fn status(&self) -> Value {
        self.refresh_figures().await;
        let mut status = self.ask(|engine| engine.status());
        self.add_tiers(&mut status);
        self.add_sessions(&mut status);
        self.add_quotas(&mut status);
        let facts = &self.facts;
        let movers: Vec<Value> = facts.movers.iter().map(mover).collect();
        let more = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "boot_id": format!("{:016x}", facts.boot_id),
            "pid": std::process::id(),
            "uptime_seconds": facts.started.elapsed().as_secs(),
            "config": facts.origin,
            "socket": facts.config.daemon.socket.display().to_string(),
            "process": { "open_fds": process::open_fds(), "rss_bytes": process::rss_bytes(),
                         "anonymous_bytes": process::anonymous_bytes() },
            "movers": movers,
            "connections": self.connections.get(),
            "sessions_ended": *self.sessions_ended.borrow(),
            "fallbacks": { "pidfd_by_number": PIDFD_FALLBACKS.load(Ordering::Relaxed) },
        });
        if let (Value::Object(status), Value::Object(more)) = (&mut status, more) {
            status.extend(more);
        }
        status
    }

    async fn refresh_figures(&self) {
        let mut waits = Vec::new();
        for seat in self.tiers.borrow().iter() {
            let (done, wait) = tokio::sync::oneshot::channel();
            if seat.link.as_ref().is_some_and(|link| link.queue.waiting() >= FIGURES_QUEUE_MAX) {
                continue;
            }
            if seat.link.as_ref().is_some_and(|link| link.queue.push(Command::Stats(done)).is_ok()) {
                waits.push(wait);
            }
        }
        let all = async {
            for wait in waits {
                // A failed tier drops its end: there is nothing to wait for.
                let _ = wait.await;
            }
        };
        // Past the wait the last figures serve.
        let _ = tokio::time::timeout(Duration::from_millis(FIGURES_WAIT_MS), all).await;
    }

    fn add_tiers(&self, status: &mut Value) {
        let tiers = self.tiers.borrow();
        let Some(shown) = status.get_mut("tiers").and_then(Value::as_array_mut) else { return };
        for (seat, shown) in tiers.iter().zip(shown) {
            if let Value::Object(shown) = shown {
                tier(seat, shown);
            }
        }
    }

    /// Tenants stand in config order, as the engine has them.
    fn add_quotas(&self, status: &mut Value) {
        let config = &self.facts.config;
        let Some(shown) = status.get_mut("tenants").and_then(Value::as_array_mut) else { return };
        for (tenant, shown) in config.tenants.iter().zip(shown) {
            let names = config.tiers.iter().map(|tier| tier.name.to_string());
            let quotas = tenant.quota_bytes(&config.tiers).into_iter().map(|bytes| json!(bytes));
            shown["quota_bytes"] = names.zip(quotas).collect::<Map<_, _>>().into();
        }
    }

    fn add_sessions(&self, status: &mut Value) {
        let sessions = self.sessions.borrow();
        let Some(shown) = status.get_mut("sessions").and_then(Value::as_array_mut) else { return };
        for shown in shown {
            let id = shown["id"].as_u64().unwrap_or(0);
            let Some(seat) = sessions.get(&umbp_protocol::message::SessionId(id)) else { continue };
            shown["uid"] = json!(seat.uid);
            shown["seconds"] = json!(seat.since.elapsed().as_secs());
            shown["requests"] = json!(seat.requests.get());
            shown["events_dropped"] = json!(seat.outbox.borrow().dropped);
        }
    }
}

fn mover(seat: &MoverSeat) -> Value {
    let MoverSeat { name, backend, plugin, state, report, abandoned: _ } = seat;
    json!({ "name": name, "backend": backend, "plugin": plugin, "state": state.name(), "report": report })
}

fn tier(seat: &TierSeat, shown: &mut Map<String, Value>) {
    let mut report = seat.report.clone();
    let mut put = |name: &str, value: Value| drop(shown.insert(name.to_owned(), value));
    put("backend", json!(seat.backend));
    put("plugin", json!(seat.plugin));
    put("recovery", json!(seat.recovery.text()));
    put("recovery_ms", json!(seat.recovery_time.1.map(|took| took.as_millis() as u64)));
    put("namespaces_left_out", json!(seat.namespaces_left_out));
    if let Some(link) = &seat.link {
        put("counters", json!(link.services.counters()));
        put("commands_waiting", json!(link.queue.waiting()));
        if let Some((call, time)) = link.shared.call().filter(|(_, time)| time.as_millis() > LONG_CALL_MS) {
            report = format!("{report}; the plugin has been in {call} for {} s", time.as_secs());
        }
        if let Some(figures) = link.shared.figures() {
            put("disk_bytes", json!(figures.stats.medium_bytes));
            put("resident_bytes", json!(figures.stats.resident_bytes));
            put("blocks", json!(figures.stats.blocks));
            put("plugin_in_flight", json!(figures.in_flight));
            put("plugin_waiting", json!(figures.waiting));
            put("figures_age_ms", json!(figures.at.elapsed().as_millis() as u64));
        }
    }
    put("report", json!(report));
}
