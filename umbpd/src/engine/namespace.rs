//! Namespaces by number. A number belongs to one tenant: the same descriptor of two tenants is two numbers, and two
//! digests in every tier, so no key of one names a block of another.

use std::collections::HashMap;

use umbp_connector_core::namespace::{of_tenant, tenant_digest};
use umbp_protocol::message::NamespaceId;

use super::api::{Action, TenantIndex, TierState};
use super::state::{DRAM, Engine};

/// Most namespaces in one life of the daemon, an equal share for each tenant; more are refused.
pub const NAMESPACES_MAX: usize = 4096;

pub(super) struct Namespace {
    pub(super) tenant: u16,
    digest: [u8; 32],
    stored: Vec<u8>,
}

/// All namespaces; number n is at n - 1.
#[derive(Default)]
pub(super) struct Namespaces {
    all: Vec<Namespace>,
    by_digest: HashMap<[u8; 32], NamespaceId>,
    /// How many each tenant has.
    counts: HashMap<u16, usize>,
}

impl Namespaces {
    pub(super) fn tenant(&self, id: NamespaceId) -> Option<u16> {
        self.all.get((id.0 as usize).wrapping_sub(1)).map(|namespace| namespace.tenant)
    }
}

/// The tenant's name and the descriptor, from the form that backends keep.
pub fn parse_stored_descriptor(stored: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = stored.split_first_chunk::<2>()?;
    let (name, descriptor) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    Some((std::str::from_utf8(name).ok()?, descriptor))
}

impl Engine {
    /// The number of a tenant's namespace, given on first sight; every lower tier that can be called is told of it
    /// before anything names it. `None` for an unknown tenant, or one that has its share of [`NAMESPACES_MAX`].
    pub fn namespace(&mut self, tenant: TenantIndex, descriptor: &[u8]) -> Option<NamespaceId> {
        let name = &self.settings.tenants.get(usize::from(tenant.0))?.name;
        let digest = tenant_digest(name, descriptor).0;
        if let Some(id) = self.namespaces.by_digest.get(&digest) {
            return Some(*id);
        }
        if self.namespaces.counts.get(&tenant.0).is_some_and(|count| *count >= self.namespaces_per_tenant()) {
            return None;
        }
        *self.namespaces.counts.entry(tenant.0).or_default() += 1;
        let stored = of_tenant(name, descriptor);
        self.namespaces.all.push(Namespace { tenant: tenant.0, digest, stored });
        let id = NamespaceId(self.namespaces.all.len() as u32);
        self.namespaces.by_digest.insert(digest, id);
        for tier in DRAM + 1..self.tiers.len() {
            if matches!(self.tiers[tier].state, TierState::Running | TierState::Degraded) {
                self.introduce(tier, id);
            }
        }
        Some(id)
    }

    /// Most namespaces of one tenant.
    pub fn namespaces_per_tenant(&self) -> usize {
        (NAMESPACES_MAX / self.settings.tenants.len().max(1)).max(1)
    }

    fn introduce(&mut self, tier: usize, id: NamespaceId) {
        let namespace = &self.namespaces.all[id.0 as usize - 1];
        let (digest, descriptor) = (namespace.digest, namespace.stored.clone());
        self.outbox.push(Action::NamespacePut { tier: Self::tier_index(tier), id: id.0, digest, descriptor });
    }

    /// A tier starts to serve: it learns all namespaces so far.
    pub(super) fn introduce_all(&mut self, tier: usize) {
        for number in 1..=self.namespaces.all.len() as u32 {
            self.introduce(tier, NamespaceId(number));
        }
    }
}
