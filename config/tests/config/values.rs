//! Values: where they come from, what they become, and that the resolved form reads back.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{Deployment, GOOD, rendered, source};
use umbp_config::schema::{KEYS, Section};
use umbp_config::{BackendRef, Config, Origin, Share, Source, default_socket, plugin_search};

const DEPLOYMENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deployments");

fn shipped(name: &str) -> (PathBuf, String) {
    let path = Path::new(DEPLOYMENTS).join(name);
    let text = std::fs::read_to_string(&path).unwrap();
    (path, text)
}

/// Everything but where it came from, which is another file after printing.
fn values(config: &Config) -> Vec<String> {
    let without_origin = |line: &str| line.split(" # from ").next().unwrap().trim_end().to_owned();
    config.to_toml().lines().map(without_origin).collect()
}

#[test]
fn every_shipped_deployment_is_right() {
    let mut count = 0;
    for entry in std::fs::read_dir(DEPLOYMENTS).unwrap() {
        let file = entry.unwrap().path();
        let config = Config::load(&Source { file: Some(file.clone()), ..source() });
        assert!(config.is_ok(), "{}: {}", file.display(), config.unwrap_err().lines());
        count += 1;
    }
    assert!(count >= 5);
}

/// A key without a word in local.toml would be unknown to its readers; a default that is told wrong is worse.
#[test]
fn local_toml_explains_every_key_and_tells_the_defaults_right() {
    let (path, text) = shipped("local.toml");
    for key in KEYS {
        let set = text.lines().any(|line| line.trim_start_matches("# ").starts_with(&format!("{} = ", key.name)))
            || (key.name == "options" && text.contains(&format!("[{}.options]", key.section.name())));
        assert!(set, "{}.{} is not in local.toml", key.section.name(), key.name);
    }
    for section in Section::ALL {
        assert!(text.contains(&format!("[{}]", section.name())), "{section:?}");
    }
    // With the comments on defaults taken away, only what has no constant default changes.
    let shown = |line: &str| {
        line.strip_prefix("# ").is_some_and(|line| {
            KEYS.iter().any(|key| {
                // Those two have their defaults where the backend is shared, and are wrong elsewhere.
                let shared_alone = matches!(key.name, "lookup_budget" | "negative_ttl");
                let constant =
                    !matches!(key.name, "socket" | "plugin_dirs" | "name" | "backend" | "options") && !shared_alone;
                constant && line.starts_with(&format!("{} = ", key.name))
            })
        })
    };
    let uncommented: Vec<&str> = text.lines().map(|line| if shown(line) { &line[2..] } else { line }).collect();
    let file = Deployment::new(&uncommented.join("\n"));
    let plain = Config::load(&Source { file: Some(path), ..source() }).unwrap();
    assert_eq!(values(&file.load().unwrap()), values(&plain));
}

#[test]
fn the_resolved_form_reads_back_to_the_same_values() {
    let names = ["local.toml", "dram-only.toml"].map(|name| shipped(name).1);
    let nested = format!(
        "{GOOD}[[mover]]\nname = \"gpu\"\nbackend = \"/opt/a b.so\"\n[mover.options]\na.b = [1, 2]\n[mover.options.c]\nd = \"\\\"x\\\"\"\n"
    );
    for toml in names.iter().map(String::as_str).chain([GOOD, &nested]) {
        let config = Deployment::new(toml).load().unwrap();
        let printed = config.to_toml();
        let again = Deployment::new(&printed).load().unwrap_or_else(|errors| panic!("{printed}\n{}", errors.lines()));
        assert_eq!(values(&config), values(&again), "{printed}");
    }
    let embedded = Config::load(&source()).unwrap();
    assert_eq!(values(&embedded), values(&Deployment::new(&embedded.to_toml()).load().unwrap()));
}

/// J3: the effective value and its origin, for each way in.
#[test]
fn every_value_tells_where_it_came_from() {
    let mut deployment = Deployment::new(GOOD)
        .variable("UMBP_TIER__NVME__CAPACITY", "6GiB")
        .variable("UMBP_POLICY__VERIFY_DRAM", "true")
        .variable("UMBP_TENANT__DEFAULT__UIDS", "[7, 8]")
        .variable("UMBP_SOCKET", "/a.sock")
        .variable("UMBP_DAEMON__SOCKET", "/b.sock");
    let printed = deployment.load().unwrap().to_toml();
    let line = |key: &str| printed.lines().filter(|line| line.starts_with(key)).collect::<Vec<_>>().join("\n");
    let check = |key: &str, value: &str, origin: &str| {
        let found = line(key);
        assert!(found.contains(value) && found.ends_with(&format!("# from {origin}")), "{key}: {found}");
    };
    check("socket", "\"/b.sock\"", "environment variable UMBP_DAEMON__SOCKET");
    check("verify_dram", "true", "environment variable UMBP_POLICY__VERIFY_DRAM");
    check("uids", "[7, 8]", "environment variable UMBP_TENANT__DEFAULT__UIDS");
    check("lease", "\"10s\"", "default");
    check("quota.dram", "\"50%\"", &format!("{}:19", deployment.file().display()));
    check("capacity", "\"6GiB\"", "environment variable UMBP_TIER__NVME__CAPACITY");
    deployment.source.socket = Some("/c.sock".to_owned());
    let config = deployment.load().unwrap();
    assert_eq!(config.daemon.socket.place.origin, Origin::Flag("--socket"));
    assert_eq!(*config.daemon.socket, Path::new("/c.sock"));
}

#[test]
fn paths_of_the_file_are_relative_to_the_file() {
    let deployment = Deployment::new(GOOD);
    let config = deployment.load().unwrap();
    assert_eq!(*config.daemon.socket, deployment.folder.path().join("umbpd.sock"));
    assert_eq!(*config.daemon.plugin_dirs, [deployment.folder.path().join("plugins"), PathBuf::from("/opt/umbp")]);
    let search = plugin_search(&config.daemon.plugin_dirs, Some(Path::new("/x/dist/bin/umbpd")));
    assert_eq!(search[2], Path::new("/x/dist/plugins"));
    let names = BackendRef::Bare("gpu-direct".to_owned()).candidates(&search[1..]);
    assert_eq!(names[0], Path::new("/opt/umbp/libumbp_backend_gpu_direct.so"));
    assert_eq!(names[3], Path::new("/x/dist/plugins/libgpu_direct.so"));
    assert_eq!(BackendRef::Path("/a.so".into()).candidates(&search), [Path::new("/a.so")]);
}

/// What nobody set is other than for a daemon of its own; what file, environment or flag set stays.
#[test]
fn an_embedded_daemon_has_a_socket_of_its_own_and_no_admin_page() {
    let small = "[[tier]]\nname = \"dram\"\nbackend = \"dram\"\ncapacity = \"1GiB\"\n";
    let deployment = Deployment::new(small);
    let (config, file) = (deployment.load().unwrap(), deployment.file());
    let embedded = config.clone().embedded(Some(&file));
    assert_ne!(*embedded.daemon.socket, *config.daemon.socket);
    assert_eq!(embedded.daemon.socket.parent(), config.daemon.socket.parent());
    let again = deployment.load().unwrap().embedded(Some(&file));
    assert_eq!(*again.daemon.socket, *embedded.daemon.socket, "all processes of an engine find the same one");
    let other = config.clone().embedded(Some(&file.with_file_name("other.toml")));
    assert_ne!(*other.daemon.socket, *embedded.daemon.socket);
    assert_eq!(config.embedded(None).daemon.socket.file_name().unwrap(), "embedded.sock");
    assert_eq!(*embedded.daemon.admin, None);
    let set = Deployment::new(&format!("[daemon]\nsocket = \"own.sock\"\n{small}"));
    let set = set.variable("UMBP_DAEMON__ADMIN", "127.0.0.1:1");
    let config = set.load().unwrap();
    let embedded = config.clone().embedded(Some(&set.file()));
    assert_eq!((embedded.daemon.socket, embedded.daemon.admin), (config.daemon.socket, config.daemon.admin));
}

#[test]
fn without_a_file_a_small_deployment_serves() {
    let with = |memory_available: u64, variables: &[(&str, &str)]| {
        let mut source = source();
        source.host.memory_available = memory_available;
        source.variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Config::load(&source).unwrap()
    };
    let capacity = |memory: u64| *with(memory, &[]).tiers[0].capacity;
    assert_eq!([capacity(64 << 30), capacity(2 << 30), capacity(1 << 20)], [1 << 30, 512 << 20, 16 << 20]);
    let config = with(8 << 30, &[("XDG_STATE_HOME", "/state"), ("XDG_RUNTIME_DIR", "/run/user/1000")]);
    assert_eq!(*config.daemon.socket, Path::new("/run/user/1000/umbp/umbpd.sock"));
    let nvme = &config.tiers[1];
    assert_eq!((*nvme.capacity, *nvme.required), (4 << 30, false));
    assert_eq!(*nvme.backend, BackendRef::Bare("nvme".to_owned()));
    assert_eq!(nvme.options.text, "paths = [\"/state/umbp/nvme\"]\n");
    let home = with(8 << 30, &[("HOME", "/h/a"), ("XDG_STATE_HOME", "relative")]);
    assert_eq!(home.tiers[1].options.text, "paths = [\"/h/a/.local/state/umbp/nvme\"]\n");
    assert_eq!(*home.daemon.socket, Path::new("/tmp/umbp-1000/umbpd.sock"));
    assert_eq!(default_socket(&|_| None, 7), Path::new("/tmp/umbp-7/umbpd.sock"));
    assert_eq!(*config.tenants[0].uids, [1000]);
    // Free for ordinary blocks, beside headroom and promotions: the whole public chat trace at 4 KiB a block.
    let used = config.policy.headroom_bytes(*config.tiers[0].capacity) + *config.policy.promotion_budget;
    assert!(*config.tiers[0].capacity - used >= 714 << 20);
}

#[test]
fn defaults_follow_the_first_tier() {
    let at = |capacity: &str| Deployment::new(&GOOD.replace("1GiB", capacity)).load();
    let config = at("256GiB").unwrap();
    assert_eq!(*config.limits.largest_block, 64 << 20);
    assert_eq!(*config.policy.promotion_budget, Share::percent(5).of(256 << 30) / 4096 * 4096);
    assert_eq!(config.policy.headroom_bytes(*config.tiers[0].capacity), 256 << 20);
    assert_eq!(config.policy.headroom_bytes(100 << 20), 1 << 20);
    assert_eq!((*config.limits.lease, *config.limits.hold), (Duration::from_secs(10), Duration::from_secs(2)));
    assert_eq!(config.tenants[0].quota_bytes(&config.tiers), [128 << 30, 4 << 30]);
    let small = at("256MiB").unwrap();
    assert_eq!((*small.limits.largest_block, *small.policy.promotion_budget), (16 << 20, 32 << 20));
    // The smallest tier of all still has room.
    at("1MiB").unwrap();
}

/// A backend's complaint about its text is shown at the file's own line, wherever the options stand.
#[test]
fn a_backends_complaint_is_shown_at_the_files_line() {
    let tier = |options: &str| format!("[[tier]]\nname = \"dram\"\nbackend = \"dram\"\ncapacity = \"1GiB\"\n{options}");
    let cases = [
        ("[tier.options]\n# why\nhugepages = \"4MiB\"\n", "\"4MiB\"", ":7:13"),
        ("options = { numa = 1, hugepages = \"4MiB\" }\n", "\"4MiB\"", ":5:35"),
        ("options.numa = 1\noptions.hugepages = \"4MiB\"\n", "\"4MiB\"", ":6:21"),
        ("[tier.options]\na = [\n  1,\n  22,\n]\n", "22", ":8:3"),
        ("[tier.options]\na = 1\n[tier.options.deep]\nx = { y = 9 }\n", "9", ":8:11"),
        ("[tier.options]\n[[tier.options.server]]\nport = 1\n[[tier.options.server]]\nport = 77\n", "77", ":9:8"),
        ("[tier.options.deep.deeper]\nx = 5\n", "deeper", ":5:20"),
    ];
    for (options, fault, place) in cases {
        let config = Deployment::new(&tier(options)).load().unwrap();
        let known = &config.tiers[0].options;
        known.text.parse::<toml::Table>().unwrap_or_else(|error| panic!("{options}\n{}\n{error}", known.text));
        let start = known.text.find(fault).unwrap();
        let errors = config.options_error("tier.dram", known, "hugepages must be auto", start..start + fault.len());
        let shown = rendered(&errors);
        assert!(shown.contains(&format!("umbp.toml{place}")), "{options}\n{shown}");
        assert!(shown.contains("tier.dram.options: hugepages must be auto"), "{shown}");
    }
    // A span beyond the text points at the table.
    let config = Deployment::new(&tier("[tier.options]\na = 1\n")).load().unwrap();
    let errors = config.options_error("tier.dram", &config.tiers[0].options, "missing key", 900..901);
    assert!(rendered(&errors).contains("umbp.toml:5:1"));
}

#[test]
fn options_reach_the_backend_with_the_same_values() {
    let toml = "[[tier]]\nname = \"dram\"\nbackend = \"dram\"\ncapacity = \"1GiB\"\n[tier.options]\na = 1\nb.c = [1, { d = 2 }]\n\"odd key\" = 'x'\n[tier.options.e.f]\ng = true\n[[tier.options.h]]\ni = 1\n[tier.options.h.j]\nk = 2\n[[tier.options.h]]\n";
    let config = Deployment::new(toml).load().unwrap();
    let whole: toml::Table = toml.parse().unwrap();
    let expected = whole["tier"][0]["options"].as_table().unwrap();
    assert_eq!(&config.tiers[0].options.text.parse::<toml::Table>().unwrap(), expected);
}

#[test]
fn a_backends_resolved_options_are_printed_with_whose_default_they_are() {
    let mut config = Deployment::new(GOOD).load().unwrap();
    assert!(config.tiers[0].options.resolve("not toml", "dram 0.1.0").is_err());
    let resolved = "hugepages = \"auto\"\nlock = false\n\"odd key\" = [1, { a = 'x' }]\n[deep]\nx = 1\n";
    config.tiers[0].options.resolve(resolved, "dram 0.1.0").unwrap();
    let printed = config.to_toml();
    for (line, origin) in
        [("options.hugepages = \"auto\"", "umbp.toml:10"), ("options.lock = false", "backend dram 0.1.0")]
    {
        let found = printed.lines().find(|found| found.starts_with(line));
        assert!(found.is_some_and(|found| found.ends_with(origin)), "{printed}");
    }
    let again = Deployment::new(&printed).load().unwrap_or_else(|errors| panic!("{printed}\n{}", errors.lines()));
    let text: toml::Table = again.tiers[0].options.text.parse().unwrap();
    assert_eq!(text, resolved.parse().unwrap());
}

#[test]
fn tenants_of_one_user_are_told_to_be_one_trust_domain() {
    let tenants = |a: &str, b: &str| {
        let toml = format!("{GOOD}[[tenant]]\nname = \"a\"\nuids = {a}\n[[tenant]]\nname = \"b\"\nuids = {b}\n");
        Deployment::new(&toml).load().unwrap().notices()
    };
    assert!(tenants("[1]", "[2]").is_empty());
    assert_eq!(tenants("[1, 2]", "[2]"), ["tenants \"a\" and \"b\" share uid 2: they are one trust domain"]);
    assert_eq!(tenants("[]", "[2]").len(), 1, "an empty list is the daemon's own user, as of the tenant \"default\"");
    assert!(tenants("[0]", "[2]")[0].contains("root"));
}

#[test]
fn rules_of_lower_tiers_read_from_file_and_environment_and_are_told_in_words() {
    use umbp_config::{Admission, Eviction, Promote};
    let nvme = "[[tier]]\nname = \"nvme\"\nbackend = \"nvme\"\ncapacity = \"1GiB\"\n";
    let dram = nvme.replace("nvme", "dram");
    let rules = "[policy]\neviction = \"chain-hazard\"\nadmission = { min_depth = 16 }\npromote = { after_hits = 2 }\n";
    let config = Deployment::new(&format!("{dram}{nvme}{rules}")).load().unwrap();
    assert_eq!(*config.policy.eviction, Eviction::ChainHazard);
    assert_eq!(*config.policy.admission, Admission::MinDepth(16));
    assert_eq!(*config.policy.promote, Promote::AfterHits(2));
    let told = config.notices().join("\n");
    assert!(told.contains("nvme takes only chains of more than 16 blocks"), "{told}");
    assert!(told.contains("dram keeps a block loaded from there from its load number 2 on"), "{told}");
    let again = Deployment::new(&config.to_toml()).load().unwrap();
    assert_eq!(values(&again), values(&config));

    let alone = Deployment::new(&format!("{dram}[policy]\nadmission = \"second-sighting\"\n")).load().unwrap();
    assert!(alone.notices().join("\n").contains("do nothing: there is one tier"));

    let config = Deployment::new(&format!("{dram}{nvme}"))
        .variable("UMBP_POLICY__ADMISSION", "{ min_depth = 3 }")
        .variable("UMBP_POLICY__PROMOTE", "{ after_hits = 5 }")
        .load()
        .unwrap();
    assert_eq!((*config.policy.admission, *config.policy.promote), (Admission::MinDepth(3), Promote::AfterHits(5)));
}

#[test]
fn a_tier_says_when_it_gets_its_copy_or_policy_says_it_for_all() {
    use umbp_config::Write;
    let tier = |name: &str| format!("[[tier]]\nname = \"{name}\"\nbackend = \"{name}\"\ncapacity = \"1GiB\"\n");
    let (dram, nvme, remote) = (tier("dram"), tier("nvme"), tier("remote"));
    let policy = "[policy]\nwrite = \"on-evict\"\n";
    let config =
        Deployment::new(&format!("{dram}{nvme}{remote}write = {{ after_hits = 2 }}\n{policy}")).load().unwrap();
    assert_eq!([&config.tiers[1], &config.tiers[2]].map(|tier| *tier.write), [Write::OnEvict, Write::AfterHits(2)]);
    assert_eq!(config.tiers[1].write.place, config.policy.write.place, "it tells where it was said");
    let again = Deployment::new(&config.to_toml()).load().unwrap();
    assert_eq!(values(&again), values(&config));
    let config = Deployment::new(&format!("{dram}{remote}")).variable("UMBP_TIER__REMOTE__WRITE", "on-evict").load();
    assert_eq!(*config.unwrap().tiers[1].write, Write::OnEvict);
}

/// They are shown where somebody set them, or where it is known that the backend is shared.
#[test]
fn the_times_of_a_shared_tier_read_back_and_are_shown_once_it_is_known_to_be_one() {
    let tiers = "[[tier]]\nname = \"dram\"\nbackend = \"dram\"\ncapacity = \"1GiB\"\n[[tier]]\nname = \"remote\"\n\
                 backend = \"remote\"\ncapacity = \"1GiB\"\n";
    let mut config = Deployment::new(&format!("{tiers}lookup_budget = \"0ms\"\n")).load().unwrap();
    assert_eq!(config.tiers[1].shared_times(), (Duration::ZERO, Duration::from_secs(1)));
    assert!(!config.to_toml().contains("negative_ttl"), "{}", config.to_toml());
    config.tiers[1].resolve_shared();
    let printed = config.to_toml();
    assert!(printed.contains("lookup_budget = \"0ms\"") && printed.contains("negative_ttl = \"1s\""), "{printed}");
    assert_eq!(values(&Deployment::new(&printed).load().unwrap()), values(&config));
}
