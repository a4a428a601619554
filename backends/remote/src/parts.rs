//! Large blocks: parts under names of their own, then a manifest under the block's. No reader sees half, since nobody
//! knows the parts before the manifest is there.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::time::Instant;
use umbp_plugin_api::Completion;

use crate::header::{HEADER_BYTES, Header, Kind, Unsound};
use crate::objects::{Fault, Objects};
use crate::store::{Block, Buffer, Store};

/// Parts of one block on their way at a time.
const PARTS_AT_ONCE: usize = 4;

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
        let mut answer = sent.try_collect::<()>().await.map(|()| None);
        if answer.is_ok() {
            answer = self.put_object(block, &manifest, &[], until).await.map(Some);
        }
        let ours = matches!(&answer, Ok(Some(done)) if done.location == manifest.location());
        if !ours {
            // Another was first, or it failed: nobody will ever ask for these.
            self.delete_parts(&name, &manifest, until).await;
        }
        answer.map(Option::unwrap_or_default)
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

    /// Parts that no manifest names any more. What cannot be deleted stays until its lifetime is over.
    pub(crate) async fn delete_parts(&self, name: &str, manifest: &Header, until: Instant) {
        let delete = async |part: u32| {
            let name = self.names.part(name, manifest.upload, part);
            if self.calls.delete(&name, until).await.is_err() {
                self.calls.words.count("parts.left");
            }
        };
        stream::iter((0..manifest.parts).map(delete)).buffer_unordered(PARTS_AT_ONCE).collect::<()>().await;
    }
}
