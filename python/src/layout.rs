//! Blocks to runs, for callers that name blocks by their number.

use std::collections::HashMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use umbp_connector_core::key::GroupId;
use umbp_connector_core::layout::{self, Region, Registered};

/// One layer as Python gives it: (name, group, block stride, block bytes, object offset), all in bytes.
type Layer = (String, u16, u64, u64, u64);

/// Where blocks lie in engine memory. Immutable.
#[pyclass(frozen, module = "umbp._umbp")]
pub(crate) struct Layout {
    pub(crate) inner: layout::Layout,
}

#[pymethods]
impl Layout {
    /// `layers` as configured; `tensors` maps each name to (address of block 0, real block stride in bytes).
    #[new]
    fn new(layers: Vec<Layer>, tensors: HashMap<String, (u64, u64)>) -> PyResult<Self> {
        let region = |(layer, group, block_stride, block_bytes, object_offset)| Region {
            layer,
            group: GroupId(group),
            block_stride,
            block_bytes,
            object_offset,
        };
        let regions: Vec<Region> = layers.into_iter().map(region).collect();
        let tensor = |name: &str| tensors.get(name).map(|&(base, block_stride)| Registered { base, block_stride });
        let inner = layout::Layout::register(&regions, tensor).map_err(|e| PyValueError::new_err(e.to_string()))?;
        Ok(Self { inner })
    }

    /// Bytes of a block of this group; `None` = no layer is of this group.
    fn block_bytes(&self, group: u16) -> Option<u64> {
        self.inner.object_bytes(Some(GroupId(group)))
    }

    /// The runs of a block as (layer, address, length, object offset).
    fn runs(&self, block_id: i64, group: u16) -> PyResult<Vec<(String, u64, u64, u64)>> {
        let runs = self.inner.runs(block_id, Some(GroupId(group))).map_err(|e| PyValueError::new_err(e.to_string()))?;
        let named = |run: layout::Run| {
            let layer = self.inner.layer(run.region).unwrap_or_default().to_owned();
            (layer, run.address, run.length, run.object_offset)
        };
        Ok(runs.into_iter().map(named).collect())
    }
}

impl Layout {
    /// Addresses and lengths of a block, in the order of its bytes; none for a block that cannot be.
    pub(crate) fn ranges(&self, block_id: i64, group: u16) -> Vec<(u64, u64)> {
        let runs = self.inner.runs(block_id, Some(GroupId(group))).unwrap_or_default();
        runs.into_iter().map(|run| (run.address, run.length)).collect()
    }
}
