//! The namespaces of one path: numbers in its records, and the file that holds their descriptors.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use umbp_plugin_api::Status;

use crate::folder::Folder;
use crate::format::{DESCRIPTOR_MAX_BYTES, NAMESPACES_MAX, NamespaceTable, StoredNamespace, decode_namespaces};

/// A namespace as operations know it.
#[derive(Debug)]
pub(crate) struct Namespace {
    /// Goes into every checksum.
    pub(crate) digest: [u8; 32],
    /// Its local id in each path.
    pub(crate) local: Vec<u32>,
}

/// The table of one path.
pub(crate) struct Namespaces {
    table: NamespaceTable,
    /// Introduced in this life: local id → the host's number.
    introduced: HashMap<u32, u32>,
    /// Recovery has begun: a namespace of an earlier life that comes only now gets a new local id, since some of its
    /// blocks were passed over already.
    sealed: bool,
    /// The first local id of this life.
    first: u32,
}

impl Namespaces {
    /// Reads the folder's table; `None` if it is missing or damaged. Then no record can be trusted to name its
    /// namespace, and the store has to begin anew.
    pub(crate) fn load(folder: &Folder) -> io::Result<Option<Self>> {
        let table = match std::fs::read(folder.file("namespaces")) {
            Ok(bytes) => decode_namespaces(&bytes, folder.uuid()).ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(table.map(|table| Self { first: table.next, table, introduced: HashMap::new(), sealed: false }))
    }

    /// An empty table, written to the folder.
    pub(crate) fn create(folder: &Folder) -> io::Result<Self> {
        let table = NamespaceTable::default();
        let mut created = Self { first: table.next, table, introduced: HashMap::new(), sealed: false };
        created.write(folder, NamespaceTable::default())?;
        Ok(created)
    }

    /// All of an earlier life, for the host.
    pub(crate) fn stored(&self) -> &[StoredNamespace] {
        &self.table.entries
    }

    /// The local id of a namespace, given now if it has none. Durable on return.
    pub(crate) fn introduce(
        &mut self,
        folder: &Folder,
        host: u32,
        digest: &[u8; 32],
        text: &[u8],
    ) -> Result<u32, Status> {
        if text.len() > DESCRIPTOR_MAX_BYTES {
            return Err(Status::INVALID);
        }
        let known = self.table.entries.iter().position(|entry| entry.digest == *digest);
        if let Some(entry) = known.map(|at| &self.table.entries[at]) {
            let usable = !self.sealed || self.introduced.contains_key(&entry.local);
            if usable && entry.descriptor == text {
                self.introduced.insert(entry.local, host);
                return Ok(entry.local);
            }
        }
        let mut table = self.table.clone();
        if let Some(at) = known {
            table.entries.swap_remove(at);
        }
        if table.entries.len() >= NAMESPACES_MAX {
            return Err(Status::NO_SPACE);
        }
        let local = table.next;
        table.next = local.checked_add(1).ok_or(Status::NO_SPACE)?;
        table.entries.push(StoredNamespace { local, digest: *digest, descriptor: text.to_vec() });
        self.write(folder, table).map_err(|_| Status::IO)?;
        self.introduced.insert(local, host);
        Ok(local)
    }

    /// From now on, namespaces of an earlier life that were not introduced are strangers.
    pub(crate) fn seal(&mut self) {
        self.sealed = true;
    }

    /// The host's number of a local id, if it was introduced in this life.
    pub(crate) fn host_id(&self, local: u32) -> Option<u32> {
        self.introduced.get(&local).copied()
    }

    /// Strangers are out of the file: no later life gives out their blocks.
    pub(crate) fn strangers_gone(&self) -> bool {
        self.sealed && self.table.entries.iter().all(|entry| self.introduced.contains_key(&entry.local))
    }

    /// Whatever an earlier life has left is strangers'.
    pub(crate) fn all_new(&self) -> bool {
        self.introduced.keys().all(|local| *local >= self.first)
    }

    /// Drops all that were not introduced in this life.
    pub(crate) fn drop_strangers(&mut self, folder: &Folder) -> io::Result<()> {
        let mut table = self.table.clone();
        table.entries.retain(|entry| self.introduced.contains_key(&entry.local));
        if table.entries.len() == self.table.entries.len() { Ok(()) } else { self.write(folder, table) }
    }

    /// Drops one: its records are dead from now on.
    pub(crate) fn drop_one(&mut self, folder: &Folder, local: u32) -> io::Result<()> {
        let mut table = self.table.clone();
        table.entries.retain(|entry| entry.local != local);
        self.write(folder, table)?;
        self.introduced.remove(&local);
        Ok(())
    }

    fn write(&mut self, folder: &Folder, table: NamespaceTable) -> io::Result<()> {
        folder.replace("namespaces", &table.encode(folder.uuid()))?;
        self.table = table;
        Ok(())
    }
}

/// All namespaces of a tier by the host's number.
pub(crate) type NamespaceMap = HashMap<u32, Arc<Namespace>>;
