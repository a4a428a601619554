//! Statuses and bytes, compared with those wanted; the sentences that say how they differ.

use crate::types::Status;

/// What `submit` did with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Accepted(u64),
    Busy,
    Refused(Status),
}

/// The status must be this one.
pub(super) fn expect(what: &str, found: Status, wanted: Status) -> Result<(), String> {
    expect_in(what, found, &[wanted])
}

/// The status must be one of these.
pub(super) fn expect_in(what: &str, found: Status, wanted: &[Status]) -> Result<(), String> {
    if wanted.contains(&found) {
        return Ok(());
    }
    let wanted: Vec<String> = wanted.iter().map(|status| format!("`{status:?}`")).collect();
    Err(format!("{what}: expected {}, got `{found:?}`", wanted.join(" or ")))
}

/// A call failed that must not.
pub(super) fn failed(call: &str, status: Status) -> String {
    format!("{call} failed: {status:?}")
}

/// Where bytes differ, if they do.
pub(super) fn first_difference(found: &[u8], wanted: &[u8]) -> Option<usize> {
    if found == wanted {
        return None;
    }
    Some(found.iter().zip(wanted).position(|(a, b)| a != b).unwrap_or(found.len().min(wanted.len())))
}
