//! What is fed with mutated bytes, and what must hold for any of them.

mod frame;
mod nvme;

use std::hash::{DefaultHasher, Hash, Hasher};

/// A decoder under test.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) name: &'static str,
    /// Feeds an input; panics where a claim does not hold. Answers a signature of the outcome.
    pub(crate) run: fn(&[u8]) -> u64,
    /// Mends what every mutation breaks, such as a checksum, so that the parser behind it is reached too. The number
    /// is random.
    pub(crate) repair: fn(&mut [u8], u64),
    /// Valid inputs, from the encoders.
    pub(crate) seeds: fn() -> Vec<(String, Vec<u8>)>,
}

/// Every target.
pub(crate) fn all() -> Vec<Target> {
    vec![frame::target(), nvme::target()]
}

/// A signature of texts: their letters without the numbers in them, so that an error is one outcome whatever the
/// values that it names.
fn signature(texts: &[String]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for text in texts {
        text.split(|c: char| c.is_ascii_digit()).for_each(|part| part.hash(&mut hasher));
    }
    hasher.finish()
}
