//! Preemption: the engine takes blocks back, so no job may touch them any more.

use super::store::Owner;
use super::{StoreJob, Worker};
use crate::metadata::ConnectorMetadata;
use crate::runtime::Runtime;

impl<R: Runtime> Worker<R> {
    /// Ends the loads and stores of preempted requests. When it returns, no thread touches their blocks.
    ///
    /// Nobody waits for those loads any more: they are reported nowhere. Stores stay in their step's event, as failed
    /// or as what they came to.
    pub fn handle_preemptions(&mut self, metadata: &ConnectorMetadata) {
        let preempted = &metadata.preempted;
        if preempted.is_empty() {
            return;
        }
        let runtime = &mut self.runtime;
        let gone = self.loads.extract_if(.., |loads| preempted.contains(&loads.request));
        for mut loads in gone {
            loads.jobs.iter_mut().for_each(|job| job.cancel(runtime));
        }
        let sealed = self.pending_stores.iter_mut().chain([&mut self.enqueued]);
        for StoreJob { owner, job } in sealed.flat_map(|batch| &mut batch.jobs) {
            let owned = matches!(owner, Owner::Request(request) if preempted.contains(request));
            if owned || job.is_of(preempted) {
                job.cancel(runtime);
            }
        }
    }
}
