//! What the daemon sets up for its own process, once, before anything else.

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::engine::api::Time;

/// Open files without which there is no start.
const OPEN_FILES_LEAST: u64 = 64;
/// Open files that the process must still be able to have when the daemon begins to start.
const OPEN_FILES_LEFT_LEAST: u64 = 48;
/// Open files that a full deployment needs: segments (4,096), sessions with a socket and a pidfd each, and some.
const OPEN_FILES_WANTED: u64 = 16 * 1024;

/// CLOCK_MONOTONIC, as the engine counts time.
pub fn now() -> Time {
    let time = clock_gettime(ClockId::Monotonic);
    Time((time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64))
}

/// Raises the limits on open files and locked memory, ignores SIGXFSZ (a file-size limit then answers EFBIG instead of
/// killing the process), and keeps other processes of this user from reading the daemon's memory. For a process that is
/// the daemon's own alone. Each step that fails is worth a warning, not a refusal: the daemon runs with less.
pub fn prepare() {
    raise_limits();
    // SAFETY: installs "ignore" for one signal; no handler of ours runs.
    if unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } == libc::SIG_ERR {
        tracing::warn!("cannot ignore SIGXFSZ: {}", std::io::Error::last_os_error());
    }
    if let Err(errno) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!("cannot set PR_SET_DUMPABLE to 0: {errno}");
    }
    bound_arenas();
}

/// Heaps of the C library, which threads share. One for each thread, as it has them at first, leaves some five bytes of
/// each of a million blocks unused; the threads of a daemon seldom allocate at the same time.
#[cfg(target_env = "gnu")]
fn bound_arenas() {
    const ARENAS_MAX: libc::c_int = 1;
    // SAFETY: a call without memory of ours, before any other thread runs. Refused, it changes nothing.
    let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, ARENAS_MAX) };
}

#[cfg(not(target_env = "gnu"))]
fn bound_arenas() {}

/// Whether a daemon can serve in this process as it is; else a sentence with the limit and the knob. A process that
/// [`prepare`] was called in has mended what it could; a host of an embedded daemon is left as it is.
pub fn check_limits() -> Result<(), String> {
    let open = open_fds().unwrap_or(0) as u64;
    if let Some(most) = getrlimit(Resource::Nofile).current
        && most < open.saturating_add(OPEN_FILES_LEFT_LEAST)
    {
        return Err(format!(
            "RLIMIT_NOFILE is {most} and {open} files are open, but a daemon in this process needs \
             {OPEN_FILES_LEFT_LEAST} more at least: raise it (`ulimit -n`, LimitNOFILE= of the unit)"
        ));
    }
    match getrlimit(Resource::Fsize).current {
        Some(most) if sigxfsz_kills() => Err(format!(
            "RLIMIT_FSIZE is {most} bytes, and SIGXFSZ would end this process at a tier's first file beyond: ignore the \
             signal, or lift the limit (`ulimit -f unlimited`, LimitFSIZE= of the unit)"
        )),
        _ => Ok(()),
    }
}

/// Whether SIGXFSZ does what it does by default.
fn sigxfsz_kills() -> bool {
    // SAFETY: all zeros is a valid sigaction.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only, into a place of ours.
    let asked = unsafe { libc::sigaction(libc::SIGXFSZ, std::ptr::null(), &mut now) };
    asked != 0 || now.sa_sigaction == libc::SIG_DFL
}

/// Whether this process may open as many files as a daemon with a handful of clients needs; else a sentence with the
/// knob. Below that some part of the runtime panics instead of failing.
pub fn check_open_files() -> Result<(), String> {
    match getrlimit(Resource::Nofile).current {
        Some(most) if most < OPEN_FILES_LEAST => Err(format!(
            "RLIMIT_NOFILE is {most}, and umbpd needs {OPEN_FILES_LEAST} at least: raise it (`ulimit -n`, LimitNOFILE= of \
             the unit)"
        )),
        _ => Ok(()),
    }
}

/// Open files, and memory that backends lock or register with the kernel: as much as this user may have.
fn raise_limits() {
    raise(Resource::Nofile, OPEN_FILES_WANTED, "RLIMIT_NOFILE");
    raise(Resource::Memlock, u64::MAX, "RLIMIT_MEMLOCK");
}

fn raise(resource: Resource, most: u64, name: &str) {
    let limit = getrlimit(resource);
    let wanted = limit.maximum.unwrap_or(u64::MAX).min(most);
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let current = limit.maximum.map_or((most < u64::MAX).then_some(most), |_| Some(wanted));
    if let Err(errno) = setrlimit(resource, Rlimit { current, maximum: limit.maximum }) {
        tracing::warn!("cannot raise {name} to {wanted}: {errno}");
    }
}

/// The tier's threads and the session loop log to standard error. `UMBP_LOG` is a level: error, warn (default), info,
/// debug or trace.
pub fn init_log() {
    let level = std::env::var("UMBP_LOG").ok().and_then(|text| text.parse().ok()).unwrap_or(tracing::Level::WARN);
    // A second initialisation (tests in one process) keeps the first.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        .try_init();
}

/// A number for this life of the daemon, never 0.
pub fn boot_id() -> std::io::Result<u64> {
    let mut bytes = [0u8; 8];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes) | 1)
}

/// Open file descriptors of this process; none where /proc cannot be read.
pub fn open_fds() -> Option<usize> {
    // The listing itself takes one.
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1))
}

/// Bytes of resident memory that is this process's own: no segments, no files; none where /proc cannot be read.
pub fn anonymous_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?.trim().strip_suffix("kB")?;
    Some(kib.trim().parse::<u64>().ok()? * 1024)
}

/// Bytes of memory of this process that are resident, segments included; none where /proc cannot be read.
pub fn rss_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
