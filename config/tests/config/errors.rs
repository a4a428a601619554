//! What is wrong is told with file, line, caret, key, value and remedy.

use crate::common::{Deployment, GOOD, rendered, source};
use umbp_config::{BackendRef, Config, Source};

const TIER: &str = "[[tier]]\nname = \"dram\"\nbackend = \"dram\"\ncapacity = \"1GiB\"\n";

/// The file is refused, and the report holds every fragment.
fn check(toml: &str, fragments: &[&str]) {
    let deployment = Deployment::new(toml);
    let errors = deployment.load().expect_err(toml);
    let shown = rendered(&errors);
    for fragment in fragments {
        assert!(shown.contains(fragment), "no {fragment:?} in the report on\n{toml}\n{shown}");
    }
    for error in &errors.errors {
        assert!(!error.remedy().is_empty() && !error.key.is_empty(), "{error:?}");
    }
}

#[test]
fn unknown_keys_are_refused_with_line_caret_and_a_suggestion() {
    check("[deamon]\n", &["deamon: unknown key", "umbp.toml:1:2", "did you mean \"daemon\"?"]);
    check(
        &format!("{TIER}capasity = \"1GiB\"\n"),
        &[
            "tier.dram.capasity: unknown key",
            "umbp.toml:5:1",
            "5 │ capasity = \"1GiB\"",
            "────┬───",
            "did you mean \"capacity\"?",
        ],
    );
    check(
        &format!("{TIER}[policy]\nheadrom = \"1%\"\n"),
        &["policy.headrom", "umbp.toml:6:1", "did you mean \"headroom\"?"],
    );
    check(&format!("{TIER}[policy]\nsocket = \"x\"\n"), &["\"socket\" belongs into [daemon]"]);
    check(&format!("{TIER}zzz = 1\n"), &["a backend's own options stand under its options"]);
    check(&format!("capacity = 1\n{TIER}"), &["capacity: unknown key", "\"capacity\" belongs into [tier]"]);
}

#[test]
fn wrong_types_are_refused_with_the_right_one() {
    check("tier = 3\n", &["tier: expected a list of tables, found an integer", "write [[tier]]"]);
    check("[tier]\nname = \"dram\"\n", &["expected a list of tables, found a table", "umbp.toml:1:1"]);
    check(&format!("{TIER}[[policy]]\n"), &["policy: expected a table, found a list", "write [policy]"]);
    check(
        &TIER.replace("\"1GiB\"", "1073741824"),
        &["expected a size with its unit, found an integer", "such as \"1GiB\""],
    );
    check(&TIER.replace("\"1GiB\"", "1.5"), &["found a number with decimals"]);
    check(
        &format!("{TIER}required = \"yes\"\n"),
        &["tier.dram.required = \"yes\": expected true or false, found a string"],
    );
    check(&format!("{TIER}options = 3\n"), &["tier.dram.options = 3: expected a table", "write [tier.options]"]);
    check(&format!("{TIER}[daemon]\nplugin_dirs = \"x\"\n"), &["expected a list of paths, found a string"]);
    check(&format!("{TIER}[[tenant]]\nname = \"a\"\nuids = [\"root\"]\n"), &["expected a user id, found a string"]);
    check(&format!("{TIER}[[tenant]]\nname = \"a\"\nquota = \"1%\"\n"), &["expected a table of shares"]);
}

#[test]
fn wrong_units_are_refused_with_the_right_one() {
    let capacity = |text: &str| TIER.replace("1GiB", text);
    check(
        &capacity("8GB"),
        &["tier.dram.capacity = \"8GB\": unknown unit \"GB\"", "umbp.toml:4:12", "did you mean \"8GiB\"?"],
    );
    check(&capacity("8gib"), &["did you mean \"8GiB\"?"]);
    check(&capacity("4096"), &["a size needs a unit", "\"4096B\""]);
    check(&capacity("1.5GiB"), &["a size is a whole number of its unit"]);
    check(&capacity("lots"), &["not a size"]);
    check(&capacity("-1GiB"), &["not a size"]);
    check(&capacity("99999999999TiB"), &["beyond every machine"]);
    check(
        &format!("{TIER}deadline = \"2sec\"\n"),
        &["unknown unit \"sec\", expected one of min, s, ms", "did you mean \"2s\"?"],
    );
    check(&format!("{TIER}deadline = \"2\"\n"), &["a duration needs a unit"]);
    check(&format!("{TIER}[policy]\nheadroom = \"1 percent\"\n"), &["unknown unit \"percent\""]);
    check(&format!("{TIER}[policy]\nheadroom = \"x%\"\n"), &["not a percentage"]);
}

#[test]
fn impossible_values_are_refused_with_what_is_possible() {
    check(&TIER.replace("1GiB", "0B"), &["too small", "write at least \"1MiB\""]);
    check(&format!("{TIER}deadline = \"0s\"\n"), &["too short"]);
    check(&format!("{TIER}required = false\n"), &["the first tier is always required"]);
    check(&format!("{TIER}[policy]\nheadroom = \"150%\"\n"), &["policy.headroom = \"150%\": more than 50 %"]);
    check(&format!("{TIER}[policy]\nheadroom = \"1GiB\"\n"), &["too large", "write at most \"256MiB\""]);
    check(&format!("{TIER}[policy]\neviction = \"lru\"\n"), &["expected one of \"prefix-lru\""]);
    let policy = |key: &str| format!("{TIER}[policy]\n{key}\n");
    check(&policy("admission = \"second\""), &["expected one of \"all\", \"second-sighting\", { min_depth = 1 }"]);
    check(&policy("admission = { min_depth = 0 }"), &["min_depth out of range", "a number from 1 to 65535"]);
    check(&policy("admission = { depth = 4 }"), &["unknown name \"depth\"", "min_depth"]);
    check(&policy("admission = { min_depth = \"4\" }"), &["expected a whole number, found a string"]);
    check(&policy("promote = { after_hits = 1 }"), &["after_hits out of range", "a number from 2 to 100"]);
    check(&policy("promote = {}"), &["a table of 0 values", "write { after_hits = 2 }"]);
    check(&policy("admision = \"all\""), &["policy.admision: unknown key", "did you mean \"admission\"?"]);
    check(&policy("promot = \"on-acquire\""), &["policy.promot: unknown key", "did you mean \"promote\"?"]);
    check(&policy("evictoin = \"s3-fifo\""), &["policy.evictoin: unknown key", "did you mean \"eviction\"?"]);
    check(&policy("admission = \"second-sighted\""), &["did you mean \"second-sighting\"?"]);
    check(&policy("promote = \"on-aquire\""), &["did you mean \"on-acquire\"?"]);
    check(&policy("eviction = \"s3-fif\""), &["did you mean \"s3-fifo\"?"]);
    check(&format!("{TIER}[policy]\nwrite = \"on-evit\"\n"), &["did you mean \"on-evict\"?"]);
    check(&format!("{TIER}[policy]\npromotion_budget = \"1MiB\"\n"), &["smaller than the largest block"]);
    check(&format!("{TIER}[limits]\nlargest_block = \"1GiB\"\n"), &["too large", "write at most \"64MiB\""]);
    check(
        &format!("{TIER}[limits]\nlease = \"1s\"\nhold = \"2s\"\n"),
        &["limits.hold = \"2s\": too long", "at most \"1s\""],
    );
    check(
        &format!("{}[limits]\nlargest_block = \"64MiB\"\n", TIER.replace("1GiB", "128MiB")),
        &["no room for blocks: promotion_budget (128MiB), largest_block (64MiB)", "raise the capacity above"],
    );
    check(&format!("{TIER}[daemon]\nadmin = \"localhost\"\n"), &["not a numeric address with port", "or \"off\""]);
    check(&format!("{TIER}[daemon]\nsocket = \"\"\n"), &["an empty path"]);
    check(
        &format!("{TIER}[daemon]\nsocket = \"/{}\"\n", "x".repeat(200)),
        &["more than the 107 that Unix sockets allow"],
    );
    check(&TIER.replace("backend = \"dram\"", "backend = \"./x.so\""), &["neither a bare name nor an absolute path"]);
    check(&TIER.replace("name = \"dram\"", "name = \"My Tier\""), &["not a name"]);
    let quota = |text: &str| format!("{TIER}[[tenant]]\nname = \"a\"\nquota = {text}\n");
    check(&quota("{ dram = \"101%\" }"), &["tenant.a.quota.dram = \"101%\": more than 100 %"]);
    check(&quota("{ dram = \"2GiB\" }"), &["more than the tier's capacity"]);
    check(&quota("{ dram = \"0%\" }"), &["the tenant could store nothing"]);
    check(&quota("{ dramm = \"1%\" }"), &["tenant.a.quota.dramm: no tier has this name", "did you mean \"dram\"?"]);
}

#[test]
fn tables_that_cannot_be_together_are_refused() {
    check("", &["tier: missing", "add a [[tier]]"]);
    check(&TIER.replace("capacity = \"1GiB\"\n", ""), &["tier.dram.capacity: missing", "add capacity = \"8GiB\""]);
    check(&format!("{TIER}{TIER}"), &["tier.name = \"dram\": this name is taken at", "umbp.toml:6:8", "another name"]);
    check(
        &format!("{TIER}[[mover]]\nname = \"dram\"\nbackend = \"gpu-direct\"\n"),
        &["mover.name = \"dram\": this name is taken"],
    );
    let five: String = (0..5).map(|i| TIER.replace("name = \"dram\"", &format!("name = \"t{i}\""))).collect();
    check(&five, &["tier.t4: more than 4 [[tier]] tables"]);
    check(&format!("{TIER}[[tenant]]\nname = \"a\"\nuids = [7, 7]\n"), &["uid 7 stands there twice"]);
    check(
        &format!("{TIER}[[tenant]]\nname = \"a\"\n[[tenant]]\nname = \"a\"\n"),
        &["tenant.name = \"a\": this name is taken"],
    );
}

#[test]
fn what_is_no_toml_is_shown_at_its_place() {
    check("[[tier]\nname = \"x\"\n", &["not TOML", "umbp.toml:1:"]);
    check("a = 8GiB\n", &["string values must be quoted", "umbp.toml:1:5"]);
    check("[policy]\nwrite = \"through\"\nwrite = \"through\"\n", &["duplicate key", "umbp.toml:3:1"]);
}

#[test]
fn several_errors_of_one_file_are_reported_together_in_its_order() {
    let toml = format!("[daemon]\nadmin = 1\n{}deadline = \"2\"\n[polcy]\n", TIER.replace("1GiB", "1GB"));
    let errors = Deployment::new(&toml).load().unwrap_err();
    let keys: Vec<&str> = errors.errors.iter().map(|error| error.key.as_str()).collect();
    assert_eq!(keys, ["daemon.admin", "tier.dram.capacity", "tier.dram.deadline", "polcy"]);
    assert!(rendered(&errors).contains("the config has 4 errors"));
}

#[test]
fn a_missing_file_is_named_with_the_reason() {
    let source = Source { file: Some("/nowhere/umbp.toml".into()), ..source() };
    let errors = Config::load(&source).unwrap_err();
    assert!(errors.lines().contains("/nowhere/umbp.toml: cannot read the file: No such file"), "{}", errors.lines());
    let long = Deployment::new(&"# too long\n".repeat(100_000));
    assert!(long.load().unwrap_err().lines().contains("cannot read the file: it has more than"));
    let folder = Source { file: Some(long.folder.path().to_owned()), ..source };
    assert!(Config::load(&folder).unwrap_err().lines().contains("cannot read the file: Is a directory"));
}

/// J2, J3: one value, three ways in, one text, and each says which way it came.
#[test]
fn the_same_bad_value_gives_the_same_error_by_file_environment_and_flag() {
    let cases = [
        ("daemon", "socket", "\"\"", "UMBP_DAEMON__SOCKET", ""),
        ("daemon", "admin", "\"localhost\"", "UMBP_DAEMON__ADMIN", "localhost"),
        ("daemon", "admin", "12", "UMBP_DAEMON__ADMIN", "12"),
        ("daemon", "plugin_dirs", "\"x\"", "UMBP_DAEMON__PLUGIN_DIRS", "x"),
        ("policy", "headroom", "\"150%\"", "UMBP_POLICY__HEADROOM", "150%"),
        ("policy", "verify_dram", "\"maybe\"", "UMBP_POLICY__VERIFY_DRAM", "maybe"),
        ("limits", "lease", "\"10\"", "UMBP_LIMITS__LEASE", "\"10\""),
        ("limits", "largest_block", "4096", "UMBP_LIMITS__LARGEST_BLOCK", "4096"),
    ];
    for (section, key, value, variable, text) in cases {
        let by_file = Deployment::new(&format!("{TIER}[{section}]\n{key} = {value}\n")).load().unwrap_err();
        let by_variable = Deployment::new(TIER).variable(variable, text).load().unwrap_err();
        let (file, environment) = (&by_file.errors[0], &by_variable.errors[0]);
        assert_eq!(file.message(), environment.message());
        assert_eq!(file.remedy(), environment.remedy());
        assert!(rendered(&by_variable).contains(&format!("environment variable {variable}")));
        assert!(by_file.lines().contains("umbp.toml:6: "), "{}", by_file.lines());
    }
    let long = format!("/{}", "x".repeat(200));
    let by_file = Deployment::new(&format!("{TIER}[daemon]\nsocket = \"{long}\"\n")).load().unwrap_err();
    let mut flagged = Deployment::new(TIER);
    flagged.source.socket = Some(long.clone());
    let by_flag = flagged.load().unwrap_err();
    let by_alias = Deployment::new(TIER).variable("UMBP_SOCKET", &long).load().unwrap_err();
    for errors in [&by_flag, &by_alias] {
        assert_eq!(by_file.errors[0].message(), errors.errors[0].message());
    }
    assert!(by_flag.lines().starts_with("flag --socket: "), "{}", by_flag.lines());
    assert!(by_alias.lines().starts_with("environment variable UMBP_SOCKET: "), "{}", by_alias.lines());
}

#[test]
fn a_variable_that_names_no_key_is_refused_with_a_suggestion() {
    let cases = [
        ("UMBP_POLICY__HEADROM", "did you mean \"UMBP_POLICY__HEADROOM\"?"),
        ("UMBP_TIER__DRAMM__CAPACITY", "did you mean \"UMBP_TIER__DRAM__CAPACITY\"?"),
        ("UMBP_TIER__DRAM__NAME", "\"name\" is set in the file alone"),
        ("UMBP_TIER__DRAM__OPTIONS", "\"options\" is set in the file alone"),
    ];
    for (variable, remedy) in cases {
        let errors = Deployment::new(GOOD).variable(variable, "1%").load().unwrap_err();
        assert!(errors.lines().contains(variable) && errors.lines().contains(remedy), "{}", errors.lines());
    }
    // Without the double underscore it is somebody else's.
    assert!(Deployment::new(GOOD).variable("UMBP_CONFORMANCE_DIR", "x").load().is_ok());
}

#[test]
fn a_first_tier_that_is_not_mappable_is_refused_at_its_line() {
    let swapped = GOOD.replace("required = false\n", "").replace("backend = \"dram\"", "backend = \"nvme\"");
    let config = Deployment::new(&swapped).load().unwrap();
    let mappable = |backend: &BackendRef| match backend {
        BackendRef::Bare(name) => Some(name == "dram"),
        BackendRef::Path(_) => None,
    };
    let errors = config.check_first_tier(&mappable).unwrap_err();
    let shown = rendered(&errors);
    for fragment in [
        "tier.dram.backend = \"nvme\"",
        "umbp.toml:7:11",
        "must be mappable",
        "put a tier with backend = \"dram\" above it",
    ] {
        assert!(shown.contains(fragment), "{fragment}\n{shown}");
    }
    assert!(Deployment::new(GOOD).load().unwrap().check_first_tier(&mappable).is_ok());
    assert!(config.check_first_tier(&|_| None).is_ok(), "loading it tells why");
}

#[test]
fn keys_of_lower_and_shared_tiers_are_refused_where_they_mean_nothing() {
    check(&format!("{TIER}write = \"through\"\n"), &["tier.dram.write", "umbp.toml:5:9", "written by engines"]);
    let second = TIER.replace("dram", "remote");
    check(
        &format!("{TIER}{second}write = {{ after_hits = 0 }}\n"),
        &["tier.remote.write", "after_hits out of range", "from 1 to 100"],
    );
    check(&format!("{TIER}{second}write = \"on-evct\"\n"), &["did you mean \"on-evict\"?"]);
    check(&format!("{TIER}{second}lookup_budget = \"2s\"\n"), &["tier.remote.lookup_budget", "write at most \"1s\""]);
    check(&format!("{TIER}{second}negative_ttl = 5\n"), &["expected a duration with its unit"]);
    let both = format!("{TIER}lookup_budget = \"2ms\"\nnegative_ttl = \"1s\"\n");
    let config = Deployment::new(&both).load().unwrap();
    let errors = config.check_unshared(&config.tiers[0]).expect_err("dram is not shared");
    let shown = rendered(&errors);
    for fragment in ["tier.dram.lookup_budget = \"2ms\"", "tier.dram.negative_ttl", "umbp.toml:6:16", "remove the key"]
    {
        assert!(shown.contains(fragment), "{fragment:?}\n{shown}");
    }
    let plain = Deployment::new(TIER).load().unwrap();
    assert!(plain.check_unshared(&plain.tiers[0]).is_ok());
}
