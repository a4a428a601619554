//! What a dram tier provides, and what it refuses, on the real machine.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::{Arc, Mutex};

use rustix::fs::{SealFlags, fcntl_get_seals, fstat, ftruncate};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use umbp_backend_dram::Dram;
use umbp_backend_dram::limits::{Limit, Limits};
use umbp_plugin_api::backend::Level;
use umbp_plugin_api::{
    Backend, Completion, Host, HostServices, OpenConfig, OpenError, Opened, Operation, Status, Submitted,
};

const MIB: u64 = 1 << 20;

#[derive(Default)]
struct Heard {
    lines: Mutex<Vec<(Level, String)>>,
    counts: Mutex<BTreeMap<String, u64>>,
}

impl HostServices for Heard {
    fn log(&self, level: Level, text: &str) {
        self.lines.lock().expect("lines").push((level, text.to_owned()));
    }

    fn count(&self, name: &str, delta: u64) {
        *self.counts.lock().expect("counts").entry(name.to_owned()).or_default() += delta;
    }

    fn complete(&self, completions: &[Completion]) {
        panic!("dram completes nothing, but it completed {completions:?}");
    }
}

impl Heard {
    fn counted(&self, name: &str) -> u64 {
        self.counts.lock().expect("counts").get(name).copied().unwrap_or(0)
    }

    fn lines_with(&self, words: &str) -> usize {
        self.lines.lock().expect("lines").iter().filter(|(_, line)| line.contains(words)).count()
    }
}

fn config(capacity: u64, options: &str) -> OpenConfig {
    OpenConfig { tier: "dram".to_owned(), capacity, options: options.to_owned(), slots: 16 }
}

fn open(capacity: u64, options: &str) -> (Dram, Opened, Arc<Heard>) {
    let heard = Arc::new(Heard::default());
    let (dram, opened) = Dram::open(&config(capacity, options), Host(heard.clone())).expect("the tier opens");
    (dram, opened, heard)
}

fn refusal(capacity: u64, limits: &Limits) -> String {
    let heard = Arc::new(Heard::default());
    match Dram::open_within(&config(capacity, "hugepages = \"off\""), Host(heard), limits) {
        Err(OpenError::TooLarge(message)) => message,
        Err(other) => panic!("refused for another reason: {other}"),
        Ok(_) => panic!("a capacity of {capacity} was accepted"),
    }
}

/// Runs one test of this file alone in a process of its own, which `inside` tells from the run that asks for it.
fn in_a_process_of_its_own(test: &str, inside: impl FnOnce()) {
    const MARK: &str = "UMBP_TEST_CHILD";
    if std::env::var_os(MARK).is_some_and(|name| name == test) {
        return inside();
    }
    let binary = std::env::current_exe().expect("the path of this test binary");
    let child = Command::new(binary).args(["--exact", test, "--nocapture"]).env(MARK, test).output();
    let child = child.expect("the child process starts");
    assert!(child.status.success(), "{}\n{}", child.status, String::from_utf8_lossy(&child.stderr));
}

#[test]
fn a_segment_is_sealed_private_whole_and_shared_with_its_fd() {
    let (dram, opened, _) = open(64 * MIB, "hugepages = \"off\"\nprefault_threads = 2");
    assert_eq!((opened.alignment, opened.file_extent), (4096, false));
    let segment = dram.segment_create(7, 40 * MIB + 1).expect("a segment");
    assert_eq!(segment.length, 40 * MIB + 4096);
    assert_eq!(dram.stats().medium_bytes, segment.length);
    let seals = fcntl_get_seals(&segment.fd).expect("seals");
    assert_eq!(seals, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
    let stat = fstat(&segment.fd).expect("stat");
    assert_eq!((stat.st_mode & 0o7777, stat.st_size as u64), (0o600, segment.length));
    // Every page is there before anybody asks for one.
    assert_eq!(stat.st_blocks as u64 * 512, segment.length);
    assert_eq!(ftruncate(&segment.fd, 4096), Err(Errno::PERM));
    let file = std::fs::File::from(segment.fd.as_fd().try_clone_to_owned().expect("a second fd"));
    std::os::unix::fs::FileExt::write_all_at(&file, b"through the fd", segment.length - 14).expect("a write");
    // SAFETY: the segment is mapped until `segment_destroy`, and 14 bytes before its end are inside.
    let seen = unsafe { std::slice::from_raw_parts(segment.address.add(segment.length as usize - 14), 14) };
    assert_eq!(seen, b"through the fd");
    dram.segment_destroy(7);
    dram.segment_destroy(7);
    assert_eq!(dram.stats().medium_bytes, 0);
}

#[test]
fn a_second_segment_of_one_number_and_an_empty_one_are_refused() {
    let (dram, ..) = open(64 * MIB, "hugepages = \"off\"");
    dram.segment_create(1, MIB).expect("a segment");
    for (id, length) in [(1, MIB), (2, 0)] {
        assert!(matches!(dram.segment_create(id, length), Err(OpenError::Environment(_))), "{id} {length}");
    }
    dram.segment_create(2, MIB).expect("refusals changed nothing");
}

#[test]
fn every_operation_is_unsupported() {
    let (dram, ..) = open(MIB, "");
    let operations = [1, 2, 3, 4, 5, 6, 99].map(|code| Operation { code, ..Operation::default() });
    let mut results = [Submitted::ACCEPTED; 7];
    dram.submit(&operations, &mut results);
    assert_eq!(results, [Submitted::rejected(Status::UNSUPPORTED); 7]);
}

/// F8: a length that is no multiple of the page is rounded, and without reserved pages normal ones are taken,
/// named once and counted.
#[test]
fn huge_pages_round_the_length_or_fall_back_once() {
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let free: u64 = free.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    for asked in ["2MiB", "auto"] {
        let (dram, opened, heard) = open(14 * MIB, &format!("hugepages = \"{asked}\""));
        let lengths = [1, 2].map(|id| dram.segment_create(id, 5 * MIB + 17).expect("a segment").length);
        if free >= 7 {
            assert_eq!(lengths, [6 * MIB; 2]);
            assert!(opened.report.contains("2 MiB pages"), "{}", opened.report);
            assert_eq!(heard.counted("fallback.hugepages"), 0);
        } else {
            assert_eq!(lengths, [5 * MIB + 4096; 2]);
            assert_eq!(heard.counted("fallback.hugepages"), 1);
            assert_eq!(heard.lines_with("vm.nr_hugepages"), 1);
        }
    }
}

#[test]
fn a_node_is_honoured_or_refused_by_name() {
    let (dram, opened, heard) = open(8 * MIB, "numa = 0\nhugepages = \"off\"");
    dram.segment_create(1, 8 * MIB).expect("a segment on node 0");
    assert!(opened.report.contains("node 0"), "{}", opened.report);
    // A container without CAP_SYS_NICE may refuse; then it is said once.
    assert_eq!(heard.counted("fallback.numa"), heard.lines_with("numa placement refused") as u64);
    let error = Dram::open(&config(MIB, "numa = 1000"), Host(Arc::new(Heard::default()))).err();
    let Some(OpenError::Environment(message)) = error else { panic!("node 1000 was accepted") };
    assert!(message.contains("numa = 1000"), "{message}");
}

/// F6, F7: the tightest limit refuses before a byte is taken.
#[test]
fn a_capacity_beyond_a_limit_is_refused_with_needed_free_and_knob() {
    let limit = |free, knob: &str| Limit { free, source: "a limit".to_owned(), knob: knob.to_owned() };
    let memory = Limits { memory: vec![limit(9 * MIB, "wide"), limit(5 * MIB, "raise memory.max")], file: None };
    let file = Limits { memory: Vec::new(), file: Some(limit(5 * MIB, "raise RLIMIT_FSIZE")) };
    for (limits, knob) in [(memory, "memory.max"), (file, "RLIMIT_FSIZE")] {
        let message = refusal(6 * MIB, &limits);
        for words in ["`dram`", "6.0 MiB", "5.0 MiB", "`capacity`", knob] {
            assert!(message.contains(words), "{words} is missing in: {message}");
        }
    }
}

/// F7: more than this machine has.
#[test]
fn a_capacity_beyond_this_machine_is_refused() {
    let message = refusal(1 << 50, &Limits::read());
    assert!(message.contains("1024.0 TiB"), "{message}");
}

/// F6: the real limit of a process, found before the kernel would send SIGXFSZ.
#[test]
fn a_capacity_beyond_rlimit_fsize_is_refused() {
    in_a_process_of_its_own("a_capacity_beyond_rlimit_fsize_is_refused", || {
        let limit = 4 * MIB;
        setrlimit(Resource::Fsize, Rlimit { current: Some(limit), maximum: getrlimit(Resource::Fsize).maximum })
            .expect("a lower limit");
        let message = refusal(8 * MIB, &Limits::read());
        assert!(message.contains("RLIMIT_FSIZE") && message.contains("4.0 MiB"), "{message}");
        let (dram, ..) = open(4 * MIB, "hugepages = \"off\"");
        assert!(matches!(dram.segment_create(1, 5 * MIB), Err(OpenError::TooLarge(_))));
        dram.segment_create(1, 4 * MIB).expect("what fits is made");
    });
}

/// F8: the real limit of a process; the tier opens unlocked, and says so once.
#[test]
fn memory_that_cannot_be_locked_stays_unlocked_and_says_so_once() {
    in_a_process_of_its_own("memory_that_cannot_be_locked_stays_unlocked_and_says_so_once", || {
        setrlimit(Resource::Memlock, Rlimit { current: Some(64 << 10), maximum: Some(64 << 10) })
            .expect("a lower limit");
        let none = rustix::thread::CapabilitySet::empty();
        let sets = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets).expect("this thread gives its privileges up");
        let (dram, opened, heard) = open(8 * MIB, "hugepages = \"off\"\nmlock = true");
        assert!(opened.report.contains("locked"), "{}", opened.report);
        for id in [1, 2] {
            dram.segment_create(id, 4 * MIB).expect("a segment, though unlocked");
        }
        assert_eq!((heard.counted("fallback.mlock"), heard.lines_with("RLIMIT_MEMLOCK")), (1, 1));
    });
}

#[test]
fn memory_that_can_be_locked_is_locked_in_silence() {
    let (dram, _, heard) = open(8 * 4096, "hugepages = \"off\"\nmlock = true");
    dram.segment_create(1, 8 * 4096).expect("a segment");
    assert_eq!(heard.counted("fallback.mlock"), 0);
}
