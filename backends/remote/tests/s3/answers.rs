//! Answers that the real server of these tests does not give: other servers do.

use std::time::Duration;

use umbp_backend_remote::objects::{Fault, Head, Objects, Stored};
use umbp_backend_remote::options::Credentials;
use umbp_backend_remote::s3::{FALLBACK_CONDITIONAL_PUT, S3, Surroundings};

use crate::double::{Answer, Double, Request, answer, error};
use crate::weed::{Counted, USER, open, run};

const TIMEOUT: Duration = Duration::from_secs(5);

fn against(double: &Double) -> (S3, Counted) {
    let folder = tempfile::tempdir().unwrap();
    open(&double.options(folder.path()), TIMEOUT, &Surroundings::default())
}

/// Runs one get against a server that answers so.
fn get(given: impl Fn(&Request) -> Answer + Send + 'static, most: u64) -> Result<Option<Vec<u8>>, Fault> {
    let double = Double::answering(given);
    let (engine, _) = against(&double);
    let answer = run(engine.get("umbp/x", most));
    assert_eq!(double.methods(), ["GET"], "no call is tried again here");
    answer
}

#[test]
fn a_server_without_conditional_puts_is_looked_at_first_and_counted() {
    let double = Double::answering(|request| match request.method.as_str() {
        "PUT" if request.head.contains("if-none-match: *") => error("501 Not Implemented", "NotImplemented"),
        "GET" if request.target.ends_with("/taken") => {
            answer("206 Partial Content", "content-range: bytes 0-0/5\r\n", b"t")
        }
        "GET" => error("404 Not Found", "NoSuchKey"),
        _ => answer("200 OK", "etag: \"1\"\r\n", b""),
    });
    let (engine, counted) = against(&double);
    run(async {
        assert_eq!(engine.put_new("umbp/free", &[b"1"], None).await, Ok(Stored::New));
        assert_eq!(engine.put_new("umbp/taken", &[b"1"], None).await, Ok(Stored::Present));
        assert_eq!(engine.put_new("umbp/free", &[b"1"], None).await, Ok(Stored::New));
    });
    // The condition is tried once, and then no more.
    assert_eq!(double.methods(), ["PUT", "GET", "PUT", "GET", "GET", "PUT"]);
    assert_eq!(*counted.lock().unwrap(), [FALLBACK_CONDITIONAL_PUT; 3]);
}

#[test]
fn a_conflict_of_two_puts_is_present_only_if_something_is_there() {
    for (there, expected) in [(true, Some(Stored::Present)), (false, None)] {
        let double = Double::answering(move |request| match (request.method.as_str(), there) {
            ("PUT", _) => error("409 Conflict", "ConditionalRequestConflict"),
            (_, true) => answer("206 Partial Content", "content-range: bytes 0-0/5\r\n", b"t"),
            (_, false) => error("404 Not Found", "NoSuchKey"),
        });
        let (engine, _) = against(&double);
        match (run(engine.put_new("umbp/x", &[b"1"], None)), expected) {
            (Ok(stored), Some(expected)) => assert_eq!(stored, expected),
            (Err(Fault::Refused { word: "conflict", .. }), None) => {}
            (answer, expected) => panic!("{answer:?}, not {expected:?}"),
        }
    }
}

/// A5: bytes that did not all come are none.
#[test]
fn a_body_that_breaks_off_is_a_fault() {
    let short = |_: &Request| b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\nconnection: close\r\n\r\nabc".to_vec();
    let answer = get(short, 100);
    assert!(matches!(answer, Err(Fault::Unreachable(_))), "{answer:?}");
    // What was asked for has come, and the rest is not waited for.
    assert_eq!(get(short, 3), Ok(Some(b"abc".to_vec())));
    let nothing = get(|_| Vec::new(), 100);
    assert!(matches!(nothing, Err(Fault::Unreachable(_))), "{nothing:?}");
}

#[test]
fn a_length_that_no_memory_holds_is_nonsense() {
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 9000000000000000000\r\nconnection: close\r\n\r\nabc";
    let answer = get(move |_| head.as_bytes().to_vec(), u64::MAX);
    assert!(matches!(answer, Err(Fault::Nonsense(_))), "{answer:?}");
}

/// K10: a miss is told apart from a server that is none.
#[test]
fn an_answer_that_is_none_of_s3s_is_no_missing_object() {
    let page = b"<html>no such page</html>";
    let missing = get(move |_| answer("404 Not Found", "", page), 10);
    assert!(matches!(missing, Err(Fault::Nonsense(_))), "{missing:?}");
    let garbage = get(|_| b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), 10);
    assert!(garbage.is_err(), "{garbage:?}");
}

/// K10: each state has its word.
#[test]
fn states_of_the_server_come_through_with_their_words() {
    let throttled = get(|_| error("503 Service Unavailable", "SlowDown"), 10);
    assert!(matches!(&throttled, Err(Fault::Refused { word: "throttled", text }) if text.contains("SlowDown")));
    assert!(matches!(get(|_| error("403 Forbidden", "QuotaExceeded"), 10), Err(Fault::Full(_))));
    let internal = get(|_| error("500 Internal Server Error", "InternalError"), 10);
    assert!(matches!(internal, Err(Fault::Refused { word: "internal", .. })));
    assert!(matches!(get(|_| error("502 Bad Gateway", ""), 10), Err(Fault::Unreachable(_))));
}

#[test]
fn a_redirection_is_not_followed() {
    let away = |_: &Request| answer("307 Temporary Redirect", "location: http://elsewhere.example/secret?q\r\n", b"");
    let Err(Fault::Refused { word: "redirect", text }) = get(away, 10) else { panic!("a redirection is a state") };
    assert!(text.contains("http://elsewhere.example") && !text.contains("secret"), "{text}");
}

#[test]
fn a_secret_that_a_server_repeats_is_not_passed_on() {
    let body = format!("<Error><Code>Odd</Code><Message>you said {}, no?</Message></Error>", USER.1);
    let answer = get(move |_| answer("400 Bad Request", "", body.as_bytes()), 10);
    let text = format!("{answer:?}");
    assert!(text.contains("you said ***, no?") && !text.contains(USER.1), "{text}");
}

#[test]
fn an_endless_error_is_not_read_to_its_end() {
    let endless = |_: &Request| answer("400 Bad Request", "", &vec![b'x'; 8 << 20]);
    assert!(matches!(get(endless, 10), Err(Fault::Nonsense(_))));
}

#[test]
fn a_server_that_ignores_ranges_gives_no_head_of_another_length() {
    let double = Double::answering(|_| answer("200 OK", "", b"whole object"));
    let (engine, _) = against(&double);
    let heads = run(engine.heads(&["umbp/x".to_owned()], 5));
    match &heads[..] {
        [Ok(Some(head))] => assert_eq!(*head, Head { bytes: b"whole".to_vec(), length: Some(12) }),
        [Err(Fault::Nonsense(_))] => {}
        other => panic!("{other:?}"),
    }
}

/// The metadata service of an instance, as far as credentials go.
fn metadata(request: &Request, expiry: &str) -> Answer {
    let credentials = format!(
        r#"{{"Code":"Success","AccessKeyId":"{}","SecretAccessKey":"{}","Token":"aToken","Expiration":"{expiry}"}}"#,
        USER.0, USER.1
    );
    match (request.method.as_str(), request.target.as_str()) {
        ("PUT", "/latest/api/token") => answer("200 OK", "", b"ticket"),
        ("GET", "/latest/meta-data/iam/security-credentials/") => answer("200 OK", "", b"role"),
        ("GET", "/latest/meta-data/iam/security-credentials/role") => answer("200 OK", "", credentials.as_bytes()),
        _ => error("404 Not Found", "NoSuchKey"),
    }
}

fn instance(double: &Double, service: &Double) -> S3 {
    let folder = tempfile::tempdir().unwrap();
    let mut options = double.options(folder.path());
    options.credentials = Credentials::Instance;
    options.credentials_file = None;
    let port = service.port;
    let around = Surroundings {
        environment: Box::new(move |name| {
            (name == "AWS_EC2_METADATA_SERVICE_ENDPOINT").then(|| format!("http://127.0.0.1:{port}/"))
        }),
        resolve: None,
    };
    open(&options, TIMEOUT, &around).0
}

#[test]
fn credentials_of_the_instance_are_fetched_once_and_signed_with() {
    let service = Double::answering(|request| metadata(request, "2999-01-01T00:00:00Z"));
    let double = Double::answering(|_| answer("200 OK", "", b"bytes"));
    let engine = instance(&double, &service);
    run(async {
        for _ in 0..3 {
            assert_eq!(engine.get("umbp/x", 10).await, Ok(Some(b"bytes".to_vec())));
        }
    });
    assert_eq!(service.methods(), ["PUT", "GET", "GET"]);
    let heard = double.heard.lock().unwrap();
    for request in heard.iter() {
        assert!(request.head.contains(&format!("credential={}/", USER.0).to_lowercase()), "{}", request.head);
        assert!(request.head.contains("x-amz-security-token: atoken"), "{}", request.head);
    }
}

type Given = fn(&Request) -> Answer;

#[test]
fn without_credentials_of_the_instance_nothing_is_asked_and_nothing_is_missing() {
    let faults: [(&str, Given); 4] = [
        ("no role", |_| error("404 Not Found", "NoSuchKey")),
        ("no answer", |_| Vec::new()),
        ("no credentials", |_| answer("200 OK", "", br#"{"AccessKeyId":{"aSecret":1}}"#)),
        ("unprintable", |request| metadata(request, "2999-01-01T00:00:00Z").map_token()),
    ];
    for (what, given) in faults {
        let service = Double::answering(given);
        let double = Double::answering(|_| answer("200 OK", "", b"bytes"));
        let engine = instance(&double, &service);
        let answer = run(engine.get("umbp/x", 10));
        let Err(Fault::Refused { word: "auth", text }) = answer else { panic!("{what}: {answer:?}") };
        assert!(!text.contains("aSecret") && !text.contains(USER.1), "{text}");
        assert!(double.methods().is_empty(), "{what}: a request without credentials went out");
    }
}

trait MapToken {
    fn map_token(self) -> Self;
}

impl MapToken for Answer {
    /// The same, with a line's end in the token; it is as long as before.
    fn map_token(self) -> Self {
        String::from_utf8(self).unwrap().replace("aToken", "aTok\\n").into_bytes()
    }
}
