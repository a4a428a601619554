//! What an engine says of itself, as the descriptor of its namespace.

use std::collections::BTreeMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use umbp_connector_core::namespace::{EngineIdentity, GroupIdentity, SpeculativeIdentity};
use umbp_connector_core::topology::RankTopology;

/// (kind, block size, layers as (name, fields)).
type Group = (String, u64, Vec<(String, BTreeMap<String, String>)>);

/// The descriptor: what is not equal in it never shares a block. `sizes` are tp, pcp, dcp, pp; `drafter` is method,
/// model, revision; each layer's fields are every one that shapes its bytes.
#[pyfunction]
#[pyo3(signature = (*, key_namespace, model, revision, block_hash, kv_layout, kv_dtype, block_size, sizes, groups,
                    drafter, extra))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments in Python")]
pub(crate) fn engine_descriptor(
    key_namespace: Option<String>,
    model: String,
    revision: Option<String>,
    block_hash: String,
    kv_layout: Option<String>,
    kv_dtype: String,
    block_size: u64,
    sizes: (u16, u16, u16, u16),
    groups: Vec<Group>,
    drafter: Option<(String, Option<String>, Option<String>)>,
    extra: BTreeMap<String, String>,
) -> PyResult<BTreeMap<String, String>> {
    let (tp, pcp, dcp, pp) = sizes;
    let topology = RankTopology::new(tp, pp, pcp, dcp).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let identity = EngineIdentity {
        key_namespace,
        model,
        revision,
        block_hash,
        kv_layout,
        kv_dtype,
        block_size,
        topology,
        groups: groups
            .into_iter()
            .map(|(kind, block_size, layers)| GroupIdentity { kind, block_size, layers })
            .collect(),
        speculative: drafter.map(|(method, model, revision)| SpeculativeIdentity { method, model, revision }),
        extra,
    };
    Ok(identity.descriptor().0)
}
