//! The remote backend as a shared object: the export, and nothing else.

umbp_plugin_api::export_backend!(umbp_backend_remote::Remote);
