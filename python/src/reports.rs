//! What several workers report of one step, added up by the machine's own rules.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use pyo3::prelude::*;
use umbp_connector_core::key::{BlockHash, GroupId};
use umbp_connector_core::metadata::{StoreEventId, StoreEventResult, WorkerMetadata};
use umbp_connector_core::worker::{OperationStats, TransferStats};

use crate::scheduler::object;

/// Group, hash.
type Block = (u16, Vec<u8>);
/// Per event: workers that have ended it, and what failed on any of them.
type Events = HashMap<u64, (u32, BTreeSet<Block>)>;
/// Per operation: its counts.
pub(crate) type Stats = HashMap<String, HashMap<String, u64>>;

/// Store events of two reports of one step, together.
#[pyfunction]
pub(crate) fn sum_store_events(one: Events, other: Events) -> PyResult<Events> {
    let mut sum = metadata(one)?;
    sum.aggregate(metadata(other)?);
    let block = |(group, hash): (GroupId, BlockHash)| (group.0, hash.as_bytes().to_vec());
    let events = sum.store_events.into_iter();
    Ok(events
        .map(|(event, result)| {
            (event.0, (result.completed_workers, result.failed_objects.into_iter().map(block).collect()))
        })
        .collect())
}

/// Counts of two intervals or workers, together. What is no operation of ours, or no count, is left out.
#[pyfunction]
pub(crate) fn sum_stats(one: Stats, other: Stats) -> Stats {
    let mut sum = counted(&one);
    sum.aggregate(counted(&other));
    by_operation(sum)
}

fn metadata(events: Events) -> PyResult<WorkerMetadata> {
    let result = |(event, (completed_workers, failed)): (u64, (u32, BTreeSet<Block>))| {
        let failed_objects = failed.into_iter().map(object).collect::<PyResult<_>>()?;
        Ok((StoreEventId(event), StoreEventResult { completed_workers, failed_objects }))
    };
    let store_events = events.into_iter().map(result).collect::<PyResult<BTreeMap<_, _>>>()?;
    Ok(WorkerMetadata { store_events })
}

fn counted(stats: &Stats) -> TransferStats {
    let of = |operation: &str| {
        let counts = stats.get(operation)?;
        let count = |name: &str| counts.get(name).copied().unwrap_or(0);
        Some(OperationStats {
            submitted: count("submitted"),
            completed: count("completed"),
            failed: count("failed"),
            num_bytes: count("num_bytes"),
        })
    };
    TransferStats { load: of("load"), store: of("store") }
}

/// The counts by name; an operation of which nothing is known is absent.
pub(crate) fn by_operation(stats: TransferStats) -> Stats {
    let counts = [("load", stats.load), ("store", stats.store)];
    counts.into_iter().filter_map(|(name, counts)| Some((name.to_owned(), by_name(counts?)))).collect()
}

fn by_name(counts: OperationStats) -> HashMap<String, u64> {
    let OperationStats { submitted, completed, failed, num_bytes } = counts;
    let named = [("submitted", submitted), ("completed", completed), ("failed", failed), ("num_bytes", num_bytes)];
    named.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
}
