//! `umbpd check`: each plugin is really loaded and asked.

use std::path::PathBuf;

use umbp_config::{Config, ConfigErrors, HostFacts, Source};
use umbp_plugin_api::built::built;
use umbpd::check::check;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The folder with the plugins of dram and nvme.
fn plugins() -> PathBuf {
    let [dram, nvme] = ["dram", "nvme"].map(|name| built(format!("{ROOT}/backends/{name}/plugin"), &[]));
    assert_eq!(dram.parent(), nvme.parent());
    dram.parent().unwrap().to_owned()
}

/// Loads and checks a file `umbp.toml`, with the folder of the plugins in `plugin_dirs`.
fn checked(toml: &str) -> Result<String, ConfigErrors> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("umbp.toml");
    std::fs::write(&file, toml.replace("{folder}", &folder.path().display().to_string())).unwrap();
    std::fs::write(folder.path().join("text.so"), "no plugin at all").unwrap();
    let variables = vec![("UMBP_DAEMON__PLUGIN_DIRS".to_owned(), format!("[{:?}]", plugins()))];
    let host = HostFacts { uid: 1000, memory_available: 8 << 30 };
    let config = Config::load(&Source { file: Some(file), variables, socket: None, host })?;
    check(config, None)
}

fn rendered(errors: &ConfigErrors) -> String {
    let mut out = String::new();
    let theme = miette::GraphicalTheme::unicode_nocolor();
    miette::GraphicalReportHandler::new_themed(theme).with_width(240).render_report(&mut out, errors).unwrap();
    out
}

fn refused(toml: &str, fragments: &[&str]) {
    let shown = rendered(&checked(toml).expect_err(toml));
    for fragment in fragments {
        assert!(shown.contains(fragment), "no {fragment:?} in the report on\n{toml}\n{shown}");
    }
}

const DRAM: &str = "[[tier]]\nname = \"dram\"\nbackend = \"dram\"\ncapacity = \"1GiB\"\n";

#[test]
fn a_right_deployment_is_printed_with_every_option_and_its_origin() {
    let toml = format!("{DRAM}[tier.options]\nhugepages = \"off\"\n");
    let printed = checked(&toml).map_err(|errors| errors.lines()).unwrap();
    assert!(
        printed.starts_with("# tier.dram: backend dram 0.1.0 (storage, mappable; plugin API 1.0) from "),
        "{printed}"
    );
    let origin = |key: &str| {
        let line = printed.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{key}\n{printed}"));
        line.split(" # from ").nth(1).unwrap().to_owned()
    };
    assert!(origin("options.hugepages = \"off\"").ends_with("umbp.toml:6"));
    assert_eq!(origin("options.mlock = false"), "default of backend dram 0.1.0");
    assert_eq!(origin("lease = "), "default");
    assert!(printed.parse::<toml::Table>().is_ok(), "{printed}");
}

#[test]
fn a_wrong_option_is_shown_at_its_line() {
    let toml = format!("{DRAM}[tier.options]\n# large pages\nhugepagse = \"off\"\n");
    refused(&toml, &["tier.dram.options: ", "hugepagse", "umbp.toml:7:1", "did you mean `hugepages`?"]);
}

#[test]
fn a_backend_that_is_not_there_is_refused_with_the_folders_that_were_searched() {
    let toml = DRAM.replace("backend = \"dram\"", "backend = \"drum\"");
    refused(&toml, &["tier.dram.backend = \"drum\"", "umbp.toml:3:11", "put libumbp_backend_drum.so into one of"]);
    let toml = DRAM.replace("backend = \"dram\"", "backend = \"/nowhere/x.so\"");
    refused(&toml, &["tier.dram.backend = \"/nowhere/x.so\"", "no such file"]);
}

#[test]
fn a_file_that_is_no_plugin_is_refused_with_its_path() {
    let toml = DRAM.replace("backend = \"dram\"", "backend = \"{folder}/text.so\"");
    refused(&toml, &["tier.dram.backend", "text.so", "umbp.toml:3:11"]);
}

#[test]
fn a_first_tier_that_is_not_mappable_is_refused() {
    let path = built(format!("{ROOT}/examples/backend-filesystem"), &[]);
    let files = DRAM.replace("\"dram\"", "\"files\"").replace("backend = \"files\"", &format!("backend = {path:?}"));
    let files = format!("{files}[tier.options]\npath = \"{{folder}}\"\n");
    refused(&format!("{files}{DRAM}"), &["tier.files.backend", "must be mappable", "move the tier \"dram\"", ":3:11"]);
    let right = format!("{DRAM}{files}");
    let printed = checked(&right).map_err(|errors| errors.lines()).unwrap();
    assert!(printed.contains("# tier.files: backend filesystem"), "{printed}");
}

#[test]
fn a_mover_that_stores_is_told_and_refused_where_it_is_required() {
    let mover = format!("{DRAM}[[mover]]\nname = \"gpu\"\nbackend = \"dram\"\n");
    let printed = checked(&mover).map_err(|errors| errors.lines()).unwrap();
    assert!(
        printed.contains("# note: mover.gpu will not serve: ") && printed.contains("is a storage tier"),
        "{printed}"
    );
    let mover = format!("{mover}required = true\n");
    refused(&mover, &["mover.gpu.backend = \"dram\"", "this backend is a storage tier", "umbp.toml:7:11"]);
}

/// As at start: what is missing in the environment obeys `required`.
#[test]
fn a_missing_plugin_of_a_tier_that_is_not_required_is_a_note() {
    let second = DRAM.replace("name = \"dram\"", "name = \"far\"").replace("backend = \"dram\"", "backend = \"drum\"");
    let printed = checked(&format!("{DRAM}{second}required = false\n")).map_err(|errors| errors.lines()).unwrap();
    assert!(printed.contains("# note: tier.far will not serve: "), "{printed}");
    assert!(printed.parse::<toml::Table>().is_ok(), "{printed}");
}

/// As at start.
#[test]
fn a_plugin_that_panics_over_its_options_obeys_required() {
    let path = built(format!("{ROOT}/plugin-api/fixtures/backend"), &[]);
    let second =
        DRAM.replace("name = \"dram\"", "name = \"far\"").replace("backend = \"dram\"", &format!("backend = {path:?}"));
    let options = "[tier.options]\nbehaviour = \"check-panics\"\n";
    let printed =
        checked(&format!("{DRAM}{second}required = false\n{options}")).map_err(|errors| errors.lines()).unwrap();
    assert!(printed.contains("# note: tier.far will not serve: "), "{printed}");
    assert!(printed.contains("boom in check_options"), "{printed}");
    refused(&format!("{DRAM}{second}{options}"), &["tier.far.backend", "boom in check_options", "umbp.toml:7:11"]);
}

#[test]
fn keys_of_shared_tiers_are_shown_resolved_on_those_and_refused_on_others() {
    let fixture = format!("{ROOT}/plugin-api/fixtures/backend");
    let second = |path: &std::path::Path| {
        DRAM.replace("name = \"dram\"", "name = \"far\"").replace("backend = \"dram\"", &format!("backend = {path:?}"))
    };
    let shared = second(&built(&fixture, &["shared"]));
    let printed = checked(&format!("{DRAM}{shared}lookup_budget = \"5ms\"\n")).map_err(|e| e.lines()).unwrap();
    assert!(printed.contains("(storage, shared; plugin API"), "{printed}");
    let line =
        |key: &str| printed.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{key}: {printed}"));
    assert!(line("lookup_budget = \"5ms\"").ends_with("umbp.toml:9"), "{printed}");
    assert!(line("negative_ttl = \"1s\"").ends_with("# from default"), "{printed}");
    assert!(checked(&printed).is_ok(), "it reads back: {printed}");
    let own = second(&built(&fixture, &[]));
    let toml = format!("{DRAM}{own}lookup_budget = \"5ms\"\nnegative_ttl = \"2s\"\n");
    refused(
        &toml,
        &["tier.far.lookup_budget = \"5ms\"", "umbp.toml:9:17", "not shared between hosts", "remove the key"],
    );
    refused(&toml, &["tier.far.negative_ttl = \"2s\"", "umbp.toml:10:16"]);
    refused(&format!("{DRAM}negative_ttl = \"2s\"\n"), &["tier.dram.negative_ttl", "not shared between hosts"]);
}

#[test]
fn a_mover_that_loads_is_told_not_to_be_used() {
    let path = built(format!("{ROOT}/plugin-api/fixtures/backend"), &["mover"]);
    let mover = format!("{DRAM}[[mover]]\nname = \"gpu\"\nbackend = {path:?}\nrequired = true\n");
    let printed = checked(&mover).map_err(|errors| errors.lines()).unwrap();
    assert!(printed.contains("# note: mover.gpu will not be used: "), "{printed}");
}

#[test]
fn all_that_is_wrong_with_the_plugins_is_told_together() {
    let second = DRAM.replace("name = \"dram\"", "name = \"two\"").replace("backend = \"dram\"", "backend = \"drum\"");
    let toml = format!("{DRAM}[tier.options]\nhuge = 1\n{second}");
    assert_eq!(checked(&toml).unwrap_err().errors.len(), 2);
}

#[test]
fn tenants_of_one_user_are_told_to_be_one_trust_domain() {
    let tenants = "[[tenant]]\nname = \"a\"\nuids = [7]\n[[tenant]]\nname = \"b\"\nuids = [7]\n";
    let printed = checked(&format!("{DRAM}{tenants}")).map_err(|errors| errors.lines()).unwrap();
    assert!(printed.contains("# note: tenants \"a\" and \"b\" share uid 7: they are one trust domain"), "{printed}");
}

#[test]
fn the_shipped_deployments_pass() {
    for name in ["local.toml", "dram-only.toml"] {
        let toml = std::fs::read_to_string(format!("{ROOT}/config/deployments/{name}")).unwrap();
        checked(&toml).unwrap_or_else(|errors| panic!("{name}: {}", errors.lines()));
    }
}
