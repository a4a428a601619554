//! The author's side of the boundary: everything that a plugin exports, behind one macro.
//!
//! Two symbols leave a plugin. `umbp_plugin_preflight_v1` is a plain C static, frozen for ever, which tells the API's
//! version before any other code of the plugin runs. `umbp_plugin_root_v1` is an `abi_stable` root module: what is
//! known without `open`, and `open` itself, which answers a `sabi_trait` object. Both shapes are frozen within one
//! major version; the API grows by operation codes, by `extension`, and at the end of plain structs ([`plain`]).
//!
//! Modules in reading order: [`preflight`] (the frozen static), [`plain`] (structs as bytes with a stride), [`raw`]
//! (what calls answer), [`object`] (root module and object), [`guard`] (no panic leaves the plugin), [`services`] (the
//! host, seen from the plugin), [`export`] (the macro's helpers).

pub mod export;
pub mod guard;
pub mod object;
pub mod plain;
pub mod preflight;
pub mod raw;
pub mod services;

pub use preflight::{API_MAJOR, API_MINOR};
