//! Two hosts and a cable.

use std::time::Duration;

use umbp_testkit::network::{Network, Side};
use umbp_testkit::process::Process;
use umbp_testkit::servers::servers;
use umbp_testkit::valkey::Valkey;
use umbp_testkit::wait::{until, within};

/// A bash that asks a server once, as often as a byte comes; it says what the answer was.
const ASK: &str =
    r#"exec 3<>"/dev/tcp/$1/$2" || exit 1; printf 'PING\r\n' >&3; read -t 30 -r answer <&3; echo "$answer""#;

fn asks(network: &Network, valkey: &Valkey, folder: &std::path::Path) -> Process {
    let mut command = network.command(Side::Near, "bash");
    command.args(["-c", ASK, "ask", Side::Far.address(), &valkey.port().to_string()]);
    Process::start(command, &folder.join("log"))
}

fn answered(process: &Process) -> Option<()> {
    process.said().contains("PONG").then_some(())
}

#[test]
fn a_server_on_one_host_is_reached_from_the_other_alone_until_the_cable_is_cut() {
    let (Some(servers), Some(network)) = (servers(), Network::new()) else { return };
    let valkey = Valkey::in_network(&servers, &network, Side::Far, &[]);
    let folder = || tempfile::tempdir().unwrap();

    let (first, second, third) = (folder(), folder(), folder());
    let process = asks(&network, &valkey, first.path());
    until("the server answers over the cable", || answered(&process));

    network.lose();
    let process = asks(&network, &valkey, second.path());
    assert_eq!(within(Duration::from_millis(500), || answered(&process)), None, "all is lost");
    assert_eq!(valkey.ask(&["PING"]).text(), "PONG", "a Unix socket is no network");
    network.deliver();
    until("it goes on where it was", || answered(&process));

    network.pull();
    let mut process = asks(&network, &valkey, third.path());
    until("a host without a cable knows it", || process.ended().filter(|status| !status.success()));
    network.plug();
    let fourth = folder();
    let process = asks(&network, &valkey, fourth.path());
    until("the cable is back", || answered(&process));
}

#[test]
fn nothing_is_left_of_a_network() {
    let Some(network) = Network::new() else { return };
    let status = network.command(Side::Near, "true").status().unwrap();
    assert!(status.success());
    let command = network.command(Side::Far, "true");
    drop(network);
    let mut command = command;
    assert!(!command.output().unwrap().status.success(), "the host is gone");
}
