//! Buffers that operations name.

use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Anonymous memory, aligned to a page, unmapped when dropped.
pub(super) struct Memory {
    address: NonNull<u8>,
    length: usize,
    leaked: bool,
}

// SAFETY: an address range; who reads and writes when is the life's business, which waits for completions.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn new(length: usize) -> Result<Self, String> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a fresh range; nothing of ours is replaced.
        let address = unsafe { mmap_anonymous(std::ptr::null_mut(), length, access, MapFlags::PRIVATE) }
            .map_err(|errno| format!("the kit cannot map {length} bytes of its own: {errno}"))?;
        let address = NonNull::new(address.cast()).ok_or("the kit's memory is at address zero")?;
        Ok(Self { address, length, leaked: false })
    }

    pub(super) fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    pub(super) fn length(&self) -> u64 {
        self.length as u64
    }

    /// Copies bytes in.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) {
        let from = self.at(offset, bytes.len());
        // SAFETY: `at` checked the range; no operation owns it now, since the kit waits for completions.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), from, bytes.len()) }
    }

    /// Sets bytes.
    pub(super) fn fill(&self, offset: u64, length: usize, byte: u8) {
        let from = self.at(offset, length);
        // SAFETY: as in `write`.
        unsafe { std::ptr::write_bytes(from, byte, length) }
    }

    /// A copy of the bytes as they are now.
    pub(super) fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let from = self.at(offset, length);
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), length) }
        bytes
    }

    /// Leaves the memory mapped for ever: somebody may still touch it.
    pub(super) fn leak(&mut self) {
        self.leaked = true;
    }

    fn at(&self, offset: u64, length: usize) -> *mut u8 {
        let offset = offset as usize;
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.length), "the kit's own range is wrong");
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.address().add(offset) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.leaked {
            return;
        }
        // SAFETY: mapped by `new`, unmapped once. A life unregisters its regions, or shuts its backend down, first.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.length) };
    }
}
