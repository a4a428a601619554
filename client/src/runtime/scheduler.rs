//! What a scheduler runs on: lookups that hold their hits, waited for or under way, and clear.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use umbp_connector_core::key::LocalKey;
use umbp_connector_core::scheduler::{Hold, LookupId, Lookups};
use umbp_protocol::message::Found;

use super::holds::Holds;
use super::notice::{Notice, Watch};
use super::options::RuntimeOptions;
use crate::client::Client;
use crate::lookup::Lookup;
use crate::options::Error;

/// Lookups under way, or answered and not taken; one beyond it is not asked, not kept, and unanswered at once.
pub const LOOKUPS_MAX: usize = 4096;

/// There is no answer: the daemon is away, or did not answer in time. To be taken as a miss of every key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the daemon has not answered the lookup: taken as a miss")]
pub struct Unanswered;

#[derive(Debug)]
struct UnderWay {
    keys: Vec<LocalKey>,
    hold: Hold,
    lookup: Lookup,
}

/// A scheduler's runtime. Dropping it ends its session.
#[derive(Debug)]
pub struct SchedulerRuntime {
    client: Client,
    socket: PathBuf,
    hold_ms: u32,
    timeout: Duration,
    /// Time that lookups of the step that is being planned have waited.
    waited: Duration,
    watch: Watch,
    holds: Holds,
    open: BTreeMap<u64, UnderWay>,
    last: u64,
}

impl SchedulerRuntime {
    /// Starts, with or without a daemon; waits a moment for one that is there.
    pub fn start(options: &RuntimeOptions) -> Result<Self, Error> {
        let client = Client::start(options.client())?;
        client.wait_attached(options.first_attach());
        Ok(Self {
            client,
            socket: options.socket.clone(),
            hold_ms: options.hold_ms(),
            timeout: options.timeout,
            waited: Duration::ZERO,
            watch: Watch::default(),
            holds: Holds::default(),
            open: BTreeMap::new(),
            last: 0,
        })
    }

    /// The client below: counters, status, waiting for the daemon.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// News for people since the last call.
    pub fn notice(&mut self) -> Option<Notice> {
        self.watch.look(&self.client, &self.socket)
    }

    /// Which keys are there? Waits for the answer. All lookups between two calls of [`Self::step_planned`] together wait
    /// at most the runtime's time-out; what is asked beyond it is unanswered at once.
    pub fn lookup(&mut self, keys: &[LocalKey], hold: Hold) -> Result<Vec<bool>, Unanswered> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let left = self.timeout.saturating_sub(self.waited);
        if left.is_zero() {
            return Err(Unanswered);
        }
        let began = Instant::now();
        let answer = self.client.begin_lookup(keys, self.hold_ms(hold)).wait(left);
        self.waited += began.elapsed();
        let Some(answer) = answer else {
            self.give_up(keys, hold);
            return Err(Unanswered);
        };
        self.answer(keys, hold, answer)
    }

    /// A step of the engine is planned: the next one's lookups have the whole time-out again.
    pub fn step_planned(&mut self) {
        self.waited = Duration::ZERO;
    }

    /// Asks, and returns at once; the answer is taken by [`Self::take`].
    pub fn submit(&mut self, keys: &[LocalKey], hold: Hold) -> LookupId {
        self.last += 1;
        if self.open.len() < LOOKUPS_MAX {
            let lookup = self.client.begin_lookup(keys, self.hold_ms(hold));
            self.open.insert(self.last, UnderWay { keys: keys.to_vec(), hold, lookup });
        } else {
            tracing::warn!(
                "{LOOKUPS_MAX} lookups are under way: one more is a miss; take their answers or cancel them"
            );
        }
        LookupId(self.last)
    }

    /// The answer, once; none while the lookup is under way. One that is not kept is unanswered.
    pub fn take(&mut self, id: LookupId) -> Option<Result<Vec<bool>, Unanswered>> {
        let Some(under_way) = self.open.get(&id.0) else { return Some(Err(Unanswered)) };
        let answer = under_way.lookup.poll()?;
        let UnderWay { keys, hold, .. } = self.open.remove(&id.0)?;
        Some(self.answer(&keys, hold, answer))
    }

    /// Gives a lookup up, and what it holds or is going to hold, as far as nobody else wants it.
    pub fn cancel(&mut self, id: LookupId) {
        if let Some(UnderWay { keys, hold, .. }) = self.open.remove(&id.0) {
            self.give_up(&keys, hold);
        }
    }

    /// Nobody takes the answer any more.
    fn give_up(&self, keys: &[LocalKey], hold: Hold) {
        if hold == Hold::Hits {
            // The daemon takes requests of a session in their order: the hold is there when this comes.
            self.client.give_up_holds(&self.holds.unwanted(keys, Instant::now()));
        }
    }

    /// The request that looked these up is over, or needs them no more.
    pub fn unhold(&mut self, keys: &[LocalKey]) {
        let free = self.holds.give_up(keys, Instant::now());
        self.client.give_up_holds(&free);
    }

    /// Forgets all blocks of the namespace; false when some are in use, or the daemon is away.
    pub fn clear(&mut self) -> bool {
        self.holds.clear();
        // Its own holds are in nobody's way: the daemon takes requests of a session in their order. Only the second is
        // waited for, so that both take one time-out together.
        self.client.give_up_all_holds();
        match self.client.clear() {
            Ok(cleared) => cleared.pinned == 0,
            Err(error) => {
                tracing::warn!("nothing is cleared: {error}");
                false
            }
        }
    }

    fn hold_ms(&self, hold: Hold) -> u32 {
        if hold == Hold::Hits { self.hold_ms } else { 0 }
    }

    fn answer(
        &mut self,
        keys: &[LocalKey],
        hold: Hold,
        answer: Result<Vec<Found>, Error>,
    ) -> Result<Vec<bool>, Unanswered> {
        let found = answer.map_err(|error| {
            tracing::debug!(%error, "a lookup is unanswered");
            Unanswered
        })?;
        if hold == Hold::Hits {
            let held = keys.iter().zip(&found).filter(|(_, found)| matches!(found, Found::Hit { held: true, .. }));
            let life = Duration::from_millis(u64::from(self.hold_ms));
            self.holds.take(held.map(|(key, _)| *key), Instant::now(), life);
        }
        Ok(found.iter().map(|found| matches!(found, Found::Hit { .. })).collect())
    }
}

impl Lookups for SchedulerRuntime {
    fn lookup(&mut self, keys: &[LocalKey], hold: Hold) -> Option<Vec<bool>> {
        Self::lookup(self, keys, hold).ok()
    }

    fn submit(&mut self, keys: &[LocalKey], hold: Hold) -> LookupId {
        Self::submit(self, keys, hold)
    }

    fn take(&mut self, lookup: LookupId) -> Option<Option<Vec<bool>>> {
        Self::take(self, lookup).map(Result::ok)
    }

    fn cancel(&mut self, lookup: LookupId) {
        Self::cancel(self, lookup);
    }

    fn unhold(&mut self, keys: &[LocalKey]) {
        Self::unhold(self, keys);
    }

    fn clear(&mut self) -> bool {
        Self::clear(self)
    }

    fn step_planned(&mut self) {
        Self::step_planned(self);
    }
}

#[cfg(test)]
mod tests {
    use umbp_connector_core::key::{BlockHash, GroupId, Rank};
    use umbp_connector_core::namespace::NamespaceDescriptor;

    use super::*;

    #[test]
    fn a_lookup_beyond_the_bound_is_not_kept_and_is_a_miss_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = RuntimeOptions::new(folder.path().join("nobody.sock"), NamespaceDescriptor::default());
        let mut runtime = SchedulerRuntime::start(&options).expect("it starts without a daemon");
        let hash = BlockHash::new(&[1]).expect("a hash");
        let keys = [LocalKey { hash, group: GroupId(0), rank: Rank::default() }];
        let first = runtime.submit(&keys, Hold::Hits);
        for _ in 1..LOOKUPS_MAX + 10 {
            runtime.submit(&keys, Hold::Hits);
        }
        let beyond = runtime.submit(&keys, Hold::Hits);
        assert_eq!(runtime.open.len(), LOOKUPS_MAX);
        assert_eq!(runtime.take(beyond), Some(Err(Unanswered)));
        runtime.cancel(beyond);
        runtime.cancel(first);
        let next = runtime.submit(&keys, Hold::Hits);
        assert!(runtime.open.contains_key(&next.0), "one that is given up makes room");
    }
}
