//! A server behind TLS: its certificate has to be vouched for.

use std::process::Command;
use std::time::Duration;

use umbp_backend_remote::objects::{Fault, Objects, Stored};
use umbp_backend_remote::options;
use umbp_backend_remote::s3::{S3, Settings, SetupError, Surroundings};

use crate::weed::{BUCKET, CERTIFICATE, PREFIX, USER, Weed, credentials_file, run};

/// Tells the second process of this test where the server is, and who vouches for it.
const ENDPOINT: &str = "UMBP_TEST_TLS_ENDPOINT";
const VOUCHED: &str = "SSL_CERT_FILE";

fn open(endpoint: &str) -> Result<S3, SetupError> {
    let folder = tempfile::tempdir().unwrap();
    let s3 = options::S3 {
        endpoint: Some(endpoint.to_owned()),
        region: "us-east-1".to_owned(),
        bucket: BUCKET.to_owned(),
        credentials: options::Credentials::File,
        credentials_file: Some(credentials_file(folder.path(), USER.0, USER.1)),
        path_style: true,
        allow_http: false,
        connections: 4,
    };
    let timeout = Duration::from_secs(10);
    let settings = Settings { s3: &s3, prefix: PREFIX, timeout, connect_timeout: timeout };
    S3::open(&settings, &Surroundings::default(), std::sync::Arc::new(|_, _| {}))
}

#[test]
fn a_server_behind_tls_is_used_only_with_a_certificate_that_is_vouched_for() {
    let Some(weed) = Weed::start() else { return };
    let endpoint = format!("https://127.0.0.1:{}", weed.tls_port());
    match open(&endpoint) {
        Ok(engine) => {
            let answer = run(engine.get("umbp/tls", 10));
            let Err(Fault::Unreachable(text)) = answer else { panic!("{answer:?}") };
            assert!(text.contains("certificate"), "{text}");
        }
        // A machine that trusts nobody.
        Err(error) => assert!(error.to_string().contains(VOUCHED), "{error}"),
    }
    let folder = tempfile::tempdir().unwrap();
    let vouched = folder.path().join("trusted.pem");
    std::fs::write(&vouched, CERTIFICATE).unwrap();
    // Who is trusted is read from the environment of the process, so it takes another one.
    let mut second = Command::new(std::env::current_exe().unwrap());
    second.args(["--exact", "tls::in_a_process_that_trusts_the_certificate", "--nocapture"]);
    let output = second.env(VOUCHED, &vouched).env(ENDPOINT, &endpoint).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed") && text.contains("over TLS"), "{text}");
}

/// Does nothing but in the process that the test above starts.
#[test]
fn in_a_process_that_trusts_the_certificate() {
    let Ok(endpoint) = std::env::var(ENDPOINT) else { return };
    let engine = open(&endpoint).unwrap();
    let bytes = vec![3; 2 << 20];
    run(async {
        assert_eq!(engine.put_new("umbp/tls", &[&bytes], None).await, Ok(Stored::New));
        assert!(engine.get("umbp/tls", u64::MAX).await.unwrap().unwrap() == bytes);
    });
    println!("over TLS");
}
