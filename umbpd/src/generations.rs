//! The generation tables: one shared read-only memfd per tenant, a word for each extent.
//!
//! A client reads an extent's word after it copied from the extent; a word that differs from the leased generation
//! means that the extent was reused meanwhile. The daemon maps a table for writing first and seals it afterwards, so
//! that nobody else can ever write or resize it.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::engine::api::{Generations, TenantIndex};

/// Words of one page: tables are whole pages.
const PAGE_WORDS: u64 = 512;
/// Most words of one table: 16 TiB of first tier in extents of 4 KiB, and all that a slot's number can tell apart.
/// Tables are sparse, so unused words cost nothing.
const WORDS_MAX: u64 = 1 << 32;

/// Words of a table in which at least `needed` fit. A slot beyond the end is never handed out, since the first tier
/// has a bounded number of segments.
pub fn words_for(needed: u64) -> u64 {
    needed.clamp(1, WORDS_MAX).next_multiple_of(PAGE_WORDS)
}

/// One tenant's table.
struct Table {
    fd: OwnedFd,
    words: *mut AtomicU64,
    count: u64,
}

// SAFETY: the mapping belongs to this value alone and is only accessed through atomics.
unsafe impl Send for Table {}

impl Table {
    fn new(name: &str, count: u64) -> rustix::io::Result<Self> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        let bytes = count * 8;
        ftruncate(&fd, bytes)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let words = unsafe {
            mmap(std::ptr::null_mut(), bytes as usize, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0)?
        };
        let table = Self { fd, words: words.cast(), count };
        fcntl_add_seals(&table.fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok(table)
    }

    fn word(&self, slot: u32) -> Option<&AtomicU64> {
        // SAFETY: the slot lies inside the mapping, which lives as long as self; the seals keep the file's size.
        (u64::from(slot) < self.count).then(|| unsafe { &*self.words.add(slot as usize) })
    }

    /// The daemon alone writes: its last value. Reading a word of a page that was never written takes the page.
    fn get(&self, slot: u32) -> u64 {
        self.word(slot).map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`; no reference to it outlives self.
        let _ = unsafe { munmap(self.words.cast(), (self.count * 8) as usize) };
    }
}

/// All tables, one for each tenant of the config.
pub struct Tables {
    tables: Vec<Table>,
    /// The highest word of all: the next is higher, whoever had its slot before. So nothing of another tenant's table
    /// is read, and pages of it that were never written take no memory.
    last: u64,
}

impl Tables {
    /// Tables of `words` each.
    pub fn new(tenants: usize, words: u64) -> rustix::io::Result<Self> {
        let tables = (0..tenants).map(|tenant| Table::new(&format!("umbp-generations-{tenant}"), words));
        Ok(Self { tables: tables.collect::<Result<_, _>>()?, last: 0 })
    }

    /// The fds to send to sessions, by tenant.
    pub fn fds(&self) -> std::io::Result<Vec<OwnedFd>> {
        self.tables.iter().map(|table| table.fd.try_clone()).collect()
    }

    /// Words of each table; the engine numbers its slots below this.
    pub fn words(&self) -> u64 {
        self.tables.first().map_or(0, |table| table.count)
    }
}

impl Generations for Tables {
    fn get(&self, tenant: TenantIndex, slot: u32) -> u64 {
        self.tables.get(usize::from(tenant.0)).map_or(0, |table| table.get(slot))
    }

    fn advance(&mut self, tenant: TenantIndex, slot: u32) {
        self.last += 1;
        match self.tables.get(usize::from(tenant.0)).and_then(|table| table.word(slot)) {
            Some(word) => word.store(self.last, Ordering::Release),
            None => tracing::error!("generation slot {slot} of tenant {} is outside of the tables", tenant.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn what_one_tenant_writes_takes_no_memory_of_another() {
        let mut tables = Tables::new(3, words_for(1 << 20)).expect("tables");
        (0..1 << 20).for_each(|slot| tables.advance(TenantIndex(1), slot));
        let blocks = |at: usize| rustix::fs::fstat(&tables.tables[at].fd).expect("stat").st_blocks;
        assert_eq!([blocks(0), blocks(1), blocks(2)], [0, 8 << 20 >> 9, 0], "of 512 bytes");
    }

    #[test]
    fn a_client_sees_each_word_and_can_change_neither_word_nor_size() {
        let mut tables = Tables::new(2, words_for(256)).expect("tables");
        assert_eq!(tables.words(), 512);
        for (tenant, expected) in [(1, 1), (1, 2), (0, 3), (1, 4)] {
            tables.advance(TenantIndex(tenant), 511);
            assert_eq!(tables.get(TenantIndex(tenant), 511), expected, "higher than any tenant's before");
        }
        tables.advance(TenantIndex(1), 512);
        assert_eq!(tables.get(TenantIndex(1), 512), 0, "outside of the table");
        let fd = &tables.fds().expect("dup")[1];
        let mut word = [0u8; 8];
        assert_eq!(rustix::io::pread(fd, &mut word, 511 * 8).expect("read"), 8);
        assert_eq!(u64::from_le_bytes(word), 4);
        assert_eq!(rustix::io::pwrite(fd, &word, 0), Err(Errno::PERM));
        assert!(ftruncate(fd, 0).is_err() && ftruncate(fd, 1 << 20).is_err());
        // SAFETY: a new mapping at an address of the kernel's choice; it is refused.
        let map = unsafe { mmap(std::ptr::null_mut(), 4096, ProtFlags::WRITE, MapFlags::SHARED, fd, 0) };
        assert_eq!(map.err(), Some(Errno::PERM));
        assert_eq!(rustix::fs::fstat(fd).expect("stat").st_mode & 0o777, 0o600);
    }
}
