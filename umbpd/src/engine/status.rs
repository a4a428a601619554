//! The engine's state for people and programs.

use serde_json::{Map, Value, json};
use umbp_plugin_api::Status;
use umbp_protocol::message::MissReason;

use super::api::TierState;
use super::lease::LeaseKind;
use super::lower::Purpose;
use super::state::{DRAM, Engine};
use super::tier::{CopyState, ERROR_KINDS, Tier};

/// By [`MissReason`]'s number.
const MISS_NAMES: [&str; MissReason::ALL.len() + 1] =
    ["", "absent", "writing", "tier_down", "no_room", "failed", "draining", "bad_key", "corrupt"];

impl Engine {
    /// One JSON object: tiers, tenants, sessions, totals. `asked` is the sum of all tiers' `hits` and of all
    /// `misses`; `load_misses` are those of Acquires. No counter ever decreases.
    pub fn status(&self) -> Value {
        let kinds = |kind| self.leases.values().filter(|lease| lease.kind == kind && !lease.expired).count();
        let share = self.index.orphans() as f64 / (self.index.resident.max(1)) as f64;
        json!({
            "tiers": (0..self.tiers.len()).map(|tier| self.tier_status(tier)).collect::<Vec<_>>(),
            "tenants": self.tenant_status(),
            "sessions": self.session_status(),
            "asked": self.counters.asked,
            "misses": by_reason(&self.counters.misses),
            "load_misses": by_reason(&self.counters.load_misses),
            "stored": self.counters.stored,
            "refused": self.counters.refused,
            "acquired": self.counters.acquired,
            "promotions": self.counters.promotions,
            "promotions_failed": self.counters.promotions_failed,
            "bad_loads": self.counters.bad_loads,
            "evictions": self.tiers.iter().map(|tier| tier.counters.evicted).sum::<u64>(),
            "stale_commits": self.counters.stale_commits,
            "leases": { "read": kinds(LeaseKind::Read), "write": kinds(LeaseKind::Write),
                        "expired": self.counters.leases_expired },
            "holds": { "now": self.holds.len(), "expired": self.counters.holds_expired,
                       "refused": self.counters.holds_refused },
            "resident_blocks": self.index.resident,
            "known_keys": self.index.known,
            "orphan_blocks": self.index.orphans(),
            "orphan_share": share,
            "index_bytes": self.memory_bytes(),
            "draining": self.draining,
            "faults": self.counters.faults,
        })
    }

    /// Bytes that the index and the records of copies take.
    pub fn memory_bytes(&self) -> usize {
        let tier = |tier: &Tier| {
            let orders: usize = tier.orders.iter().map(|order| order.memory_bytes()).sum();
            tier.copies.memory_bytes() + tier.marks.memory_bytes() + tier.kids.memory_bytes() + orders
        };
        let copies: usize = self.tiers.iter().map(tier).sum();
        let adrift: usize = self.adrift.iter().map(|adrift| adrift.memory_bytes()).sum();
        self.index.memory_bytes() + self.hits.memory_bytes() + copies + self.sightings.memory_bytes() + adrift
    }

    fn tier_status(&self, at: usize) -> Value {
        let tier = &self.tiers[at];
        let counters = &tier.counters;
        let capacity = if at == DRAM { self.pool.total_bytes() } else { tier.settings.capacity };
        let mut status = json!({
            "name": tier.settings.name,
            "state": tier.state.name(),
            "capacity_bytes": capacity,
            "limit_bytes": if at == DRAM { capacity } else { tier.limit },
            "used_bytes": tier.used_bytes(),
            "free_bytes": if at == DRAM { self.pool.free_bytes() } else { capacity.saturating_sub(tier.used_bytes()) },
            "resident_blocks": tier.resident,
            "quarantined_bytes": if at == DRAM { self.quarantined_bytes() } else { 0 },
            "evictable_blocks": tier.orders.iter().map(|order| order.len()).sum::<u64>(),
            "hits": counters.hits,
            "loaded": counters.loaded,
            "stored": counters.stored,
            "promoted": counters.promoted,
            "demoted": counters.demoted,
            "evicted": counters.evicted,
            "dropped": counters.dropped,
            "not_admitted": counters.not_admitted,
            "passed_through": counters.passed_through,
            "limit_found": counters.limit_found,
            "undeleted_blocks": tier.undeleted_blocks(),
            "timeouts": counters.timeouts,
            "unknown_completions": counters.unknown_completions,
            "errors": error_status(tier),
            "queued_blocks": tier.queued_blocks,
            "queued_bytes": tier.queued_bytes,
            "in_flight": tier.in_flight,
            "recovering_blocks": tier.unplaced.len(),
        });
        if let Some(asks) = &tier.asks {
            status["shared"] = json!(true);
            status["present_other"] = json!(counters.present_other);
            status["ask"] = asks.status();
        }
        status
    }

    /// Bytes that nobody may use since someone may still write to them: late writers, fills that are overdue, and
    /// whatever a failed tier has in flight.
    fn quarantined_bytes(&self) -> u64 {
        let writers: u64 = self.sessions.values().map(|session| session.quarantined_bytes).sum();
        let stuck = self.operations.values().filter_map(|operation| {
            let failed = self.tiers[operation.tier].state == TierState::Failed;
            let (Purpose::Get { dram, .. } | Purpose::Put { dram, .. }) = operation.purpose else { return None };
            let copy = &self.tiers[DRAM].copies[dram];
            let filling = operation.overdue && copy.state == CopyState::Filling;
            (failed || filling).then_some(u64::from(copy.bytes))
        });
        writers + stuck.sum::<u64>()
    }

    fn tenant_status(&self) -> Vec<Value> {
        let tenants = self.settings.tenants.iter().enumerate();
        tenants
            .map(|(at, tenant)| {
                let used: Map<String, Value> =
                    self.tiers.iter().map(|tier| (tier.settings.name.clone(), json!(tier.used[at]))).collect();
                json!({ "name": tenant.name, "used_bytes": used })
            })
            .collect()
    }

    fn session_status(&self) -> Vec<Value> {
        let sessions = self.sessions.iter();
        sessions
            .map(|(id, session)| {
                json!({
                    "id": id.0,
                    "pid": session.pid,
                    "client": session.client,
                    "tenant": self.settings.tenants[usize::from(session.tenant)].name,
                    "open": session.open,
                    "leases": session.leases.len(),
                    "holds": session.holds.len(),
                    "held_bytes": session.hold_bytes,
                    "pinned_bytes": session.pinned_bytes,
                    "quarantined_bytes": session.quarantined_bytes,
                })
            })
            .collect()
    }
}

fn by_reason(counts: &[u64; MISS_NAMES.len()]) -> Map<String, Value> {
    (1..MISS_NAMES.len()).map(|reason| (MISS_NAMES[reason].to_owned(), json!(counts[reason]))).collect()
}

fn error_status(tier: &Tier) -> Value {
    let kinds = (1..ERROR_KINDS).filter(|kind| tier.counters.errors[*kind] > 0);
    kinds
        .map(|kind| (Status(kind as u32).name().to_owned(), json!(tier.counters.errors[kind])))
        .collect::<Map<_, _>>()
        .into()
}
