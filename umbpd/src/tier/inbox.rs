//! What tier threads and plugins tell the engine's thread.

use std::sync::Mutex;

use tokio::sync::Notify;
use umbp_plugin_api::Completion;
use umbp_plugin_api::backend::RecoveredNamespace;
use umbp_plugin_api::types::RecoveredBlock;

use super::lock;
use crate::engine::api::TierIndex;

/// Most messages, besides completions, that wait. Each tier has at most one of each kind on its way, so only a plugin
/// that breaks its contract over and over reaches it; further messages are dropped, since the tier has failed already.
const MESSAGES_MAX: usize = 1024;

/// News of a tier, besides completions.
#[derive(Debug)]
pub enum Message {
    /// It broke its contract or panicked: it is not called any more.
    Failed(String),
    /// The namespaces of an earlier life. Its pages come on demand, by `RecoverPage`.
    Namespaces(Vec<RecoveredNamespace>),
    /// A page of blocks of an earlier life; the next comes on demand.
    Recovered {
        /// The page.
        blocks: Vec<RecoveredBlock>,
        /// The cursor of the next page; none after the last.
        next: Option<u64>,
    },
    /// The end of recovery came early.
    RecoveryFailed(String),
    /// A segment that was destroyed is there anew.
    SegmentCreated(super::SegmentInfo),
    /// The region is let go of.
    RegionGone(u64),
}

#[derive(Default)]
struct Inner {
    completions: Vec<(TierIndex, Completion)>,
    messages: Vec<(TierIndex, Message)>,
}

/// Filled from any thread, never blocking; emptied by the engine's thread. Completions are bounded by the slots of all
/// tiers, since only operations in flight are let in.
#[derive(Default)]
pub struct Inbox {
    inner: Mutex<Inner>,
    changed: Notify,
}

impl Inbox {
    /// Takes completions of operations that were in flight.
    pub fn complete(&self, tier: TierIndex, completions: &[Completion]) {
        lock(&self.inner).completions.extend(completions.iter().map(|completion| (tier, *completion)));
        self.changed.notify_one();
    }

    /// Takes a message.
    pub fn push(&self, tier: TierIndex, message: Message) {
        let mut inner = lock(&self.inner);
        if inner.messages.len() < MESSAGES_MAX {
            inner.messages.push((tier, message));
        }
        drop(inner);
        self.changed.notify_one();
    }

    /// Waits until something was put in since the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Everything that is in it: messages and completions, each in order of arrival.
    pub fn drain(&self, completions: &mut Vec<(TierIndex, Completion)>) -> Vec<(TierIndex, Message)> {
        completions.clear();
        let mut inner = lock(&self.inner);
        std::mem::swap(&mut inner.completions, completions);
        std::mem::take(&mut inner.messages)
    }
}
