//! What the traces should say of boundary states, where the reference errs.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::read;

/// What a block holds, by the trace's own requests: the parent and tokens that its events should name.
#[derive(Default)]
pub(crate) struct Truth {
    hash_block: u64,
    spans: Vec<u64>,
    texts: BTreeMap<String, (Vec<Value>, Vec<Value>)>,
}

impl Truth {
    pub(crate) fn of(case: &Value) -> Self {
        let hash_block = read::number(&case["derived"]["hash_block_size"]);
        let spans = read::list(&case["derived"]["tokens_per_block"]).iter().map(read::number).collect();
        Self { hash_block, spans, texts: BTreeMap::new() }
    }

    pub(crate) fn learn(&mut self, step: &Value) {
        let Some(id) = step["id"].as_str() else { return };
        let (tokens, hashes) = (read::list(&step["tokens"]), read::list(&step["hashes"]));
        match step["op"].as_str() {
            Some("request") => drop(self.texts.insert(id.to_owned(), (tokens.to_vec(), hashes.to_vec()))),
            Some("grow") => {
                let text = self.texts.get_mut(id).expect("a request that grows");
                text.0.extend_from_slice(tokens);
                text.1.extend_from_slice(hashes);
            }
            _ => {}
        }
    }

    fn correct(&self, block: &mut Value, hash: &str) {
        let Some(&span) = block["group"].as_u64().and_then(|group| self.spans.get(group as usize)) else { return };
        let place = |hashes: &[Value]| hashes.iter().position(|of| of == &block[hash]);
        let found = self.texts.values().find_map(|(tokens, hashes)| Some((tokens, hashes, place(hashes)?)));
        let Some((tokens, hashes, place)) = found else { return };
        let end = (place as u64 + 1) * self.hash_block;
        let start = (end - 1) / span * span;
        block["tokens"] = tokens[start as usize..end as usize].to_vec().into();
        block["parent"] =
            (start / self.hash_block).checked_sub(1).map_or(Value::Null, |at| hashes[at as usize].clone());
    }

    /// Whatever the reference hands over without tokens.
    pub(crate) fn correct_all(&self, expect: &mut Value) {
        let is_bare = |block: &&mut Value| block["tokens"].as_array().is_some_and(Vec::is_empty);
        let plans = expect.pointer_mut("/returns/store_plans").and_then(Value::as_array_mut);
        plans.into_iter().flatten().filter(is_bare).for_each(|plan| self.correct(plan, "hash"));
        let events = expect.get_mut("returns").and_then(Value::as_array_mut);
        events.into_iter().flatten().filter(is_bare).for_each(|event| self.correct(event, "stored"));
    }
}
