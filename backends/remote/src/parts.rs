//! Large blocks: parts under names of their own, then a manifest under the block's. No reader sees half, since nobody
//! knows the parts before the manifest is there.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::time::Instant;
use umbp_plugin_api::Completion;

use crate::calls::Calls;

use crate::header::{HEADER_BYTES, Header, Kind, Unsound};
use crate::objects::{Fault, Objects};
use crate::store::{Block, Buffer, Store};

/// Parts of one block on their way at a time.
const PARTS_AT_ONCE: usize = 4;
/// Time to take parts away that nobody asks for, whatever became of the operation that stored them.
const CLEANUP: Duration = Duration::from_secs(10);

/// Parts that no manifest names. Dropped while it holds some, it takes them away in the background; what cannot be
/// deleted stays until its lifetime is over.
struct Loose<O: Objects> {
    calls: Arc<Calls<O>>,
    names: Vec<String>,
}

impl<O: Objects> Drop for Loose<O> {
    fn drop(&mut self) {
        let (calls, names) = (self.calls.clone(), std::mem::take(&mut self.names));
        // Outside the runtime, or while it ends, nobody is left to do it.
        if let Some(runtime) = tokio::runtime::Handle::try_current().ok().filter(|_| !names.is_empty()) {
            runtime.spawn(async move { calls.delete_all(&names, Instant::now() + CLEANUP).await });
        }
    }
}

impl<O: Objects> Store<O> {
    pub(crate) async fn put_parts(&self, block: &Block, buffer: Buffer, until: Instant) -> Result<Completion, Fault> {
        let name = self.names.block(&block.namespace, block.key());
        // So much is not sent for nothing.
        if let Some(there) = self.settle(block, &name, until).await? {
            return Ok(there);
        }
        let manifest = block.manifest(self.part_bytes, self.calls.random().max(1));
        let put = async |part: u32| {
            let header = Header { kind: Kind::Part, part, ..manifest.clone() };
            let start = u64::from(part) * manifest.part_bytes;
            let payload = buffer.read(start as usize, manifest.bytes_of_part(part) as usize);
            let name = self.names.part(&name, manifest.upload, part);
            self.calls.replace(&name, &[&header.encode(), payload], until).await
        };
        let sent = stream::iter((0..manifest.parts).map(put)).buffer_unordered(PARTS_AT_ONCE);
        let mut loose = Loose { calls: self.calls.clone(), names: self.part_names(&name, &manifest) };
        sent.try_collect::<()>().await?;
        // From here on a manifest may be there though nobody heard of it: then the parts are its own.
        let names = std::mem::take(&mut loose.names);
        let answer = self.put_object(block, &manifest, &[], until).await;
        match &answer {
            Ok(done) if done.location == manifest.location() => {}
            Err(Fault::Late(_) | Fault::Unreachable(_)) => self.calls.words.count("parts.left"),
            // Another was first, or it was refused.
            _ => loose.names = names,
        }
        answer
    }

    fn part_names(&self, name: &str, manifest: &Header) -> Vec<String> {
        (0..manifest.parts).map(|part| self.names.part(name, manifest.upload, part)).collect()
    }

    /// Fetches all parts into the buffer. A part that is missing or not what it should be makes the block worthless.
    pub(crate) async fn get_parts(
        &self,
        block: &Block,
        name: &str,
        manifest: &Header,
        buffer: Buffer,
        until: Instant,
    ) -> Result<Result<(), Unsound>, Fault> {
        let get = async |part: u32| -> Result<Result<(), Unsound>, Fault> {
            let wanted = Header { kind: Kind::Part, part, ..manifest.clone() };
            let part_name = self.names.part(name, manifest.upload, part);
            let object = self.calls.get(&part_name, wanted.object_bytes() + 1, until).await?;
            let Some(object) = object else { return Ok(Err(Unsound::PartMissing)) };
            let found = match Header::decode(&object) {
                Ok(found) => found,
                Err(unsound) => return Ok(Err(unsound)),
            };
            if found != wanted || object.len() as u64 != wanted.object_bytes() {
                return Ok(Err(if found == wanted { Unsound::Truncated } else { Unsound::OtherKey }));
            }
            buffer.write((u64::from(part) * manifest.part_bytes) as usize, &object[HEADER_BYTES..]);
            Ok(Ok(()))
        };
        debug_assert_eq!(manifest.length, block.length(), "checked by the caller");
        let mut parts = stream::iter((0..manifest.parts).map(get)).buffer_unordered(PARTS_AT_ONCE);
        while let Some(part) = parts.try_next().await? {
            if part.is_err() {
                return Ok(part);
            }
        }
        Ok(Ok(()))
    }

    /// Parts whose manifest is gone: they go too, in the background.
    pub(crate) fn drop_parts(&self, name: &str, manifest: &Header) {
        drop(Loose { calls: self.calls.clone(), names: self.part_names(name, manifest) });
    }
}
