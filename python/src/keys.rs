//! Text keys of one namespace.

use umbp_connector_core::key::{LocalKey, TextKey};

/// The keys of one namespace, by the name that stands in their text.
pub(crate) struct Names {
    namespace: String,
}

impl Names {
    pub(crate) fn new(namespace: String) -> Self {
        Self { namespace }
    }

    /// None for a text that is no key, or one of another namespace: such a key is nowhere.
    pub(crate) fn parse(&self, text: &str) -> Option<LocalKey> {
        let key = TextKey::parse(text).ok()?;
        (key.namespace == self.namespace).then_some(key.local)
    }

    pub(crate) fn text(&self, local: LocalKey) -> String {
        TextKey { namespace: &self.namespace, local }.to_string()
    }
}
