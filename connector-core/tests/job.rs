//! A job's results are per key, given once, and whole before it is reported.

use std::collections::BTreeSet;

use proptest::prelude::*;
use umbp_connector_core::job::{JobError, KeyResult, TransferJob};

const RESULTS: [KeyResult; 9] = [
    KeyResult::Done,
    KeyResult::Present,
    KeyResult::Refused,
    KeyResult::Missed,
    KeyResult::Corrupt,
    KeyResult::Late,
    KeyResult::Cancelled,
    KeyResult::Disconnected,
    KeyResult::Invalid,
];

/// A3, K14: failures of some keys concern exactly those.
#[test]
fn a_partial_failure_names_exactly_its_keys() {
    let mut job = TransferJob::new(5);
    let results = [KeyResult::Done, KeyResult::Corrupt, KeyResult::Present, KeyResult::Refused, KeyResult::Missed];
    for (index, result) in results.into_iter().enumerate() {
        assert!(!job.is_finished());
        job.settle(index, result).unwrap();
    }
    assert!(job.is_finished());
    assert_eq!(job.failed(), [1, 4]);
    assert_eq!(job.not_good(), [1, 3, 4]);
}

#[test]
fn a_late_settle_is_refused_and_changes_nothing() {
    let mut job = TransferJob::new(1);
    job.settle(0, KeyResult::Late).unwrap();
    let refused = job.settle(0, KeyResult::Done);
    assert_eq!(refused, Err(JobError::AlreadySettled { index: 0, result: KeyResult::Late }));
    assert_eq!(job.results(), [Some(KeyResult::Late)]);
    assert_eq!(job.settle(1, KeyResult::Done), Err(JobError::NoSuchKey { index: 1, keys: 1 }));
}

#[test]
fn a_job_is_not_finished_while_a_thread_touches_memory_for_it() {
    let mut job = TransferJob::new(2);
    let touch = job.touch(0).unwrap();
    assert_eq!(job.settle_rest(KeyResult::Cancelled), 2);
    assert!(!job.is_finished(), "a thread still copies");
    assert!(job.touch(1).is_err(), "a settled key's memory is not touched again");
    job.release(touch);
    assert!(job.is_finished());
    assert_eq!(job.settle_rest(KeyResult::Done), 0);
    assert_eq!(job.failed(), [0, 1]);
}

#[test]
fn a_job_of_no_keys_is_finished() {
    assert!(TransferJob::new(0).is_finished());
}

#[derive(Clone, Debug)]
enum Step {
    Settle(usize, usize),
    Rest(usize),
    Touch(usize),
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0usize..10, 0..RESULTS.len()).prop_map(|(key, result)| Step::Settle(key, result)),
        1 => (0..RESULTS.len()).prop_map(Step::Rest),
        4 => (0usize..10).prop_map(Step::Touch),
        4 => Just(Step::Release),
    ]
}

proptest! {
    /// Against a plain model: first result wins, finished is for ever, failed is exactly the set of failures.
    #[test]
    fn any_order_of_calls_keeps_the_promises(keys in 0usize..8, steps in prop::collection::vec(step(), 0..60)) {
        let mut job = TransferJob::new(keys);
        let mut model: Vec<Option<KeyResult>> = vec![None; keys];
        let mut touches = Vec::new();
        let mut finished = job.is_finished();
        for step in steps {
            match step {
                Step::Settle(key, result) => {
                    let first = model.get(key).is_some_and(Option::is_none);
                    prop_assert_eq!(job.settle(key, RESULTS[result]).is_ok(), first);
                    if first {
                        model[key] = Some(RESULTS[result]);
                    }
                }
                Step::Rest(result) => {
                    let pending = model.iter().filter(|cell| cell.is_none()).count();
                    prop_assert_eq!(job.settle_rest(RESULTS[result]), pending);
                    model.iter_mut().for_each(|cell| *cell = cell.or(Some(RESULTS[result])));
                }
                Step::Touch(key) => {
                    let touch = job.touch(key);
                    prop_assert_eq!(touch.is_ok(), model.get(key).is_some_and(Option::is_none));
                    touches.extend(touch);
                }
                Step::Release => touches.pop().into_iter().for_each(|touch| job.release(touch)),
            }
            prop_assert_eq!(job.results(), &model[..]);
            prop_assert_eq!(job.is_finished(), model.iter().all(Option::is_some) && touches.is_empty());
            prop_assert!(!finished || job.is_finished(), "a finished job came back to life");
            finished = job.is_finished();
            let failed: BTreeSet<usize> = job.failed().into_iter().collect();
            let expected = (0..keys).filter(|key| model[*key].is_some_and(KeyResult::is_failure));
            prop_assert_eq!(failed, expected.collect::<BTreeSet<_>>());
        }
    }
}
