//! The request trace: one JSON object a line, in Mooncake's format, and a generated one of the same shape.
//!
//! `{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [..]}`. Hash ids are chained by
//! prefix: the same id means the same block with the same blocks before it. Only `hash_ids` matters here; requests
//! run in file order (source: the FAST25 release of kvcache-ai/Mooncake).

use std::collections::HashSet;
use std::io::BufRead;
use std::path::Path;

use serde::Deserialize;

use crate::replay::random::Random;

/// Most blocks of one request: 16 M tokens at 512 tokens a block.
pub(crate) const REQUEST_BLOCKS_MAX: usize = 1 << 15;

/// The blocks of one prompt, head first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) ids: Vec<u64>,
}

/// Why a trace cannot be replayed.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub(crate) enum TraceError {
    #[error("read trace {path:?}")]
    Read {
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error("trace {path:?}, line {line}: {reason}")]
    #[diagnostic(help(
        "a line is {{\"timestamp\": 0, \"input_length\": 1024, \"output_length\": 8, \"hash_ids\": [0, 1]}}"
    ))]
    Line { path: String, line: usize, reason: String },
    #[error("trace {path:?} holds no request")]
    Empty { path: String },
}

#[derive(Deserialize)]
struct Line {
    hash_ids: Vec<u64>,
}

/// Reads a trace, or its first `limit` requests. Empty lines are passed over.
pub(crate) fn read(path: &Path, limit: Option<usize>) -> Result<Vec<Request>, TraceError> {
    let name = path.display().to_string();
    let failed = |source| TraceError::Read { path: name.clone(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut requests = Vec::new();
    for (index, line) in std::io::BufReader::new(file).lines().enumerate() {
        if limit.is_some_and(|limit| requests.len() >= limit) {
            break;
        }
        let line = line.map_err(failed)?;
        if line.trim().is_empty() {
            continue;
        }
        let request =
            parse(&line).map_err(|reason| TraceError::Line { path: name.clone(), line: index + 1, reason })?;
        requests.push(request);
    }
    if requests.is_empty() { Err(TraceError::Empty { path: name }) } else { Ok(requests) }
}

fn parse(line: &str) -> Result<Request, String> {
    let Line { hash_ids: ids } = serde_json::from_str(line).map_err(|e| {
        // The error's own "line 1" would contradict the file's.
        e.to_string().replace(" at line 1 column ", " at column ")
    })?;
    if ids.len() > REQUEST_BLOCKS_MAX {
        return Err(format!("{} hash_ids, at most {REQUEST_BLOCKS_MAX}", ids.len()));
    }
    let mut seen = HashSet::with_capacity(ids.len());
    match ids.iter().find(|id| !seen.insert(**id)) {
        Some(twice) => Err(format!("hash id {twice} stands twice: a block cannot be its own prefix")),
        None => Ok(Request { ids }),
    }
}

/// System prompts that conversations share, and their length in blocks.
const SYSTEM_PROMPTS: u64 = 8;
const SYSTEM_BLOCKS: u64 = 6;
/// Turns of a conversation, and blocks that each turn adds (question and the answer before it).
const TURNS: std::ops::RangeInclusive<u64> = 1..=9;
const TURN_BLOCKS: std::ops::RangeInclusive<u64> = 1..=8;
/// Conversations that run side by side.
const OPEN_CONVERSATIONS: usize = 32;
/// Every run generates the same workload.
const SEED: u64 = 0x756d_6270;

struct Conversation {
    ids: Vec<u64>,
    turns_left: u64,
}

/// Multi-turn conversations over a few shared system prompts, interleaved. The same every time.
pub(crate) fn generate(conversations: u32) -> Vec<Request> {
    let mut random = Random::new(SEED);
    let mut next_id = SYSTEM_PROMPTS * SYSTEM_BLOCKS;
    let (mut requests, mut open) = (Vec::new(), Vec::<Conversation>::new());
    let mut to_start = conversations;
    while to_start > 0 || !open.is_empty() {
        while to_start > 0 && open.len() < OPEN_CONVERSATIONS {
            let first = random.within(0..=SYSTEM_PROMPTS - 1) * SYSTEM_BLOCKS;
            open.push(Conversation { ids: (first..first + SYSTEM_BLOCKS).collect(), turns_left: random.within(TURNS) });
            to_start -= 1;
        }
        let at = random.within(0..=open.len() as u64 - 1) as usize;
        let conversation = &mut open[at];
        let fresh = random.within(TURN_BLOCKS);
        conversation.ids.extend(next_id..next_id + fresh);
        next_id += fresh;
        requests.push(Request { ids: conversation.ids.clone() });
        conversation.turns_left -= 1;
        if conversation.turns_left == 0 {
            open.swap_remove(at);
        }
    }
    requests
}

/// A real trace, where there are any: in the folder that `UMBP_TRACES` names, else beside the repository.
#[cfg(test)]
pub(crate) fn shared(name: &str) -> Option<std::path::PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces");
    let folder = std::env::var_os("UMBP_TRACES").map_or_else(beside, Into::into);
    Some(folder.join(name)).filter(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str, limit: Option<usize>) -> Result<Vec<Request>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path(), limit).map_err(|e| e.to_string())
    }

    #[test]
    fn a_malformed_line_is_named_by_its_number() {
        let good = r#"{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [0, 1]}"#;
        let check = |bad: &str, part: &str| {
            let error = read_text(&format!("{good}\n\n{bad}\n{good}\n"), None).unwrap_err();
            assert!(error.contains("line 3") && error.contains(part), "{error}");
        };
        check("{\"hash_ids\": [1, 2", "EOF");
        check("{\"timestamp\": 1}", "hash_ids");
        check("{\"hash_ids\": [1, -2]}", "-2");
        check("{\"hash_ids\": [1, 18446744073709551616]}", "column");
        check("{\"hash_ids\": [7, 8, 7]}", "7 stands twice");
        check("[1, 2]garbage", "column");
    }

    #[test]
    fn a_trace_is_read_in_order_and_a_limit_ends_it_before_a_bad_line() {
        let text = "{\"hash_ids\": [3, 4]}\n{\"hash_ids\": []}\nbad\n";
        let requests = read_text(text, Some(2)).unwrap();
        assert_eq!(requests, [Request { ids: vec![3, 4] }, Request { ids: vec![] }]);
        assert!(read_text("\n", None).unwrap_err().contains("no request"));
    }

    #[test]
    fn generated_conversations_grow_by_turns_and_are_prefix_chains() {
        let requests = generate(50);
        assert_eq!(requests, generate(50), "deterministic");
        assert!(requests.len() > 100, "{}", requests.len());
        let mut parents = std::collections::HashMap::new();
        for request in &requests {
            for pair in request.ids.windows(2) {
                assert_eq!(*parents.entry(pair[1]).or_insert(pair[0]), pair[0], "one parent for each id");
            }
        }
    }
}
