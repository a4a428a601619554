//! SeaweedFS.

use umbp_testkit::http::{Answer, ask};
use umbp_testkit::s3::{BUCKET, OPEN_BUCKET, S3};
use umbp_testkit::servers::servers;

fn put(server: &S3, path: &str, headers: &[&str], body: &[u8]) -> Answer {
    ask(&server.address(), "PUT", path, headers, body).unwrap()
}

#[test]
fn it_checks_who_asks_keeps_conditions_and_comes_back_with_what_it_had() {
    let Some(servers) = servers() else { return };
    let mut server = S3::start(&servers);
    let own = format!("/{BUCKET}/umbp/a");
    let denied = put(&server, &own, &[], b"x");
    assert_eq!(denied.status, 403, "{}", denied.head);
    assert!(String::from_utf8_lossy(&denied.body).contains("AccessDenied"));

    let open = format!("/{OPEN_BUCKET}/a");
    let only_new = ["If-None-Match: *"];
    assert_eq!(put(&server, &open, &only_new, b"first").status, 200);
    assert_eq!(put(&server, &open, &only_new, b"second").status, 412);
    let part = ask(&server.address(), "GET", &open, &["Range: bytes=1-2"], &[]).unwrap();
    assert_eq!((part.status, &part.body[..]), (206, &b"ir"[..]));
    assert_eq!(ask(&server.address(), "GET", &format!("/{OPEN_BUCKET}/b"), &[], &[]).unwrap().status, 404);

    server.kill();
    server.restart();
    assert_eq!(ask(&server.address(), "GET", &open, &[], &[]).unwrap().body, b"first");
}

#[test]
fn what_lies_in_the_bucket_can_be_seen_planted_and_removed() {
    let Some(servers) = servers() else { return };
    let server = S3::start(&servers);
    assert!(server.keys().is_empty());
    assert_eq!(server.peek("umbp/a/b"), None);
    let bytes: Vec<u8> = (0..100_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    server.plant("umbp/a/b", &bytes);
    server.plant("umbp/c", b"");
    assert_eq!(server.peek("umbp/a/b"), Some(bytes));
    assert_eq!(server.peek("umbp/c"), Some(Vec::new()));
    assert_eq!(server.keys(), ["umbp/a/b", "umbp/c"]);
    server.remove("umbp/a/b");
    assert_eq!(server.keys(), ["umbp/c"]);
    server.stop();
    server.cont();
    assert_eq!(server.keys(), ["umbp/c"]);
}
