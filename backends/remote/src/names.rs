//! Names of objects: below the prefix, and nowhere else.

use std::fmt::Write;

use umbp_plugin_api::types::KEY_BYTES;

/// How names are put together.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    start: String,
    step: char,
    part: char,
}

impl Names {
    /// `prefix:namespace:key`, and `:upload:number` behind it for a part.
    pub(crate) fn redis(prefix: &str) -> Self {
        Self { start: format!("{prefix}:"), step: ':', part: ':' }
    }

    /// `prefix/namespace/key`, and `.upload.number` behind it for a part.
    pub(crate) fn s3(prefix: &str) -> Self {
        Self { start: format!("{prefix}/"), step: '/', part: '.' }
    }

    /// The name of a block's object.
    pub(crate) fn block(&self, namespace: &[u8; 32], key: &[u8; KEY_BYTES]) -> String {
        let mut name = String::with_capacity(self.start.len() + 2 * (32 + KEY_BYTES) + 1);
        name.push_str(&self.start);
        push_hex(&mut name, namespace);
        name.push(self.step);
        push_hex(&mut name, key);
        name
    }

    /// The name of one of a block's parts.
    pub(crate) fn part(&self, block: &str, upload: u64, part: u32) -> String {
        let mut name = String::with_capacity(block.len() + 24);
        let mark = self.part;
        // Writing to a text cannot fail.
        let _ = write!(name, "{block}{mark}{upload:016x}{mark}{part}");
        name
    }
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_prefix_namespace_and_key() {
        let (namespace, key) = ([0xab; 32], [0x01; KEY_BYTES]);
        let name = Names::redis("team/kv").block(&namespace, &key);
        assert_eq!(name, format!("team/kv:{}:{}", "ab".repeat(32), "01".repeat(44)));
        assert_eq!(Names::redis("kv").part("n", 0x1f, 7), "n:000000000000001f:7");
        let name = Names::s3("kv").block(&namespace, &key);
        assert_eq!(name, format!("kv/{}/{}", "ab".repeat(32), "01".repeat(44)));
        assert_eq!(Names::s3("kv").part("n", 0x1f, 7), "n.000000000000001f.7");
    }
}
