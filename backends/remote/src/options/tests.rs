//! What the options' text may say, and what a refusal says.

use super::*;

const REDIS_LEAST: &str = "engine = \"redis\"\naddresses = [\"h:1\"]\n";
const S3_LEAST: &str = "engine = \"s3\"\nbucket = \"kv-cache\"\n";

#[test]
fn what_is_left_out_has_its_default_in_the_resolved_text() {
    let resolved = Options::parse(REDIS_LEAST).expect("right").resolved();
    let wanted = "engine = \"redis\"\nprefix = \"umbp\"\npart_bytes = \"8MiB\"\ntimeout = \"1s\"\n\
        connect_timeout = \"1s\"\nin_flight_bytes = \"64MiB\"\nbreaker_failures = 5\nbreaker_pause = \"1s\"\n\
        mode = \"single\"\naddresses = [\"h:1\"]\ndatabase = 0\nconnections = 4\ntls = false\n";
    assert_eq!(resolved, wanted);
    let resolved = Options::parse(S3_LEAST).expect("right").resolved();
    let wanted = "region = \"us-east-1\"\nbucket = \"kv-cache\"\ncredentials = \"environment\"\npath_style = true\n\
        allow_http = false\nconnections = 16\n";
    assert!(resolved.ends_with(wanted), "{resolved}");
}

#[test]
fn resolved_text_resolves_to_itself() {
    let cases = [
        REDIS_LEAST.to_owned(),
        S3_LEAST.to_owned(),
        "engine = \"redis\"\nmode = \"sentinel\"\nmaster_name = \"m\"\naddresses = [\"[::1]:26379\", \"b:26379\"]\n\
         username = \"kv\"\npassword_file = \"/run/secret\"\ndatabase = 3\ntls = { ca = \"/ca\", cert = \"/c\", \
         key = \"/k\" }\nttl = \"7d\"\nprefix = \"a/b\"\nconnections = 9\n"
            .to_owned(),
        format!("{REDIS_LEAST}password_env = \"KV_PASSWORD\"\ntls = true\nttl = \"90min\"\ntimeout = \"1500ms\"\n"),
        "engine = \"redis\"\naddresses = [\"unix:/run/valkey.sock\"]\n".to_owned(),
        "engine = \"redis\"\nmode = \"cluster\"\naddresses = [\"a:1\", \"b:2\"]\n".to_owned(),
        format!(
            "{S3_LEAST}endpoint = \"http://h:1\"\nallow_http = true\ncredentials_file = \"/c\"\npath_style = false\n"
        ),
        format!("{S3_LEAST}credentials = \"instance\"\nregion = \"eu\"\n"),
    ];
    for text in cases {
        let options = Options::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let resolved = options.resolved();
        let again = Options::parse(&resolved).unwrap_or_else(|error| panic!("{resolved}: {error}"));
        assert_eq!((&again, again.resolved()), (&options, resolved));
    }
}

#[test]
fn a_wrong_option_is_refused_with_its_place_and_a_remedy() {
    // what follows the least text, what the span covers, part of the message
    let redis = [
        ("prefx = \"a\"", "prefx", "did you mean `prefix`?"),
        ("zzzzzzzzzz = 1", "zzzzzzzzzz", "redis has engine, prefix"),
        ("bucket = \"b\"", "bucket", "not one of engine redis"),
        ("prefix = 5", "5", "a text in quotes"),
        ("prefix = \"a:b\"", "\"a:b\"", "letters, digits"),
        ("prefix = \"/a\"", "\"/a\"", "between others"),
        ("prefix = \"a/../b\"", "\"a/../b\"", "between others"),
        ("prefix = \"\"", "\"\"", "1 to 256"),
        ("ttl = \"0s\"", "\"0s\"", "from 1s to 3660d"),
        ("ttl = \"1 fortnight\"", "\"1 fortnight\"", "such as \"1s\""),
        ("timeout = 5", "5", "a text in quotes"),
        ("timeout = \"0ms\"", "\"0ms\"", "from 10ms to 1min"),
        ("part_bytes = \"1B\"", "\"1B\"", "from 64KiB to 64MiB"),
        ("in_flight_bytes = \"8EiB\"", "\"8EiB\"", "from 1MiB to 16GiB"),
        ("breaker_failures = 0", "0", "from 1 to 1000"),
        ("connections = 0", "0", "from 1 to 256"),
        ("connections = \"4\"", "\"4\"", "a number from 1 to 256"),
        ("mode = \"ring\"", "\"ring\"", "\"single\", \"sentinel\", \"cluster\""),
        ("mode = \"cluster\"\ndatabase = 2", "2", "a cluster has number 0 alone"),
        ("master_name = \"m\"", "\"m\"", "goes with mode \"sentinel\""),
        ("password_file = \"secret\"", "\"secret\"", "absolute path"),
        ("password_file = \"/a\"\npassword_env = \"B\"", "\"B\"", "keep one"),
        ("password_env = \"A=b\"", "\"A=b\"", "name alone"),
        ("password = \"hunter2\"", "password", "unknown option `password`"),
        ("username = \"\"", "\"\"", "not empty"),
        ("tls = \"yes\"", "\"yes\"", "true, false or a table"),
        ("tls = { cacert = \"/a\" }", "cacert", "`tls.cacert`"),
        ("tls = { cert = \"/a\" }", "{ cert = \"/a\" }", "go together"),
        ("tls = { ca = \"a\" }", "\"a\"", "absolute path"),
    ];
    for (more, place, message) in redis {
        refused(&format!("{REDIS_LEAST}{more}"), place, message);
    }
    let s3 = [
        ("mode = \"single\"", "mode", "not one of engine s3"),
        ("endpoint = \"h:9000\"", "\"h:9000\"", "give a URL"),
        ("endpoint = \"http://h:9000\"", "\"http://h:9000\"", "allow_http = true"),
        ("endpoint = \"https://me:secret@h\"", "\"https://me:secret@h\"", "a URL with a user"),
        ("credentials_file = \"/a\"\ncredentials = \"instance\"", "\"/a\"", "goes with credentials = \"file\""),
        ("credentials = \"anonymous\"", "\"anonymous\"", "\"environment\""),
        ("path_style = \"no\"", "\"no\"", "true or false"),
    ];
    for (more, place, message) in s3 {
        refused(&format!("{S3_LEAST}{more}"), place, message);
    }
}

#[test]
fn what_has_to_be_there_is_asked_for() {
    for (text, message) in [
        ("", "option `engine` is missing"),
        ("engine = \"redis\"", "option `addresses` is missing"),
        ("engine = \"s3\"", "option `bucket` is missing"),
        ("engine = \"redis\"\naddresses = [\"a:1\"]\nmode = \"sentinel\"", "option `master_name` is missing"),
        ("engine = \"s3\"\nbucket = \"b\"\ncredentials = \"file\"", "option `credentials_file` is missing"),
    ] {
        refused(text, text, message);
    }
}

#[test]
fn an_address_is_host_and_port_or_a_socket() {
    for (address, message) in [
        ("localhost", "host:port"),
        (":6379", "host:port"),
        ("h:0", "host:port"),
        ("h:70000", "host:port"),
        ("::1:6379", "host:port"),
        ("[::zz]:6379", "host:port"),
        ("h /x:1", "host:port"),
        ("unix:relative", "host:port"),
        ("redis://h:6379", "a URL"),
        ("me:hunter2@h:6379", "a URL"),
    ] {
        let text = format!("engine = \"redis\"\naddresses = [\"{address}\"]");
        let error = Options::parse(&text).expect_err(&text);
        assert!(error.message.contains(message), "{text}: {error}");
        assert!(!error.message.contains("hunter2"), "no secret in a message: {error}");
        assert_eq!(text[error.span.clone()], format!("\"{address}\""));
    }
    for text in [
        "engine = \"redis\"\naddresses = []",
        "engine = \"redis\"\naddresses = [\"a:1\", \"b:1\"]",
        "engine = \"redis\"\nmode = \"cluster\"\naddresses = [\"unix:/a\"]",
        "engine = \"redis\"\ntls = true\naddresses = [\"unix:/a\"]",
        "engine = \"redis\"\naddresses = \"a:1\"",
        "engine = \"redis\"\naddresses = [5]",
    ] {
        Options::parse(text).expect_err(text);
    }
}

fn refused(text: &str, place: &str, message: &str) {
    let error = Options::parse(text).expect_err(text);
    assert_eq!(&text[error.span.clone()], place, "{text}: {error}");
    assert!(error.message.contains(message), "{text}: {error}");
}
