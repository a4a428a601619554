//! What the tier needs of an engine, against a real server.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use umbp_backend_remote::objects::{Fault, Head, Objects, Stored};
use umbp_backend_remote::s3::{S3, Surroundings};

use crate::weed::{BUCKET, DOMAIN, READER, USER, Weed, engine, open, run, stranger};

const MIB: usize = 1 << 20;

type Check = fn(&Weed);

/// One server for all of them, since its start takes as long as all the rest. E2 is among them: a name is taken once.
#[test]
fn an_s3_server_is_all_that_the_tier_needs_of_an_engine() {
    let Some(weed) = Weed::start() else { return };
    let cases: [(&str, Check); 13] = [
        ("bytes come back in all sizes", bytes_come_back_in_all_sizes),
        ("a name is taken once under writers at the same time", a_name_is_taken_once),
        ("heads tell the start and the length", heads_tell_the_start_and_the_length),
        ("a long object is cut where it was asked to be", a_long_object_is_cut),
        ("a deleted object is gone", a_deleted_object_is_gone),
        ("what lies beside a name stays as it is", what_lies_beside_a_name_stays),
        ("no name leaves the prefix", no_name_leaves_the_prefix),
        ("a wrong secret is named and never told", a_wrong_secret_is_named_and_never_told),
        ("a missing bucket is told apart from a missing object", a_missing_bucket_is_told_apart),
        ("who may only read may not store", who_may_only_read_may_not_store),
        ("credentials of the environment are used", credentials_of_the_environment_are_used),
        ("a bucket is found by its host", a_bucket_is_found_by_its_host),
        ("a call more than the connections waits its turn", a_call_more_than_the_connections_waits),
    ];
    for (claim, check) in cases {
        let begin = Instant::now();
        check(&weed);
        eprintln!("{claim}: {:?}", begin.elapsed());
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0]).collect()
}

fn bytes_come_back_in_all_sizes(weed: &Weed) {
    let engine = weed.engine();
    run(async {
        for length in [0, 1, 2, 255, 256, 4095, 4096, 65_537, MIB - 1, MIB, 3 * MIB + 1] {
            let (name, bytes) = (format!("umbp/sizes/{length}"), pattern(length));
            let (first, second) = bytes.split_at(length / 3);
            assert_eq!(engine.put_new(&name, &[first, b"", second], None).await, Ok(Stored::New));
            assert!(engine.get(&name, u64::MAX).await.unwrap().unwrap() == bytes, "{length} bytes differ");
            let other = pattern(length + 1);
            assert_eq!(engine.replace(&name, &[&other], None).await, Ok(()));
            assert!(engine.get(&name, length as u64 + 1).await.unwrap().unwrap() == other, "{length} bytes differ");
        }
        assert_eq!(engine.get("umbp/sizes/none", 10).await, Ok(None));
        assert_eq!(engine.ping().await, Ok(()));
    });
}

fn a_name_is_taken_once(weed: &Weed) {
    const WRITERS: usize = 8;
    const NAMES: usize = 2;
    let (start, options) = (Arc::new(Barrier::new(WRITERS)), weed.options(USER));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (start, options) = (Arc::clone(&start), options.clone());
            std::thread::spawn(move || {
                let engine = engine(&options, Duration::from_secs(20));
                let mut mine = Vec::new();
                for name in 0..NAMES {
                    start.wait();
                    let bytes = vec![u8::try_from(writer).unwrap(); 100_000];
                    let stored = run(engine.put_new(&format!("umbp/once/{name}"), &[&bytes], None));
                    mine.extend((stored.unwrap() == Stored::New).then_some((name, bytes)));
                }
                mine
            })
        })
        .collect();
    let stored: Vec<_> = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
    let engine = weed.engine();
    for name in 0..NAMES {
        let winners: Vec<_> = stored.iter().filter(|(of, _)| *of == name).collect();
        assert_eq!(winners.len(), 1, "writers that were told they had stored name {name}");
        let there = run(engine.get(&format!("umbp/once/{name}"), u64::MAX)).unwrap().unwrap();
        assert!(there == winners[0].1, "name {name} holds another writer's bytes");
    }
}

fn heads_tell_the_start_and_the_length(weed: &Weed) {
    let engine = weed.engine();
    run(async {
        let objects: [(&str, &[u8]); 4] =
            [("long", &pattern(1000)), ("exact", &pattern(64)), ("short", b"ab"), ("empty", b"")];
        for (name, bytes) in objects {
            engine.replace(&format!("umbp/heads/{name}"), &[bytes], None).await.unwrap();
        }
        // More names than connections, present and absent mixed.
        let names: Vec<String> = (0..10)
            .flat_map(|_| ["long", "absent", "exact", "short", "empty"])
            .map(|name| format!("umbp/heads/{name}"))
            .collect();
        let heads = engine.heads(&names, 64).await;
        assert_eq!(heads.len(), names.len());
        let head = |bytes: &[u8], length| Ok(Some(Head { bytes: bytes.to_vec(), length: Some(length) }));
        for five in heads.chunks(5) {
            assert_eq!(five[0], head(&pattern(64), 1000));
            assert_eq!(five[1], Ok(None));
            assert_eq!(five[2], head(&pattern(64), 64));
            assert_eq!(five[3], head(b"ab", 2));
            assert_eq!(five[4], head(b"", 0));
        }
        assert!(engine.heads(&[], 64).await.is_empty());
    });
}

fn a_long_object_is_cut(weed: &Weed) {
    let engine = weed.engine();
    run(async {
        let bytes = pattern(2 * MIB);
        engine.replace("umbp/cut", &[&bytes], None).await.unwrap();
        for most in [0, 1, 4096, 2 * MIB - 1, 2 * MIB] {
            assert!(engine.get("umbp/cut", most as u64).await.unwrap().unwrap() == bytes[..most], "cut at {most}");
        }
    });
}

fn a_deleted_object_is_gone(weed: &Weed) {
    let engine = weed.engine();
    run(async {
        assert_eq!(engine.delete("umbp/deleted").await, Ok(false));
        for bytes in [&b"bytes"[..], b""] {
            engine.replace("umbp/deleted", &[bytes], None).await.unwrap();
            assert_eq!(engine.delete("umbp/deleted").await, Ok(true));
            assert_eq!(engine.get("umbp/deleted", 10).await, Ok(None));
            assert_eq!(engine.delete("umbp/deleted").await, Ok(false));
        }
        assert_eq!(engine.put_new("umbp/deleted", &[b"again"], None).await, Ok(Stored::New));
    });
}

fn what_lies_beside_a_name_stays(weed: &Weed) {
    let (engine, other) = (weed.engine(), stranger(&weed.options(USER), "other"));
    let similar = stranger(&weed.options(USER), "umbp-but-not-ours");
    let foreign = [
        (&other, "other/object"),
        (&similar, "umbp-but-not-ours/object"),
        (&engine, "umbp/beside/name.tail"),
        (&engine, "umbp/beside/nam"),
    ];
    run(async {
        for (owner, name) in foreign {
            owner.replace(name, &[name.as_bytes()], None).await.unwrap();
        }
        engine.put_new("umbp/beside/name", &[b"1"], None).await.unwrap();
        engine.replace("umbp/beside/name", &[b"2"], None).await.unwrap();
        assert_eq!(engine.delete("umbp/beside/name").await, Ok(true));
        for (owner, name) in foreign {
            assert_eq!(owner.get(name, 100).await, Ok(Some(name.as_bytes().to_vec())));
        }
    });
}

fn no_name_leaves_the_prefix(weed: &Weed) {
    let (engine, other) = (weed.engine(), stranger(&weed.options(USER), "other"));
    run(async {
        other.replace("other/kept", &[b"kept"], None).await.unwrap();
        let outside = ["", "/", "umbp", "umbp/", "umbp/x/", "/umbp/x", "umbp//x", "umbp/./x", "umbp/../other/kept"];
        for name in outside.into_iter().chain(["other/kept", "umbpx/y", "made/first"]) {
            let answers = [
                engine.get(name, 10).await.err(),
                engine.put_new(name, &[b"1"], None).await.err(),
                engine.replace(name, &[b"1"], None).await.err(),
                engine.delete(name).await.err(),
                engine.heads(&[name.to_owned()], 1).await.pop().unwrap().err(),
            ];
            for answer in answers {
                assert!(matches!(answer, Some(Fault::Nonsense(_))), "{name:?}: {answer:?}");
            }
        }
        assert_eq!(other.get("other/kept", 10).await, Ok(Some(b"kept".to_vec())));
        // Whatever else is in a name is one object's name.
        let odd = "umbp/a b%2f?c#d+e\u{e9}";
        assert_eq!(engine.put_new(odd, &[b"odd"], None).await, Ok(Stored::New));
        assert_eq!(engine.get(odd, 10).await, Ok(Some(b"odd".to_vec())));
    });
}

/// Every way to fail of one engine, as text.
async fn every_fault(engine: &S3) -> Vec<Fault> {
    let head = engine.heads(&["umbp/x".to_owned()], 10).await.pop().unwrap();
    let faults = [
        engine.put_new("umbp/x", &[b"1"], None).await.err(),
        engine.replace("umbp/x", &[b"1"], None).await.err(),
        engine.get("umbp/x", 10).await.err(),
        head.err(),
        engine.delete("umbp/x").await.err(),
        engine.ping().await.err(),
    ];
    faults.map(|fault| fault.expect("no call may succeed")).to_vec()
}

fn assert_all_refused(faults: &[Fault], expected: &str) {
    for fault in faults {
        assert!(matches!(fault, Fault::Refused { word, .. } if *word == expected), "{fault:?}");
    }
}

fn a_wrong_secret_is_named_and_never_told(weed: &Weed) {
    let wrong = "wrongSecretThatNobodyMaySee";
    let options = weed.options((USER.0, wrong));
    let faults = run(every_fault(&engine(&options, Duration::from_secs(10))));
    assert_all_refused(&faults, "signature");
    let unknown = weed.options(("UNKNOWNKEY", wrong));
    let unknown = run(every_fault(&engine(&unknown, Duration::from_secs(10))));
    assert_all_refused(&unknown, "permission");
    for fault in faults.iter().chain(&unknown) {
        assert!(!format!("{fault} {fault:?}").contains(wrong), "{fault}");
    }
    std::fs::remove_file(options.credentials_file.unwrap()).unwrap();
}

fn a_missing_bucket_is_told_apart(weed: &Weed) {
    let mut options = weed.options(USER);
    options.bucket = "absent".to_owned();
    let faults = run(every_fault(&engine(&options, Duration::from_secs(10))));
    // The two stores come first. This server would make the bucket for one who may, and tells others that they may not.
    let (stores, others) = faults.split_at(2);
    assert_all_refused(others, "no-bucket");
    assert!(stores.iter().all(|fault| matches!(fault, Fault::Refused { .. })), "{stores:?}");
}

fn who_may_only_read_may_not_store(weed: &Weed) {
    let engine = engine(&weed.options(READER), Duration::from_secs(10));
    run(async {
        assert_eq!(engine.ping().await, Ok(()));
        let put = engine.put_new("umbp/reader", &[b"1"], None).await;
        assert_all_refused(&[put.unwrap_err()], "permission");
        assert_eq!(engine.get("umbp/reader", 10).await, Ok(None));
    });
}

fn credentials_of_the_environment_are_used(weed: &Weed) {
    let mut options = weed.options(USER);
    options.credentials = umbp_backend_remote::options::Credentials::Environment;
    options.credentials_file = None;
    let around = Surroundings {
        environment: Box::new(|name| match name {
            "AWS_ACCESS_KEY_ID" => Some(USER.0.to_owned()),
            "AWS_SECRET_ACCESS_KEY" => Some(USER.1.to_owned()),
            _ => None,
        }),
        resolve: None,
    };
    let (engine, _) = open(&options, Duration::from_secs(10), &around);
    assert_eq!(run(engine.put_new("umbp/environment", &[b"1"], None)), Ok(Stored::New));
}

fn a_bucket_is_found_by_its_host(weed: &Weed) {
    let mut options = weed.options(USER);
    options.endpoint = Some(format!("http://{DOMAIN}:{}", weed.port()));
    options.path_style = false;
    let around = Surroundings {
        resolve: Some((format!("{BUCKET}.{DOMAIN}"), ([127, 0, 0, 1], weed.port()).into())),
        ..Surroundings::default()
    };
    let (hosted, _) = open(&options, Duration::from_secs(10), &around);
    run(async {
        assert_eq!(hosted.put_new("umbp/hosted", &[b"1"], None).await, Ok(Stored::New));
        assert_eq!(weed.engine().get("umbp/hosted", 10).await, Ok(Some(b"1".to_vec())));
    });
}

fn a_call_more_than_the_connections_waits(weed: &Weed) {
    let mut options = weed.options(USER);
    options.connections = 2;
    let engine = engine(&options, Duration::from_secs(20));
    run(async {
        let names: Vec<String> = (0..20).map(|name| format!("umbp/turns/{name}")).collect();
        let mut puts = Vec::new();
        for name in &names {
            puts.push(engine.put_new(name, &[b"1"], None));
        }
        assert!(futures_util::future::join_all(puts).await.iter().all(|put| *put == Ok(Stored::New)));
        assert!(engine.heads(&names, 1).await.iter().all(|head| matches!(head, Ok(Some(_)))));
    });
}
