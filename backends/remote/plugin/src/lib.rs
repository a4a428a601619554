//! The remote backend as a shared object: the export, and the allocator of all that is in it.

use umbp_backend_remote::keep::Keep;

#[global_allocator]
static KEEP: Keep = Keep::new();

umbp_plugin_api::export_backend!(umbp_backend_remote::Remote);
