//! The host's services as a C table, and the plugin's view of it.

use crate::backend::{HostServices, Level};
use crate::types::Completion;

use super::plain::{Records, bytes_of_slice};

/// The table that `open` is given. `context` and the functions stay valid until the process ends, so that a call
/// which comes too late, after `shutdown` or from a forgotten thread, still lands somewhere. Grows at its end: a
/// function that the host does not have is null.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ServicesRaw {
    /// First argument of every call.
    pub context: *const u8,
    /// A line for the log: level, text.
    pub log: Option<unsafe extern "C" fn(*const u8, u32, *const u8, u64)>,
    /// Adds to a counter: name, delta.
    pub count: Option<unsafe extern "C" fn(*const u8, *const u8, u64, u64)>,
    /// Completions: bytes, their length, stride.
    pub complete: Option<unsafe extern "C" fn(*const u8, *const u8, u64, u64)>,
    /// The guard tells that the backend panicked: text. The object is dead from here on.
    pub panicked: Option<unsafe extern "C" fn(*const u8, *const u8, u64)>,
}

impl ServicesRaw {
    /// As the bytes that cross.
    pub fn records(&self) -> Records<'_> {
        // SAFETY: repr(C) with five pointers and no padding, all initialised, borrowed as long as `self`.
        let bytes = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast::<u8>(), size_of::<Self>()) };
        Records::bytes(bytes)
    }

    /// Reads the host's table; functions beyond its end are null.
    ///
    /// # Safety
    /// The records come from a host of this major version, so each word is null or a function of that type.
    pub unsafe fn read(records: Records<'_>) -> Self {
        let mut table = Self { context: std::ptr::null(), log: None, count: None, complete: None, panicked: None };
        let bytes = records.as_bytes();
        // SAFETY: the length is within both; the caller vouches for the words.
        unsafe {
            let taken = bytes.len().min(size_of::<Self>());
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), std::ptr::from_mut(&mut table).cast::<u8>(), taken);
        }
        table
    }
}

/// The host, as the plugin calls it.
#[derive(Clone, Copy)]
pub struct Services(ServicesRaw);

// SAFETY: the host promises that context and functions may be used from any thread, for ever.
unsafe impl Send for Services {}
// SAFETY: as above.
unsafe impl Sync for Services {}

impl Services {
    /// Wraps the table.
    ///
    /// # Safety
    /// As for [`ServicesRaw::read`].
    pub unsafe fn new(records: Records<'_>) -> Self {
        // SAFETY: the caller's promise is passed on.
        Self(unsafe { ServicesRaw::read(records) })
    }

    /// Tells the host that the object is dead.
    pub fn panicked(&self, text: &str) {
        if let Some(call) = self.0.panicked {
            // SAFETY: a function of the host, with its own context; the text lives during the call.
            unsafe { call(self.0.context, text.as_ptr(), text.len() as u64) }
        }
    }
}

/// The number of a level on the wire.
pub const fn level_number(level: Level) -> u32 {
    match level {
        Level::Error => 1,
        Level::Warn => 2,
        Level::Info => 3,
        Level::Debug => 4,
    }
}

/// The level of a number; an unknown one is for those who look for a fault.
pub const fn level_of(number: u32) -> Level {
    match number {
        1 => Level::Error,
        2 => Level::Warn,
        3 => Level::Info,
        _ => Level::Debug,
    }
}

impl HostServices for Services {
    fn log(&self, level: Level, text: &str) {
        if let Some(call) = self.0.log {
            // SAFETY: a function of the host, with its own context; the text lives during the call.
            unsafe { call(self.0.context, level_number(level), text.as_ptr(), text.len() as u64) }
        }
    }

    fn count(&self, name: &str, delta: u64) {
        if let Some(call) = self.0.count {
            // SAFETY: as above.
            unsafe { call(self.0.context, name.as_ptr(), name.len() as u64, delta) }
        }
    }

    fn complete(&self, completions: &[Completion]) {
        if let Some(call) = self.0.complete {
            let bytes = bytes_of_slice(completions);
            // SAFETY: as above.
            unsafe { call(self.0.context, bytes.as_ptr(), bytes.len() as u64, size_of::<Completion>() as u64) }
        }
    }
}
