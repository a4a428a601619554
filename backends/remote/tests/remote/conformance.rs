//! The contract's clauses, on every kind of server.

use umbp_backend_remote::Remote;
use umbp_plugin_api::built::built;
use umbp_plugin_api::kit::{KitOptions, assert_conforms, assert_conforms_in_process};
use umbp_testkit::cluster::Cluster;
use umbp_testkit::s3::S3;
use umbp_testkit::servers::servers;
use umbp_testkit::valkey::Valkey;

use crate::rig;

/// The kit's folder makes a prefix, so that each of its storages is apart from the others.
fn check(options: &str) {
    assert_conforms_in_process::<Remote>(&KitOptions::new(&format!("prefix = \"kit{{work}}\"\n{options}")));
}

#[test]
fn the_contract_holds_on_one_server() {
    let Some(servers) = servers() else { return };
    check(&rig::single(&Valkey::single(&servers, &[]).address()));
}

#[test]
fn the_contract_holds_on_a_unix_socket() {
    let Some(servers) = servers() else { return };
    let server = Valkey::single(&servers, &[]);
    check(&rig::single(&server.unix_address()));
}

#[test]
fn the_contract_holds_on_a_cluster() {
    let Some(servers) = servers() else { return };
    let cluster = Cluster::start(&servers, 3, &[]);
    check(&format!("engine = \"redis\"\nmode = \"cluster\"\naddresses = {:?}\n", &cluster.addresses()[..1]));
}

#[test]
fn the_contract_holds_in_small_parts() {
    let Some(servers) = servers() else { return };
    let server = Valkey::single(&servers, &[]);
    check(&format!("{}part_bytes = \"64KiB\"\nconnections = 1\n", rig::single(&server.address())));
}

#[test]
fn the_contract_holds_on_s3() {
    let Some(servers) = servers() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    check(&rig::s3(&S3::start(&servers), folder.path()));
}

#[test]
fn the_contract_holds_as_a_shared_object() {
    let Some(servers) = servers() else { return };
    let server = Valkey::single(&servers, &[]);
    let options = format!("prefix = \"kit{{work}}\"\n{}", rig::single(&server.address()));
    assert_conforms(&built(concat!(env!("CARGO_MANIFEST_DIR"), "/plugin"), &[]), &KitOptions::new(&options));
}
