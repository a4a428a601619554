//! What `submit` does with one operation, without ever waiting for the disk: check it, reserve units or look the block
//! up, hand over.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use umbp_plugin_api::types::{Operation, code};
use umbp_plugin_api::{Completion, Status, Submitted};

use crate::backend::{LARGEST_PAYLOAD_BYTES, Nvme};
use crate::format::{UNIT_BYTES, fingerprint};
use crate::inbox::Command;
use crate::keeper::Deletion;
use crate::namespaces::Namespace;
use crate::port::Direction;
use crate::queue::locked;
use crate::space::{Live, parts, tag};
use crate::ticket::Ticket;
use crate::transfer::{Buffer, Place, Transfer};

impl Nvme {
    /// Takes one operation, or says why not.
    pub(crate) fn take(&self, operation: &Operation) -> Submitted {
        let checked = match operation.code {
            code::PUT | code::GET => self.prepare(operation).map(Some),
            code::DELETE | code::EXISTS | code::FILE_EXTENT => Ok(None),
            _ => Err(Status::UNSUPPORTED),
        };
        let prepared = match checked {
            Ok(prepared) => prepared,
            Err(status) => return Submitted::rejected(status),
        };
        let ticket = match self.slots.take(operation.id, &self.host) {
            Ok(Some(ticket)) => ticket,
            Ok(None) => return Submitted::BUSY,
            Err(()) => return Submitted::rejected(Status::CANCELLED),
        };
        match (operation.code, prepared) {
            (code::PUT, Some((namespace, buffer))) => self.put(operation, namespace, buffer, ticket),
            (code::GET, Some((namespace, buffer))) => self.get(operation, namespace, buffer, ticket),
            (code::DELETE, _) => self.delete(operation, ticket),
            _ => self.tell(operation, ticket),
        }
        Submitted::ACCEPTED
    }

    fn prepare(&self, operation: &Operation) -> Result<(Arc<Namespace>, Buffer), Status> {
        let Operation { region, offset, length, namespace_id, .. } = *operation;
        if length == 0 || length > LARGEST_PAYLOAD_BYTES {
            return Err(Status::INVALID);
        }
        let namespaces = self.namespaces.read().unwrap_or_else(|e| e.into_inner());
        let namespace = namespaces.get(&namespace_id).cloned().ok_or(Status::INVALID)?;
        let regions = self.regions.read().unwrap_or_else(|e| e.into_inner());
        let region = regions.get(&region).ok_or(Status::INVALID)?;
        if offset.checked_add(length).is_none_or(|end| end > region.length) {
            return Err(Status::INVALID);
        }
        // SAFETY: the offset lies inside the region, which is mapped.
        let address = unsafe { region.address.0.add(offset as usize) };
        // Which path's buffers it will be is not known yet.
        Ok((namespace, Buffer { address, offset, room: region.length - offset, registered: Arc::default() }))
    }

    fn registered(&self, region: u64, path: usize) -> Arc<[u16]> {
        let regions = self.regions.read().unwrap_or_else(|e| e.into_inner());
        regions.get(&region).and_then(|region| region.registered.get(path).cloned()).unwrap_or_default()
    }

    fn put(&self, operation: &Operation, namespace: Arc<Namespace>, buffer: Buffer, ticket: Ticket) {
        let length = operation.length;
        let mut paths: Vec<usize> = (0..self.stores.len()).collect();
        if paths.len() > 1 {
            let free: Vec<u64> = self.stores.iter().map(|store| locked(&store.space).free_bytes()).collect();
            paths.sort_by_key(|&path| std::cmp::Reverse(free[path]));
        }
        // Room that is there goes before room that has to be waited for.
        let mut found: Option<(usize, Place)> = None;
        for path in paths {
            match self.stores[path].reserve(length) {
                Some(Place::Await(awaited)) => found = found.or(Some((path, Place::Await(awaited)))),
                Some(place) => {
                    found = Some((path, place));
                    break;
                }
                None => {}
            }
        }
        let Some((path, place)) = found else {
            self.host.count("no_space", 1);
            return ticket.fail(Status::NO_SPACE, 0);
        };
        self.hand_over(path, place, operation, namespace, buffer, ticket);
    }

    fn get(&self, operation: &Operation, namespace: Arc<Namespace>, buffer: Buffer, ticket: Ticket) {
        let Some((path, unit, block)) = self.find(operation) else { return ticket.fail(Status::MISS, 0) };
        let local = namespace.local.get(path).copied();
        if u64::from(block.length) != operation.length || local != Some(block.namespace) {
            return ticket.fail(Status::MISS, 0);
        }
        self.hand_over(path, Place::Load(unit), operation, namespace, buffer, ticket);
    }

    fn hand_over(
        &self,
        path: usize,
        place: Place,
        operation: &Operation,
        namespace: Arc<Namespace>,
        buffer: Buffer,
        ticket: Ticket,
    ) {
        let buffer = Buffer { registered: self.registered(operation.region, path), ..buffer };
        let local = namespace.local.get(path).copied().unwrap_or_default();
        let operation = *operation;
        let (direction, unit, reserved, awaited) = match place {
            Place::Load(unit) => (Direction::Load, unit, None, None),
            Place::Store(reserved) => (Direction::Store, reserved.unit, Some(reserved), None),
            Place::Await(awaited) => (Direction::Store, 0, None, Some(awaited)),
        };
        let transfer = Transfer { direction, unit, local, operation, namespace, buffer, reserved, awaited, ticket };
        // Refused by a driver that has ended: dropped, and so completed as failed.
        drop(self.stores[path].inbox.push(Command::Transfer(Box::new(transfer))));
    }

    /// Path, unit and block of an operation whose location is still current, and is its key's.
    fn find(&self, operation: &Operation) -> Option<(usize, u64, Live)> {
        let (path, unit, _) = parts(operation.location);
        let block = locked(&self.stores.get(usize::from(path))?.space).find(unit)?;
        is_meant(&block, operation).then_some((usize::from(path), unit, block))
    }

    fn delete(&self, operation: &Operation, ticket: Ticket) {
        let (path, unit, _) = parts(operation.location);
        let Some(store) = self.stores.get(usize::from(path)) else { return ticket.fail(Status::MISS, 0) };
        let mut space = locked(&store.space);
        let current = space.find(unit).is_some_and(|block| is_meant(&block, operation));
        let Some(block) = current.then(|| space.forget(unit)).flatten() else {
            drop(space);
            return ticket.fail(Status::MISS, 0);
        };
        drop(space);
        let (store, ticket) = (store.clone(), Some(ticket));
        self.stores[usize::from(path)].keeper.delete(Deletion { store, unit, block, recorded: false, ticket });
    }

    /// `exists` and `file_extent`: answered from memory.
    fn tell(&self, operation: &Operation, ticket: Ticket) {
        let Some((path, unit, block)) = self.find(operation) else { return ticket.fail(Status::MISS, 0) };
        let (location, length) = (operation.location, u64::from(block.length));
        let mut completion = Completion { location, length, ..Completion::default() };
        if operation.code == code::FILE_EXTENT {
            completion.fd = self.stores[path].data.as_raw_fd();
            completion.offset = unit * UNIT_BYTES;
        }
        ticket.finish(completion);
    }
}

/// Whether the block at the operation's location is the one that the host means, and not a later one.
fn is_meant(block: &Live, operation: &Operation) -> bool {
    let (_, _, wanted) = parts(operation.location);
    tag(block.generation) == wanted && block.fingerprint == fingerprint(&operation.key)
}
