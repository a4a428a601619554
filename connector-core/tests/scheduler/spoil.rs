//! Spoils one value of a trace, to see that the replay can fail.

use serde_json::{Value, json};

use crate::common::shipped;
use crate::exceptions::EXCEPTIONS;
use crate::golden::{FIELDS, SCENARIOS, replay};
use crate::read;

/// The replay itself can fail: each trace, spoiled in one value of its last step that has the field, is found out.
#[test]
fn a_spoiled_line_is_found_out() {
    let mut spoiled = 0;
    for case in &shipped("scheduler.jsonl") {
        let name = case["name"].as_str().unwrap_or_default();
        for (index, field) in FIELDS.into_iter().enumerate() {
            let steps = read::list(&case["steps"]);
            let has = |step: &usize| steps[*step]["expect"].get(field).is_some();
            let Some(step) = (0..steps.len()).rev().find(has) else { continue };
            let mut other = case.clone();
            if spoil(&mut other["steps"][step]["expect"][field], step + index) {
                spoiled += 1;
                assert!(replay(&other).is_err(), "{name} step {step} {field}: not found out");
            }
        }
    }
    assert!(spoiled > SCENARIOS, "only {spoiled} values were spoiled");
}

/// Where the reference errs nothing behind that goes unseen: each step there, spoiled in each of its fields, is found out.
#[test]
fn a_line_that_is_spoiled_beyond_an_exception_is_found_out() {
    let cases = shipped("scheduler.jsonl");
    let mut spoiled = 0;
    for (name, first, ..) in EXCEPTIONS {
        let case = cases.iter().find(|case| case["name"] == name).expect("a shipped trace");
        for step in first..read::list(&case["steps"]).len() {
            for (index, field) in FIELDS.into_iter().enumerate() {
                let mut other = case.clone();
                let Some(value) = other.pointer_mut(&format!("/steps/{step}/expect/{field}")) else { continue };
                if spoil(value, step + index) {
                    spoiled += 1;
                    assert!(replay(&other).is_err(), "{name} step {step} {field}: not found out");
                }
            }
        }
    }
    assert!(spoiled > 10 * EXCEPTIONS.len(), "only {spoiled} values were spoiled");
}

/// Changes one value, the `which`th modulo their number; false if there is none. Answers of lookups are the script.
fn spoil(value: &mut Value, which: usize) -> bool {
    let count = leaves(value);
    let Some(which) = which.checked_rem(count) else { return false };
    let mut left = which;
    spoil_at(value, &mut left);
    true
}

fn leaves(value: &Value) -> usize {
    match value {
        Value::Array(list) => list.iter().map(leaves).sum(),
        Value::Object(map) => map.iter().filter(|(name, _)| *name != "answer").map(|(_, value)| leaves(value)).sum(),
        _ => 1,
    }
}

fn spoil_at(value: &mut Value, left: &mut usize) {
    let count = leaves(value);
    if *left >= count {
        *left -= count;
        return;
    }
    match value {
        Value::Array(list) => list.iter_mut().for_each(|value| spoil_at(value, left)),
        Value::Object(map) => {
            map.iter_mut().filter(|(name, _)| *name != "answer").for_each(|(_, value)| spoil_at(value, left));
        }
        leaf => {
            // None is left to be counted down to.
            *left = usize::MAX;
            *leaf = match &leaf {
                Value::Bool(flag) => Value::Bool(!*flag),
                Value::Number(number) => json!(number.as_i64().map_or(0, |number| number + 1)),
                Value::String(text) => Value::String(format!("{text}00")),
                _ => json!(0),
            };
        }
    }
}
