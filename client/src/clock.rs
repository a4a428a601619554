//! CLOCK_MONOTONIC, the clock of leases and deadlines; it stands still for nobody, not even for a stopped process.

use std::time::Duration;

/// Nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A point in time that far from `from_ns`, never beyond the end of time.
pub(crate) fn after(from_ns: u64, wait: Duration) -> u64 {
    from_ns.saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX))
}

/// Milliseconds as nanoseconds.
pub(crate) fn ms(milliseconds: u32) -> u64 {
    u64::from(milliseconds) * 1_000_000
}
