//! Plain structs as bytes: how everything that may grow crosses the boundary.
//!
//! Records cross as one stretch of bytes and a stride. The reader takes min(stride, its own size) of each record and
//! fills the rest with zero, so either side may know more fields than the other.

use std::borrow::Cow;
use std::marker::PhantomData;

use abi_stable::StableAbi;
use abi_stable::std_types::RSlice;

use crate::types::{Completion, Operation, RecoveredBlock, Run};

use super::raw::{ErrorRaw, Text};

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
pub(super) use plain;

// Of the structs in `types`, whose fields are documented there, the sizes are frozen for this minor version.
const GROWN: usize = if cfg!(feature = "__grown") { 8 } else { 0 };
const _: () = assert!(size_of::<Operation>() == 184 + GROWN && size_of::<Run>() == 32 + GROWN);
const _: () = assert!(size_of::<Completion>() == 104 + GROWN && size_of::<RecoveredBlock>() == 128 + GROWN);
// SAFETY: repr(C), integers only; the sizes above leave no room for padding.
unsafe impl Plain for Operation {}
// SAFETY: as above.
unsafe impl Plain for Run {}
// SAFETY: as above.
unsafe impl Plain for Completion {}
// SAFETY: as above.
unsafe impl Plain for RecoveredBlock {}

impl Operation {
    /// Movers: lets the operation name these runs. The caller keeps them alive while the operation is submitted.
    pub fn name_runs(&mut self, runs: &[Run]) {
        self.runs = runs.as_ptr() as u64;
        self.runs_count = u32::try_from(runs.len()).unwrap_or(u32::MAX);
        self.runs_stride = size_of::<Run>() as u32;
    }

    /// Movers: copies the runs out, each cut or filled with zeros to this side's size.
    ///
    /// # Safety
    /// The operation is one of those that `submit` was called with, and `submit` has not returned.
    pub unsafe fn copy_runs(&self) -> Vec<Run> {
        let length = u64::from(self.runs_count) * u64::from(self.runs_stride);
        if self.runs == 0 || length == 0 {
            return Vec::new();
        }
        // SAFETY: the host keeps so many bytes valid until `submit` returns.
        let bytes = unsafe { std::slice::from_raw_parts(self.runs as *const u8, length as usize) };
        Records::with_stride(bytes, u64::from(self.runs_stride)).iter().collect()
    }
}

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
    /// [`crate::abi::raw::ErrorRaw`].
    pub const ERROR: u32 = 1;
    /// [`crate::abi::raw::OpenedRaw`].
    pub const OPENED: u32 = 2;
    /// [`crate::abi::raw::SegmentRaw`].
    pub const SEGMENT: u32 = 3;
    /// [`crate::abi::raw::NamespaceRaw`].
    pub const NAMESPACE: u32 = 4;
    /// [`crate::types::RecoveredBlock`].
    pub const BLOCK: u32 = 5;
    /// [`crate::abi::raw::CursorRaw`].
    pub const CURSOR: u32 = 6;
    /// [`crate::abi::raw::StatsRaw`].
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_any_stride_are_read_as_far_as_both_know_them() {
        let runs: Vec<Run> = (1..4).map(|at| Run { region: at, length: 10 * at, ..Run::default() }).collect();
        let bytes = bytes_of_slice(&runs);
        for stride in [8, 16, 24, 32, 40, 1000] {
            // The other side knows `stride` bytes of each.
            let mut foreign = Vec::new();
            for run in bytes.chunks_exact(size_of::<Run>()) {
                let mut record = run.to_vec();
                record.resize(stride, 0xee);
                foreign.extend(record);
            }
            let records = Records::with_stride(&foreign, stride as u64);
            let found: Vec<_> = records.to_slice::<Run>().iter().map(|run| (run.region, run.length)).collect();
            let known = |length| if stride >= 24 { length } else { 0 };
            assert_eq!(found, [(1, known(10)), (2, known(20)), (3, known(30))], "stride {stride}");
        }
    }

    #[test]
    fn records_of_no_stride_or_of_no_bytes_are_no_panic() {
        for (bytes, stride, count) in
            [(&[][..], 0, 0), (&[][..], 8, 0), (&[1, 2, 3][..], 8, 0), (&[1, 2][..], u64::MAX, 0)]
        {
            let records = Records::with_stride(bytes, stride);
            assert_eq!((records.count(), records.first::<Run>().region), (count, 0));
        }
        assert_eq!(Records::with_stride(&[1, 2], 0).count(), 2);
    }

    #[test]
    fn unaligned_records_are_copied() {
        let run = Run { region: 7, ..Run::default() };
        let mut bytes = vec![0];
        bytes.extend_from_slice(bytes_of(&run));
        let records = Records::with_stride(&bytes[1..], size_of::<Run>() as u64);
        assert_eq!(records.to_slice::<Run>()[0].region, 7);
    }

    #[test]
    fn an_operation_carries_its_runs() {
        let runs = [Run { region: 1, ..Run::default() }, Run { region: 2, ..Run::default() }];
        let mut operation = Operation::default();
        // SAFETY: it names none.
        assert!(unsafe { operation.copy_runs() }.is_empty());
        operation.name_runs(&runs);
        // SAFETY: `runs` is alive.
        let copied = unsafe { operation.copy_runs() };
        assert_eq!(copied.iter().map(|run| run.region).collect::<Vec<_>>(), [1, 2]);
    }
}
