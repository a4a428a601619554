//! The two frozen shapes: the root module of a plugin, and the object that `open` answers.
//!
//! abi_stable refuses an older plugin on a host whose trait gained a method, even one with a default. So the list of
//! calls is whole now and never changes within a major version.

// The derives and the attribute write items and thunks of their own, without docs and inside functions.
#![allow(missing_docs, non_local_definitions, unreachable_pub, clippy::undocumented_unsafe_blocks)]

use abi_stable::library::RootModule;
use abi_stable::sabi_types::VersionStrings;
use abi_stable::std_types::{RBox, ROption, RSlice, RSliceMut, RStr};
use abi_stable::{StableAbi, sabi_trait};

use super::plain::{Emit, Records};

/// The calls into an open backend. Each answers a [`crate::Status`] as a number; what else it answers goes through
/// `Emit`. The meaning of each is that of the method of the same name in [`crate::Backend`].
#[sabi_trait]
pub trait Object: Send + Sync {
    fn segment_create(&self, id: u64, length: u64, answer: Emit<'_>) -> u32;
    fn segment_destroy(&self, id: u64) -> u32;
    /// # Safety
    /// As [`crate::Backend::region_register`].
    unsafe fn region_register(&self, id: u64, address: *mut u8, length: u64, device: RStr<'_>) -> u32;
    fn region_unregister(&self, id: u64) -> u32;
    fn namespace_put(&self, id: u32, digest: &[u8; 32], descriptor: RSlice<'_, u8>) -> u32;
    fn namespace_drop(&self, id: u32) -> u32;
    fn submit(&self, operations: Records<'_>, results: RSliceMut<'_, u32>) -> u32;
    fn cancel(&self, ids: RSlice<'_, u64>) -> u32;
    fn flush(&self) -> u32;
    fn recover_namespaces(&self, answer: Emit<'_>) -> u32;
    fn recover(&self, cursor: u64, limit: u64, answer: Emit<'_>) -> u32;
    fn stats(&self, answer: Emit<'_>) -> u32;
    fn extension(&self, id: u64, input: RSlice<'_, u8>, answer: Emit<'_>) -> u32;
    #[sabi(last_prefix_field)]
    fn shutdown(&self, deadline_ns: u64) -> u32;
}

/// An open backend as it crosses the boundary; dropping it drops the backend.
pub type BackendObject = Object_TO<'static, RBox<()>>;

/// Role numbers of the root module.
pub mod role {
    /// [`crate::Role::Storage`].
    pub const STORAGE: u32 = 1;
    /// [`crate::Role::Mover`].
    pub const MOVER: u32 = 2;
}

/// The root module: what is known without `open`, and the two calls that need no object.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = RootRef, prefix_fields = RootPrefix)))]
pub struct Root {
    /// A field that only the tests' plugin of another layout has.
    #[cfg(feature = "__other_layout")]
    pub other: u64,
    /// See [`crate::Info`], also for the next five.
    pub name: RStr<'static>,
    pub version: RStr<'static>,
    /// One of [`role`].
    pub role: u32,
    pub mappable: bool,
    pub persistent: bool,
    pub shared: bool,
    /// Answers a status; emits the resolved text as bytes, or an error.
    pub check_options: extern "C" fn(text: RStr<'_>, answer: Emit<'_>) -> u32,
    /// Config is one `ConfigRaw`, services one `ServicesRaw`; emits an `OpenedRaw` or an error.
    #[sabi(last_prefix_field)]
    pub open: extern "C" fn(config: Records<'_>, services: Records<'_>, answer: Emit<'_>) -> ROption<BackendObject>,
}

impl RootModule for RootRef {
    abi_stable::declare_root_module_statics! {RootRef}
    const BASE_NAME: &'static str = "umbp_plugin";
    const NAME: &'static str = "umbp_plugin";
    const VERSION_STRINGS: VersionStrings = abi_stable::package_version_strings!();
}
