//! Threads of a backend, and panics turned into words.
//!
//! A panic on a thread of the backend's own ends that thread alone, and nobody would complete its operations. So a
//! backend starts its threads here, and says what to do when one is lost: usually to complete what it held with
//! [`Status::PANICKED`](crate::Status::PANICKED) and to refuse what comes.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, JoinHandle};

/// Starts a thread. Should `body` panic, `lost` is called with the panic's words, on the same thread. The thread
/// itself always ends in order, so `join` answers `Ok`.
pub fn spawn_guarded<Body, Lost>(name: &str, body: Body, lost: Lost) -> std::io::Result<JoinHandle<()>>
where
    Body: FnOnce() + Send + 'static,
    Lost: FnOnce(&str) + Send + 'static,
{
    Builder::new().name(name.to_owned()).spawn(move || {
        if let Err(text) = guarded(body) {
            // A panic in the handler has nobody left to tell.
            let _ = guarded(|| lost(&text));
        }
    })
}

/// Runs `body`; a panic comes back as its words. What a panic leaves half-done must not be entered again: that is the
/// caller's part.
pub fn guarded<R>(body: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(body)).map_err(panic_text)
}

/// The words of a panic. The payload is forgotten, since dropping it could panic again.
fn panic_text(payload: Box<dyn Any + Send>) -> String {
    let text = match (payload.downcast_ref::<&'static str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "a value that is no text".to_owned(),
    };
    std::mem::forget(payload);
    text
}
