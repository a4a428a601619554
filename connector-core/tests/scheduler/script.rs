//! The scripted runtime and pool of a scenario: they say what is asked of them, and answer as the step says.

use std::collections::{BTreeSet, HashMap, VecDeque};

use serde_json::{Value, json};
use umbp_connector_core::key::{LocalKey, TextKey};
use umbp_connector_core::plan::BlockId;
use umbp_connector_core::scheduler::{BlockPool, Hold, LookupId, Lookups};

/// What a step asked.
#[derive(Default)]
pub(crate) struct Asked {
    pub(crate) lookups: Vec<Value>,
    pub(crate) submits: Vec<Value>,
    pub(crate) cancels: BTreeSet<u64>,
    pub(crate) clears: u64,
}

#[derive(Default)]
pub(crate) struct ScriptedLookups {
    namespace: String,
    pub(crate) asked: Asked,
    /// Answers to the lookups of this step, in order.
    pub(crate) answers: VecDeque<Value>,
    /// In place of them: lookups with their answers, in any order, and what every key of another one is answered.
    pub(crate) by_keys: Option<(Vec<Value>, char)>,
    /// Answers to lookups under way.
    pub(crate) done: HashMap<u64, Value>,
    pub(crate) clear_returns: bool,
    next: u64,
}

fn bits(answer: &Value) -> Option<Vec<bool>> {
    answer.as_str().map(|digits| digits.bytes().map(|digit| digit == b'1').collect())
}

impl ScriptedLookups {
    pub(crate) fn new(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..Self::default() }
    }

    fn texts(&self, keys: &[LocalKey]) -> Value {
        let text = |key: &LocalKey| TextKey { namespace: &self.namespace, local: *key }.to_string();
        keys.iter().map(text).collect()
    }
}

impl Lookups for ScriptedLookups {
    fn lookup(&mut self, keys: &[LocalKey], _: Hold) -> Option<Vec<bool>> {
        let asked = self.texts(keys);
        let answer = match &mut self.by_keys {
            None => self.answers.pop_front().unwrap_or(Value::Null),
            Some((lookups, default)) => match lookups.iter().position(|one| one["keys"] == asked) {
                Some(at) => lookups.remove(at)["answer"].clone(),
                None => default.to_string().repeat(keys.len()).into(),
            },
        };
        self.asked.lookups.push(json!({ "keys": self.texts(keys), "answer": answer }));
        bits(&answer)
    }

    fn submit(&mut self, keys: &[LocalKey], _: Hold) -> LookupId {
        let job = self.next;
        self.next += 1;
        self.asked.submits.push(json!({ "job": job, "keys": self.texts(keys) }));
        LookupId(job)
    }

    fn take(&mut self, lookup: LookupId) -> Option<Option<Vec<bool>>> {
        self.done.remove(&lookup.0).map(|answer| bits(&answer))
    }

    fn cancel(&mut self, lookup: LookupId) {
        // One whose answer has come is not given up.
        if self.done.remove(&lookup.0).is_none() {
            self.asked.cancels.insert(lookup.0);
        }
    }

    fn clear(&mut self) -> bool {
        self.asked.clears += 1;
        self.clear_returns
    }
}

/// Pins, in order; what one call touches has no order.
#[derive(Default)]
pub(crate) struct ScriptedPool {
    pub(crate) calls: Vec<Value>,
}

fn ids(blocks: &[BlockId]) -> Vec<i64> {
    blocks.iter().map(|block| block.0).collect()
}

impl BlockPool for ScriptedPool {
    fn touch(&mut self, blocks: &[BlockId]) {
        let mut blocks = ids(blocks);
        blocks.sort_unstable();
        self.calls.push(json!(["touch", blocks]));
    }

    fn free(&mut self, blocks: &[BlockId]) {
        self.calls.push(json!(["free", ids(blocks)]));
    }
}
