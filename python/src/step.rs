//! What workers are to do in one step, on its way from the scheduler's process to theirs.
//!
//! Encoded only when it is pickled, for processes of one engine, which run one installed package: its version stands in
//! front ([`MAGIC`]), and bytes of another version are refused. Two builds of one version are not told apart.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use umbp_connector_core::key::{BlockHash, GroupId, LOCAL_KEY_BYTES, LocalKey, Rank};
use umbp_connector_core::metadata::{ConnectorMetadata, StoreEventId};
use umbp_connector_core::plan::{BlockBatch, BlockId, BlockTransferPlan, ObjectKey, RequestId, RequestPlans};

const MAGIC: &str = concat!("umbp step ", env!("CARGO_PKG_VERSION"));

/// One block as Python names it: (group, hash, block id); a store's has (parent's hash or none, depth) besides.
type LoadRow = (u16, Vec<u8>, i64);
type StoreRow = (u16, Vec<u8>, i64, Option<Vec<u8>>, u32);

/// Loads and stores of one step. Immutable; it can be pickled.
#[pyclass(frozen, module = "umbp._umbp")]
pub(crate) struct StepPlan {
    pub(crate) metadata: ConnectorMetadata,
}

#[pymethods]
impl StepPlan {
    /// As the scheduler makes it: per request its blocks, the head of the chain first.
    #[new]
    #[pyo3(signature = (*, async_load=false, store_event=None, loads=Vec::new(), stores=Vec::new(),
                        preempted=Vec::new()))]
    fn new(
        async_load: bool,
        store_event: Option<u64>,
        loads: Vec<(String, Vec<LoadRow>)>,
        stores: Vec<(String, Vec<StoreRow>)>,
        preempted: Vec<String>,
    ) -> PyResult<Self> {
        let load = |(group, hash, block_id): LoadRow| plan(group, &hash, block_id, None, 0);
        let store = |(group, hash, block_id, parent, depth): StoreRow| plan(group, &hash, block_id, parent, depth);
        let metadata = ConnectorMetadata {
            async_load,
            load_requests: loads.into_iter().map(|(id, rows)| batch(&id, rows, load)).collect::<PyResult<_>>()?,
            store_requests: stores.into_iter().map(|(id, rows)| batch(&id, rows, store)).collect::<PyResult<_>>()?,
            store_plans: Vec::new(),
            store_event: store_event.map(StoreEventId),
            preempted: preempted.iter().map(|id| RequestId::from(id.as_str())).collect(),
        };
        Ok(Self { metadata })
    }

    /// The form that travels.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.encode())
    }

    /// Back from it.
    #[staticmethod]
    fn from_bytes(bytes: &[u8]) -> PyResult<Self> {
        Self::decode(bytes).ok_or_else(|| {
            PyValueError::new_err(format!(
                "not a step of this version ({MAGIC:?}): all processes of an engine need one"
            ))
        })
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let from_bytes = slf.get_type().getattr("from_bytes")?;
        Ok((from_bytes, (slf.get().to_bytes(slf.py()),)))
    }

    /// Requests that load, with the number of their blocks.
    #[getter]
    fn loads(&self) -> Vec<(String, usize)> {
        counted(&self.metadata.load_requests)
    }

    /// Requests that store, with the number of their blocks.
    #[getter]
    fn stores(&self) -> Vec<(String, usize)> {
        counted(&self.metadata.store_requests)
    }

    fn __repr__(&self) -> String {
        let ConnectorMetadata { async_load, store_event, store_plans, preempted, .. } = &self.metadata;
        let (loads, stores, event) = (self.loads(), self.stores(), store_event.map(|event| event.0));
        let single = store_plans.len();
        format!(
            "StepPlan(async_load={async_load}, store_event={event:?}, loads={loads:?}, stores={stores:?}+{single}, \
             preempted={preempted:?})"
        )
    }
}

fn plan(group: u16, hash: &[u8], block_id: i64, parent: Option<Vec<u8>>, depth: u32) -> PyResult<BlockTransferPlan> {
    let wrong = |error: umbp_connector_core::key::KeyError| PyValueError::new_err(error.to_string());
    let (hash, group) = (BlockHash::new(hash).map_err(wrong)?, GroupId(group));
    Ok(BlockTransferPlan {
        key: ObjectKey::Block(LocalKey { hash, group, rank: Rank::default() }),
        block_id: BlockId(block_id),
        group: Some(group),
        block_hash: Some(hash),
        parent: parent.map(|parent| BlockHash::new(&parent)).transpose().map_err(wrong)?,
        depth,
        request: None,
    })
}

fn batch<T>(
    id: &str,
    rows: Vec<T>,
    plan: impl Fn(T) -> PyResult<BlockTransferPlan>,
) -> PyResult<(RequestId, RequestPlans)> {
    let request = RequestId::from(id);
    let plans = rows.into_iter().map(plan).collect::<PyResult<_>>()?;
    Ok((request.clone(), RequestPlans::Batch(BlockBatch { request, plans })))
}

fn counted(requests: &[(RequestId, RequestPlans)]) -> Vec<(String, usize)> {
    let count = |plans: &RequestPlans| match plans {
        RequestPlans::List(plans) => plans.len(),
        RequestPlans::Batch(batch) => batch.plans.len(),
    };
    requests.iter().map(|(request, plans)| (request.to_string(), count(plans))).collect()
}

impl StepPlan {
    fn encode(&self) -> Vec<u8> {
        let metadata = &self.metadata;
        let mut out = Writer(Vec::new());
        out.text(MAGIC);
        out.number(u64::from(metadata.async_load));
        out.number(metadata.store_event.map_or(NONE, |event| event.0));
        out.number(metadata.preempted.len() as u64);
        metadata.preempted.iter().for_each(|request| out.text(&request.0));
        for requests in [&metadata.load_requests, &metadata.store_requests] {
            out.number(requests.len() as u64);
            for (request, plans) in requests {
                out.text(&request.0);
                match plans {
                    RequestPlans::List(plans) => out.plans(None, plans.iter().map(Arc::as_ref)),
                    RequestPlans::Batch(batch) => out.plans(Some(&batch.request), batch.plans.iter()),
                }
            }
        }
        out.plans(None, metadata.store_plans.iter().map(Arc::as_ref));
        out.0
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = Reader(bytes);
        if input.text()? != MAGIC {
            return None;
        }
        let async_load = input.number()? != 0;
        let store_event = Some(input.number()?).filter(|event| *event != NONE).map(StoreEventId);
        let count = input.number()?;
        let preempted = (0..count).map(|_| Some(RequestId::from(input.text()?))).collect::<Option<_>>()?;
        let mut requests = || -> Option<Vec<(RequestId, RequestPlans)>> {
            let count = input.number()?;
            (0..count).map(|_| Some((RequestId::from(input.text()?), input.plans()?))).collect()
        };
        let (load_requests, store_requests) = (requests()?, requests()?);
        let RequestPlans::List(store_plans) = input.plans()? else { return None };
        let metadata =
            ConnectorMetadata { async_load, load_requests, store_requests, store_plans, store_event, preempted };
        input.0.is_empty().then_some(Self { metadata })
    }
}

/// Stands for an absent number or text.
const NONE: u64 = u64::MAX;

/// Numbers are u64, little-endian; a text or hash is its length and its bytes; an absent one has length [`NONE`].
struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: Option<&[u8]>) {
        self.number(bytes.map_or(NONE, |bytes| bytes.len() as u64));
        self.0.extend_from_slice(bytes.unwrap_or_default());
    }

    fn text(&mut self, text: &str) {
        self.bytes(Some(text.as_bytes()));
    }

    fn plans<'a>(&mut self, batch: Option<&RequestId>, plans: impl ExactSizeIterator<Item = &'a BlockTransferPlan>) {
        self.bytes(batch.map(|request| request.0.as_bytes()));
        self.number(plans.len() as u64);
        for plan in plans {
            match &plan.key {
                ObjectKey::Block(key) => {
                    self.number(0);
                    self.0.extend_from_slice(&key.to_bytes());
                }
                ObjectKey::Text(text) => {
                    self.number(1);
                    self.text(text);
                }
            }
            self.number(plan.block_id.0 as u64);
            self.number(plan.group.map_or(NONE, |group| u64::from(group.0)));
            self.bytes(plan.block_hash.as_ref().map(BlockHash::as_bytes));
            self.bytes(plan.parent.as_ref().map(BlockHash::as_bytes));
            self.number(u64::from(plan.depth));
            self.bytes(plan.request.as_ref().map(|request| request.0.as_bytes()));
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<Option<&'a [u8]>> {
        match self.number()? {
            NONE => Some(None),
            length => Some(Some(self.take(length)?)),
        }
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()??).ok()
    }

    fn hash(&mut self) -> Option<Option<BlockHash>> {
        self.bytes()?.map(|bytes| BlockHash::new(bytes).ok()).map_or(Some(None), |hash| hash.map(Some))
    }

    fn request(&mut self) -> Option<Option<RequestId>> {
        let Some(bytes) = self.bytes()? else { return Some(None) };
        Some(Some(RequestId::from(std::str::from_utf8(bytes).ok()?)))
    }

    fn plans(&mut self) -> Option<RequestPlans> {
        let batch = self.request()?;
        let count = self.number()?;
        let plans: Option<Vec<BlockTransferPlan>> = (0..count).map(|_| self.plan()).collect();
        Some(match batch {
            Some(request) => RequestPlans::Batch(BlockBatch { request, plans: plans? }),
            None => RequestPlans::List(plans?.into_iter().map(Arc::new).collect()),
        })
    }

    fn plan(&mut self) -> Option<BlockTransferPlan> {
        let key = match self.number()? {
            0 => ObjectKey::Block(LocalKey::from_bytes(self.take(LOCAL_KEY_BYTES as u64)?.try_into().ok()?).ok()??),
            1 => ObjectKey::text(self.text()?),
            _ => return None,
        };
        Some(BlockTransferPlan {
            key,
            block_id: BlockId(self.number()? as i64),
            group: match self.number()? {
                NONE => None,
                group => Some(GroupId(u16::try_from(group).ok()?)),
            },
            block_hash: self.hash()?,
            parent: self.hash()?,
            depth: u32::try_from(self.number()?).ok()?,
            request: self.request()?,
        })
    }
}
