//! What every history of a worker keeps, against a plain model of who owes what.
//!
//! Every plan has a block of its own, so that a block that is named is a plan that is named.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use umbp_connector_core::job::KeyResult;
use umbp_connector_core::key::{BlockHash, GroupId};
use umbp_connector_core::metadata::{ConnectorMetadata, StoreEventId};
use umbp_connector_core::plan::{BlockBatch, BlockId, BlockTransferPlan, ObjectKey, RequestId, RequestPlans};
use umbp_connector_core::worker::{Worker, WorkerOptions};

use crate::script::{Bulk, Call, Cancel, Script};

const REQUESTS: u8 = 4;

#[derive(Clone, Debug)]
enum Step {
    /// Loads: request, blocks, as a batch.
    Load(Vec<(u8, u8, bool)>),
    /// Stores of one event: request, blocks, as a batch.
    Store(Vec<(u8, u8, bool)>),
    Save,
    /// Ends a job with these results, in turn.
    Settle(u16, Vec<KeyResult>),
    Preempt(u8),
    LayerLoad,
    Reports,
}

fn result() -> impl Strategy<Value = KeyResult> {
    prop_oneof![
        4 => Just(KeyResult::Done),
        1 => Just(KeyResult::Present),
        1 => Just(KeyResult::Refused),
        1 => Just(KeyResult::Missed),
        1 => Just(KeyResult::Corrupt),
        1 => Just(KeyResult::Late),
        1 => Just(KeyResult::Disconnected),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let requests = || prop::collection::vec((0..REQUESTS, 0u8..4, any::<bool>()), 0..4);
    prop_oneof![
        3 => requests().prop_map(Step::Load),
        3 => requests().prop_map(Step::Store),
        3 => Just(Step::Save),
        6 => (any::<u16>(), prop::collection::vec(result(), 1..4)).prop_map(|(job, results)| Step::Settle(job, results)),
        2 => (0..REQUESTS).prop_map(Step::Preempt),
        1 => Just(Step::LayerLoad),
        4 => Just(Step::Reports),
    ]
}

/// How a job ends that nobody settled.
fn unsettled(job: u64) -> KeyResult {
    if job.is_multiple_of(3) { KeyResult::Late } else { KeyResult::Done }
}

fn name(request: u8) -> RequestId {
    RequestId::from(format!("r{request}").as_str())
}

/// A worker, and what it owes.
struct World {
    worker: Worker<Script>,
    async_load: bool,
    by_request: bool,
    next_block: i64,
    next_event: u64,
    /// Load jobs by request, since its last report.
    loading: BTreeMap<RequestId, BTreeSet<u64>>,
    /// Jobs whose requests were preempted: their loads are nobody's.
    dropped: BTreeSet<u64>,
    loads: BTreeSet<u64>,
    /// Store jobs by event that is not reported.
    events: BTreeMap<StoreEventId, BTreeSet<u64>>,
    reported_blocks: Vec<BlockId>,
    /// Load jobs whose failure was reported by request.
    told: BTreeSet<u64>,
}

impl World {
    fn new(async_load: bool, by_request: bool, cancel: Cancel, bulk: Bulk) -> Self {
        let mut script = Script::new("n");
        (script.cancel, script.bulk_load, script.unsettled) = (cancel, bulk, unsettled);
        let options = WorkerOptions { report_failed_requests: by_request, ..WorkerOptions::default() };
        Self {
            worker: Worker::new(script, options),
            async_load,
            by_request,
            next_block: 0,
            next_event: 0,
            loading: BTreeMap::new(),
            dropped: BTreeSet::new(),
            loads: BTreeSet::new(),
            events: BTreeMap::new(),
            reported_blocks: Vec::new(),
            told: BTreeSet::new(),
        }
    }

    fn plans(&mut self, wanted: &[(u8, u8, bool)]) -> Vec<(RequestId, RequestPlans)> {
        let mut all: BTreeMap<u8, RequestPlans> = BTreeMap::new();
        for (request, blocks, is_batch) in wanted {
            let one = |_| {
                self.next_block += 1;
                let hash = BlockHash::new(&self.next_block.to_be_bytes()).expect("8 bytes");
                BlockTransferPlan {
                    key: ObjectKey::text(&format!("n:g0:{hash}")),
                    block_id: BlockId(self.next_block),
                    group: Some(GroupId(0)),
                    block_hash: Some(hash),
                    parent: None,
                    depth: 0,
                    request: Some(name(*request)),
                }
            };
            let plans: Vec<_> = (0..*blocks).map(one).collect();
            let plans = match is_batch {
                true => RequestPlans::Batch(BlockBatch { request: name(*request), plans }),
                false => RequestPlans::List(plans.into_iter().map(Arc::new).collect()),
            };
            all.insert(*request, plans);
        }
        all.into_iter().map(|(request, plans)| (name(request), plans)).collect()
    }

    /// Jobs that the worker began since there were `before`, with their requests.
    fn begun(&self, before: u64) -> Vec<(u64, RequestId)> {
        let request = |job| self.worker.runtime().job(job).0[0].request.clone().expect("a request");
        (before..self.worker.runtime().jobs()).map(|job| (job, request(job))).collect()
    }

    fn is_open(&self, job: u64) -> bool {
        self.worker.runtime().job(job).1.is_none()
    }

    fn step(&mut self, step: &Step) {
        let before = self.worker.runtime().jobs();
        match step {
            Step::Load(wanted) => {
                let (load_requests, async_load) = (self.plans(wanted), self.async_load);
                let metadata = ConnectorMetadata { async_load, load_requests, ..ConnectorMetadata::default() };
                self.worker.start_load_kv(&metadata);
                for (job, request) in self.begun(before) {
                    self.loads.insert(job);
                    self.loading.entry(request).or_default().insert(job);
                }
                assert!(self.async_load || self.loads.iter().all(|job| !self.is_open(*job)));
            }
            Step::Store(wanted) => {
                let event = StoreEventId(self.next_event);
                self.next_event += 1;
                let store_requests = self.plans(wanted);
                let store_event = Some(event);
                let metadata = ConnectorMetadata { store_requests, store_event, ..ConnectorMetadata::default() };
                self.worker.enqueue_stores(&metadata);
                self.events.insert(event, self.begun(before).into_iter().map(|(job, _)| job).collect());
            }
            Step::Save => self.worker.wait_for_save(),
            Step::Settle(job, results) if before > 0 => {
                let job = u64::from(*job) % before;
                self.worker.runtime_mut().settle_as(job, results);
            }
            Step::Settle(..) => {}
            Step::Preempt(request) => self.preempt(&name(*request)),
            Step::LayerLoad => self.worker.wait_for_layer_load(),
            Step::Reports => self.take_reports(),
        }
    }

    fn preempt(&mut self, request: &RequestId) {
        let preempted = BTreeSet::from([request.clone()]);
        // Failures that the worker knows by now it owes. Of a request whose loads have not all ended, nobody waits for
        // the rest, nor for its end.
        let runtime = self.worker.runtime();
        let unsettled = |job: &u64| !runtime.job(*job).2;
        if self.loading.get(request).is_some_and(|jobs| jobs.iter().any(unsettled)) {
            let jobs = self.loading.remove(request).unwrap_or_default();
            self.dropped.extend(jobs.into_iter().filter(unsettled));
        }
        self.worker.handle_preemptions(&ConnectorMetadata { preempted, ..ConnectorMetadata::default() });
        for job in 0..self.worker.runtime().jobs() {
            let (plans, ended, _) = self.worker.runtime().job(job);
            let its = plans.iter().any(|plan| plan.request.as_ref() == Some(request));
            assert!(!its || ended.is_some(), "job {job} still touches blocks of {request}");
        }
    }

    fn take_reports(&mut self) {
        let finished = self.worker.get_finished();
        for request in finished {
            let jobs = self.loading.remove(&request).unwrap_or_else(|| panic!("{request} is reported without a load"));
            assert!(self.async_load);
            let open: Vec<_> = jobs.iter().filter(|job| self.is_open(**job)).collect();
            assert!(open.is_empty(), "{request} is reported while jobs {open:?} touch its blocks");
        }
        for request in self.worker.get_failed_recving() {
            assert!(self.by_request);
            let news: Vec<u64> = self.untold().filter(|(_, name)| *name == request).map(|(job, _)| job).collect();
            assert!(!news.is_empty(), "{request} is reported failed without news");
            self.told.extend(news);
        }
        self.reported_blocks.extend(self.worker.get_block_ids_with_load_errors());
        for (event, result) in self.worker.build_connector_worker_meta().store_events {
            let jobs = self.events.remove(&event).unwrap_or_else(|| panic!("{event:?} is reported twice, or unknown"));
            let mut failed = BTreeSet::new();
            for job in jobs {
                let (plans, ended, taken) = self.worker.runtime().job(job);
                let ended = ended.unwrap_or_else(|| panic!("{event:?} is reported while job {job} touches its blocks"));
                assert!(taken, "{event:?} is reported before job {job} is settled");
                let good = ended.blocks.iter().all(|block| block.result.is_good());
                let publishes =
                    self.worker.runtime().calls.iter().filter(|call| **call == Call::Job("publish", job)).count();
                assert_eq!(publishes, usize::from(good), "job {job}");
                if !good {
                    failed.extend(plans.iter().filter_map(|plan| plan.group.zip(plan.block_hash)));
                }
            }
            assert_eq!((result.completed_workers, result.failed_objects), (1, failed));
        }
    }

    /// Plans of settled loads whose block is not where it should be, with their jobs.
    fn failures(&self) -> impl Iterator<Item = (u64, &BlockTransferPlan)> {
        let settled = self.loads.difference(&self.dropped).filter_map(|job| {
            let (plans, ended, taken) = self.worker.runtime().job(*job);
            Some((*job, plans, ended.filter(|_| taken)?))
        });
        settled.flat_map(|(job, plans, ended)| {
            let bad = plans.iter().zip(&ended.blocks).filter(|(_, block)| !block.result.is_good());
            bad.map(move |(plan, _)| (job, plan))
        })
    }

    /// Failed loads that were not reported by request, with their requests.
    fn untold(&self) -> impl Iterator<Item = (u64, RequestId)> {
        let news = self.failures().filter(|(job, _)| !self.told.contains(job));
        news.filter_map(|(job, plan)| Some((job, plan.request.clone()?)))
    }

    /// What is reported is exactly what failed, each once.
    fn check_failures(&mut self) {
        self.reported_blocks.sort();
        let mut blocks: Vec<BlockId> = self.failures().map(|(_, plan)| plan.block_id).collect();
        blocks.sort();
        assert_eq!(self.reported_blocks, if self.by_request { Vec::new() } else { blocks });
    }

    fn close(mut self) {
        self.worker.close();
        self.take_reports();
        assert_eq!(self.worker.open_jobs(), 0);
        assert!(self.events.is_empty(), "events that nobody heard of: {:?}", self.events);
        self.loading.retain(|_, jobs| !jobs.is_empty());
        assert!(!self.async_load || self.loading.is_empty(), "loads that nobody heard of: {:?}", self.loading);
        for job in 0..self.worker.runtime().jobs() {
            let (_, ended, taken) = self.worker.runtime().job(job);
            assert!(ended.is_some() && taken, "job {job} is open after close");
        }
        self.check_failures();
        assert!(!self.by_request || self.untold().next().is_none(), "a failed load was never reported");
        let stats = self.worker.get_kv_connector_stats().unwrap_or_default();
        for (sum, is_load) in [(stats.load, true), (stats.store, false)] {
            let jobs = (0..self.worker.runtime().jobs()).filter(|job| self.loads.contains(job) == is_load);
            let (mut submitted, mut completed, mut failed) = (0, 0, 0);
            for job in jobs {
                let (plans, ended, _) = self.worker.runtime().job(job);
                submitted += plans.len() as u64;
                if self.dropped.contains(&job) {
                    continue;
                }
                for block in ended.map_or(&[][..], |ended| &ended.blocks) {
                    completed += u64::from(block.result.is_good());
                    failed += u64::from(!block.result.is_good() && block.result != KeyResult::Cancelled);
                }
            }
            let sum = sum.unwrap_or_default();
            assert_eq!((sum.submitted, sum.completed, sum.failed), (submitted, completed, failed), "load: {is_load}");
        }
        self.worker.close();
        self.take_reports();
    }
}

proptest! {
    /// A job settles once; no block is reported finished while a job touches it; a failed load is reported once, for
    /// exactly its blocks; after close nothing is pending. (A job whose end is asked for twice panics in the script.)
    #[test]
    fn every_history_keeps_the_promises(
        async_load: bool,
        by_request: bool,
        cancel in prop::sample::select(vec![Cancel::Absent, Cancel::Cancels, Cancel::Completes]),
        bulk in prop::sample::select(vec![Bulk::Accepts, Bulk::Declines]),
        steps in prop::collection::vec(step(), 0..40),
    ) {
        let mut world = World::new(async_load, by_request, cancel, bulk);
        for step in &steps {
            world.step(step);
            if matches!(step, Step::Reports) {
                world.check_failures();
            }
        }
        world.close();
    }
}
