//! Traces in which the reference errs: replayed to their end with our own answers fed on, and every difference from the
//! trace pinned, theirs and ours, in `exceptions.jsonl`.
//!
//! A trace is a script, so beyond the first difference it rests on what the reference did. What we do more than it is
//! answered here: a store of ours ends on all workers before the next report; blocks that only we look up are absent
//! when they are about to be stored, and present once a store has ended. Numbers of store events and lookups
//! are compared as the trace counts them. Not to be had is an engine that makes room for what only we pin or store: its
//! block numbers, and the answers to later lookups, stay those of the trace.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::common::lines;
use crate::golden::{FIELDS, Replay, normal};
use crate::read;

/// What the reference does, and we do otherwise.
const SUFFIX: &str = "a prompt that ends in the step of its synchronous load is stored in the next step, not never";
const TWICE: &str = "a boundary state that is under way is not stored a second time";
const LOST: &str = "a residency check that fails is repeated, so that the event is late, not lost";

/// Traces that differ, and where first, but for blocks handed over without their tokens: trace, step, field, reason. All
/// of them are marked by the traces themselves (`quirks`) as what a better version may do otherwise.
pub(crate) const EXCEPTIONS: [(&str, usize, &str, &str); 13] = [
    ("sched-00038", 13, "returns", TWICE),
    ("sched-00049", 14, "returns", SUFFIX),
    ("sched-00081", 22, "returns", SUFFIX),
    ("sched-00087", 9, "returns", SUFFIX),
    ("sched-00113", 27, "returns", SUFFIX),
    ("sched-00127", 14, "returns", SUFFIX),
    ("sched-00134", 9, "returns", SUFFIX),
    ("sched-00141", 8, "returns", SUFFIX),
    ("sched-00142", 9, "returns", TWICE),
    ("sched-00156", 27, "returns", SUFFIX),
    ("sched-00161", 23, "returns", SUFFIX),
    ("sched-00178", 28, "submits", LOST),
    ("sched-00201", 28, "submits", LOST),
];

/// Numbers as the trace counts them, and ours.
#[derive(Default)]
struct Numbers {
    /// Theirs to ours.
    ours: HashMap<u64, u64>,
    their_next: u64,
    extras: u64,
}

impl Numbers {
    /// The number under which one of ours is compared: theirs, if they have it too.
    fn shown(&mut self, own: u64, theirs: Option<u64>) -> Value {
        match theirs {
            Some(theirs) => {
                self.ours.insert(theirs, own);
                theirs.into()
            }
            None => {
                self.extras += 1;
                format!("extra {}", self.extras).into()
            }
        }
    }

    /// What we call one of theirs; none for what only they have.
    fn own(&self, theirs: &Value) -> Option<u64> {
        self.ours.get(&read::number(theirs)).copied()
    }
}

/// What was fed on.
#[derive(Default)]
struct Fed {
    events: Numbers,
    jobs: Numbers,
    /// Events of ours alone that no worker has ended yet.
    open: Vec<u64>,
    workers: u64,
}

impl Fed {
    /// The step with our numbers, and with the ends of what only we store.
    fn step(&mut self, step: &Value) -> Value {
        let mut step = step.clone();
        match step["op"].as_str() {
            Some("update_connector_output") => {
                let events = step["store_events"].as_array_mut().expect("events");
                // Numbers of nobody, which traces have, too, stay.
                let known = |event: &Value| read::number(&event["event"]) < self.events.their_next;
                events.retain(|event| !known(event) || self.events.own(&event["event"]).is_some());
                for event in events.iter_mut() {
                    let own = self.events.own(&event["event"]);
                    let unknown = read::number(&event["event"]) + self.events.extras + 1000;
                    event["event"] = own.unwrap_or(unknown).into();
                }
                let ended = self.open.drain(..);
                events.extend(
                    ended.map(|event| json!({ "event": event, "completed_workers": self.workers, "failed": [] })),
                );
            }
            Some("lookup_done") => {
                if let Some(own) = self.jobs.own(&step["job"]) {
                    step["job"] = own.into();
                }
            }
            _ => {}
        }
        step
    }

    /// What was found, with the trace's numbers.
    fn found(&mut self, found: &mut Value, expect: &Value, replay: &mut Replay) {
        if let Some(event) = found.pointer_mut("/returns/store_event") {
            let theirs = expect.pointer("/returns/store_event").is_some_and(|event| event != -1);
            let number = theirs.then_some(self.events.their_next);
            self.events.their_next += u64::from(theirs);
            if let Some(own) = event.as_u64() {
                if number.is_none() {
                    self.open.push(own);
                }
                *event = self.events.shown(own, number);
            }
        }
        let mut wanted: Vec<Option<&Value>> =
            read::list(&expect["submits"]).iter().map(|one| Some(&one["keys"])).collect();
        let first = self.jobs.their_next;
        self.jobs.their_next += wanted.len() as u64;
        for submit in found.get_mut("submits").and_then(Value::as_array_mut).into_iter().flatten() {
            let at = wanted.iter().position(|keys| *keys == Some(&submit["keys"]));
            let own = read::number(&submit["job"]);
            if let Some(at) = at {
                wanted[at] = None;
            } else {
                replay.answer_present(own, read::list(&submit["keys"]).len());
            }
            submit["job"] = self.jobs.shown(own, at.map(|at| first + at as u64));
        }
        for job in found.get_mut("cancels").and_then(Value::as_array_mut).into_iter().flatten() {
            let theirs = self.jobs.ours.iter().find(|(_, own)| Some(**own) == job.as_u64());
            *job = theirs.map_or_else(|| "extra".into(), |(theirs, _)| (*theirs).into());
        }
    }
}

/// Every difference of a trace from what we do, to its end.
pub(crate) fn differences(case: &Value) -> Result<Vec<Value>, String> {
    let mut replay = Replay::start(case)?;
    let mut fed = Fed { workers: read::number(&case["config"]["num_workers"]), ..Fed::default() };
    let mut all = Vec::new();
    for (index, step) in read::list(&case["steps"]).iter().enumerate() {
        let none = json!({});
        let expect = step.get("expect").unwrap_or(&none);
        let about_to_store = step["op"] == "build_connector_meta";
        replay.answer_by_keys(read::list(&expect["lookups"]), if about_to_store { '0' } else { '1' });
        let returned = replay.call(&fed.step(step));
        let mut found = replay.found(returned);
        fed.found(&mut found, expect, &mut replay);
        if step.get("expect").is_none() {
            continue;
        }
        let expect = normal(expect);
        for field in FIELDS {
            let (theirs, ours) = (expect.get(field), found.get(field));
            if theirs != ours {
                all.push(json!({ "step": index, "field": field, "theirs": theirs, "ours": ours }));
            }
        }
        if expect.get("error").is_some() {
            break;
        }
    }
    Ok(all)
}

/// The pinned differences of a trace.
fn pinned(name: &str) -> Vec<Value> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scheduler/exceptions.jsonl");
    lines(Path::new(file))
        .into_iter()
        .filter(|line| line["name"] == name)
        .map(|line| line["difference"].clone())
        .collect()
}

/// Replays a trace in which the reference errs: it differs exactly where it is pinned to.
pub(crate) fn replay(case: &Value, (name, step, field, reason): (&str, usize, &str, &str)) -> Result<(), String> {
    let (found, pinned) = (differences(case)?, pinned(name));
    if !found.iter().any(|one| one["step"] == step && one["field"] == field) {
        return Err(format!("does not differ at step {step}, though {reason}"));
    }
    if found == pinned {
        return Ok(());
    }
    let at = (0..).find(|at| found.get(*at) != pinned.get(*at)).unwrap_or_default();
    let line = |list: &[Value]| list.get(at).map_or_else(|| "nothing".to_owned(), Value::to_string);
    Err(format!("difference {at} from the trace:\n  found  {}\n  pinned {}", line(&found), line(&pinned)))
}
