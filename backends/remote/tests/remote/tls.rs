//! A server behind TLS: a relay with a certificate of its own stands before it.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use umbp_backend_remote::Remote;
use umbp_plugin_api::kit::{KitOptions, assert_conforms_in_process};
use umbp_plugin_api::{OpenError, Status};
use umbp_testkit::servers::servers;
use umbp_testkit::valkey::Valkey;

use crate::rig::{self, Tier};

/// Its own authority, for 127.0.0.1 and localhost, until 2126.
fn certificate() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/remote/tls/cert.pem")
}

fn private_key() -> PathBuf {
    certificate().with_file_name("key.pem")
}

/// A relay to a server, until the process ends; answers its address.
fn relay(to: String, asks_for_certificate: bool) -> String {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = vec![CertificateDer::from_pem_file(certificate()).unwrap()];
    let key = PrivateKeyDer::from_pem_file(private_key()).unwrap();
    let config = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let config = if asks_for_certificate {
        let mut roots = RootCertStore::empty();
        roots.add(chain[0].clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        config.with_client_cert_verifier(verifier)
    } else {
        config.with_no_client_auth()
    };
    let acceptor = TlsAcceptor::from(Arc::new(config.with_single_cert(chain, key).unwrap()));
    let (told, address) = channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            told.send(listener.local_addr().unwrap().to_string()).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, to) = (acceptor.clone(), to.clone());
                tokio::spawn(async move {
                    let Ok(mut near) = acceptor.accept(stream).await else { return };
                    let Ok(mut far) = TcpStream::connect(&to).await else { return };
                    let _ = copy_bidirectional(&mut near, &mut far).await;
                });
            }
        });
    });
    address.recv().unwrap()
}

fn open(address: &str, tls: &str) -> Tier {
    Tier::open(&format!("{}{tls}\n", rig::single(address)))
}

/// How a put ends; one that is done is read back.
fn stores(tier: &mut Tier) -> Status {
    let (known, done) = tier.put(1, 1 << 20);
    if done.status == Status::OK { tier.get(&known) } else { done.status }
}

#[test]
fn a_certificate_is_asked_for_and_checked() {
    let Some(servers) = servers() else { return };
    let server = Valkey::single(&servers, &[]);
    let address = relay(server.address(), false);
    let trusted = format!("tls = {{ ca = {:?} }}", certificate());
    assert_eq!(stores(&mut open(&address, &trusted)), Status::OK);
    // Nobody of the system's authorities vouches for it.
    let mut strict = open(&address, "tls = true");
    assert_ne!(stores(&mut strict), Status::OK);
    assert!(strict.lines().iter().any(|line| line.contains("certificate")), "{:?}", strict.lines());
    // Unless nobody is asked.
    assert_eq!(stores(&mut open(&address, "tls = { insecure = true }")), Status::OK);
    // A name that is not in the certificate.
    let port = address.rsplit(':').next().expect("a port");
    assert_ne!(stores(&mut open(&format!("127.0.0.2:{port}"), &trusted)), Status::OK);
    // A server with TLS for a client without, and the other way round.
    assert_ne!(stores(&mut open(&address, "")), Status::OK);
    assert_ne!(stores(&mut open(&server.address(), &trusted)), Status::OK);
}

#[test]
fn a_server_that_asks_for_a_certificate_is_shown_one() {
    let Some(servers) = servers() else { return };
    let server = Valkey::single(&servers, &[]);
    let address = relay(server.address(), true);
    let (ca, key) = (certificate(), private_key());
    assert_ne!(stores(&mut open(&address, &format!("tls = {{ ca = {ca:?} }}"))), Status::OK);
    let with_own = format!("tls = {{ ca = {ca:?}, cert = {ca:?}, key = {key:?} }}");
    assert_eq!(stores(&mut open(&address, &with_own)), Status::OK);
}

#[test]
fn files_that_are_no_certificates_refuse_the_start() {
    let key = private_key();
    for (tls, part) in [
        ("ca = \"/nowhere/ca.pem\"".to_owned(), "tls.ca /nowhere/ca.pem"),
        (format!("cert = {key:?}, key = {key:?}"), "no certificate is in it"),
        (format!("ca = {key:?}"), "no certificate is in it"),
    ] {
        check_refused(&format!("tls = {{ {tls} }}"), part);
    }
    check_refused("password_file = \"/nowhere/secret\"", "password_file /nowhere/secret");
}

fn check_refused(option: &str, part: &str) {
    match rig::refused(&format!("{}{option}\n", rig::single("127.0.0.1:1"))) {
        OpenError::Environment(message) => assert!(message.contains(part), "{message}"),
        other => panic!("{option}: {other}"),
    }
}

#[test]
fn the_contract_holds_behind_tls() {
    let Some(servers) = servers() else { return };
    let server = Valkey::single(&servers, &[]);
    let address = relay(server.address(), false);
    let options = format!("prefix = \"kit{{work}}\"\n{}tls = {{ ca = {:?} }}\n", rig::single(&address), certificate());
    assert_conforms_in_process::<Remote>(&KitOptions::new(&options));
}
