use std::sync::atomic::AtomicUsize;

use umbp_plugin_api::{Completion, Host, HostServices};

use super::*;

/// An engine that answers as it is told, and counts calls. The real ones cannot be made to fail so exactly.
#[derive(Default)]
struct Told {
    calls: AtomicUsize,
    pings: AtomicUsize,
    answers: Mutex<Vec<Fault>>,
    dead: std::sync::atomic::AtomicBool,
}

impl Told {
    async fn answer(&self) -> Result<(), Fault> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let next = self.answers.lock().unwrap().pop();
        next.map_or(Ok(()), Err)
    }
}

impl Objects for Told {
    async fn put_new(&self, _: &str, _: &[&[u8]], _: Option<Duration>) -> Result<Stored, Fault> {
        self.answer().await.map(|()| Stored::New)
    }

    async fn replace(&self, _: &str, _: &[&[u8]], _: Option<Duration>) -> Result<(), Fault> {
        self.answer().await
    }

    async fn get(&self, _: &str, _: u64) -> Result<Option<Vec<u8>>, Fault> {
        self.answer().await.map(|()| None)
    }

    async fn heads(&self, names: &[String], _: u64) -> Vec<Result<Option<Head>, Fault>> {
        let answer = self.answer().await;
        names.iter().map(|_| answer.clone().map(|()| None)).collect()
    }

    async fn delete(&self, _: &str) -> Result<bool, Fault> {
        self.answer().await.map(|()| true)
    }

    async fn ping(&self) -> Result<(), Fault> {
        self.pings.fetch_add(1, Ordering::Relaxed);
        if self.dead.load(Ordering::Relaxed) { Err(unreachable()) } else { Ok(()) }
    }

    /// The first letter of a name is its endpoint.
    fn endpoint(&self, name: &str) -> usize {
        usize::from(name.as_bytes()[0] - b'a')
    }
}

struct Nobody;

impl HostServices for Nobody {
    fn log(&self, _: Level, _: &str) {}
    fn count(&self, _: &str, _: u64) {}
    fn complete(&self, _: &[Completion]) {}
}

fn unreachable() -> Fault {
    Fault::Unreachable("nobody is there".to_owned())
}

fn calls(failures: u32) -> Calls<Told> {
    let text = format!(
        "engine = \"redis\"\naddresses = [\"127.0.0.1:1\"]\nbreaker_failures = {failures}\nbreaker_pause = \"1s\"\n"
    );
    let options = Options::parse(&text).expect("options");
    Calls::new(Told::default(), &options, Arc::new(Words::new(Host(Arc::new(Nobody)))))
}

/// A runtime whose clock runs when nothing else does.
fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(test)
}

/// Lets the clock run on, and whoever waits for it do what is due.
async fn pass(time: Duration) {
    const STEP: Duration = Duration::from_millis(10);
    for _ in 0..time.as_millis() / STEP.as_millis() {
        tokio::time::advance(STEP).await;
        tokio::task::yield_now().await;
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

#[test]
fn what_fails_at_once_is_tried_again_and_what_was_refused_is_not() {
    block_on(async {
        let calls = calls(100);
        *calls.objects.answers.lock().unwrap() = vec![unreachable(), unreachable()];
        assert_eq!(calls.get("a", 1, soon()).await, Ok(None));
        assert_eq!(calls.objects.calls.swap(0, Ordering::Relaxed), 3);
        let full = Fault::Full("no memory".to_owned());
        *calls.objects.answers.lock().unwrap() = vec![full.clone()];
        assert_eq!(calls.put_new("a", &[], soon()).await, Err(full));
        assert_eq!(calls.objects.calls.swap(0, Ordering::Relaxed), 1);
        *calls.objects.answers.lock().unwrap() = vec![unreachable(); 9];
        assert_eq!(calls.get("a", 1, soon()).await, Err(unreachable()));
        assert_eq!(calls.objects.calls.swap(0, Ordering::Relaxed), TRIES_MAX as usize);
    });
}

#[test]
fn nothing_is_tried_again_past_the_callers_time() {
    block_on(async {
        let calls = calls(100);
        *calls.objects.answers.lock().unwrap() = vec![unreachable(); 9];
        let until = Instant::now() + Duration::from_millis(5);
        assert_eq!(calls.get("a", 1, until).await, Err(unreachable()));
        assert_eq!(calls.objects.calls.load(Ordering::Relaxed), 1);
        assert!(Instant::now() <= until);
    });
}

#[test]
fn an_endpoint_that_fails_is_left_alone_until_a_probe_is_answered_and_others_are_not() {
    block_on(async {
        let calls = calls(2);
        calls.objects.dead.store(true, Ordering::Relaxed);
        let names: Vec<String> = ["a1", "a2", "b1"].map(str::to_owned).to_vec();
        for _ in 0..2 {
            *calls.objects.answers.lock().unwrap() = vec![unreachable()];
            assert!(calls.heads(&names[..2], 1, soon()).await.iter().all(Result::is_err), "one failure, two names");
        }
        assert_eq!(calls.objects.calls.swap(0, Ordering::Relaxed), 2);
        assert!(calls.get("a3", 1, soon()).await.is_err());
        assert_eq!(calls.objects.calls.load(Ordering::Relaxed), 0, "refused without a call");
        let answers = calls.heads(&names, 1, soon()).await;
        assert!(answers[0].is_err() && answers[1].is_err() && answers[2].is_ok(), "{answers:?}");
        // Two probes, a pause apart, while it is dead; the next one after that closes the circuit.
        pass(Duration::from_millis(2500)).await;
        assert_eq!(calls.objects.pings.load(Ordering::Relaxed), 2);
        calls.objects.dead.store(false, Ordering::Relaxed);
        pass(Duration::from_millis(1000)).await;
        assert_eq!(calls.get("a3", 1, soon()).await, Ok(None));
        assert_eq!(calls.objects.pings.load(Ordering::Relaxed), 3);
    });
}
