//! The golden layouts, replayed, and what every layout keeps.

mod common;

use std::collections::HashMap;

use common::{golden, replay_all};
use proptest::prelude::*;
use serde_json::Value;
use umbp_connector_core::key::GroupId;
use umbp_connector_core::layout::{Layout, QueryError, Region, RegisterError, Registered, Run};

/// Cases in the shipped file.
const CASES: usize = 60;

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

fn regions(case: &Value) -> Vec<Region> {
    let region = |region: &Value| Region {
        layer: region["layer_name"].as_str().unwrap().to_owned(),
        group: GroupId(number(&region["group_id"]) as u16),
        block_stride: number(&region["block_stride"]),
        block_bytes: number(&region["block_bytes"]),
        object_offset: number(&region["object_offset"]),
    };
    case["regions"].as_array().unwrap().iter().map(region).collect()
}

/// Replays one case; what differs, in words.
fn replay(case: &Value) -> Result<(), String> {
    let tensor = |layer: &str| {
        let tensor = case["registered"].get(layer)?;
        Some(Registered { base: number(&tensor["base"]), block_stride: number(&tensor["block_stride"]) })
    };
    let layout = Layout::register(&regions(case), tensor);
    let refused = case.get("register_error").is_some_and(|error| *error == Value::Bool(true));
    let layout = match (layout, refused) {
        (Err(_), true) => return Ok(()),
        (Err(error), false) => return Err(format!("refused: {error}")),
        (Ok(_), true) => return Err("not refused".to_owned()),
        (Ok(layout), false) => layout,
    };
    if layout.object_bytes(None) != case["object_size"].as_u64() {
        return Err(format!("object of {:?} bytes", layout.object_bytes(None)));
    }
    for query in case["queries"].as_array().unwrap() {
        let group = query["group_id"].as_u64().map(|group| GroupId(group as u16));
        let found = match layout.runs(query["block_id"].as_i64().unwrap(), group) {
            Ok(runs) => serde_json::json!({ "ranges": runs.iter().map(|run| range(&layout, run)).collect::<Vec<_>>() }),
            Err(error) => serde_json::json!({ "error": error.to_string() }),
        };
        for field in ["ranges", "error"] {
            if found.get(field) != query.get(field) {
                return Err(format!("{field} of {query}: found {found}"));
            }
        }
    }
    Ok(())
}

fn range(layout: &Layout, run: &Run) -> Value {
    serde_json::json!({
        "layer": layout.layer(run.region).unwrap(),
        "address": run.address,
        "length": run.length,
        "object_offset": run.object_offset,
    })
}

#[test]
fn every_golden_layout_is_reproduced() {
    replay_all("layout.jsonl", CASES, replay);
}

/// The replay itself can fail: each golden case, spoiled in one number or text, is found out.
#[test]
fn a_spoiled_line_is_found_out() {
    let mut spoiled = 0;
    for case in golden("layout.jsonl").0 {
        let Some(queries) = case.get("queries").and_then(Value::as_array) else {
            let mut accepted = case.clone();
            accepted["register_error"] = Value::Bool(false);
            assert!(replay(&accepted).is_err());
            spoiled += 1;
            continue;
        };
        for (index, query) in queries.iter().enumerate() {
            let mut other = case.clone();
            let target = &mut other["queries"][index];
            if query.get("error").is_some() {
                target["error"] = "another".into();
            } else {
                let last = target["ranges"].as_array().unwrap().len() - 1;
                let field = ["address", "length", "object_offset"][index % 3];
                target["ranges"][last][field] = (number(&target["ranges"][last][field]) + 1).into();
            }
            assert!(replay(&other).is_err(), "{query}");
            spoiled += 1;
        }
    }
    assert!(spoiled > 0);
}

fn one(block_stride: u64, block_bytes: u64, real: u64) -> Result<Layout, RegisterError> {
    let region = Region { layer: "l".to_owned(), group: GroupId(0), block_stride, block_bytes, object_offset: 0 };
    Layout::register(&[region], |_| Some(Registered { base: u64::MAX - (1 << 20), block_stride: real }))
}

#[test]
fn registrations_that_cannot_be_are_refused() {
    assert!(matches!(one(4096, 0, 4096), Err(RegisterError::Impossible { .. })));
    assert!(matches!(one(4096, 4096, 0), Err(RegisterError::Impossible { .. })));
    assert!(matches!(one(1024, 4096, 1024), Err(RegisterError::Impossible { .. })));
    assert!(matches!(one(u64::MAX, u64::MAX - 1, 1), Err(RegisterError::Impossible { .. })));
    assert!(matches!(one(4096, 4096, 8192), Err(RegisterError::StrideTooLarge { .. })));
    assert!(matches!(one(4096, 2048, 1536), Err(RegisterError::StrideDoesNotDivide { .. })));
    let region = Region { layer: "l".to_owned(), group: GroupId(0), block_stride: 1, block_bytes: 1, object_offset: 0 };
    let tensor = |_: &str| Some(Registered { base: 0, block_stride: 1 });
    let twice = Layout::register(&[region.clone(), region.clone()], tensor);
    assert_eq!(twice.unwrap_err().to_string(), "layer \"l\" stands in the layout twice");
    assert!(matches!(Layout::register(&[region], |_| None), Err(RegisterError::NotRegistered { .. })));
}

/// I1: a layer that the layout leaves out (a group that is never kept) needs no tensor, and its group has no object.
#[test]
fn a_group_that_is_not_kept_is_nobodys() {
    let layout = one(4096, 4096, 4096).unwrap();
    assert_eq!(layout.object_bytes(Some(GroupId(1))), None);
    assert_eq!(layout.runs(0, Some(GroupId(1))), Err(QueryError::UnknownGroup(GroupId(1))));
    assert_eq!(layout.object_bytes(None), layout.object_bytes(Some(GroupId(0))));
}

#[test]
fn a_block_beyond_the_address_space_is_an_error() {
    let layout = one(4096, 4096, 4096).unwrap();
    assert!(layout.runs(0, None).is_ok());
    let mut runs = layout.runs(1, None).unwrap();
    assert_eq!(layout.runs_into(1 << 20, None, &mut runs), Err(QueryError::Beyond(1 << 20)));
    assert_eq!(runs.len(), 1, "unchanged on an error");
    assert_eq!(layout.runs(i64::MAX, None), Err(QueryError::Beyond(i64::MAX)));
}

prop_compose! {
    /// (pieces, piece in units of 64 bytes, padding, group) per layer.
    fn layout()(layers in prop::collection::vec((1u64..5, 1u64..9, 0u64..3, 0u16..3), 1..8)) -> Layout {
        let mut regions = Vec::new();
        let mut tensors = HashMap::new();
        let mut offset = 0;
        for (index, (pieces, piece, padding, group)) in layers.into_iter().enumerate() {
            let (layer, bytes) = (format!("l{index}"), pieces * piece * 64);
            let block_stride = bytes + padding * 64;
            let real = if pieces == 1 && padding > 0 { block_stride } else { piece * 64 };
            tensors.insert(layer.clone(), Registered { base: (index as u64 + 1) << 32, block_stride: real });
            let group = GroupId(group);
            regions.push(Region { layer, group, block_stride, block_bytes: bytes, object_offset: offset });
            offset += bytes;
        }
        Layout::register(&regions, |layer| tensors.get(layer).copied()).unwrap()
    }
}

proptest! {
    /// I6: with any mix of groups, each of its own bytes, the runs of a block tile its object without gap, and those of
    /// two blocks share no byte.
    #[test]
    fn runs_tile_the_object_and_blocks_are_apart(
        layout in layout(),
        a in 0i64..1000,
        b in 0i64..1000,
        group in prop::option::of(0u16..3),
    ) {
        let group = group.map(GroupId);
        let Some(bytes) = layout.object_bytes(group) else {
            prop_assert!(layout.runs(a, group).is_err());
            return Ok(());
        };
        let runs = layout.runs(a, group).unwrap();
        let mut at = 0;
        for run in &runs {
            prop_assert_eq!(run.object_offset, at);
            at += run.length;
        }
        prop_assert_eq!(at, bytes);
        let overlap = |x: &Run, y: &Run| x.address < y.address + y.length && y.address < x.address + x.length;
        let other = layout.runs(b, group).unwrap();
        prop_assert_eq!(runs.iter().any(|x| other.iter().any(|y| overlap(x, y))), a == b);
    }
}
