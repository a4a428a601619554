//! What stands between the tier and its engine, alike for all engines: a circuit breaker for each endpoint, retries
//! inside the caller's time, and a word for each state.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use umbp_plugin_api::backend::Level;

use crate::breaker::{Breaker, State, Turn};
use crate::objects::{Fault, Head, Objects, Stored};
use crate::options::Options;
use crate::words::Words;

/// Endpoints with a breaker of their own; those beyond share the last.
const ENDPOINTS_MAX: usize = 1024;
/// Times that one call is tried at most.
const TRIES_MAX: u32 = 3;
/// Longest first pause before it is tried again; the second is twice as long.
const PAUSE: Duration = Duration::from_millis(20);

/// An engine's objects, through breakers.
pub(crate) struct Calls<O> {
    objects: Arc<O>,
    breakers: Arc<Mutex<Vec<Breaker>>>,
    fresh: Breaker,
    pub(crate) words: Arc<Words>,
    ttl: Option<Duration>,
    /// The time of one call, as the engine takes it.
    timeout: Duration,
    random: Random,
}

impl<O: Objects> Calls<O> {
    pub(crate) fn new(objects: O, options: &Options, words: Arc<Words>) -> Self {
        let fresh = Breaker::new(options.breaker_failures, options.breaker_pause);
        let (objects, ttl, timeout) = (Arc::new(objects), options.ttl, options.timeout);
        Self { objects, breakers: Arc::default(), fresh, words, ttl, timeout, random: Random::default() }
    }

    pub(crate) fn objects(&self) -> &Arc<O> {
        &self.objects
    }

    pub(crate) fn random(&self) -> u64 {
        self.random.next()
    }

    pub(crate) async fn put_new(&self, name: &str, pieces: &[&[u8]], until: Instant) -> Result<Stored, Fault> {
        // To be tried again is harmless: what was stored by the first try is found there by the second.
        self.call(name, until, || self.objects.put_new(name, pieces, self.ttl)).await
    }

    pub(crate) async fn replace(&self, name: &str, pieces: &[&[u8]], until: Instant) -> Result<(), Fault> {
        self.call(name, until, || self.objects.replace(name, pieces, self.ttl)).await
    }

    pub(crate) async fn get(&self, name: &str, most: u64, until: Instant) -> Result<Option<Vec<u8>>, Fault> {
        self.call(name, until, || self.objects.get(name, most)).await
    }

    pub(crate) async fn delete(&self, name: &str, until: Instant) -> Result<bool, Fault> {
        self.call(name, until, || self.objects.delete(name)).await
    }

    /// Deletes what nobody asks for any more; counts what stays.
    pub(crate) async fn delete_all(&self, names: &[String], until: Instant) {
        for name in names {
            if self.delete(name, until).await.is_err() {
                self.words.count("parts.left");
            }
        }
    }

    pub(crate) async fn head(&self, name: &str, bytes: u64, until: Instant) -> Result<Option<Head>, Fault> {
        let names = [name.to_owned()];
        let call = async || self.objects.heads(&names, bytes).await.pop().unwrap_or(Ok(None));
        self.call(name, until, call).await
    }

    /// Looks whether the engine answers, and says what it says if it does not like us.
    pub(crate) async fn greet(&self) {
        if let Err(fault) = self.objects.ping().await {
            self.words.fault(&fault);
        }
    }

    /// The starts of many, each with its own answer; those of an open circuit are not asked for. Tried once: whoever
    /// asks for many waits for none of them long.
    pub(crate) async fn heads(&self, names: &[String], bytes: u64, until: Instant) -> Vec<Result<Option<Head>, Fault>> {
        let endpoints: Vec<usize> = names.iter().map(|name| self.objects.endpoint(name)).collect();
        let mut answers: Vec<_> = endpoints.iter().map(|endpoint| self.admitted(*endpoint).map(|()| None)).collect();
        let open: Vec<usize> = (0..names.len()).filter(|at| answers[*at].is_ok()).collect();
        let asked: Vec<String> = open.iter().map(|at| names[*at].clone()).collect();
        if asked.is_empty() {
            return answers;
        }
        let began = Instant::now();
        let heads = tokio::time::timeout_at(until, self.objects.heads(&asked, bytes)).await;
        let cut = heads.is_err() && began.elapsed() < self.timeout / 2;
        let heads = heads.unwrap_or_else(|_| asked.iter().map(|_| Err(Fault::Late(began.elapsed()))).collect());
        // One failure of a batch is one, however many names it had.
        let mut failed: Vec<usize> = Vec::new();
        for (at, head) in open.into_iter().zip(heads) {
            let endpoint = endpoints[at];
            if !(head.is_err() && (cut || failed.contains(&endpoint))) {
                self.learn(endpoint, head.as_ref().err());
            }
            if head.is_err() {
                failed.push(endpoint);
            }
            answers[at] = head;
        }
        answers
    }

    /// One call; again, after a pause, where it failed at once in a way that passes, and time is left.
    async fn call<T, F: Future<Output = Result<T, Fault>>>(
        &self,
        name: &str,
        until: Instant,
        call: impl Fn() -> F,
    ) -> Result<T, Fault> {
        let mut tried = 1;
        loop {
            let endpoint = self.objects.endpoint(name);
            self.admitted(endpoint)?;
            let began = Instant::now();
            let answer = tokio::time::timeout_at(until, call()).await;
            if answer.is_err() && began.elapsed() < self.timeout / 2 {
                // The caller's time was over, which says nothing of the endpoint.
                return Err(Fault::Late(began.elapsed()));
            }
            let answer = answer.unwrap_or_else(|_| Err(Fault::Late(began.elapsed())));
            let Err(fault) = answer else {
                self.learn(endpoint, None);
                return answer;
            };
            let pause = self.jittered(PAUSE * (1 << (tried - 1)));
            if !passes(&fault) || tried == TRIES_MAX || Instant::now() + pause >= until {
                // One call is one failure, however often it was tried.
                self.learn(endpoint, Some(&fault));
                return Err(fault);
            }
            tried += 1;
            self.words.count("retries");
            tokio::time::sleep(pause).await;
        }
    }

    fn admitted(&self, endpoint: usize) -> Result<(), Fault> {
        let place = self.place(endpoint);
        if self.breakers()[place].admits() {
            return Ok(());
        }
        self.words.count("breaker.refused");
        Err(Fault::Unreachable("its circuit is open".to_owned()))
    }

    fn place(&self, endpoint: usize) -> usize {
        let endpoint = endpoint.min(ENDPOINTS_MAX - 1);
        let mut breakers = self.breakers();
        while breakers.len() <= endpoint {
            breakers.push(self.fresh.clone());
        }
        endpoint
    }

    fn breakers(&self) -> MutexGuard<'_, Vec<Breaker>> {
        self.breakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a call's end says of its endpoint.
    fn learn(&self, endpoint: usize, fault: Option<&Fault>) {
        let place = self.place(endpoint);
        let Some(fault) = fault else { return self.breakers()[place].answered() };
        self.words.fault(fault);
        if !matches!(fault, Fault::Unreachable(_) | Fault::Late(_)) {
            return self.breakers()[place].answered();
        }
        let turn = self.breakers()[place].failed(Instant::now().into_std());
        if turn == Some(Turn::Opened) {
            self.words.count("breaker.opened");
            self.words.log(
                Level::Warn,
                &format!("{}: nothing is asked of it until it answers a probe", self.objects.place(place)),
            );
            tokio::spawn(probe(self.objects.clone(), self.breakers.clone(), self.words.clone(), place));
        }
    }

    /// Between half and all of it.
    fn jittered(&self, most: Duration) -> Duration {
        most.mul_f64(0.5 + (self.random() >> 11) as f64 / (1u64 << 54) as f64)
    }
}

/// Probes an endpoint whose circuit is open until it closes; at most one such task for each.
async fn probe<O: Objects>(objects: Arc<O>, breakers: Arc<Mutex<Vec<Breaker>>>, words: Arc<Words>, place: usize) {
    let locked = || breakers.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let State::Open(due) = locked()[place].state() else { return };
        tokio::time::sleep_until(due.into()).await;
        if !locked()[place].probe(Instant::now().into_std()) {
            continue;
        }
        words.count("breaker.probes");
        // In a task of its own: if the client library panics, the circuit stays open, and is probed again.
        let asked = objects.clone();
        let answer = tokio::spawn(async move { asked.ping_at(place).await }).await;
        // Any answer is a sign of life, a refusal too.
        let alive = matches!(answer, Ok(Ok(()) | Err(Fault::Full(_) | Fault::Refused { .. } | Fault::Nonsense(_))));
        if locked()[place].probed(alive, Instant::now().into_std()) == Some(Turn::Closed) {
            words.count("breaker.closed");
            words.log(Level::Info, &format!("{} answers again", objects.place(place)));
            return;
        }
    }
}

/// Whether a fault may be over in a moment. One that took all the time of a call is not waited for twice.
fn passes(fault: &Fault) -> bool {
    match fault {
        Fault::Unreachable(_) => true,
        Fault::Refused { word, .. } => matches!(*word, "throttled" | "cluster-down" | "try-again"),
        Fault::Late(_) | Fault::Full(_) | Fault::Nonsense(_) => false,
    }
}

/// Numbers that no other process makes: for ids of uploads and for jitter.
#[derive(Default)]
struct Random {
    seeds: RandomState,
    next: AtomicU64,
}

impl Random {
    fn next(&self) -> u64 {
        self.seeds.hash_one(self.next.fetch_add(1, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests;
