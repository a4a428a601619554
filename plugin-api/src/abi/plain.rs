//! Plain structs as bytes: how everything that may grow crosses the boundary.
//!
//! Records cross as one stretch of bytes and a stride. The reader takes min(stride, its own size) of each record and
//! fills the rest with zero, so either side may know more fields than the other.

use std::borrow::Cow;
use std::marker::PhantomData;

use abi_stable::StableAbi;
use abi_stable::std_types::RSlice;

use crate::types::{Completion, Operation, RecoveredBlock, Run};

/// A struct that crosses as bytes.
///
/// # Safety
/// The type is `repr(C)`, has no padding, and every pattern of bits is a value of it.
pub unsafe trait Plain: Copy + 'static {}

/// Implements [`Plain`] and proves that the fields fill the struct.
macro_rules! plain {
    ($name:ident { $($field:ident: $kind:ty),* $(,)? }) => {
        const _: () = {
            assert!(size_of::<$name>() == 0 $(+ size_of::<$kind>())*);
            // All fields are named, each with its type.
            const fn _fields(value: $name) { $(let _: $kind = value.$field;)* }
        };
        // SAFETY: repr(C), integers only, and the fields' sizes add up to the struct's.
        unsafe impl Plain for $name {}
    };
}

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

// Of the structs in `types`, whose fields are documented there, the sizes are frozen for this minor version.
const GROWN: usize = if cfg!(feature = "__grown") { 8 } else { 0 };
const _: () = assert!(size_of::<Operation>() == 184 + GROWN && size_of::<Run>() == 32 + GROWN);
const _: () = assert!(size_of::<Completion>() == 48 + GROWN && size_of::<RecoveredBlock>() == 128 + GROWN);
// SAFETY: repr(C), integers only; the sizes above leave no room for padding.
unsafe impl Plain for Operation {}
// SAFETY: as above.
unsafe impl Plain for Run {}
// SAFETY: as above.
unsafe impl Plain for Completion {}
// SAFETY: as above.
unsafe impl Plain for RecoveredBlock {}

/// The bytes of one value.
pub fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    bytes_of_slice(std::slice::from_ref(value))
}

/// The bytes of a row of values.
pub fn bytes_of_slice<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: `Plain` has no padding, so every byte is initialised; length is the slice's own.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// One value from at most its own size of bytes; what is missing is zero.
pub fn read_prefix<T: Plain>(bytes: &[u8]) -> T {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let taken = bytes.len().min(size_of::<T>());
    // SAFETY: `taken` is within both; every pattern of bits is a `T`.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.as_mut_ptr().cast(), taken);
        value.assume_init()
    }
}

/// A row of records: bytes, and how far one record is from the next.
#[repr(C)]
#[derive(Clone, Copy, StableAbi)]
pub struct Records<'a> {
    bytes: RSlice<'a, u8>,
    stride: u64,
}

impl<'a> Records<'a> {
    /// Records of this side's own size.
    pub fn of<T: Plain>(values: &'a [T]) -> Self {
        Self { bytes: bytes_of_slice(values).into(), stride: size_of::<T>() as u64 }
    }

    /// One stretch of bytes as one record.
    pub fn bytes(bytes: &'a [u8]) -> Self {
        Self { bytes: bytes.into(), stride: bytes.len().max(1) as u64 }
    }

    /// Records `stride` bytes apart.
    pub fn with_stride(bytes: &'a [u8], stride: u64) -> Self {
        Self { bytes: bytes.into(), stride }
    }

    fn stride(&self) -> usize {
        usize::try_from(self.stride).unwrap_or(usize::MAX).max(1)
    }

    /// How many whole records these are.
    pub fn count(&self) -> usize {
        self.bytes.len() / self.stride()
    }

    /// All bytes.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes.as_slice()
    }

    /// The records, each cut or filled with zeros to this side's size.
    pub fn iter<T: Plain>(&self) -> impl ExactSizeIterator<Item = T> + use<'a, T> {
        self.as_bytes().chunks_exact(self.stride()).map(read_prefix)
    }

    /// The first record; all zero where there is none.
    pub fn first<T: Plain>(&self) -> T {
        self.iter().next().unwrap_or_else(|| read_prefix(&[]))
    }

    /// The records as a slice: in place where both sides know the same size, else copied.
    pub fn to_slice<T: Plain>(&self) -> Cow<'a, [T]> {
        let bytes = self.as_bytes();
        if self.stride() == size_of::<T>() && bytes.as_ptr().cast::<T>().is_aligned() {
            // SAFETY: aligned, `count` whole records of exactly this size, every pattern of bits is a `T`, and the
            // borrow lives as long as the bytes.
            Cow::Borrowed(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), self.count()) })
        } else {
            Cow::Owned(self.iter().collect())
        }
    }
}

/// Kinds of records that a call answers through [`Emit`]. A kind that the host does not know is passed over.
pub mod record {
    /// [`super::ErrorRaw`].
    pub const ERROR: u32 = 1;
    /// [`super::OpenedRaw`].
    pub const OPENED: u32 = 2;
    /// [`super::SegmentRaw`].
    pub const SEGMENT: u32 = 3;
    /// [`super::NamespaceRaw`].
    pub const NAMESPACE: u32 = 4;
    /// [`crate::types::RecoveredBlock`].
    pub const BLOCK: u32 = 5;
    /// [`super::CursorRaw`].
    pub const CURSOR: u32 = 6;
    /// [`super::StatsRaw`].
    pub const STATS: u32 = 7;
    /// Bytes: resolved options, or an extension's answer.
    pub const BYTES: u32 = 8;
}

/// Where a call puts its answer: the host's collector, valid during the call. No memory changes its owner.
#[repr(C)]
#[derive(Clone, Copy, StableAbi)]
pub struct Emit<'a> {
    collector: *mut u8,
    take: unsafe extern "C" fn(collector: *mut u8, kind: u32, bytes: *const u8, length: u64, stride: u64),
    lifetime: PhantomData<&'a mut u8>,
}

impl<'a> Emit<'a> {
    /// A way into `collector`, whose closure sees each row of records while its bytes are valid.
    pub fn into<F: FnMut(u32, Records<'_>)>(collector: &'a mut F) -> Self {
        /// Called by the plugin, on the thread of the call.
        unsafe extern "C" fn take<F: FnMut(u32, Records<'_>)>(
            collector: *mut u8,
            kind: u32,
            bytes: *const u8,
            length: u64,
            stride: u64,
        ) {
            let bytes = if length == 0 || bytes.is_null() {
                &[][..]
            } else {
                // SAFETY: the plugin lends these bytes for this call.
                unsafe { std::slice::from_raw_parts(bytes, length as usize) }
            };
            // SAFETY: made from an exclusive borrow of an `F` that outlives the call, used on one thread.
            let collector = unsafe { &mut *collector.cast::<F>() };
            // A collector only copies; should it panic all the same, the record is missing, which reads as a failure.
            let _ = crate::thread::guarded(|| collector(kind, Records::with_stride(bytes, stride)));
        }
        Self { collector: std::ptr::from_mut(collector).cast(), take: take::<F>, lifetime: PhantomData }
    }

    /// Answers a row of records.
    pub fn records(&self, kind: u32, records: Records<'_>) {
        let bytes = records.as_bytes();
        // SAFETY: the host made this value for the call under way; the bytes live until `take` returns.
        unsafe { (self.take)(self.collector, kind, bytes.as_ptr(), bytes.len() as u64, records.stride) }
    }

    /// Answers one record.
    pub fn one<T: Plain>(&self, kind: u32, value: &T) {
        self.records(kind, Records::of(std::slice::from_ref(value)));
    }

    /// Answers an error.
    pub fn error(&self, kind: u32, span: std::ops::Range<usize>, message: &str) {
        let raw = ErrorRaw {
            kind,
            reserved: 0,
            span_start: span.start as u64,
            span_end: span.end as u64,
            message: Text::of(message.as_bytes()),
        };
        self.one(record::ERROR, &raw);
    }
}
