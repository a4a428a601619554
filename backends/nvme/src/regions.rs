//! Memory that the host registered: found by number in `submit`, pinned for the ring by the driver thread.

use std::collections::HashMap;
use std::sync::Arc;

use umbp_plugin_api::Host;
use umbp_plugin_api::backend::Level;

use crate::port::{BUFFERS_MAX, Port};

/// The longest buffer that io_uring registers as one.
pub(crate) const CHUNK_BYTES: u64 = 1 << 30;

/// An address that crosses threads as a number would.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address(pub(crate) *mut u8);

// SAFETY: only the address is carried; who follows it has to know that it is mapped.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// One region.
#[derive(Clone)]
pub(crate) struct Region {
    pub(crate) address: Address,
    pub(crate) length: u64,
    /// For each path its registered buffers, one per chunk, or none.
    pub(crate) registered: Vec<Arc<[u16]>>,
}

/// All regions by the host's number.
pub(crate) type RegionMap = HashMap<u64, Region>;

/// Numbers of registered buffers of one port.
pub(crate) struct Registrations {
    free: Vec<u16>,
    host: Host,
    refused: bool,
}

impl Registrations {
    /// None taken.
    pub(crate) fn new(host: Host) -> Self {
        Self { free: (0..BUFFERS_MAX).rev().collect(), host, refused: false }
    }

    /// Registers memory in chunks, all or none.
    pub(crate) fn add(&mut self, port: &mut dyn Port, address: *mut u8, length: u64) -> Vec<u16> {
        let mut buffers = Vec::new();
        for start in (0..length).step_by(CHUNK_BYTES as usize) {
            let chunk = CHUNK_BYTES.min(length - start) as usize;
            let Some(number) = self.free.pop() else {
                self.fall_back(&format!("all {BUFFERS_MAX} buffers of the ring are taken"));
                self.remove(port, &buffers);
                return Vec::new();
            };
            buffers.push(number);
            // SAFETY: `region_register`'s caller promises that the region stays mapped until it is unregistered, and
            // `start` lies inside it.
            if let Err(error) = unsafe { port.register(number, address.add(start as usize), chunk) } {
                let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
                let limit = limit.map_or("unlimited".to_owned(), |bytes| format!("{bytes} bytes"));
                self.fall_back(&format!("the kernel refused: {error}; RLIMIT_MEMLOCK is {limit}: raise it"));
                self.remove(port, &buffers);
                return Vec::new();
            }
        }
        buffers
    }

    /// Lets go of buffers.
    pub(crate) fn remove(&mut self, port: &mut dyn Port, buffers: &[u16]) {
        for &number in buffers {
            port.unregister(number);
            self.free.push(number);
        }
    }

    fn fall_back(&mut self, cause: &str) {
        self.host.count("fallback.registered_buffers", 1);
        if !std::mem::replace(&mut self.refused, true) {
            self.host.log(Level::Warn, &format!("memory is used without registration, which costs CPU: {cause}"));
        }
    }
}
