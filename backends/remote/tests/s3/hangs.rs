//! A server that hangs, is gone, or comes back: every call ends in its time, and the engine goes on.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use umbp_backend_remote::objects::{Fault, Objects};

use crate::weed::{USER, Weed, engine, eventually, run};

const TIMEOUT: Duration = Duration::from_secs(2);
/// What a call may take on top of its time, on a busy machine: less than the time of two calls more.
const SLACK: Duration = Duration::from_secs(3);

/// B7, D4, F9: every call ends in its time, and says that it was late.
#[test]
fn a_hung_server_costs_a_call_its_time_and_no_more() {
    let Some(weed) = Weed::start() else { return };
    let engine = engine(&weed.options(USER), TIMEOUT);
    run(async {
        eventually(TIMEOUT * 20, async || engine.put_new("umbp/hung", &[b"before"], None).await).await;
        weed.signal(Signal::STOP);
        let names: Vec<String> = (0..40).map(|name| format!("umbp/hung/{name}")).collect();
        let begin = Instant::now();
        let late = Fault::Late(TIMEOUT);
        // More names than connections: all share the one time.
        assert!(engine.heads(&names, 16).await.iter().all(|head| *head == Err(late.clone())));
        assert!(begin.elapsed() < TIMEOUT + SLACK, "heads took {:?}", begin.elapsed());
        let (big, begin) = (vec![7; 4 << 20], Instant::now());
        let pieces = [&big[..]];
        let (put, get, delete, ping) = futures_util::join!(
            engine.put_new("umbp/hung/put", &pieces, None),
            engine.get("umbp/hung", 10),
            engine.delete("umbp/hung"),
            engine.ping(),
        );
        assert_eq!((put, get, delete, ping), (Err(late.clone()), Err(late.clone()), Err(late.clone()), Err(late)));
        assert!(begin.elapsed() < TIMEOUT + SLACK, "calls took {:?}", begin.elapsed());
        weed.signal(Signal::CONT);
        eventually(TIMEOUT * 20, async || engine.ping().await).await;
        let before = eventually(TIMEOUT * 20, async || engine.get("umbp/hung", 10).await).await;
        assert_eq!(before, Some(b"before".to_vec()));
        eventually(TIMEOUT * 20, async || engine.put_new("umbp/hung/after", &[b"1"], None).await).await;
    });
}

#[test]
fn a_server_that_is_gone_is_unreachable_at_once() {
    let Some(weed) = Weed::start() else { return };
    let engine = engine(&weed.options(USER), Duration::from_secs(10));
    run(async {
        engine.ping().await.unwrap();
        drop(weed);
        let begin = Instant::now();
        // The first may meet the end of a connection that was open.
        for _ in 0..2 {
            let answer = engine.get("umbp/gone", 10).await;
            assert!(matches!(answer, Err(Fault::Unreachable(_))), "{answer:?}");
        }
        let Err(Fault::Unreachable(text)) = engine.ping().await else { panic!("no server answers") };
        assert!(text.contains("refused"), "{text}");
        assert!(begin.elapsed() < Duration::from_secs(2), "it took {:?}", begin.elapsed());
    });
}
