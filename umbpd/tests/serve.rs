//! The daemon on DRAM alone: blocks travel, lives end and begin, one socket has one daemon.

mod common;

use common::client::{Client, hello};
use common::daemon::Place;
use common::dram;
use rustix::process::Signal;
use umbp_protocol::message::{Found, Hello};

const BLOCK_BYTES: u64 = 64 << 10;

#[test]
fn a_block_is_read_by_another_session_as_it_was_stored() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    assert!(daemon.greeting.contains("dram (running: "), "{}", daemon.greeting);
    let (mut writer, mut reader) = (Client::new(&daemon.socket), Client::new(&daemon.socket));
    assert_eq!(reader.load(1, BLOCK_BYTES), None);
    assert!(writer.store(1, BLOCK_BYTES));
    assert!(matches!(reader.lookup(&[1, 2], 0)[..], [Found::Hit { tier: 0, held: false }, Found::Miss(_)]));
    assert_eq!(reader.load(1, BLOCK_BYTES), Some(0));
    let status = daemon.status();
    assert_eq!(status["tiers"][0]["resident_blocks"], 1, "{status:#}");
    assert_eq!(status["pid"], daemon.pid());
    assert_eq!(status["sessions"].as_array().expect("sessions").len(), 3);
}

#[test]
fn a_request_longer_than_a_slice_is_answered_whole_and_in_order() {
    let place = Place::new("64MiB", "");
    let daemon = place.serve();
    let mut client = Client::new(&daemon.socket);
    let numbers: Vec<u64> = (0..2000).collect();
    for number in numbers.iter().step_by(2) {
        assert!(client.store(*number, 4096));
    }
    let found = client.lookup(&numbers, 0);
    let expected = |number: &u64| number.is_multiple_of(2);
    let hits: Vec<bool> = found.iter().map(|found| matches!(found, Found::Hit { .. })).collect();
    assert_eq!(hits, numbers.iter().map(expected).collect::<Vec<_>>());
    let (lease, items) = client.reserve(&(10_000..11_500).collect::<Vec<_>>(), 4096);
    assert!(lease.0 > 0 && items.len() == 1500, "one lease for all slices");
}

#[test]
fn sigterm_and_sigint_drain_and_exit_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let place = Place::new("16MiB", "");
        let daemon = place.serve();
        let mut client = Client::new(&daemon.socket);
        assert!(client.store(1, BLOCK_BYTES));
        daemon.signal(signal);
        client.event(|event| *event == umbp_protocol::message::Event::Draining);
        let ended = daemon.wait();
        assert!(ended.status.success(), "{ended:?}");
        assert!(client.last_words().is_some(), "the session ends with a reason");
        assert!(!place.socket().exists(), "its socket is removed");
    }
}

/// A lease that nobody gives back keeps the drain waiting up to its part of the deadline, and no longer.
#[test]
fn sigterm_with_a_lease_open_ends_within_the_deadline() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let mut client = Client::new(&daemon.socket);
    client.reserve(&[1], BLOCK_BYTES);
    let start = std::time::Instant::now();
    assert!(daemon.stop().status.success());
    assert!(start.elapsed() < std::time::Duration::from_secs(5), "drain = 2s, took {:?}", start.elapsed());
}

#[test]
fn k7_a_second_daemon_refuses_naming_the_pid_and_the_first_serves_on() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let refused = place.refused();
    assert!(!refused.status.success());
    assert!(refused.text.contains(&format!("another umbpd (pid {})", daemon.pid())), "{}", refused.text);
    assert!(Client::new(&daemon.socket).store(1, BLOCK_BYTES));
}

#[test]
fn the_socket_of_a_killed_daemon_is_replaced_and_the_next_life_has_another_boot_id() {
    let place = Place::new("16MiB", "");
    let daemon = place.serve();
    let mut client = Client::new(&daemon.socket);
    let first = client.welcome.as_ref().expect("welcome").boot_id;
    daemon.signal(Signal::KILL);
    assert!(!daemon.wait().status.success());
    assert!(client.last_words().is_none() && place.socket().exists());
    let daemon = place.serve();
    let second = Client::new(&daemon.socket).welcome.expect("welcome").boot_id;
    assert_ne!(first, second);
}

#[test]
fn a_tenant_is_decided_by_the_uid_and_hello_only_selects() {
    let own = rustix::process::getuid().as_raw();
    let place = Place::new(
        "32MiB",
        &format!(
            "[[tenant]]\nname = \"a\"\nuids = [{own}]\n[[tenant]]\nname = \"b\"\nuids = [{own}]\n[[tenant]]\nname = \"c\"\nuids = [4242]\n"
        ),
    );
    let daemon = place.serve();
    let tenant = |name: Option<&str>| {
        let mut client = Client::silent(&daemon.socket);
        let greeted = client.greet(Hello { tenant: name.map(str::to_owned), ..hello() });
        greeted.map(|()| client.welcome.expect("welcome").tenant).map_err(|refusal| refusal.message)
    };
    assert_eq!(tenant(None), Ok("a".to_owned()));
    assert_eq!(tenant(Some("b")), Ok("b".to_owned()));
    for name in ["c", "nobody"] {
        let refused = tenant(Some(name)).expect_err("not allowed");
        assert!(refused.contains("allowed to it: a, b"), "{refused}");
    }
}

/// What a session of one tenant stores is nothing to another tenant, and its segments are not mapped there.
#[test]
fn tenants_share_neither_blocks_nor_segments() {
    let own = rustix::process::getuid().as_raw();
    let tenants = format!("[[tenant]]\nname = \"a\"\nuids = [{own}]\n[[tenant]]\nname = \"b\"\nuids = [{own}]\n");
    let place = Place::new("128MiB", &tenants);
    let daemon = place.serve();
    let of = |name: &str| {
        let mut client = Client::silent(&daemon.socket);
        client.greet(Hello { tenant: Some(name.to_owned()), ..hello() }).expect("welcome");
        client
    };
    let (mut a, mut b) = (of("a"), of("b"));
    assert!(a.store(1, BLOCK_BYTES) && b.store(2, BLOCK_BYTES));
    assert_eq!((a.load(2, BLOCK_BYTES), b.load(1, BLOCK_BYTES)), (None, None));
    assert_eq!((a.load(1, BLOCK_BYTES), b.load(2, BLOCK_BYTES)), (Some(0), Some(0)));
    let mapped = |client: &Client| client.mapped();
    assert!(mapped(&a).iter().all(|segment| !mapped(&b).contains(segment)), "no segment in common");
}

#[test]
fn f6_a_pool_beyond_rlimit_fsize_is_refused_with_the_numbers_and_the_knob() {
    let place = Place::new("256MiB", "");
    let mut command = std::process::Command::new("sh");
    // 16 MiB in blocks of 512 bytes.
    command
        .args(["-c", "ulimit -f 32768; exec \"$0\" --config \"$1\"", env!("CARGO_BIN_EXE_umbpd")])
        .arg(place.config());
    let refused = place.try_serve(command).err().expect("refused");
    assert!(!refused.status.success());
    assert!(refused.status.code().is_some(), "refused in words, not by SIGXFSZ: {refused:?}");
    for words in ["256.0 MiB", "16.0 MiB", "RLIMIT_FSIZE", "capacity"] {
        assert!(refused.text.contains(words), "{words}: {}", refused.text);
    }
    assert!(!place.socket().exists());
}

/// J2: with whatever number of files it is refused in words, by no panic, and told what to raise.
#[test]
fn too_few_open_files_refuse_the_start_with_the_knob() {
    let place = Place::new("16MiB", "");
    for files in [4, 6, 8, 12, 15, 63] {
        let mut command = std::process::Command::new("sh");
        let script = format!("ulimit -n {files}; exec \"$0\" --config \"$1\"");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_umbpd")]).arg(place.config());
        let refused = place.try_serve(command).err().expect("refused");
        assert_eq!(refused.status.code(), Some(1), "{files}: {refused:?}");
        assert!(refused.text.contains(&format!("RLIMIT_NOFILE is {files}")), "{refused:?}");
        assert!(refused.text.contains("LimitNOFILE= of the unit"), "{refused:?}");
    }
}

#[test]
fn the_admin_page_tells_health_and_status_and_a_taken_address_is_refused() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("an address");
    let busy = taken.local_addr().expect("address");
    let place = Place::new("16MiB", "");
    let toml = std::fs::read_to_string(place.config()).expect("config");
    place.write(&toml.replace("admin = \"off\"", &format!("admin = \"{busy}\"")));
    let refused = place.refused();
    assert!(refused.text.contains(&format!("admin page on {busy}")), "{}", refused.text);
    drop(taken);
    let daemon = place.serve();
    let get = |path: &str| {
        let mut stream = std::net::TcpStream::connect(busy).expect("connected");
        std::io::Write::write_all(&mut stream, format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).expect("sent");
        std::io::read_to_string(stream).expect("answered")
    };
    let (health, status, metrics) = (get("/healthz"), get("/status"), get("/metrics"));
    assert!(health.starts_with("HTTP/1.0 200") && health.ends_with("ok\n"), "{health}");
    let body = status.split_once("\r\n\r\n").expect("a body").1;
    let status: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(status["pid"], daemon.pid());
    assert!(metrics.contains("application/openmetrics-text") && metrics.ends_with("# EOF\n"), "{metrics}");
    assert!(metrics.contains("umbp_tier_state{tier=\"dram\",state=\"running\"} 1"), "{metrics}");
    assert!(dram().exists());
}

/// One tenant cannot take the sessions of all.
#[test]
fn a_tenant_at_its_share_of_sessions_leaves_room_for_the_others() {
    let own = rustix::process::getuid().as_raw();
    let tenants = format!("[[tenant]]\nname = \"a\"\nuids = [{own}]\n[[tenant]]\nname = \"b\"\nuids = [{own}]\n");
    let place = Place::new("32MiB", &tenants);
    let daemon = place.serve();
    let greet = |tenant: &str| {
        let mut client = Client::silent(&daemon.socket);
        let greeted = client.greet(Hello { tenant: Some(tenant.to_owned()), namespace: None, ..hello() });
        greeted.map(|()| client)
    };
    let clients: Vec<_> = (0..umbpd::session::SESSIONS_MAX / 2).map(|_| greet("a").map_err(|r| r.message)).collect();
    assert!(clients.iter().all(Result::is_ok));
    let refusal = greet("a").err().expect("its share is taken");
    assert!(refusal.code == "limit" && refusal.message.contains("512 sessions"), "{refusal:?}");
    assert!(greet("b").is_ok());
    drop(clients);
    common::until("room again", || greet("a").ok());
}
