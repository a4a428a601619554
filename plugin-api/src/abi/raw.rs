//! What calls answer besides a status, as plain structs. Like those of [`crate::types`], they may grow at their end
//! and nowhere else.

use super::plain::{Plain, plain};

/// A text or a stretch of bytes that is valid during the call which hands it over.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Text {
    address: u64,
    length: u64,
}
plain!(Text { address: u64, length: u64 });

impl Text {
    /// Borrows `bytes`; the caller keeps them alive during the call.
    pub fn of(bytes: &[u8]) -> Self {
        Self { address: bytes.as_ptr() as u64, length: bytes.len() as u64 }
    }

    /// Copies the bytes out.
    ///
    /// # Safety
    /// The other side keeps the contract: the bytes are valid during this call.
    pub unsafe fn bytes(self) -> Vec<u8> {
        if self.address == 0 || self.length == 0 {
            return Vec::new();
        }
        // SAFETY: the caller vouches for address and length.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.length as usize) }.to_vec()
    }

    /// Copies the text out; bytes that are not UTF-8 are replaced.
    ///
    /// # Safety
    /// As for [`Text::bytes`].
    pub unsafe fn string(self) -> String {
        // SAFETY: the caller's promise is passed on.
        let bytes = unsafe { self.bytes() };
        String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
    }
}

/// What `open` is asked for.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ConfigRaw {
    /// Name of the tier.
    pub tier: Text,
    /// The options' TOML text.
    pub options: Text,
    /// Most bytes.
    pub capacity: u64,
    /// Most operations in flight.
    pub slots: u32,
    /// Zero.
    pub reserved: u32,
}
plain!(ConfigRaw { tier: Text, options: Text, capacity: u64, slots: u32, reserved: u32 });

/// What `open` found out.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenedRaw {
    /// Multiple of buffers and offsets, in bytes.
    pub alignment: u64,
    /// Longest payload, in bytes.
    pub largest_payload: u64,
    /// 1 if it answers `file_extent`.
    pub file_extent: u32,
    /// Zero.
    pub reserved: u32,
    /// One line for a person.
    pub report: Text,
}
plain!(OpenedRaw { alignment: u64, largest_payload: u64, file_extent: u32, reserved: u32, report: Text });

/// Kinds of [`ErrorRaw`].
pub mod error_kind {
    /// The options are wrong; the span is set.
    pub const OPTIONS: u32 = 1;
    /// Another process holds the storage.
    pub const LOCKED: u32 = 2;
    /// The size cannot be had.
    pub const TOO_LARGE: u32 = 3;
    /// The machine lacks something. Also what an unknown kind is read as.
    pub const ENVIRONMENT: u32 = 4;
    /// The backend panicked.
    pub const PANICKED: u32 = 5;
}

/// Why a call failed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ErrorRaw {
    /// One of [`error_kind`].
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
    /// Start of the fault in the options, in bytes.
    pub span_start: u64,
    /// Its end.
    pub span_end: u64,
    /// For a person.
    pub message: Text,
}
plain!(ErrorRaw { kind: u32, reserved: u32, span_start: u64, span_end: u64, message: Text });

/// A segment that the backend made; the fd changes hands with this record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SegmentRaw {
    /// Where the backend has it mapped.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// The sealed memfd.
    pub fd: i32,
    /// Zero.
    pub reserved: u32,
}
plain!(SegmentRaw { address: u64, length: u64, fd: i32, reserved: u32 });

/// A namespace of an earlier life.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct NamespaceRaw {
    /// Its digest.
    pub digest: [u8; 32],
    /// Its descriptor.
    pub descriptor: Text,
}
plain!(NamespaceRaw { digest: [u8; 32], descriptor: Text });

/// Where a page of recovery ends.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CursorRaw {
    /// For the next call.
    pub cursor: u64,
    /// 1 if more follows.
    pub more: u32,
    /// Zero.
    pub reserved: u32,
}
plain!(CursorRaw { cursor: u64, more: u32, reserved: u32 });

/// Figures of now.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct StatsRaw {
    /// Payload bytes.
    pub resident_bytes: u64,
    /// Bytes on the medium.
    pub medium_bytes: u64,
    /// Blocks.
    pub blocks: u64,
}
plain!(StatsRaw { resident_bytes: u64, medium_bytes: u64, blocks: u64 });
