//! Whatever a plugin does, it ends its tier and not the process: panics, silence, lies, late calls (P5, P9, P10).

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Desk, open, plugin, put, ready, submit};
use umbp_plugin_api::host::{CheckError, HostOpenError, HostedBackend};
use umbp_plugin_api::types::code;
use umbp_plugin_api::{HostServices, OpenError, Operation, Status, Submitted};

const DEADLINE: Duration = Duration::from_secs(5);

/// Every call answers `status`, and none enters the backend.
fn is_dead(backend: &HostedBackend, status: Status) {
    let mut blocks = Vec::new();
    assert_eq!(submit(backend, &[put(7), put(8)]), [Submitted::rejected(status); 2]);
    // SAFETY: never registered: the backend is not entered.
    let registered = unsafe { backend.region_register(9, std::ptr::null_mut(), 0, "") };
    assert_eq!(
        [
            backend.segment_destroy(1),
            registered,
            backend.region_unregister(1),
            backend.namespace_put(1, &[0; 32], b""),
            backend.namespace_drop(1),
            backend.cancel(&[1]),
            backend.flush(),
            backend.shutdown(DEADLINE),
            backend.recover_namespaces().expect_err("dead"),
            backend.recover(0, 1, &mut blocks).expect_err("dead"),
            backend.stats().expect_err("dead"),
            backend.extension(1, b"x").expect_err("dead"),
        ],
        [status; 12]
    );
    assert!(backend.segment_create(1, 4096).is_err());
}

#[test]
fn an_open_that_fails_tells_its_kind() {
    let cases = [
        ("open-fails", OpenError::Environment("the fixture has no device".to_owned()), true),
        ("open-locked", OpenError::Locked("pid 1 holds the fixture".to_owned()), false),
        ("open-too-large", OpenError::TooLarge("needed 2, free 1: lower capacity".to_owned()), false),
    ];
    for (behaviour, wanted, is_environment) in cases {
        let error = open(behaviour).expect_err("fails");
        assert_eq!((&error, error.is_environment()), (&HostOpenError::Open(wanted), is_environment));
    }
    let contract = open("open-misaligned").expect_err("fails");
    assert!(matches!(contract, HostOpenError::Contract(_)), "{contract}");
}

#[test]
fn a_panic_in_open_or_check_is_an_error_with_its_words() {
    let error = open("open-panics").expect_err("panics");
    assert_eq!(error, HostOpenError::Panicked("panic in open: boom in open".to_owned()));
    let error = plugin().check_options("behaviour = \"check-panics\"").expect_err("panics");
    assert_eq!(error, CheckError::Panicked("panic in check_options: boom in check_options".to_owned()));
    // The plugin is not used up by it.
    assert!(open("works").is_ok());
}

#[test]
fn options_are_checked_without_open_and_errors_point_into_the_text() {
    assert_eq!(plugin().check_options("").as_deref(), Ok("behaviour = \"works\"\n"));
    let text = "# ä\ncolour = \"red\"\n";
    let Err(CheckError::Options(error)) = plugin().check_options(text) else { panic!("refused") };
    assert_eq!(&text[error.span.clone()], "colour");
    assert!(error.message.contains("colour") && error.message.contains("behaviour"), "{error}");
    // `open` refuses the same.
    let mut config = common::config("works");
    config.options = text.to_owned();
    let refused = plugin().open(&config, Arc::new(Desk::default())).expect_err("refused");
    assert_eq!(refused, HostOpenError::Open(OpenError::Options(error)));
}

#[test]
fn p09_a_panic_poisons_the_object_and_no_call_enters_it_again() {
    let (backend, desk) = ready("submit-panics");
    assert_eq!(backend.failure(), None);
    assert_eq!(submit(&backend, &[put(1), put(2)]), [Submitted::rejected(Status::PANICKED); 2]);
    assert_eq!(backend.failure(), Some("panic in submit: boom in submit"));
    is_dead(&backend, Status::PANICKED);
    drop(backend);
    assert!(desk.now().completions.is_empty());

    let (backend, _, _) = open("region-panics").expect("opens");
    // SAFETY: no memory is named.
    let status = unsafe { backend.region_register(1, std::ptr::null_mut(), 0, "") };
    assert_eq!(status, Status::PANICKED);
    is_dead(&backend, Status::PANICKED);

    let (backend, _) = ready("shutdown-panics");
    assert_eq!(backend.shutdown(DEADLINE), Status::PANICKED);
    is_dead(&backend, Status::PANICKED);
}

#[test]
fn p09_a_panic_in_drop_is_caught() {
    let (backend, _) = ready("drop-panics");
    assert_eq!(backend.shutdown(DEADLINE), Status::OK);
    drop(backend);
    // Also where nobody shut it down.
    drop(ready("drop-panics").0);
}

#[test]
fn p09_a_panic_of_a_worker_thread_fails_what_it_held() {
    let (backend, desk) = ready("worker-panics");
    assert_eq!(submit(&backend, &[put(1), put(2)]), [Submitted::ACCEPTED; 2]);
    let heard = desk.wait(|heard| heard.completions.len() == 2);
    let mut ended: Vec<_> = heard.completions.iter().map(|c| (c.id, c.status)).collect();
    ended.sort_by_key(|(id, _)| *id);
    assert_eq!(ended, [(1, Status::PANICKED), (2, Status::PANICKED)]);
    assert!(heard.log.iter().any(|line| line.contains("boom in the worker")), "{:?}", heard.log);
    assert_eq!(backend.shutdown(DEADLINE), Status::OK);
}

#[test]
fn completions_may_come_from_inside_submit() {
    let (backend, desk) = ready("submit-completes");
    assert_eq!(submit(&backend, &[put(1)]), [Submitted::ACCEPTED]);
    assert_eq!(desk.now().completions[0].status, Status::OK);
}

#[test]
fn p10_a_completion_after_the_backend_is_gone_still_lands_in_the_services() {
    let (backend, desk) = ready("completes-late");
    assert_eq!(backend.shutdown(DEADLINE), Status::OK);
    drop(backend);
    let heard = desk.wait(|heard| !heard.completions.is_empty());
    assert_eq!(heard.completions[0].id, u64::MAX - 1);
}

#[test]
fn after_shutdown_every_call_is_refused() {
    let (backend, _) = ready("works");
    assert_eq!(backend.shutdown(DEADLINE), Status::OK);
    is_dead(&backend, Status::INVALID);
    assert_eq!(backend.failure(), None);
}

#[test]
fn an_operation_of_a_later_version_is_unsupported_and_the_rest_of_its_batch_is_not() {
    let (backend, desk) = ready("works");
    let unknown = |id| Operation { id, code: code::COPY_FROM_DEVICE + 1, ..Operation::default() };
    let results = submit(&backend, &[unknown(1), put(2), unknown(3), put(4)]);
    let refused = Submitted::rejected(Status::UNSUPPORTED);
    assert_eq!(results, [refused, Submitted::ACCEPTED, refused, Submitted::ACCEPTED]);
    let mut done: Vec<_> = desk.wait(|heard| heard.completions.len() == 2).completions.iter().map(|c| c.id).collect();
    done.sort_unstable();
    assert_eq!(done, [2, 4]);
}

#[test]
fn results_without_an_operation_are_invalid() {
    let (backend, _) = ready("submit-busy");
    let mut results = [Submitted::ACCEPTED; 3];
    backend.submit(&[put(1)], &mut results);
    assert_eq!(results, [Submitted::BUSY, Submitted::rejected(Status::INVALID), Submitted::rejected(Status::INVALID)]);
    backend.submit(&[put(1), put(2)], &mut results[..1]);
    assert_eq!(results[0], Submitted::BUSY);
}

#[test]
fn recovery_goes_on_from_its_cursor() {
    let (backend, desk) = ready("works");
    assert_eq!(submit(&backend, &[put(1), put(2), put(3)]), [Submitted::ACCEPTED; 3]);
    desk.wait(|heard| heard.completions.len() == 3);
    let (mut blocks, mut cursor, mut pages) = (Vec::new(), 0, 0);
    while let umbp_plugin_api::backend::Recovery::More(next) = backend.recover(cursor, 2, &mut blocks).expect("pages") {
        (cursor, pages) = (next, pages + 1);
    }
    assert_eq!((blocks.len(), pages), (3, 1));
    assert!(blocks.iter().all(|block| block.length == common::BLOCK_BYTES as u64 && block.namespace_id == 1));
}

#[test]
fn log_and_counters_reach_the_services() {
    let (_backend, _, desk) = open("works").expect("opens");
    let heard = desk.now();
    assert_eq!(heard.log, ["tier t of 1048576 bytes"]);
    assert_eq!(heard.counts, [("fixture.opened".to_owned(), 1)]);
}

struct Clumsy;

impl HostServices for Clumsy {
    fn log(&self, _: umbp_plugin_api::backend::Level, _: &str) {
        panic!("boom in the host");
    }
    fn count(&self, _: &str, _: u64) {}
    fn complete(&self, _: &[umbp_plugin_api::Completion]) {}
}

#[test]
fn a_panic_in_a_service_does_not_unwind_into_the_plugin() {
    let (backend, _) = plugin().open(&common::config("works"), Arc::new(Clumsy)).expect("opens");
    assert_eq!(backend.failure(), Some("panic in the host's log: boom in the host"));
}
