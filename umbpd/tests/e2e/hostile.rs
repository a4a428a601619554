//! Places that a store is not made for: a file system that is full too soon, one without O_DIRECT, sectors of 4 KiB, a
//! sandbox that forbids io_uring. Each costs one warning that names the cause, and is counted (F1, F2, F4).

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use umbp_client::Outcome;
use umbp_protocol::message::MissReason;

use crate::common::daemon::{Daemon, Place, Refused};
use crate::rig::{BLOCK_BYTES, Engine, disk_use, is_loaded, is_settled, recovered, summary, with_nvme};

const MIB: u64 = 1 << 20;
/// Blocks that each test stores: half more than the first tier holds.
const BLOCKS: u64 = 384;
/// A skip is a failure then.
const REQUIRE_ROOT: &str = "UMBP_REQUIRE_ROOT_TESTS";

/// Runs a program; what it said if it failed.
fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(format!("{program} {arguments:?}: {}", text(&output.stderr))),
    }
}

/// A file system of a test's own at the place of the second tier's folder; taken away again however the test ends.
struct Mounted {
    at: PathBuf,
    device: Option<String>,
}

impl Mounted {
    /// `None`, with a message, where this process may not mount: a failure if such tests are required.
    fn try_new(made: Result<Self, String>) -> Option<Self> {
        match made {
            Ok(mounted) => Some(mounted),
            Err(why) => {
                assert!(std::env::var_os(REQUIRE_ROOT).is_none_or(|value| value != "1"), "{REQUIRE_ROOT}=1, but {why}");
                eprintln!("skipped, since it needs root: {why}");
                None
            }
        }
    }

    fn plain(place: &Place, kind: &str, options: &str) -> Option<Self> {
        let at = folder(place);
        let mounted = run("mount", &["-t", kind, "-o", options, "umbp-test", &at.display().to_string()]);
        Self::try_new(mounted.map(|_| Self { at, device: None }))
    }

    /// ext4 on a loop device with sectors of this size.
    fn sectors(place: &Place, sector_bytes: u64, bytes: u64) -> Option<Self> {
        let image = place.path().join("image");
        std::fs::File::create(&image).and_then(|file| file.set_len(bytes)).expect("an image");
        let image = image.display().to_string();
        let size = sector_bytes.to_string();
        let device = run("losetup", &["--find", "--show", "--sector-size", &size, &image]);
        let made = device.and_then(|device| {
            // Let go of if one of the next steps fails.
            let mounted = Self { at: folder(place), device: Some(device.clone()) };
            run("mkfs.ext4", &["-q", "-F", "-m", "0", &device])?;
            run("mount", &[&device, &mounted.at.display().to_string()])?;
            Ok(mounted)
        });
        Self::try_new(made)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The daemon has ended by now; where a panic left it, the mount goes when it does.
        let _ = run("umount", &["--lazy", &self.at.display().to_string()]);
        if let Some(device) = &self.device {
            let _ = run("losetup", &["--detach", device]);
        }
    }
}

fn folder(place: &Place) -> PathBuf {
    let at = place.path().join("nvme");
    std::fs::create_dir_all(&at).expect("the folder");
    at
}

fn nvme(status: &Value) -> &Value {
    &status["tiers"][1]
}

/// Stores more than the first tier holds, and loads all of it, in this life and the next; one warning says with these
/// words why the tier does not work as it would elsewhere, and it is counted.
fn serves(place: &Place, daemon: Daemon, counter: &str, words: &[&str]) {
    let mut engine = Engine::new(&daemon.socket);
    let numbers: Vec<u64> = (0..BLOCKS).collect();
    for part in numbers.chunks(32) {
        engine.store_all(part);
        daemon.until("copies below", is_settled);
    }
    let outcomes = engine.load(&numbers);
    assert!(outcomes.iter().all(|outcome| is_loaded(*outcome)), "{:?}", summary(&outcomes));
    drop(engine);
    let status = daemon.until("settled", is_settled);
    assert_eq!((&nvme(&status)["resident_blocks"], nvme(&status)["errors"].to_string()), (&BLOCKS.into(), "{}".into()));
    check_warning(&status, counter, words, daemon.stop());
    let daemon = place.serve();
    daemon.until("recovery", recovered);
    let outcomes = Engine::new(&daemon.socket).load(&numbers);
    assert!(outcomes.iter().all(|outcome| is_loaded(*outcome)), "{:?}", summary(&outcomes));
    assert!(daemon.stop().status.success());
}

/// One warning in all, with these words, and one fallback counted; none where there is no counter.
fn check_warning(status: &Value, counter: &str, words: &[&str], ended: Refused) {
    assert!(ended.status.success(), "{ended:?}");
    let warnings: Vec<&str> =
        ended.text.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
    if counter.is_empty() {
        assert!(warnings.is_empty(), "{warnings:?}");
        let counters = nvme(status)["counters"].as_object().expect("counters");
        assert!(counters.iter().all(|(name, count)| !name.starts_with("fallback") || count == 0), "{counters:?}");
        return;
    }
    assert_eq!(nvme(status)["counters"][counter], 1, "{status:#}");
    if counter == "fallback.direct" {
        let page = umbpd::metrics::page(status.clone()).expect("a page");
        assert!(page.contains("umbp_tier_direct_io{tier=\"nvme\"} 0\n"), "{page}");
    }
    assert!(warnings.len() == 1 && words.iter().all(|word| warnings[0].contains(word)), "{words:?} in {warnings:#?}");
}

/// F1: ramfs knows no O_DIRECT.
#[test]
fn f1_without_o_direct_the_page_cache_serves_and_one_warning_says_why() {
    let place = with_nvme("16MiB", "64MiB", "");
    let Some(_mounted) = Mounted::plain(&place, "ramfs", "mode=0700") else { return };
    let daemon = place.serve();
    let report = nvme(&daemon.status())["report"].to_string();
    assert!(report.contains("page cache, since"), "{report}");
    serves(&place, daemon, "fallback.direct", &["the page cache is used", "O_DIRECT"]);
}

/// F2: ext4 on a loop device with sectors of 4 KiB.
#[test]
fn f2_sectors_of_4_kib_are_written_in_their_alignment() {
    let place = with_nvme("16MiB", "64MiB", "");
    let Some(mounted) = Mounted::sectors(&place, 4096, 128 * MIB) else { return };
    std::fs::set_permissions(&mounted.at, Permissions::from_mode(0o700)).expect("mode");
    let daemon = place.serve();
    let report = nvme(&daemon.status())["report"].to_string();
    assert!(report.contains("4096 needed"), "{report}");
    serves(&place, daemon, "", &[]);
}

/// G2, K3: the file system fills long before the capacity; what fits is found out, and used.
#[test]
fn a_file_system_full_before_the_capacity_holds_what_fits() {
    let place = with_nvme("16MiB", "64MiB", "");
    let Some(mounted) = Mounted::plain(&place, "tmpfs", "size=24m,mode=0700") else { return };
    let daemon = place.serve();
    let mut engine = Engine::new(&daemon.socket);
    let mut seen = Vec::new();
    for round in 0..60 {
        let numbers: Vec<u64> = (round * 32..round * 32 + 32).collect();
        engine.store_all(&numbers);
        let status = daemon.until("settled", is_settled);
        seen.push(nvme(&status)["resident_blocks"].as_u64().expect("a count"));
        assert!(disk_use(&mounted.at) <= 24 * MIB);
    }
    let status = daemon.status();
    let [limit, found, stored] = ["limit_bytes", "limit_found", "stored"].map(|name| nvme(&status)[name].as_u64());
    assert!(limit < Some(24 * MIB) && found > Some(0), "{status:#}");
    // Most of the file system is used, and what is new is taken for what is old, to the end.
    assert!(seen[20..].iter().all(|blocks| *blocks > 15 * MIB / BLOCK_BYTES), "{seen:?}");
    assert!(stored > Some(60 * 32 * 9 / 10), "{status:#}");
    let outcomes = engine.load(&(0..60 * 32).collect::<Vec<_>>());
    let right = |outcome: &Outcome| matches!(outcome, Outcome::Loaded { .. } | Outcome::Missed(MissReason::Absent));
    assert!(outcomes.iter().all(right), "{:?}", summary(&outcomes));
    check_warning(&daemon.status(), "fallback.small_disk", &["bytes more", "are free"], daemon.stop());
    let daemon = place.serve();
    daemon.until("recovery", recovered);
    assert!(Engine::new(&daemon.socket).load(&(60 * 32 - 64..60 * 32).collect::<Vec<_>>()).into_iter().all(is_loaded));
}

/// F4: a container's seccomp profile that refuses io_uring, or hides it, for the whole daemon.
#[test]
fn f4_a_daemon_in_a_sandbox_without_io_uring_serves_by_threads_and_says_why() {
    for (errno, cause) in [(libc::EPERM, "a sandbox"), (libc::ENOSYS, "missing")] {
        let place = with_nvme("16MiB", "64MiB", "");
        let mut command = place.command();
        let mut filter = filter(errno);
        // SAFETY: between fork and exec only prctl(2) is called, on memory that is the child's own copy.
        unsafe { command.pre_exec(move || forbid(&mut filter)) };
        let daemon = place.try_serve(command).expect("it serves");
        let report = nvme(&daemon.status())["report"].to_string();
        assert!(report.contains("threads with pread and pwrite"), "{report}");
        serves(&place, daemon, "fallback.io_uring", &["io_uring", cause]);
    }
}

/// io_uring_setup(2) fails with `errno`, all else goes through.
fn filter(errno: i32) -> [libc::sock_filter; 4] {
    let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    [
        // The call's number is the first word of what a filter looks at.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

/// Puts this process, and what it becomes, under the filter.
fn forbid(filter: &mut [libc::sock_filter; 4]) -> std::io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: plain numbers.
    let privileges = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the program lives until the call has returned, and its filter has as many statements as it says.
    let filtered = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if (privileges, filtered) == (0, 0) { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
