//! The C table for a plugin, over the daemon's services.
//!
//! The context behind it is leaked on purpose: a plugin's thread that outlives `shutdown`, or a plugin that was given
//! up, may call at any time until the process ends, and such a call must land in valid memory. The cost is a few
//! words for each `open`.

use std::sync::{Arc, OnceLock};

use crate::abi::plain::Records;
use crate::abi::services::{ServicesRaw, level_of};
use crate::backend::HostServices;
use crate::thread::guarded;
use crate::types::Completion;

/// What the table's context points to.
pub(super) struct Context {
    services: Arc<dyn HostServices>,
    failure: OnceLock<String>,
}

impl Context {
    /// A context that lives until the process ends.
    pub(super) fn leak(services: Arc<dyn HostServices>) -> &'static Self {
        Box::leak(Box::new(Self { services, failure: OnceLock::new() }))
    }

    /// The table for it.
    pub(super) fn table(&'static self) -> ServicesRaw {
        ServicesRaw {
            context: std::ptr::from_ref(self).cast(),
            log: Some(log),
            count: Some(count),
            complete: Some(complete),
            panicked: Some(panicked),
        }
    }

    /// The first failure: a panic of the plugin, or of a service.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    fn fail(&self, text: String) {
        // The first cause is the one to read.
        let _ = self.failure.set(text);
    }

    /// Runs a service; its panic must not unwind into the plugin.
    fn serve(&self, name: &str, body: impl FnOnce(&dyn HostServices)) {
        if let Err(text) = guarded(|| body(&*self.services)) {
            self.fail(format!("panic in the host's {name}: {text}"));
        }
    }
}

/// # Safety
/// `context` comes from [`Context::table`].
unsafe fn context_of(context: *const u8) -> &'static Context {
    // SAFETY: leaked, hence valid for ever; shared only.
    unsafe { &*context.cast::<Context>() }
}

/// # Safety
/// The plugin lends `length` bytes for this call.
unsafe fn bytes_of<'a>(bytes: *const u8, length: u64) -> &'a [u8] {
    if bytes.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: the caller vouches for the stretch.
    unsafe { std::slice::from_raw_parts(bytes, length as usize) }
}

unsafe extern "C" fn log(context: *const u8, level: u32, text: *const u8, length: u64) {
    // SAFETY: the plugin passes its own context and lends the text.
    let (context, text) = unsafe { (context_of(context), bytes_of(text, length)) };
    context.serve("log", |services| services.log(level_of(level), &String::from_utf8_lossy(text)));
}

unsafe extern "C" fn count(context: *const u8, name: *const u8, length: u64, delta: u64) {
    // SAFETY: the plugin passes its own context and lends the name.
    let (context, name) = unsafe { (context_of(context), bytes_of(name, length)) };
    context.serve("count", |services| services.count(&String::from_utf8_lossy(name), delta));
}

unsafe extern "C" fn complete(context: *const u8, completions: *const u8, length: u64, stride: u64) {
    // SAFETY: the plugin passes its own context and lends the records.
    let (context, bytes) = unsafe { (context_of(context), bytes_of(completions, length)) };
    context.serve("complete", |services| {
        services.complete(&Records::with_stride(bytes, stride).to_slice::<Completion>());
    });
}

unsafe extern "C" fn panicked(context: *const u8, text: *const u8, length: u64) {
    // SAFETY: the plugin passes its own context and lends the text.
    let (context, text) = unsafe { (context_of(context), bytes_of(text, length)) };
    context.fail(String::from_utf8_lossy(text).into_owned());
}
