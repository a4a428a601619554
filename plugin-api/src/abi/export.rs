//! What `export_backend!` writes into a plugin: two statics, and functions behind them.

use std::sync::Arc;

use abi_stable::erased_types::TD_Opaque;
use abi_stable::library::{CheckTypeLayout, LibHeader, RootModuleResult};
use abi_stable::prefix_type::{PrefixRefTrait, PrefixTypeTrait};
use abi_stable::std_types::{RNone, ROk, ROption, RSome, RStr};

use crate::backend::{Backend, Host, OpenConfig, OptionsError, Role};
use crate::thread::guarded;
use crate::types::Status;

use super::guard::{Guard, emit_open_error};
use super::object::{BackendObject, Object_TO, Root, RootRef, role};
use super::plain::{Emit, Records, record};
use super::raw::{ConfigRaw, OpenedRaw, Text, error_kind};
use super::services::Services;

/// The header of the root module of a plugin that exports `T`.
pub const fn root_header<T: Backend>() -> LibHeader {
    // SAFETY: `construct` answers a `RootRef`, cast as this function's contract says.
    unsafe { LibHeader::from_constructor::<RootRef>(construct::<T>, CheckTypeLayout::Yes) }
}

/// Called once per load. Only constants go in, so that nothing of the author's runs here.
extern "C" fn construct<T: Backend>() -> RootModuleResult {
    let root = Root {
        #[cfg(feature = "__other_layout")]
        other: 0,
        name: RStr::from_str(T::INFO.name),
        version: RStr::from_str(T::INFO.version),
        role: match T::INFO.role {
            Role::Storage => role::STORAGE,
            Role::Mover => role::MOVER,
        },
        mappable: T::INFO.mappable,
        persistent: T::INFO.persistent,
        shared: T::INFO.shared,
        check_options: check_options::<T>,
        open: open::<T>,
    };
    // SAFETY: the host casts back to the same prefix type, after the layout check.
    ROk(unsafe { root.leak_into_prefix().to_prefix_ref().cast() })
}

extern "C" fn check_options<T: Backend>(text: RStr<'_>, answer: Emit<'_>) -> u32 {
    let status = match guarded(|| T::check_options(text.as_str())) {
        Ok(Ok(resolved)) => {
            answer.records(record::BYTES, Records::bytes(resolved.as_bytes()));
            Status::OK
        }
        Ok(Err(OptionsError { message, span })) => {
            answer.error(error_kind::OPTIONS, span, &message);
            Status::INVALID
        }
        Err(text) => {
            answer.error(error_kind::PANICKED, 0..0, &format!("panic in check_options: {text}"));
            Status::PANICKED
        }
    };
    status.0
}

extern "C" fn open<T: Backend>(config: Records<'_>, services: Records<'_>, answer: Emit<'_>) -> ROption<BackendObject> {
    // The whole body is guarded, not the author's call alone: an unwind out of `extern "C"` would end the daemon.
    let opened = guarded(|| {
        let config: ConfigRaw = config.first();
        // SAFETY: texts and table come from a host of this major version, and live during this call.
        let (config, services) = unsafe {
            let (tier, options) = (config.tier.string(), config.options.string());
            let config = OpenConfig { tier, capacity: config.capacity, options, slots: config.slots };
            (config, Services::new(services))
        };
        match T::open(&config, Host(Arc::new(services))) {
            Ok((backend, opened)) => {
                let raw = OpenedRaw {
                    alignment: opened.alignment,
                    largest_payload: opened.largest_payload,
                    file_extent: u32::from(opened.file_extent),
                    reserved: 0,
                    report: Text::of(opened.report.as_bytes()),
                };
                answer.one(record::OPENED, &raw);
                Some(Object_TO::from_value(Guard::new(backend, services), TD_Opaque))
            }
            Err(error) => {
                emit_open_error(answer, &error);
                None
            }
        }
    });
    match opened {
        Ok(Some(object)) => RSome(object),
        Ok(None) => RNone,
        Err(text) => {
            answer.error(error_kind::PANICKED, 0..0, &format!("panic in open: {text}"));
            RNone
        }
    }
}

/// Exports a [`Backend`] from a `cdylib`. Once per shared object; the crate needs no other dependency
/// than `umbp-plugin-api` with the feature `abi`.
///
/// ```text
/// umbp_plugin_api::export_backend!(MyBackend);
/// ```
#[macro_export]
macro_rules! export_backend {
    ($backend:ty) => {
        #[cfg(panic = "abort")]
        ::core::compile_error!(
            "a UMBP backend must be built with panic = \"unwind\": a panic has to end the tier, not the daemon"
        );

        const _: () = {
            #[unsafe(export_name = "umbp_plugin_preflight_v1")]
            static PREFLIGHT: $crate::abi::preflight::Preflight = $crate::abi::preflight::Preflight::CURRENT;

            #[unsafe(export_name = "umbp_plugin_root_v1")]
            static ROOT: $crate::abi::export::RootHeader = $crate::abi::export::root_header::<$backend>();
        };
    };
}

/// The type of the exported root header, named here so that a plugin needs no dependency on abi_stable.
pub type RootHeader = LibHeader;
