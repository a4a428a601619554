//! From a scenario's JSON to the scheduler's types.

use serde_json::Value;
use umbp_connector_core::key::{BlockHash, GroupId};
use umbp_connector_core::plan::{BlockId, RequestId};
use umbp_connector_core::scheduler::{
    BoundaryOffload, Cached, Config, Group, GroupKind, New, Options, Resumed, Role, Step,
};
use umbp_connector_core::topology::RankTopology;

pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a number: {value}"))
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn id(value: &Value) -> RequestId {
    value.as_str().expect("an id").into()
}

pub(crate) fn hash(value: &Value) -> BlockHash {
    BlockHash::from_hex(value.as_str().expect("a hash")).expect("hex")
}

pub(crate) fn hashes(value: &Value) -> Vec<BlockHash> {
    list(value).iter().map(hash).collect()
}

pub(crate) fn tokens(value: &Value) -> Vec<u32> {
    list(value).iter().map(|token| number(token) as u32).collect()
}

pub(crate) fn objects(value: &Value) -> Vec<(GroupId, BlockHash)> {
    list(value).iter().map(|pair| (GroupId(number(&pair[0]) as u16), hash(&pair[1]))).collect()
}

pub(crate) fn tables(value: &Value) -> Vec<Vec<BlockId>> {
    let block = |id: &Value| BlockId(id.as_i64().expect("a block"));
    list(value).iter().map(|group| list(group).iter().map(block).collect()).collect()
}

pub(crate) fn offloads(value: &Value) -> Vec<BoundaryOffload> {
    let one = |offload: &Value| BoundaryOffload {
        group: number(&offload[0]) as usize,
        block_id: BlockId(offload[1].as_i64().expect("a block")),
        tokens: number(&offload[2]),
    };
    list(value).iter().map(one).collect()
}

pub(crate) fn config(value: &Value) -> Config {
    let group = |group: &Value| Group {
        kind: match group["kind"].as_str().expect("a kind") {
            "full" => GroupKind::Full,
            "sliding_window" => GroupKind::SlidingWindow { window: number(&group["sliding_window"]) },
            "mamba" => GroupKind::Mamba { align: group["mode"] == "align" },
            "scratch" => GroupKind::Scratch,
            other => panic!("group kind {other}"),
        },
        block_size: number(&group["block_size"]),
        eagle: group["eagle"] == true,
    };
    let options = &value["options"];
    let on = |name: &str| options[name].as_bool().unwrap_or_else(|| panic!("{name}"));
    let size = |name: &str| number(&value["topology"][name]) as u16;
    Config {
        groups: list(&value["groups"]).iter().map(group).collect(),
        topology: RankTopology::new(size("tp"), size("pp"), size("pcp"), size("dcp")).expect("a topology"),
        num_workers: number(&value["num_workers"]) as u32,
        prefix_match_unit: value["prefix_match_unit"].as_u64(),
        retention_interval: value["retention_interval"].as_u64(),
        options: Options {
            load_async: on("load_async"),
            lookup_async: on("lookup_async"),
            enable_lookup: on("enable_lookup"),
            save_decode_cache: on("save_decode_cache"),
            enable_partial_hash_hits: on("enable_partial_hash_hits"),
            role: match options["kv_role"].as_str().expect("a role") {
                "kv_consumer" => Role::Consumer,
                "kv_producer" => Role::Producer,
                _ => Role::Both,
            },
            events: on("events"),
            kv_event_max_objects: number(&options["kv_event_max_objects"]) as usize,
            eagle: on("eagle"),
        },
    }
}

pub(crate) fn step(value: &Value) -> Step {
    let new = |new: &Value| New {
        id: id(&new["id"]),
        computed_tokens: number(&new["computed_tokens"]),
        scheduled_tokens: number(&new["scheduled_tokens"]),
        block_ids: tables(&new["block_ids"]),
    };
    let cached = |cached: &Value| {
        let blocks = &cached["new_block_ids"];
        Cached {
            id: id(&cached["id"]),
            computed_tokens: number(&cached["computed_tokens"]),
            scheduled_tokens: number(&cached["scheduled_tokens"]),
            blocks: match (cached["resumed"] == true, blocks.is_null()) {
                (true, _) => Resumed::Yes(tables(blocks)),
                (false, true) => Resumed::No(None),
                (false, false) => Resumed::No(Some(tables(blocks))),
            },
        }
    };
    let state = &value["block_state"];
    let given = state["tables"].as_object().into_iter().flatten();
    let offered = list(&state["boundary_offloads"]).iter();
    Step {
        finished: list(&value["finished"]).iter().map(id).collect(),
        preempted: list(&value["preempted"]).iter().map(id).collect(),
        new: list(&value["new"]).iter().map(new).collect(),
        cached: list(&value["cached"]).iter().map(cached).collect(),
        tables: given.map(|(name, table)| (name.as_str().into(), tables(table))).collect(),
        boundary_offloads: offered.map(|pair| (id(&pair[0]), offloads(&pair[1]))).collect(),
    }
}
