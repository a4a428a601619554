//! Which published blocks are gone: asked for without waiting.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use umbp_connector_core::key::LocalKey;
use umbp_protocol::message::Found;

use crate::client::Client;
use crate::events::ClientEvent;
use crate::lookup::Lookup;

/// Keys remembered as published by a worker; beyond it the oldest is forgotten, and its end is not told.
pub const PUBLISHED_MAX: usize = 65_536;

/// What a worker has published, and what may be gone.
#[derive(Debug, Default)]
pub struct Published {
    keys: HashSet<LocalKey>,
    oldest_first: VecDeque<LocalKey>,
    /// Left a tier; another may have them.
    doubted: HashSet<LocalKey>,
    asked: Option<(Vec<LocalKey>, Lookup)>,
}

impl Published {
    /// These are there now.
    pub fn add(&mut self, keys: impl IntoIterator<Item = LocalKey>) {
        for key in keys {
            if self.keys.insert(key) {
                self.oldest_first.push_back(key);
            }
        }
        while self.keys.len() > PUBLISHED_MAX {
            let Some(oldest) = self.oldest_first.pop_front() else { break };
            self.forget(&oldest);
        }
    }

    fn forget(&mut self, key: &LocalKey) {
        self.keys.remove(key);
        self.doubted.remove(key);
    }

    /// What is gone since the last call, as far as is known by now: takes the client's events, and never waits.
    pub fn take_evicted(&mut self, client: &Client) -> Vec<LocalKey> {
        for event in client.events(Duration::ZERO) {
            match event {
                ClientEvent::Removed { keys, .. } => {
                    let local = keys.iter().filter_map(|key| LocalKey::from_bytes(&key.local).ok().flatten());
                    self.doubted.extend(local.filter(|key| self.keys.contains(key)));
                }
                // What left meanwhile has no name: all are asked for.
                ClientEvent::Resync | ClientEvent::Attached { .. } => self.doubted.extend(&self.keys),
                ClientEvent::Detached { .. } | ClientEvent::TierState { .. } | ClientEvent::Draining => {}
            }
        }
        let gone = self.answered();
        // Without a session nobody answers; with the next one all are in doubt.
        if self.asked.is_none() && !self.doubted.is_empty() && client.detached().is_none() {
            let keys: Vec<LocalKey> = self.doubted.drain().collect();
            let lookup = client.begin_lookup(&keys, 0);
            self.asked = Some((keys, lookup));
        }
        gone
    }

    /// What the lookup under way has found gone. Without an answer nothing is, and all that was asked stays in doubt.
    fn answered(&mut self) -> Vec<LocalKey> {
        let Some(answer) = self.asked.as_ref().and_then(|(_, lookup)| lookup.poll()) else { return Vec::new() };
        let Some((keys, _)) = self.asked.take() else { return Vec::new() };
        let Ok(found) = answer else {
            self.doubted.extend(keys.into_iter().filter(|key| self.keys.contains(key)));
            return Vec::new();
        };
        let gone: Vec<LocalKey> = keys
            .into_iter()
            .zip(found)
            .filter(|(key, found)| matches!(found, Found::Miss(_)) && self.keys.contains(key))
            .map(|(key, _)| key)
            .collect();
        gone.iter().for_each(|key| self.forget(key));
        if !gone.is_empty() {
            let keys = &self.keys;
            self.oldest_first.retain(|key| keys.contains(key));
        }
        gone
    }
}
